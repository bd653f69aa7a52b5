#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ptrdiff_t width_of(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_BOOL: return 1;
    case ATTN_F16: return 2;
    case ATTN_F32: return 4;
    case ATTN_LONG_DOUBLE: return sizeof(long double);
    default: return 8;
    }
}

void tensor_make(tensor *t, attn_dtype dtype, const ptrdiff_t size[ROLES], const int *roles, int count, int axes,
                 const storage *s)
{
    const ptrdiff_t width = width_of(dtype);
    ptrdiff_t step = width * s->stretch, extent = width, before = 0;
    t->dtype = dtype;

    /* 1. a step for each role, from the fastest */
    for (int n = ROLES - 1; n >= 0; n--) {
        const int role = s->order[n];
        t->size[role] = size[role];
        t->step[role] = 0;
        if (size[role] <= 1 || (s->repeated >> role & 1)) continue;
        if (role == ROW && s->row_multiple) step = (step + s->row_multiple - 1) / s->row_multiple * s->row_multiple;
        const int reversed = (int)(s->reversed >> role & 1);
        t->step[role] = reversed ? -step : step;
        if (reversed) before += (size[role] - 1) * step;
        extent += (size[role] - 1) * step;
        step = step * size[role] + s->padding * width;
    }

    /* 2. memory that ends with the last element */
    t->bytes = (size_t)(extent + (s->lead + s->tail) * width);
    t->memory = take(t->bytes);
    t->data = t->memory + s->lead * width + before;
    tensor_wipe(t);

    /* 3. the view; an axis of size 1 may have any stride */
    t->ndim = axes;
    for (int n = 0; n < axes; n++) {
        const int role = roles[count - axes + n];
        t->shape[n] = size[role];
        t->strides[n] = size[role] == 1 ? (ptrdiff_t)(INT64_C(1) << 40) : t->step[role];
    }
}

void tensor_free(tensor *t)
{
    free(t->memory);
    t->memory = t->data = NULL;
}

attn_tensor tensor_view(const tensor *t) { return strided(t->data, t->dtype, (size_t)t->ndim, t->shape, t->strides); }

ptrdiff_t tensor_count(const tensor *t)
{
    ptrdiff_t count = 1;
    for (int role = 0; role < ROLES; role++) count *= t->size[role];
    return count;
}

void tensor_next(const tensor *t, ptrdiff_t at[ROLES])
{
    for (int role = ROLES - 1; role >= 0; role--) {
        if (++at[role] < t->size[role]) return;
        at[role] = 0;
    }
}

char *tensor_at(const tensor *t, const ptrdiff_t at[ROLES])
{
    char *p = t->data;
    for (int role = 0; role < ROLES; role++) p += at[role] * t->step[role];
    return p;
}

/* Normal numbers, 0 and infinities: the tests draw no others. */
static uint16_t half_of(double x)
{
    const unsigned sign = signbit(x) ? 0x8000 : 0;
    if (x == 0) return (uint16_t)sign;
    if (isinf(x)) return (uint16_t)(sign | 0x7c00);
    const int exponent = ilogb(x);
    return (uint16_t)(sign | (unsigned)(exponent + 15) << 10 | (unsigned)((fabs(scalbn(x, -exponent)) - 1) * 1024));
}

static double double_of(uint16_t half)
{
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double x = exponent == 0    ? 0
                     : exponent == 31 ? (double)INFINITY
                                      : scalbn(1 + fraction / 1024.0, exponent - 15);
    return half & 0x8000 ? -x : x;
}

double tensor_get(const tensor *t, const ptrdiff_t at[ROLES])
{
    const void *p = tensor_at(t, at);
    switch (t->dtype) {
    case ATTN_BOOL: return *(const unsigned char *)p != 0;
    case ATTN_F16: return double_of(*(const uint16_t *)p);
    case ATTN_F32: return *(const float *)p;
    case ATTN_F64: return *(const double *)p;
    case ATTN_LONG_DOUBLE: return (double)*(const long double *)p;
    default: return (double)*(const int64_t *)p;
    }
}

void tensor_set(tensor *t, const ptrdiff_t at[ROLES], double x)
{
    void *p = tensor_at(t, at);
    switch (t->dtype) {
    case ATTN_BOOL: *(unsigned char *)p = (unsigned char)x; break;
    case ATTN_F16: *(uint16_t *)p = half_of(x); break;
    case ATTN_F32: *(float *)p = (float)x; break;
    case ATTN_F64: *(double *)p = x; break;
    case ATTN_LONG_DOUBLE: *(long double *)p = x; break;
    default: *(int64_t *)p = (int64_t)x; break;
    }
}

void tensor_wipe(tensor *t) { memset(t->memory, 0xff, t->bytes); }

int tensor_kept_gaps(const tensor *t)
{
    char *copy = take(t->bytes);
    memcpy(copy, t->memory, t->bytes);
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(t); left > 0; left--, tensor_next(t, at))
        memset(copy + (tensor_at(t, at) - t->memory), 0xff, (size_t)width_of(t->dtype));
    int kept = 1;
    for (size_t n = 0; n < t->bytes; n++) kept &= (unsigned char)copy[n] == 0xff;
    free(copy);
    return kept;
}

/* FNV-1a, eight bytes at a time. */
uint64_t tensor_hash(const tensor *t)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(t); left > 0; left--, tensor_next(t, at)) {
        uint64_t bits = 0;
        if (!isnan(tensor_get(t, at)))
            memcpy(&bits, tensor_at(t, at), (size_t)width_of(t->dtype));
        else
            bits = 0x7ff8;
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    return hash;
}
