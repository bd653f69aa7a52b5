/* A part of a longer problem, placed by query_start and key_start, is bit-identical to the whole: chunked prefill,
 * decoding with a cache, and keys dropped after they left a window. Also with dropout. So is what calls over the parts of
 * the keys hand on to each other.
 */
#include <stdio.h>
#include <string.h>

#include "harness.h"

enum { LENGTH = 1100, HEAD_DIM = 24, V_DIM = 20, MOST_BYTES = sizeof(double) };

/* One head, contiguous. A part has rows [row, row + rows) of the queries and keys [key, key + keys), and computes into
 * the same arrays' places. */
typedef struct {
    attn_dtype dtype;
    ptrdiff_t size; /* bytes of a number */
    ptrdiff_t window_left;
    double dropout_p;
    attn_score score;
    _Alignas(64) char query[LENGTH * HEAD_DIM * MOST_BYTES], key[LENGTH * HEAD_DIM * MOST_BYTES];
    _Alignas(64) char value[LENGTH * V_DIM * MOST_BYTES];
} problem;

typedef struct {
    _Alignas(64) char output[LENGTH * V_DIM * MOST_BYTES], lse[LENGTH * MOST_BYTES];
    _Alignas(64) char weights[LENGTH * LENGTH * MOST_BYTES];
} results;

/* take_up, leave: the states of the part's rows before and after it, or NULL. */
typedef struct {
    ptrdiff_t row, rows, key, keys;
    char *take_up, *leave;
} part;

/* The part's rows of `r`. Weights keep the strides of the whole, so those of left-out keys stay unchanged. */
static attn_status attend(problem *p, part at, results *r, attn_error *error)
{
    const ptrdiff_t size = p->size;
    const ptrdiff_t features[] = {HEAD_DIM * size, size}, columns[] = {V_DIM * size, size},
                    keys[] = {LENGTH * size, size};
    attn_args args = {
        .query = strided(p->query + at.row * features[0], p->dtype, 2, LIST(at.rows, HEAD_DIM), features),
        .key = strided(p->key + at.key * features[0], p->dtype, 2, LIST(at.keys, HEAD_DIM), features),
        .value = strided(p->value + at.key * columns[0], p->dtype, 2, LIST(at.keys, V_DIM), columns),
        .is_causal = 1,
        .align = ATTN_ALIGN_UPPER_LEFT,
        .window_left = p->window_left,
        .window_right = ATTN_UNBOUNDED,
        .score = p->score,
        .has_scale = p->score == ATTN_SCORE_DISTANCE,
        .scale = 0.35, /* about half of the pairs are near enough for the product form */
        .query_start = at.row,
        .key_start = at.key,
        .num_threads = 1,
        .dropout_p = p->dropout_p,
        .dropout_seed = 77,
    };
    void *const score_weight = p->score == ATTN_SCORE_ADDITIVE ? p->value : NULL;
    args.score_weight = strided(score_weight, p->dtype, 1, LIST(HEAD_DIM), features + 1);
    const ptrdiff_t state[] = {(V_DIM + 2) * size, size};
    const attn_tensor none = {.data = NULL};
    const attn_tensor output = strided(r->output + at.row * columns[0], p->dtype, 2, LIST(at.rows, V_DIM), columns);
    const attn_tensor weights =
        strided(r->weights + at.row * keys[0] + at.key * size, p->dtype, 2, LIST(at.rows, at.keys), keys);
    const attn_tensor lse = strided(r->lse + at.row * size, p->dtype, 1, LIST(at.rows), &size);
    args.state = strided(at.take_up, p->dtype, 2, LIST(at.rows, V_DIM + 2), state);
    args.unfinished = at.leave != NULL;
    if (args.unfinished)
        return attn_attention(&args, strided(at.leave, p->dtype, 2, LIST(at.rows, V_DIM + 2), state), none, none,
                              error);
    return attn_attention(&args, output, at.take_up ? none : weights, lse, error);
}

static void claim_part(problem *p, part at, const results *whole, results *r)
{
    attn_error error = {""};
    const ptrdiff_t row = at.row * p->size, rows = at.rows * p->size;
    char text[160];
    snprintf(text, sizeof text, "%s: %td-bit rows %td to %td of keys %td to %td, window %td, score %d", attn_isa(),
             8 * p->size, at.row, at.row + at.rows, at.key, at.key + at.keys, p->window_left, (int)p->score);
    memset(r->weights + row * LENGTH, 0, (size_t)(rows * LENGTH));
    CLAIM(attend(p, at, r, &error) == ATTN_OK, "%s: %s", text, error.message);
    CLAIM(memcmp(r->output + row * V_DIM, whole->output + row * V_DIM, (size_t)(rows * V_DIM)) == 0,
          "%s: other bits than the whole's", text);
    CLAIM(memcmp(r->lse + row, whole->lse + row, (size_t)rows) == 0, "%s: lse has other bits than the whole's", text);
    CLAIM(memcmp(r->weights + row * LENGTH, whole->weights + row * LENGTH, (size_t)(rows * LENGTH)) == 0,
          "%s: weights have other bits than the whole's", text);
}

/* Rows [a, b) see keys up to b. With a window, whole blocks of 64 keys that none of them sees may be gone. */
static void claim_parts(problem *p, const results *whole, results *r)
{
    static const ptrdiff_t edges[] = {0, 1, 3, 64, 100, 163, 299, 300, 512, 515, 640, 699, LENGTH};
    for (size_t n = 0; n + 1 < sizeof edges / sizeof *edges; n++) {
        const ptrdiff_t from = edges[n], to = edges[n + 1];
        claim_part(p, (part){from, to - from, 0, to, NULL, NULL}, whole, r);
        claim_part(p, (part){from, 1, 0, LENGTH, NULL, NULL}, whole, r);
        if (p->window_left == ATTN_UNBOUNDED || from <= p->window_left) continue;
        const ptrdiff_t most = (from - p->window_left) / 64 * 64;
        for (ptrdiff_t gone = most % 192; gone <= most; gone += 192)
            claim_part(p, (part){from, to - from, gone, to - gone, NULL, NULL}, whole, r);
    }
}

/* The rows [row, row + rows) by calls over parts of the keys, which end at these bits of multiples of 512. */
static void claim_chain(problem *p, ptrdiff_t row, ptrdiff_t rows, unsigned ends, const results *whole, results *r)
{
    static char states[2][LENGTH * (V_DIM + 2) * MOST_BYTES];
    attn_error error = {""};
    char *before = NULL, text[120];
    ptrdiff_t key = 0;
    snprintf(text, sizeof text, "%s: %td-bit rows %td to %td, ends %u, window %td, score %d", attn_isa(), 8 * p->size,
             row, row + rows, ends, p->window_left, (int)p->score);
    for (int n = 1; n * 512 < LENGTH; n++) {
        if (!(ends >> (n - 1) & 1)) continue;
        char *const after = states[n % 2];
        const part at = {row, rows, key, n * 512 - key, before, after};
        memset(after, 255, sizeof states[0]);
        CLAIM(attend(p, at, r, &error) == ATTN_OK, "%s: %s", text, error.message);
        before = after, key = n * 512;
    }
    memset(r->output, 255, sizeof r->output);
    CLAIM(attend(p, (part){row, rows, key, LENGTH - key, before, NULL}, r, &error) == ATTN_OK, "%s: %s", text,
          error.message);
    row *= p->size, rows *= p->size;
    CLAIM(memcmp(r->output + row * V_DIM, whole->output + row * V_DIM, (size_t)(rows * V_DIM)) == 0,
          "%s: a chain has other bits than the whole", text);
    CLAIM(memcmp(r->lse + row, whole->lse + row, (size_t)rows) == 0, "%s: a chain's lse has other bits", text);
}

static void claim_chains(problem *p, const results *whole, results *r)
{
    for (unsigned ends = 1; ends < 4; ends++) {
        claim_chain(p, 0, LENGTH, ends, whole, r);
        claim_chain(p, 700, 70, ends, whole, r);
        claim_chain(p, 1040, 3, ends, whole, r);
        claim_chain(p, LENGTH - 1, 1, ends, whole, r);
    }
}

static void fill(problem *p, char *numbers, ptrdiff_t count, lcg *g)
{
    for (ptrdiff_t n = 0; n < count; n++) {
        const double x = draw_real(g, p->dtype);
        if (p->dtype == ATTN_F32)
            ((float *)(void *)numbers)[n] = (float)x;
        else
            ((double *)(void *)numbers)[n] = x;
    }
}

int main(void)
{
    static problem a_problem;
    static results all, some;
    problem *p = &a_problem;
    lcg g = lcg_from(1);
    attn_error error = {""};

    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++) {
        p->dtype = (attn_dtype)dtype;
        p->size = dtype == ATTN_F32 ? sizeof(float) : sizeof(double);
        fill(p, p->query, LENGTH * HEAD_DIM, &g);
        fill(p, p->key, LENGTH * HEAD_DIM, &g);
        fill(p, p->value, LENGTH * V_DIM, &g);
        for (int n = 0; n < level_count(); n++)
            for (int window = 0; window < 6; window++) { /* the last three: one window, the other scores */
                use_level(n);
                p->score = (attn_score)(window < 3 ? ATTN_SCORE_DOT : window - 2);
                p->window_left = LIST(ATTN_UNBOUNDED, 10, 200)[window < 3 ? window : 2];
                p->dropout_p = window == 0 ? 0 : 0.3;
                memset(&all, 0, sizeof all);
                CLAIM(attend(p, (part){0, LENGTH, 0, LENGTH, NULL, NULL}, &all, &error) == ATTN_OK, "%s",
                      error.message);
                claim_parts(p, &all, &some);
                claim_chains(p, &all, &some);
            }
    }
    return report("test_parts");
}
