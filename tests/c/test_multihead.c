/* Multi-head attention is bit-identical to its steps on contiguous arrays: projections, attention, output projection.
 * This includes joined projections, extra keys, weights averaged over heads, and an output in query's place. Rows
 * decoded with a cache are bit-identical to one call. Arguments that do not fit all queries are refused, even if they
 * fit the parts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { MOST_AXES = 4 };

/* A contiguous array. */
typedef struct {
    attn_dtype dtype;
    int ndim;
    ptrdiff_t shape[MOST_AXES], strides[MOST_AXES];
    char *data;
} array;

static ptrdiff_t size_of(attn_dtype dtype) { return dtype == ATTN_F32 ? sizeof(float) : sizeof(double); }

static array array_of(attn_dtype dtype, ptrdiff_t a, ptrdiff_t b, ptrdiff_t c, ptrdiff_t d, lcg *g)
{
    array x = {dtype, 0, {0}, {0}, NULL};
    const ptrdiff_t shape[MOST_AXES] = {a, b, c, d};
    ptrdiff_t count = 1;
    for (int n = 0; n < MOST_AXES; n++)
        if (shape[n] >= 0) x.shape[x.ndim++] = shape[n];
    for (int n = x.ndim - 1; n >= 0; n--) {
        x.strides[n] = count * size_of(dtype);
        count *= x.shape[n];
    }
    x.data = take((size_t)(count > 0 ? count : 1) * (size_t)size_of(dtype));
    for (ptrdiff_t n = 0; g != NULL && n < count; n++) {
        if (dtype == ATTN_F32)
            ((float *)(void *)x.data)[n] = (float)draw_real(g, dtype);
        else
            ((double *)(void *)x.data)[n] = draw_real(g, dtype);
    }
    return x;
}

static size_t bytes_of(const array *x) { return (size_t)(x->shape[0] * x->strides[0]); }
static attn_tensor view_of(const array *x) { return strided(x->data, x->dtype, (size_t)x->ndim, x->shape, x->strides); }

/* Rows [from, to) of a matrix, or elements of a vector. */
static attn_tensor rows_of(const array *x, ptrdiff_t from, ptrdiff_t to)
{
    attn_tensor view = view_of(x);
    view.shape[0] = to - from;
    view.data = x->data + from * x->strides[0];
    return view;
}

typedef struct {
    attn_dtype dtype;
    ptrdiff_t batch, q_len, kv_len, inner, heads, kv_heads, head_dim, v_dim, out_dim;
    int given, zero, self, projected;
} sizes;

static sizes draw_sizes(attn_dtype dtype, lcg *g)
{
    sizes s = {.dtype = dtype};
    s.batch = 1 + draw_below(g, 3);
    s.self = (int)draw_below(g, 2);
    s.q_len = PICK(g, 1, 2, 7, 40, 70);
    s.kv_len = s.self ? s.q_len : PICK(g, 1, 3, 33, 100);
    s.inner = PICK(g, 1, 12, 16, 33, 128);
    s.kv_heads = 1 + draw_below(g, 3);
    s.heads = s.kv_heads * (1 + draw_below(g, 3));
    s.head_dim = PICK(g, 1, 4, 16, 24);
    s.v_dim = PICK(g, 1, 5, 16);
    s.out_dim = PICK(g, 1, 10, 33);
    s.given = draw_one_in(g, 4);
    s.zero = draw_one_in(g, 4);
    s.projected = !draw_one_in(g, 4);
    return s;
}

/* (batch, length, heads * dim) of `x` into the first rows of (batch, length + extra, heads, dim). */
static void project(const array *x, attn_tensor weight, attn_tensor bias, array *into)
{
    attn_error error = {""};
    array flat = *into;
    flat.ndim = 3;
    flat.shape[1] = x->shape[1];
    flat.shape[2] = into->shape[2] * into->shape[3];
    flat.strides[2] = into->strides[3];
    const attn_linear_args args = {.x = view_of(x), .weight = weight, .bias = bias, .num_threads = 1};
    CLAIM(attn_linear(&args, view_of(&flat), &error) == ATTN_OK, "%s", error.message);
}

static void append(const sizes *s, const array *given, array *into)
{
    const size_t row = (size_t)into->strides[1];
    for (ptrdiff_t b = 0; b < into->shape[0]; b++) {
        char *at = into->data + b * into->strides[0] + s->kv_len * into->strides[1];
        if (s->given) memcpy(at, given->data, row);
        if (s->given) at += row;
        if (s->zero) memset(at, 0, row);
    }
}

static void test_multihead(attn_dtype dtype, lcg *g)
{
    const sizes s = draw_sizes(dtype, g);
    const ptrdiff_t fq = s.heads * s.head_dim, fk = s.kv_heads * s.head_dim, fv = s.kv_heads * s.v_dim;
    const ptrdiff_t total = s.kv_len + s.given + s.zero, side = s.heads * s.v_dim;
    array x[3] = {array_of(dtype, -1, s.batch, s.q_len, s.inner, g), array_of(dtype, -1, s.batch, s.kv_len, s.inner, g),
                  array_of(dtype, -1, s.batch, s.kv_len, s.inner, g)};
    array weight = array_of(dtype, -1, -1, fq + fk + fv, s.inner, g),
          bias = array_of(dtype, -1, -1, -1, fq + fk + fv, g);
    array out_weight = array_of(dtype, -1, -1, s.out_dim, side, g),
          out_bias = array_of(dtype, -1, -1, -1, s.out_dim, g);
    array extra[2] = {array_of(dtype, -1, -1, -1, fk, g), array_of(dtype, -1, -1, -1, fv, g)};
    array q = array_of(dtype, s.batch, s.q_len, s.heads, s.head_dim, NULL);
    array k = array_of(dtype, s.batch, total, s.kv_heads, s.head_dim, NULL);
    array v = array_of(dtype, s.batch, total, s.kv_heads, s.v_dim, NULL);
    array heads = array_of(dtype, s.batch, s.q_len, s.heads, s.v_dim, NULL);
    array expected = array_of(dtype, -1, s.batch, s.q_len, s.projected ? s.out_dim : side, NULL);
    array actual = array_of(dtype, -1, s.batch, s.q_len, s.projected ? s.out_dim : side, NULL);
    array weights = array_of(dtype, s.batch, s.heads, s.q_len, total, NULL);
    array same_weights = array_of(dtype, s.batch, s.heads, s.q_len, total, NULL);
    const ptrdiff_t from[] = {0, fq, fq + fk}, to[] = {fq, fq + fk, fq + fk + fv};
    attn_tensor part[3], part_bias[3];
    attn_error error = {""};
    const attn_tensor none = {.data = NULL};
    for (int n = 0; n < 3; n++) {
        part[n] = rows_of(&weight, from[n], to[n]);
        part_bias[n] = rows_of(&bias, from[n], to[n]);
    }
    const array *inputs[] = {&x[0], s.self ? &x[0] : &x[1], s.self ? &x[0] : &x[2]};

    /* 1. step by step */
    project(inputs[0], part[0], part_bias[0], &q);
    project(inputs[1], part[1], part_bias[1], &k);
    project(inputs[2], part[2], part_bias[2], &v);
    append(&s, &extra[0], &k);
    append(&s, &extra[1], &v);
    attn_args attention = {.window_left = ATTN_UNBOUNDED,
                           .window_right = ATTN_UNBOUNDED,
                           .num_threads = 1,
                           .is_causal = (int)draw_below(g, 2),
                           .align = ATTN_ALIGN_UPPER_LEFT};
    attn_multihead_args args = {.query = view_of(inputs[0]),
                                .key = view_of(inputs[1]),
                                .value = view_of(inputs[2]),
                                .q_weight = part[0],
                                .k_weight = part[1],
                                .v_weight = part[2],
                                .q_bias = part_bias[0],
                                .k_bias = part_bias[1],
                                .v_bias = part_bias[2],
                                .add_zero = s.zero,
                                .heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .attention = attention};
    attention.query = view_of(&q), attention.key = view_of(&k), attention.value = view_of(&v);
    attention.layout = ATTN_LAYOUT_BSHD;
    attention.extra_keys = s.given + s.zero;
    CLAIM(attn_attention(&attention, view_of(&heads), view_of(&weights), none, &error) == ATTN_OK, "%s", error.message);
    if (s.projected) {
        array rows = heads;
        rows.ndim = 3;
        rows.shape[2] = side;
        rows.strides[2] = heads.strides[3];
        const attn_linear_args last = {
            .x = view_of(&rows), .weight = view_of(&out_weight), .bias = view_of(&out_bias), .num_threads = 1};
        CLAIM(attn_linear(&last, view_of(&expected), &error) == ATTN_OK, "%s", error.message);
    } else {
        memcpy(expected.data, heads.data, bytes_of(&expected));
    }

    /* 2. at once, with any number of threads */
    if (s.given) args.extra_key = view_of(&extra[0]), args.extra_value = view_of(&extra[1]);
    if (s.projected) args.out_weight = view_of(&out_weight), args.out_bias = view_of(&out_bias);
    args.attention.num_threads = 1 + (int)draw_below(g, 3);
    CLAIM(attn_multihead(&args, view_of(&actual), view_of(&same_weights), &error) == ATTN_OK, "%s", error.message);
    char about[200];
    snprintf(about, sizeof about, "%s: %td x %td queries, %td keys (+%d+%d), %td/%td heads of %td and %td, inner %td%s",
             attn_isa(), s.batch, s.q_len, s.kv_len, s.given, s.zero, s.heads, s.kv_heads, s.head_dim, s.v_dim, s.inner,
             s.self ? ", of itself" : "");
    CLAIM(memcmp(expected.data, actual.data, bytes_of(&expected)) == 0, "%s: another output", about);
    CLAIM(memcmp(weights.data, same_weights.data, bytes_of(&weights)) == 0, "%s: other weights", about);

    /* 3. the mean over heads: the same terms in the same order */
    array mean = array_of(dtype, -1, s.batch, s.q_len, total, NULL),
          sum = array_of(dtype, -1, s.batch, s.q_len, total, NULL);
    args.attention.average_weights = 1;
    CLAIM(attn_multihead(&args, view_of(&actual), view_of(&mean), &error) == ATTN_OK, "%s", error.message);
    const double u = dtype == ATTN_F32 ? 0x1p-24 : 0x1p-53;
    double worst = 0;
    for (ptrdiff_t b = 0; b < s.batch; b++)
        for (ptrdiff_t n = 0; n < s.q_len * total; n++) {
            long double exact = 0;
            for (ptrdiff_t h = 0; h < s.heads; h++) {
                const ptrdiff_t at = (b * s.heads + h) * s.q_len * total + n;
                exact += dtype == ATTN_F32 ? (long double)((float *)(void *)weights.data)[at]
                                           : (long double)((double *)(void *)weights.data)[at];
            }
            exact /= (long double)s.heads;
            const ptrdiff_t at = b * s.q_len * total + n;
            const long double got = dtype == ATTN_F32 ? (long double)((float *)(void *)mean.data)[at]
                                                      : (long double)((double *)(void *)mean.data)[at];
            const double error_of =
                (double)((got > exact ? got - exact : exact - got) / (u * 3 * s.heads * exact + 1e-37L));
            if (!(error_of <= worst)) worst = error_of;
        }
    CLAIM(worst <= 1, "%s: the mean over heads is off by %g bounds", about, worst);
    CLAIM(memcmp(expected.data, actual.data, bytes_of(&expected)) == 0, "%s: another output beside the mean", about);

    array *all[] = {&x[0], &x[1], &x[2],  &weight,   &bias,   &out_weight, &out_bias,     &extra[0], &extra[1], &q,
                    &k,    &v,    &heads, &expected, &actual, &weights,    &same_weights, &mean,     &sum};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) free(all[n]->data);
}

/* Rows [from, to) of every batch entry. */
static attn_tensor part_of(const array *x, ptrdiff_t from, ptrdiff_t to)
{
    attn_tensor view = view_of(x);
    view.shape[1] = to - from;
    view.data = x->data + from * x->strides[1];
    return view;
}

static void test_in_parts(attn_dtype dtype, lcg *g)
{
    enum { MOST_BATCHES = 3, MOST_PAGES = 2 };
    const sizes s = draw_sizes(dtype, g);
    const ptrdiff_t length = PICK(g, 5, 64, 70, 128), dim = s.head_dim;
    const ptrdiff_t fq = s.heads * dim, fk = s.kv_heads * dim, fv = s.kv_heads * s.v_dim, side = s.heads * s.v_dim;
    array x = array_of(dtype, -1, s.batch, length, s.inner, g),
          weight = array_of(dtype, -1, -1, fq + fk + fv, s.inner, g);
    array out_weight = array_of(dtype, -1, -1, s.out_dim, side, g);
    array inv_freq = array_of(ATTN_F64, -1, -1, -1, dim / 2, g);
    array expected = array_of(dtype, -1, s.batch, length, s.out_dim, NULL);
    array actual = array_of(dtype, -1, s.batch, length, s.out_dim, NULL);
    ptrdiff_t starts[MOST_BATCHES], counts[MOST_BATCHES];
    void *pages[MOST_BATCHES][MOST_PAGES], *const *tables[MOST_BATCHES];
    const attn_tensor none = {.data = NULL};
    attn_error error = {""};
    attn_multihead_args args = {.query = view_of(&x),
                                .key = view_of(&x),
                                .value = view_of(&x),
                                .q_weight = rows_of(&weight, 0, fq),
                                .k_weight = rows_of(&weight, fq, fq + fk),
                                .v_weight = rows_of(&weight, fq + fk, fq + fk + fv),
                                .out_weight = view_of(&out_weight),
                                .heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .rotary = {.scale = 1, .interleaved = (int)draw_below(g, 2)},
                                .attention = {.window_left = ATTN_UNBOUNDED,
                                              .window_right = ATTN_UNBOUNDED,
                                              .num_threads = 1,
                                              .is_causal = 1,
                                              .align = ATTN_ALIGN_LOWER_RIGHT}};
    if (s.given) args.rotary.inv_freq = view_of(&inv_freq);
    CLAIM(attn_multihead(&args, view_of(&expected), none, &error) == ATTN_OK, "%s", error.message);

    attn_cache cache = {dtype, tables, counts, s.batch, s.kv_heads, dim, s.v_dim, 0};
    const size_t page_bytes = (size_t)(s.kv_heads * ATTN_PAGE_KEYS * (dim + s.v_dim) * size_of(dtype));
    for (ptrdiff_t b = 0; b < s.batch; b++) {
        tables[b] = pages[b];
        counts[b] = MOST_PAGES;
        for (int n = 0; n < MOST_PAGES; n++) pages[b][n] = take(page_bytes);
    }
    args.attention.cache = &cache;
    args.cache_first = starts;
    for (ptrdiff_t from = 0, to; from < length; from = to) {
        to = from + 1 + draw_below(g, length - from);
        for (ptrdiff_t b = 0; b < s.batch; b++) starts[b] = from;
        args.query = args.key = args.value = part_of(&x, from, to);
        args.rotary.offset = from;
        args.attention.num_threads = 1 + (int)draw_below(g, 3);
        cache.length = to;
        CLAIM(attn_multihead(&args, part_of(&actual, from, to), none, &error) == ATTN_OK, "%s", error.message);
    }
    CLAIM(memcmp(expected.data, actual.data, bytes_of(&expected)) == 0,
          "%s: %td rows in parts, %td/%td heads of %td and %td%s: other bits", attn_isa(), length, s.heads, s.kv_heads,
          dim, s.v_dim, s.given ? ", with RoPE" : "");

    /* attends to the cache without new keys */
    args.query = part_of(&x, length - 1, length);
    args.rotary.offset = length - 1;
    args.key = args.value = args.k_weight = args.v_weight = none;
    CLAIM(attn_multihead(&args, part_of(&actual, 0, 1), none, &error) == ATTN_OK, "%s", error.message);
    for (ptrdiff_t b = 0; b < s.batch; b++)
        CLAIM(memcmp(actual.data + b * actual.strides[0],
                     expected.data + b * expected.strides[0] + (length - 1) * expected.strides[1],
                     (size_t)expected.strides[1]) == 0,
              "%s: the last row again has other bits", attn_isa());
    for (ptrdiff_t b = 0; b < s.batch; b++)
        for (int n = 0; n < MOST_PAGES; n++) free(pages[b][n]);
    array *all[] = {&x, &weight, &out_weight, &inv_freq, &expected, &actual};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) free(all[n]->data);
}

static void test_many_queries(attn_dtype dtype, lcg *g)
{
    enum { LENGTH = 1600, PART = LENGTH / 2, DIM = 8 }; /* with one thread, there are two parts */
    array x = array_of(dtype, -1, 1, LENGTH, DIM, g), weight = array_of(dtype, -1, -1, DIM, DIM, g);
    array inv_freq = array_of(ATTN_F64, -1, -1, -1, 2, g), keys = array_of(dtype, -1, 1, PART, DIM, g);
    array y = array_of(dtype, -1, 1, LENGTH, DIM, NULL), mask = array_of(dtype, -1, -1, PART, LENGTH, g);
    array expected = array_of(dtype, -1, 1, LENGTH, DIM, NULL), weights = array_of(dtype, 1, 2, PART, LENGTH, NULL);
    const attn_tensor none = {.data = NULL};
    attn_error error = {""};
    attn_multihead_args args = {
        .query = view_of(&x),
        .key = view_of(&x),
        .value = view_of(&x),
        .q_weight = view_of(&weight),
        .k_weight = view_of(&weight),
        .v_weight = view_of(&weight),
        .out_weight = view_of(&weight),
        .residual = view_of(&x),
        .heads = 2,
        .kv_heads = 2,
        .rotary = {.scale = 1, .inv_freq = view_of(&inv_freq)},
        .attention = {.window_left = 300, .window_right = ATTN_UNBOUNDED, .num_threads = 8} /* one part */
    };
    CLAIM(attn_multihead(&args, view_of(&expected), none, &error) == ATTN_OK, "%s", error.message);

    /* 1. arguments that only fit a part */
    memset(y.data, 0, bytes_of(&y));
    args.attention.num_threads = 1;
    attn_multihead_args wrong = args;
    wrong.attention.mask = view_of(&mask);
    CLAIM(attn_multihead(&wrong, view_of(&y), none, &error) == ATTN_INVALID, "a mask of a part's queries");
    wrong = args;
    wrong.key = wrong.value = view_of(&keys);
    CLAIM(attn_multihead(&wrong, view_of(&y), none, &error) == ATTN_INVALID, "a window without a corner");
    CLAIM(attn_multihead(&args, view_of(&y), view_of(&weights), &error) == ATTN_INVALID, "weights of a part");
    CLAIM(attn_multihead(&args, part_of(&y, 0, PART), none, &error) == ATTN_INVALID, "an output of a part");
    for (size_t n = 0; n < bytes_of(&y); n++) CLAIM(y.data[n] == 0, "something was written, at byte %zu", n);

    /* 2. in query's place; residual is elsewhere */
    args.query = args.key = args.value = view_of(&y);
    for (int threads = 1; threads <= 8; threads += 7) {
        args.attention.num_threads = threads;
        memcpy(y.data, x.data, bytes_of(&y));
        CLAIM(attn_multihead(&args, view_of(&y), none, &error) == ATTN_OK, "%s", error.message);
        CLAIM(memcmp(y.data, expected.data, bytes_of(&y)) == 0, "%s: other bits in query's place", attn_isa());
    }
    array *all[] = {&x, &weight, &inv_freq, &keys, &y, &mask, &expected, &weights};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) free(all[n]->data);
}

int main(void)
{
    lcg g = lcg_from(7);
    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++)
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            for (int n = 0; n < 120; n++) test_multihead((attn_dtype)dtype, &g);
            for (int n = 0; n < 120; n++) test_in_parts((attn_dtype)dtype, &g);
            test_many_queries((attn_dtype)dtype, &g);
        }
    return report("test_multihead");
}
