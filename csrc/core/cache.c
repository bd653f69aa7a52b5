/* The paged KV cache: its rules, its tensors for attention, and appending rows. */
#include "attend.h"
#include "check.h"
#include "dispatch.h"
#include "error.h"
#include "float_state.h"
#include "stored.h"

_Static_assert((int)ATTN_PAGE_KEYS == (int)ATTN_BLOCK_KEYS, "a page is a block of keys to the kernels");

/* The size of a page in bytes must fit in ptrdiff_t. */
static attn_status check_cache(const attn_cache *c, attn_error *error)
{
    ptrdiff_t bytes, key, value;
    if (attn_size_of_real(c->dtype) == 0) FAIL("the cache must be float16, bfloat16, float32 or float64");
    if (c->batches < 0 || c->kv_heads < 0 || c->head_dim < 0 || c->v_dim < 0 || c->length < 0)
        FAIL("the cache has %td batch entries, %td heads, dims %td and %td, length %td, expected sizes of 0 or more",
             c->batches, c->kv_heads, c->head_dim, c->v_dim, c->length);
    if (__builtin_mul_overflow(c->kv_heads, ATTN_PAGE_KEYS * attn_size_of_real(c->dtype), &bytes) ||
        __builtin_mul_overflow(bytes, c->head_dim, &key) || __builtin_mul_overflow(bytes, c->v_dim, &value) ||
        __builtin_add_overflow(key, value, &bytes))
        FAIL("a page is too large for memory: %td heads, dims %td and %td", c->kv_heads, c->head_dim, c->v_dim);
    return ATTN_OK;
}

/* The keys or the values as one array, with axes in the layout's order. */
static attn_tensor tensor_of(const attn_cache *c, attn_layout layout, ptrdiff_t dim)
{
    const int length = layout == ATTN_LAYOUT_BSHD ? 1 : 2, heads = 3 - length;
    const ptrdiff_t row = dim * attn_size_of_real(c->dtype);
    attn_tensor t = {.data = (void *)c->pages, .dtype = c->dtype, .ndim = 4};
    t.shape[0] = c->batches, t.shape[heads] = c->kv_heads, t.shape[length] = c->length, t.shape[3] = dim;
    t.strides[0] = sizeof *c->pages, t.strides[heads] = ATTN_PAGE_KEYS * row, t.strides[length] = row;
    t.strides[3] = attn_size_of_real(c->dtype);
    return t;
}

attn_status attn_cache_tensors(const attn_cache *cache, attn_layout layout, attn_tensor *key, attn_tensor *value,
                               attn_error *error)
{
    const attn_status status = check_cache(cache, error);
    if (status != ATTN_OK) return status;
    *key = tensor_of(cache, layout, cache->head_dim);
    *value = tensor_of(cache, layout, cache->v_dim);
    return ATTN_OK;
}

static attn_status check_count(const attn_cache *cache, ptrdiff_t entry, ptrdiff_t positions, attn_error *error)
{
    if (attn_ceil_div(positions, ATTN_PAGE_KEYS) > cache->page_count[entry])
        FAIL("batch entry %td of the cache has %td pages of %d positions, too few for %td", entry,
             cache->page_count[entry], (int)ATTN_PAGE_KEYS, positions);
    return ATTN_OK;
}

attn_status attn_check_pages(const attn_problem *p, attn_error *error)
{
    for (ptrdiff_t batch = 0; batch < p->batches; batch++) {
        const char *table = attn_part(p, &p->key, batch, 0);
        const ptrdiff_t entry = (table - p->key.data) / (ptrdiff_t)sizeof *p->cache->pages;
        const ptrdiff_t length = attn_length_of(p, &p->key_lengths, batch, p->kv_len);
        if (check_count(p->cache, entry, length, error) != ATTN_OK) return ATTN_INVALID;
    }
    return ATTN_OK;
}

/* Appending rows */

static attn_status check_rows(const char *name, const attn_cache *c, const attn_tensor *rows, const attn_tensor *like,
                              ptrdiff_t new, attn_layout layout, attn_error *error)
{
    const int length = layout == ATTN_LAYOUT_BSHD ? 1 : 2;
    ptrdiff_t expected[4];
    int same = rows->ndim == 4;
    for (int axis = 0; axis < 4; axis++) {
        expected[axis] = axis == length ? new : like->shape[axis];
        same = same && rows->shape[axis] == expected[axis];
    }
    if (!same)
        FAIL("%s has shape %s, expected %s: %s", name, attn_shape_text(rows->ndim, rows->shape),
             attn_shape_text(4, expected),
             layout == ATTN_LAYOUT_BSHD ? "(batch, new, kv_heads, dim)" : "(batch, kv_heads, new, dim)");
    if (!attn_go_together(c->dtype, rows->dtype)) FAIL("%s has another dtype than the cache", name);
    return ATTN_OK;
}

/* Converts a row to the cache's dtype: a half becomes float32, or float32 a half. */
static void convert_row(const attn_cache *c, attn_dtype dtype, char *to, const char *from, ptrdiff_t step,
                        ptrdiff_t dim)
{
    enum { PART = 64 };
    const attn_kernels *k = attn_kernels_for(ATTN_F32);
    float part[PART];
    if (c->dtype == ATTN_F32) {
        k->load_block((attn_element)dtype, 1, dim, from, 0, step, dim, to);
        return;
    }
    for (ptrdiff_t d = 0; d < dim; d += PART) {
        const ptrdiff_t count = dim - d < PART ? dim - d : PART;
        k->store_row((attn_element)c->dtype, count, attn_read_strided(k, ATTN_F32, count, from + d * step, step, part),
                     to + d * attn_size_of_real(c->dtype));
    }
}

/* Copies rows [0, count) of one batch entry and head to positions first, first + 1 ... */
static void copy_rows(const attn_cache *c, void *const *pages, ptrdiff_t in_page, const attn_tensor *rows,
                      const char *from, int length, ptrdiff_t first, ptrdiff_t count)
{
    const ptrdiff_t dim = rows->shape[3], row = dim * attn_size_of_real(c->dtype);
    for (ptrdiff_t n = 0; n < count; n++, from += rows->strides[length]) {
        const ptrdiff_t at = first + n;
        char *to = (char *)pages[at / ATTN_PAGE_KEYS] + in_page + at % ATTN_PAGE_KEYS * row;
        if (rows->dtype == c->dtype)
            attn_gather(attn_size_of_real(c->dtype), dim, from, rows->strides[3], to);
        else
            convert_row(c, rows->dtype, to, from, rows->strides[3], dim);
    }
}

attn_status attn_check_append(const attn_cache *cache, const ptrdiff_t *first, const ptrdiff_t *count,
                              const attn_tensor *key, const attn_tensor *value, attn_layout layout, attn_error *error)
{
    attn_tensor keys, values;
    attn_status status = attn_cache_tensors(cache, layout, &keys, &values, error);
    if (status != ATTN_OK) return status;
    const ptrdiff_t new = key->ndim == 4 ? key->shape[layout == ATTN_LAYOUT_BSHD ? 1 : 2] : 0;
    if ((status = check_rows("key", cache, key, &keys, new, layout, error)) != ATTN_OK) return status;
    if ((status = check_rows("value", cache, value, &values, new, layout, error)) != ATTN_OK) return status;
    for (ptrdiff_t b = 0; b < cache->batches; b++) {
        ptrdiff_t end;
        const ptrdiff_t own = count ? count[b] : new;
        if (own < 0 || own > new) FAIL("batch entry %td has %td new positions, expected 0 to %td", b, own, new);
        if (first[b] < 0 || __builtin_add_overflow(first[b], own, &end))
            FAIL("batch entry %td would continue at position %td, which is out of range", b, first[b]);
        if (own > 0 && (status = check_count(cache, b, end, error)) != ATTN_OK) return status;
    }
    return ATTN_OK;
}

/* Order of the copies: batch entry, keys before values, head. */
attn_status attn_cache_append(const attn_cache *cache, const ptrdiff_t *first, const ptrdiff_t *count, attn_tensor key,
                              attn_tensor value, attn_layout layout, attn_error *error)
{
    const int length = layout == ATTN_LAYOUT_BSHD ? 1 : 2, heads = 3 - length;
    const attn_tensor *const rows[] = {&key, &value};
    const attn_status status = attn_check_append(cache, first, count, &key, &value, layout, error);
    if (status != ATTN_OK) return status;

    const attn_float_state before = attn_float_enter(); /* rounding raises flags */
    for (ptrdiff_t b = 0; b < cache->batches; b++)
        for (int n = 0; n < 2; n++)
            for (ptrdiff_t h = 0; h < cache->kv_heads; h++) {
                const ptrdiff_t of_head = h * ATTN_PAGE_KEYS * rows[n]->shape[3] * attn_size_of_real(cache->dtype);
                const char *from = (const char *)rows[n]->data + b * rows[n]->strides[0] + h * rows[n]->strides[heads];
                copy_rows(cache, cache->pages[b], (n ? attn_page_values(cache) : 0) + of_head, rows[n], from, length,
                          first[b], count ? count[b] : key.shape[length]);
            }
    attn_float_leave(before);
    return ATTN_OK;
}
