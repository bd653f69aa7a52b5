/* Attention over pages is bit-identical to attention over arrays, at every level and for any number of threads. Pages
 * that no row sees may be missing. Every rule on a cache has its message. */
#include <stdlib.h>
#include <string.h>

#include "cases.h"

enum { MOST_BATCHES = 3, MOST_PAGES = 32 };

/* Pages of exact size, wiped like tensors: a sanitizer detects accesses outside of them, and the bits would show reads
 * after the last position. */
typedef struct {
    attn_cache cache;
    void *pages[MOST_BATCHES][MOST_PAGES];
    void *const *tables[MOST_BATCHES];
    ptrdiff_t counts[MOST_BATCHES], positions[MOST_BATCHES];
} paged;

static size_t page_bytes(const attn_cache *c)
{
    return (size_t)(c->kv_heads * ATTN_PAGE_KEYS * (c->head_dim + c->v_dim) * (c->dtype == ATTN_F32 ? 4 : 8));
}

/* Empty pages for c.positions. */
static void make_pages(paged *p)
{
    attn_cache *c = &p->cache;
    for (ptrdiff_t b = 0; b < c->batches; b++) {
        p->counts[b] = (p->positions[b] + ATTN_PAGE_KEYS - 1) / ATTN_PAGE_KEYS;
        for (ptrdiff_t n = 0; n < p->counts[b]; n++) p->pages[b][n] = memset(take(page_bytes(c)), 0xff, page_bytes(c));
        p->tables[b] = p->pages[b];
    }
    c->pages = p->tables;
    c->page_count = p->counts;
}

static void free_pages(paged *p)
{
    for (ptrdiff_t b = 0; b < p->cache.batches; b++)
        for (ptrdiff_t n = 0; n < p->counts[b]; n++) free(p->pages[b][n]);
}

/* Positions [from, from + new) of a tensor as (batch, heads, new, dim), or in the layout's order. */
static attn_tensor part_of(const tensor *t, attn_layout layout, ptrdiff_t from, ptrdiff_t new)
{
    ptrdiff_t shape[4], strides[4];
    static const int bhsd[] = {BATCH, HEAD, ROW, COLUMN}, bshd[] = {BATCH, ROW, HEAD, COLUMN};
    const int *roles = layout == ATTN_LAYOUT_BSHD ? bshd : bhsd;
    for (int n = 0; n < 4; n++) {
        shape[n] = roles[n] == ROW ? new : t->size[roles[n]];
        strides[n] = t->step[roles[n]];
    }
    return strided(t->data + from * t->step[ROW], t->dtype, 4, shape, strides);
}

/* Appends all positions in pieces; shorter batch entries take fewer rows of the last pieces, or none. */
static void append_all(paged *p, const test_case *c, lcg *g)
{
    ptrdiff_t first[MOST_BATCHES] = {0}, count[MOST_BATCHES];
    for (ptrdiff_t from = 0; from < p->cache.length;) {
        ptrdiff_t new = PICK(g, 1, 1, 7, 64, 100, 500);
        if (new > p->cache.length - from) new = p->cache.length - from;
        int whole = 1;
        for (ptrdiff_t b = 0; b < p->cache.batches; b++) {
            const ptrdiff_t left = p->positions[b] - first[b];
            count[b] = left < new ? left : new;
            whole &= count[b] == new;
        }
        const attn_layout layout = draw_one_in(g, 2) ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD;
        attn_error error = {""};
        const attn_status status =
            attn_cache_append(&p->cache, first, whole ? NULL : count, part_of(&c->key, layout, from, new),
                              part_of(&c->value, layout, from, new), layout, &error);
        CLAIM(status == ATTN_OK, "%s: %s", c->text, error.message);
        for (ptrdiff_t b = 0; b < p->cache.batches; b++) first[b] += count[b];
        from += new;
    }
}

/* A cache has one batch axis and as many key heads as value heads. */
static int fits(const test_case *c)
{
    return c->has_heads && c->rank == 4 && c->args.extra_keys == 0 && c->key.size[HEAD] == c->value.size[HEAD] &&
           c->key.size[BATCH] == c->value.size[BATCH];
}

static void make_paged(paged *p, const test_case *c)
{
    p->cache = (attn_cache){.dtype = c->dtype,
                            .batches = c->key.size[BATCH],
                            .kv_heads = c->key.size[HEAD],
                            .head_dim = c->head_dim,
                            .v_dim = c->v_dim,
                            .length = c->kv_len};
    const int each = c->key_lengths.data && c->key_lengths.size[BATCH] == p->cache.batches;
    for (ptrdiff_t b = 0; b < p->cache.batches; b++) {
        const ptrdiff_t at[ROLES] = {0, b, 0, 0, 0};
        p->positions[b] = each ? (ptrdiff_t)tensor_get(&c->key_lengths, at) : c->kv_len;
    }
    make_pages(p);
    lcg g = lcg_from((uint64_t)c->number);
    append_all(p, c, &g);
}

static void test_the_bits_of_arrays(void)
{
    static test_case c;
    static paged p;
    const attn_tensor none = {0};
    int tried = 0;
    for (int number = 0; number < CASES; number++) {
        case_make(&c, number);
        const int alike = c.args.align != ATTN_ALIGN_LOWER_RIGHT; /* a cache's dropout counts positions */
        if (number % 3 == 0 && alike) c.args.dropout_p = 0.25, c.args.dropout_seed = 7;
        const attn_args in_arrays = c.args;
        for (int level = 0; fits(&c) && level < level_count(); level++) {
            use_level(level);
            c.args = in_arrays;
            case_run(&c);
            const uint64_t output = tensor_hash(&c.output), weights = c.weights.data ? tensor_hash(&c.weights) : 0;
            const uint64_t lse = c.lse.data ? tensor_hash(&c.lse) : 0;

            make_paged(&p, &c);
            c.args.cache = &p.cache;
            c.args.key = c.args.value = none;
            for (int threads = 1; threads <= 3; threads++) {
                c.args.num_threads = threads;
                case_run(&c);
                CLAIM(tensor_hash(&c.output) == output, "%s at %s: other bits in pages", c.text, attn_isa());
                CLAIM(!c.weights.data || tensor_hash(&c.weights) == weights, "%s at %s: weights have other bits",
                      c.text, attn_isa());
                CLAIM(!c.lse.data || tensor_hash(&c.lse) == lse, "%s at %s: lse has other bits", c.text, attn_isa());
            }
            free_pages(&p);
            tried++;
        }
        case_free(&c);
    }
    CLAIM(tried >= 60 * level_count(), "only %d cases fit a cache: this shows little", tried);
}

/* Pages before a window are never read: here they have one byte. */
static void test_pages_that_no_row_sees(void)
{
    enum { LENGTH = 1300, DIM = 8, LEFT = 70 };
    static float query[DIM], results[2][DIM];
    static const ptrdiff_t packed[] = {sizeof query, sizeof query, sizeof query, sizeof(float)};
    static paged p;
    tensor rows;
    const storage contiguous = {.order = {OUTER, BATCH, HEAD, ROW, COLUMN}, .stretch = 1};
    tensor_make(&rows, ATTN_F32, LIST(1, 1, 1, LENGTH, DIM), (const int[]){BATCH, HEAD, ROW, COLUMN}, 4, 4,
                &contiguous);
    lcg g = lcg_from(1);
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(&rows); left > 0; left--, tensor_next(&rows, at))
        tensor_set(&rows, at, draw_real(&g, ATTN_F32));
    for (int d = 0; d < DIM; d++) query[d] = (float)draw_real(&g, ATTN_F32);

    p.cache = (attn_cache){.dtype = ATTN_F32, .batches = 1, .kv_heads = 1, .head_dim = DIM, .v_dim = DIM};
    p.cache.length = p.positions[0] = LENGTH;
    make_pages(&p);
    attn_args args = {.query = strided(query, ATTN_F32, 4, LIST(1, 1, 1, DIM), packed), .cache = &p.cache};
    args.window_left = LEFT, args.window_right = ATTN_UNBOUNDED, args.align = ATTN_ALIGN_LOWER_RIGHT;
    attn_error error = {""};
    ptrdiff_t start[] = {0};
    const attn_tensor view = part_of(&rows, ATTN_LAYOUT_BHSD, 0, LENGTH);
    CLAIM(attn_cache_append(&p.cache, start, NULL, view, view, ATTN_LAYOUT_BHSD, &error) == ATTN_OK, "%s",
          error.message);
    for (int n = 0; n < 2; n++) {
        const attn_tensor output = strided(results[n], ATTN_F32, 4, LIST(1, 1, 1, DIM), packed), none = {0};
        CLAIM(attn_attention(&args, output, none, none, &error) == ATTN_OK, "%s", error.message);
        for (ptrdiff_t page = 0; page < (LENGTH - 1 - LEFT) / ATTN_PAGE_KEYS; page++) {
            free(p.pages[0][page]);
            p.pages[0][page] = take(1);
        }
    }
    CLAIM(memcmp(results[0], results[1], sizeof *results) == 0, "a page that no row sees was looked at");
    free_pages(&p);
    tensor_free(&rows);
}

/* Rules --------------------------------------------------------------------------------------------------------- */

/* A valid call: one batch entry of 100 positions, in two pages, 2 heads, dims 8 and 4. */
typedef struct {
    attn_cache cache;
    attn_args args;
    attn_tensor key, value;
    ptrdiff_t first, count;
} call;

static double element;
static char two_pages[2][2 * ATTN_PAGE_KEYS * 12 * sizeof(float)];
#define VIEW(dtype, ...) strided(&element, dtype, sizeof LIST(__VA_ARGS__) / sizeof(ptrdiff_t), LIST(__VA_ARGS__), NULL)

static call a_call(void)
{
    static void *const table[] = {two_pages[0], two_pages[1]};
    static void *const *const tables[] = {table};
    static const ptrdiff_t counts[] = {2}, query[] = {1, 2, 3, 8}, key[] = {1, 2, 5, 8}, value[] = {1, 2, 5, 4};
    call c = {.cache = {ATTN_F32, tables, counts, 1, 2, 8, 4, 100}, .first = 95, .count = 5};
    c.args.query = strided(&element, ATTN_F32, 4, query, NULL);
    c.args.window_left = c.args.window_right = ATTN_UNBOUNDED;
    c.key = strided(&element, ATTN_F32, 4, key, NULL);
    c.value = strided(&element, ATTN_F32, 4, value, NULL);
    return c;
}

static void claim_sentence(attn_status status, const attn_error *error, const char *sentence, int line)
{
    CLAIM(status == ATTN_INVALID, "line %d: status %d", line, (int)status);
    CLAIM(strcmp(error->message, sentence) == 0, "line %d: \"%s\"", line, error->message);
}

#define ATTEND_REFUSED(sentence, ...)                                                                                  \
    do {                                                                                                               \
        call c = a_call();                                                                                             \
        attn_error error = {""};                                                                                       \
        attn_shapes shapes;                                                                                            \
        c.args.cache = &c.cache;                                                                                       \
        __VA_ARGS__;                                                                                                   \
        claim_sentence(attn_attention_shapes(&c.args, &shapes, &error), &error, sentence, __LINE__);                   \
    } while (0)
#define APPEND_REFUSED(sentence, ...)                                                                                  \
    do {                                                                                                               \
        call c = a_call();                                                                                             \
        attn_error error = {""};                                                                                       \
        attn_layout layout = ATTN_LAYOUT_BHSD;                                                                         \
        __VA_ARGS__;                                                                                                   \
        claim_sentence(attn_cache_append(&c.cache, &c.first, &c.count, c.key, c.value, layout, &error), &error,        \
                       sentence, __LINE__);                                                                            \
    } while (0)

static void test_rules_of_attention(void)
{
    call good = a_call();
    attn_error error = {""};
    attn_shapes shapes;
    good.args.cache = &good.cache;
    CLAIM(attn_attention_shapes(&good.args, &shapes, &error) == ATTN_OK, "%s", error.message);
    CLAIM(shapes.weights[3] == 100 && shapes.output[3] == 4, "weights of %td keys, %td columns", shapes.weights[3],
          shapes.output[3]);

    ATTEND_REFUSED("the cache must be float16, bfloat16, float32 or float64", c.cache.dtype = ATTN_BOOL);
    ATTEND_REFUSED("key has another dtype than query", c.cache.dtype = ATTN_F64);
    ATTEND_REFUSED("the cache has 1 batch entries, 2 heads, dims 8 and -1, length 100, expected sizes of 0 or more",
                   c.cache.v_dim = -1);
    ATTEND_REFUSED("a page is too large for memory: 2 heads, dims 8 and 9223372036854775807",
                   c.cache.v_dim = PTRDIFF_MAX);
    ATTEND_REFUSED("batch entry 0 of the cache has 2 pages of 64 positions, too few for 129", c.cache.length = 129);
    ATTEND_REFUSED("extra_keys is 1, expected 0 with a cache", c.args.extra_keys = 1);
    ATTEND_REFUSED("key has head_dim 8 but query has 5; both are (..., heads, length, dim). "
                   "Given: query (1, 2, 3, 5), key (1, 2, 100, 8)",
                   c.args.query = VIEW(ATTN_F32, 1, 2, 3, 5));
    ATTEND_REFUSED(
        "query (3, 2, 1, 8), key (2, 2, 100, 8) and value (2, 2, 100, 4) do not broadcast: axis -4 has sizes "
        "3, 2 and 2",
        c.args.query = VIEW(ATTN_F32, 3, 2, 1, 8);
        c.cache.batches = 2);
}

static void test_rules_of_appending(void)
{
    call good = a_call();
    attn_error error = {""};
    CLAIM(attn_cache_append(&good.cache, &good.first, &good.count, good.key, good.value, ATTN_LAYOUT_BHSD, &error) ==
              ATTN_OK,
          "%s", error.message);

    APPEND_REFUSED("key has shape (1, 2, 5, 7), expected (1, 2, 5, 8): (batch, kv_heads, new, dim)",
                   c.key = VIEW(ATTN_F32, 1, 2, 5, 7));
    APPEND_REFUSED("value has shape (1, 2, 6, 4), expected (1, 2, 5, 4): (batch, kv_heads, new, dim)",
                   c.value = VIEW(ATTN_F32, 1, 2, 6, 4));
    APPEND_REFUSED("key has shape (1, 2, 5, 8), expected (1, 2, 2, 8): (batch, new, kv_heads, dim)",
                   layout = ATTN_LAYOUT_BSHD);
    APPEND_REFUSED("key has shape (2, 5, 8), expected (1, 2, 0, 8): (batch, kv_heads, new, dim)",
                   c.key = VIEW(ATTN_F32, 2, 5, 8));
    APPEND_REFUSED("value has another dtype than the cache", c.value.dtype = ATTN_F64);
    APPEND_REFUSED("batch entry 0 has 6 new positions, expected 0 to 5", c.count = 6);
    APPEND_REFUSED("batch entry 0 has -1 new positions, expected 0 to 5", c.count = -1);
    APPEND_REFUSED("batch entry 0 would continue at position -1, which is out of range", c.first = -1);
    APPEND_REFUSED("batch entry 0 would continue at position 9223372036854775807, which is out of range",
                   c.first = PTRDIFF_MAX);
    APPEND_REFUSED("batch entry 0 of the cache has 2 pages of 64 positions, too few for 129", c.first = 124);
    APPEND_REFUSED("the cache must be float16, bfloat16, float32 or float64", c.cache.dtype = ATTN_BOOL);
}

int main(void)
{
    test_the_bits_of_arrays();
    test_pages_that_no_row_sees();
    test_rules_of_attention();
    test_rules_of_appending();
    return report("test_cache");
}
