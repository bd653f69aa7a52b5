/* Rotary position embedding against long double: error bounds, in place, out of memory, and refused calls. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { AXES = 4, MOST_PAIRS = 40 };

/* A drawn case: x (batch, heads, length, dim), or with length and heads exchanged. */
typedef struct {
    attn_dtype dtype;
    ptrdiff_t size, pairs, shape[AXES], strides[AXES], length, ids_shape[2], ids_strides[2];
    double inv_freq[MOST_PAIRS];
    int64_t *ids;
    attn_rotary_args args;
    char *x;
    size_t bytes;
} rotary_case;

static double get(attn_dtype dtype, const void *numbers, ptrdiff_t n)
{
    return dtype == ATTN_F32 ? (double)((const float *)numbers)[n] : ((const double *)numbers)[n];
}

static const ptrdiff_t one_stride[] = {sizeof(double)};

static void draw_case(rotary_case *c, attn_dtype dtype, lcg *g)
{
    *c = (rotary_case){.dtype = dtype, .size = dtype == ATTN_F32 ? 4 : 8};
    const int swapped = draw_one_in(g, 2);
    const ptrdiff_t heads = PICK(g, 1, 2, 5), batch = PICK(g, 1, 2, 3), dim = PICK(g, 2, 7, 16, 33, 40, 64, 80);
    c->length = PICK(g, 1, 2, 31, 32, 33, 70);
    c->pairs = draw_one_in(g, 3) ? draw_below(g, dim / 2 + 1) : dim / 2;
    memcpy(c->shape, LIST(batch, swapped ? c->length : heads, swapped ? heads : c->length, dim), sizeof c->shape);
    ptrdiff_t step = c->size;
    for (int n = AXES - 1; n >= 0; n--) {
        c->strides[n] = step;
        step *= c->shape[n];
    }
    c->bytes = (size_t)step;
    c->x = take(c->bytes);
    for (ptrdiff_t n = 0; n < step / c->size; n++) {
        if (dtype == ATTN_F32)
            ((float *)(void *)c->x)[n] = (float)draw_real(g, dtype);
        else
            ((double *)(void *)c->x)[n] = draw_real(g, dtype);
    }
    for (ptrdiff_t n = 0; n < c->pairs; n++) c->inv_freq[n] = pow(10000, -(double)n / (double)c->pairs);

    c->args = (attn_rotary_args){.x = strided(c->x, dtype, AXES, c->shape, c->strides),
                                 .inv_freq = strided(c->inv_freq, ATTN_F64, 1, &c->pairs, one_stride),
                                 .scale = draw_one_in(g, 2) ? 1 : 1.25,
                                 .offset = PICK(g, 0, 3, 700, -5),
                                 .interleaved = draw_one_in(g, 2),
                                 .layout = swapped ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD,
                                 .num_threads = 1 + (int)draw_below(g, 3)};
    c->ids_shape[0] = draw_one_in(g, 2) ? batch : 1;
    c->ids_shape[1] = c->length;
    c->ids_strides[0] = c->length * (ptrdiff_t)sizeof(int64_t);
    c->ids_strides[1] = sizeof(int64_t);
    c->ids = take((size_t)(c->ids_shape[0] * c->ids_strides[0]));
    for (ptrdiff_t n = 0; n < c->ids_shape[0] * c->length; n++) c->ids[n] = draw_below(g, 1000) - 100;
    if (draw_one_in(g, 2)) c->args.position_ids = strided(c->ids, ATTN_I64, 2, c->ids_shape, c->ids_strides);
}

static void free_case(rotary_case *c) { free(c->x), free(c->ids); }

static int64_t position_of(const rotary_case *c, ptrdiff_t batch, ptrdiff_t i)
{
    if (c->args.position_ids.data == NULL) return c->args.offset + i;
    return c->ids[(c->ids_shape[0] == 1 ? 0 : batch) * c->length + i];
}

/* The worst error of one row, in bounds of 4u * scale * (|a| + |b|); infinite where an unrotated feature changed. */
static double row_error(const rotary_case *c, int64_t position, const char *x, const char *y)
{
    const double u = c->dtype == ATTN_F32 ? 0x1p-24 : 0x1p-53, least = c->dtype == ATTN_F32 ? (double)FLT_MIN : DBL_MIN;
    double worst = 0;
    for (ptrdiff_t n = 0; n < c->pairs; n++) {
        const ptrdiff_t first = c->args.interleaved ? 2 * n : n, second = first + (c->args.interleaved ? 1 : c->pairs);
        const long double angle = (long double)position * c->inv_freq[n], scale = c->args.scale;
        const long double a = get(c->dtype, x, first), b = get(c->dtype, x, second);
        const long double rotated[] = {scale * (a * cosl(angle) - b * sinl(angle)),
                                       scale * (b * cosl(angle) + a * sinl(angle))};
        const double bound = 4 * u * (double)(scale * (fabsl(a) + fabsl(b))) + least;
        for (int k = 0; k < 2; k++) {
            const double error = fabs((double)(get(c->dtype, y, k ? second : first) - rotated[k])) / bound;
            if (!(error <= worst)) worst = isnan(error) ? (double)INFINITY : error;
        }
    }
    const ptrdiff_t rest = 2 * c->pairs * c->size;
    return memcmp(x + rest, y + rest, (size_t)(c->shape[3] * c->size - rest)) == 0 ? worst : (double)INFINITY;
}

static void claim_close(const rotary_case *c, const char *y)
{
    const int row_axis = c->args.layout == ATTN_LAYOUT_BSHD ? 1 : 2, head_axis = 3 - row_axis;
    double worst = 0;
    for (ptrdiff_t b = 0; b < c->shape[0]; b++)
        for (ptrdiff_t h = 0; h < c->shape[head_axis]; h++)
            for (ptrdiff_t i = 0; i < c->length; i++) {
                const ptrdiff_t at = b * c->strides[0] + h * c->strides[head_axis] + i * c->strides[row_axis];
                const double error = row_error(c, position_of(c, b, i), c->x + at, y + at);
                if (error > worst) worst = error;
            }
    CLAIM(worst <= 1, "%s: %td by %td rows of %td, %td pairs, is off by %g bounds", attn_isa(), c->shape[1],
          c->shape[2], c->shape[3], c->pairs, worst);
}

static void test_rotary(attn_dtype dtype, lcg *g)
{
    rotary_case c;
    attn_error error = {""};
    draw_case(&c, dtype, g);
    char *y = take(c.bytes);
    attn_tensor result = c.args.x;
    result.data = y;
    CLAIM(attn_rotary(&c.args, result, &error) == ATTN_OK, "%s", error.message);
    claim_close(&c, y);

    /* In place, and on another number of threads. */
    c.args.num_threads = 1 + (int)draw_below(g, 3);
    CLAIM(attn_rotary(&c.args, c.args.x, &error) == ATTN_OK, "%s", error.message);
    CLAIM(memcmp(c.x, y, c.bytes) == 0, "%s: in place has other bits", attn_isa());
    free_case(&c), free(y);
}

static double element;
static const ptrdiff_t whole[] = {2, 3, 5, 8}, packed[] = {480, 160, 32, 4}, pairs[] = {4};
static int64_t ids[] = {1, 2, (int64_t)1 << 60};

#define VIEW(dtype, ...) strided(&element, dtype, sizeof LIST(__VA_ARGS__) / sizeof(ptrdiff_t), LIST(__VA_ARGS__), NULL)
#define IDS(...)         strided(ids, ATTN_I64, sizeof LIST(__VA_ARGS__) / sizeof(ptrdiff_t), LIST(__VA_ARGS__), NULL)

static void claim_refused(const attn_rotary_args *args, attn_tensor y, const char *sentence, int line)
{
    attn_error error = {""};
    const attn_status status = attn_rotary(args, y, &error);
    CLAIM(status == ATTN_INVALID, "line %d: status %d", line, (int)status);
    CLAIM(strcmp(error.message, sentence) == 0, "line %d: \"%s\"", line, error.message);
}

/* Claims that a valid call, after some changes, is refused with this message. */
#define REFUSED(sentence, ...)                                                                                         \
    do {                                                                                                               \
        attn_tensor y = strided(&element, ATTN_F32, 4, whole, packed);                                                 \
        attn_rotary_args args = {.x = y, .inv_freq = strided(&element, ATTN_F64, 1, pairs, one_stride), .scale = 1};   \
        __VA_ARGS__;                                                                                                   \
        claim_refused(&args, y, sentence, __LINE__);                                                                   \
    } while (0)

static void test_mistakes(void)
{
    REFUSED("x has shape (8,), expected at least 2 axes: (..., length, dim)", args.x = VIEW(ATTN_F32, 8));
    REFUSED("x has shape (5, 8), expected at least 3 axes: (..., length, heads, dim)", args.x = VIEW(ATTN_F32, 5, 8);
            args.layout = ATTN_LAYOUT_BSHD);
    REFUSED("x has 9 axes, expected at most 8", args.x.ndim = ATTN_MAX_AXES + 1);
    REFUSED("x has shape (5, -8), expected sizes of 0 or more", args.x = VIEW(ATTN_F32, 5, -8));
    REFUSED("x must be float16, bfloat16, float32 or float64", args.x.dtype = ATTN_BOOL);
    REFUSED("the result is too large for memory: x (2, 2305843009213693952, 8)",
            args.x = VIEW(ATTN_F32, 2, (ptrdiff_t)(INT64_C(1) << 61), 8));
    REFUSED("inv_freq has shape (4,), expected (pairs,), and must be float64", args.inv_freq.dtype = ATTN_F32);
    REFUSED("inv_freq has shape (2, 2), expected (pairs,), and must be float64", args.inv_freq = VIEW(ATTN_F64, 2, 2));
    REFUSED("inv_freq has 5 pairs, but x has dim 8: at most 4 pairs. Given: x (2, 3, 5, 8)",
            args.inv_freq = VIEW(ATTN_F64, 5));
    REFUSED("inv_freq must be contiguous", args.inv_freq.strides[0] = 0);
    REFUSED("offset is 9007199254740989 and x has length 5, expected positions from -2**53 to 2**53",
            args.offset = (ptrdiff_t)((INT64_C(1) << 53) - 3));
    REFUSED("position_ids has shape (3, 5), which does not broadcast to (2, 5): (..., length), one for each row of all "
            "heads",
            args.position_ids = IDS(3, 5));
    REFUSED("position_ids has shape (1, 2, 5), which does not broadcast to (2, 5): (..., length), one for each row of "
            "all heads",
            args.position_ids = IDS(1, 2, 5));
    REFUSED("position_ids holds 1152921504606846976, expected positions from -2**53 to 2**53",
            args.position_ids = IDS(5);
            args.position_ids.data = ids + 2);
    REFUSED("x must have a contiguous last axis", args.x.strides[3] = 0);
    REFUSED("y must have a contiguous last axis", y.strides[3] = 0);
    REFUSED("y has another dtype than x", y.dtype = ATTN_F64);
    REFUSED("y has shape (2, 3, 5), expected (2, 3, 5, 8)", y.ndim = 3);
}

static void *no_memory(size_t bytes)
{
    (void)bytes;
    return NULL;
}

static void test_no_memory(lcg *g)
{
    rotary_case c;
    attn_error error = {""};
    do {
        draw_case(&c, ATTN_F32, g);
        if (c.bytes < 100000) free_case(&c);
    } while (c.bytes < 100000);
    char *before = take(c.bytes);
    memcpy(before, c.x, c.bytes);
    attn_set_hooks(&(attn_hooks){.allocate = no_memory, .release = free});
    const attn_status status = attn_rotary(&c.args, c.args.x, &error);
    attn_set_hooks(&(attn_hooks){.allocate = NULL});
    CLAIM(status == ATTN_NO_MEMORY && memcmp(before, c.x, c.bytes) == 0, "status %d: %s", (int)status, error.message);
    free_case(&c), free(before);
}

int main(void)
{
    lcg g = lcg_from(7);
    test_no_memory(&g);
    test_mistakes();
    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++)
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            for (int n = 0; n < 100; n++) test_rotary((attn_dtype)dtype, &g);
        }
    return report("test_rotary");
}
