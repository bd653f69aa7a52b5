/* Rows of keys and values that are read soon, fetched meanwhile.
 *
 * Lines are asked for in the order of memory: the machine's own prefetcher takes up a line that moves forward, and does
 * not take up one that jumps from row to row as the tiles do. Measured on Zen 4, one query of decode, one thread: 28
 * GB/s; in the tiles' order 11; none 9; a pure read 33. On Zen 5, 16 queries, 32 heads, 4,096 keys: 7.4 ms; none 15.6.
 * On Zen 4, one row of a linear layer of 768 to 30,000 features out of memory: 24 GB/s; into the first cache 12, whose
 * few places for lines on their way are what limits it. 48 rows: 21.7 ms; all lines of a tile at once, 25. What is asked
 * for may lie past the end of an array: that does no harm, nothing is read.
 */

enum { K(rows_ahead) = 24, K(line) = 64 / sizeof(real) };

/* Row n of a block; behind its last one comes `next`. */
static inline const real *K(row_of)(const real *block, const real *next, int n, ptrdiff_t stride)
{
    return n < ATTN_BLOCK_KEYS ? block + n * stride : next + (n - ATTN_BLOCK_KEYS) * stride;
}

/* Which lines come next. */
typedef struct {
    const char *at;
    ptrdiff_t row_bytes, to_next_row, column;
} K(row_stream);

/* `columns` of each row. */
static inline K(row_stream) K(rows_from)(const real *row, ptrdiff_t stride, ptrdiff_t columns)
{
    return (K(row_stream)){(const char *)row, stride == columns ? PTRDIFF_MAX : columns * (ptrdiff_t)sizeof(real),
                           stride * (ptrdiff_t)sizeof(real), 0};
}

/* From some rows after those that are walked beside row n of a block. Contiguous rows are one long row up to the end of
 * the block, and another from `next` on, no longer than that: as many are fetched as are walked. */
static inline K(row_stream) K(rows_soon)(const real *block, const real *next, int n, ptrdiff_t stride,
                                         ptrdiff_t columns, int beside)
{
    const int first = n + (beside + 8 < K(rows_ahead) ? K(rows_ahead) : beside + 8);
    K(row_stream) soon = K(rows_from)(K(row_of)(block, next, first, stride), stride, columns);
    if (stride == columns && first < ATTN_BLOCK_KEYS) {
        soon.row_bytes = (ATTN_BLOCK_KEYS - first) * stride * (ptrdiff_t)sizeof(real);
        soon.to_next_row = (const char *)next - soon.at;
    }
    return soon;
}

/* By fours, or all at once when there are fewer, into the second cache: the first one has no room for them beside what is
 * at work. A row's last ones may reach beyond it. */
ATTN_TEMPLATE void K(fetch_lines)(K(row_stream) * s, const int lines)
{
    const int group = lines < 4 ? lines : 4;
    ATTN_UNROLL for (int n = 0; n < lines; n += group)
    {
        const char *line = s->at + s->column;
        ATTN_UNROLL for (int i = 0; i < group; i++, line += 64) __builtin_prefetch(line, 0, 2);
        s->column += 64 * group;
        if (s->column >= s->row_bytes) {
            s->at += s->to_next_row;
            s->column = 0;
        }
    }
}
