/* Prefetches rows of keys and values that will be read soon.
 *
 * Lines are requested in memory order: the hardware prefetcher follows a stream that moves forward, but not one that
 * jumps from row to row, as the tiles do. One query of decode (Zen 4, one thread) reads 28 GB/s this way, 11 in the
 * tiles' order and 9 without prefetching; a pure read reaches 33. Lines go to the L2 cache where L1 has few
 * line fill buffers. Addresses may be past the end of an array, which is harmless: nothing is read.
 */

enum { K(line) = 64 / sizeof(real) };

/* Address of row n of a block; `next` follows its last row. Strides and columns are in bytes. */
static inline const char *K(row_of)(const char *block, const char *next, int n, ptrdiff_t stride)
{
    return n < ATTN_BLOCK_KEYS ? block + n * stride : next + (n - ATTN_BLOCK_KEYS) * stride;
}

/* A cursor over the cache lines to prefetch. */
typedef struct {
    const char *at;
    ptrdiff_t row_bytes, to_next_row, column;
} K(prefetch_cursor);

/* Starts a cursor at `row`, over `columns` of each row. */
static inline K(prefetch_cursor) K(rows_from)(const char *row, ptrdiff_t stride, ptrdiff_t columns)
{
    return (K(prefetch_cursor)){row, stride == columns ? PTRDIFF_MAX : columns, stride, 0};
}

/* Starts a cursor some rows ahead of row n and of those processed with it. Contiguous rows count as one long row up to
 * the end of the block, and as another one from `next` on, so that as many bytes are prefetched as are read. */
static inline K(prefetch_cursor)
    K(rows_ahead_of)(const char *block, const char *next, int n, ptrdiff_t stride, ptrdiff_t columns, int nr)
{
    const int first = n + (nr + 8 < ATTN_ROWS_AHEAD ? ATTN_ROWS_AHEAD : nr + 8);
    K(prefetch_cursor) cursor = K(rows_from)(K(row_of)(block, next, first, stride), stride, columns);
    if (stride == columns && first < ATTN_BLOCK_KEYS) {
        cursor.row_bytes = (ATTN_BLOCK_KEYS - first) * stride;
        cursor.to_next_row = next - cursor.at;
    }
    return cursor;
}

/* Prefetches `lines` cache lines into the L1 or L2 cache, in groups of up to four. The last group of a row may reach
 * beyond its end. */
ATTN_TEMPLATE void K(fetch_lines)(K(prefetch_cursor) * cursor, const int to_l1, const int lines)
{
    const int group = lines < 4 ? lines : 4;
    ATTN_UNROLL for (int n = 0; n < lines; n += group)
    {
        const char *line = cursor->at + cursor->column;
        ATTN_UNROLL for (int i = 0; i < group; i++, line += 64)
        {
            if (to_l1) /* clang wants constants */
                __builtin_prefetch(line, 0, 3);
            else
                __builtin_prefetch(line, 0, 2);
        }
        cursor->column += 64 * group;
        if (cursor->column >= cursor->row_bytes) {
            cursor->at += cursor->to_next_row;
            cursor->column = 0;
        }
    }
}
