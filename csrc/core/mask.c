/* Masks and dropout of one key block against one query block.
 *
 * Masks are read a tile at a time, into a bias that is added to the scores: -inf masks a pair. The dropout mask is a
 * tile of the same kind, in which -inf drops a weight.
 */
#include <math.h>
#include <string.h>

#include "attend.h"
#include "float_state.h"

/* Steps from row to row and from key to key in a tile, in reals. */
typedef struct {
    ptrdiff_t row, key;
} tile_steps;

static tile_steps steps_of(const attn_plan *plan, const attn_block *block)
{
    return plan->decode ? (tile_steps){ATTN_BLOCK_KEYS, 1} : (tile_steps){1, block->vectors * plan->kernels->lanes};
}

/* The number of reals in a tile. */
static ptrdiff_t tile_size(const attn_plan *plan, const attn_block *block, int keys)
{
    return plan->decode ? (ptrdiff_t)block->rows * ATTN_BLOCK_KEYS
                        : (ptrdiff_t)keys * block->vectors * plan->kernels->lanes;
}

/* Limits of each row inside this key block. Padding rows of the last vector see what the last row sees. */
void attn_limit_keys(const attn_block *block, ptrdiff_t from, int keys, int32_t *first, int32_t *last)
{
    for (int r = 0; r < ATTN_MAX_WIDTH; r++) {
        const int row = r < block->rows ? r : block->rows - 1;
        const ptrdiff_t low = block->first[row] - from, high = block->last[row] - from;
        first[r] = (int32_t)(low < 0 ? 0 : low > keys ? keys : low);
        last[r] = (int32_t)(high < 0 ? 0 : high > keys ? keys : high);
    }
}

/* Turns the limits of a block with extra keys into task->bias, which already holds a bias if `adds`. Afterwards `first`
 * and `last` include all keys. */
void attn_limit_by_bias(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys, int32_t *first,
                        int32_t *last, int adds)
{
    const tile_steps step = steps_of(task->plan, block);
    const int size = task->plan->kernels->size;
    const ptrdiff_t hidden = task->plan->problem->maskable_len - from;
    for (int r = 0; r < block->rows; r++) {
        for (int n = 0; n < keys; n++) {
            const ptrdiff_t at = r * step.row + n * step.key;
            if (n < hidden && (n < first[r] || n >= last[r]))
                attn_put_real(task->bias, at, size, -(double)INFINITY);
            else if (!adds)
                attn_put_real(task->bias, at, size, 0);
        }
        first[r] = 0;
        last[r] = keys;
    }
}

static int is_cut(const attn_plan *plan, const void *bias, ptrdiff_t at)
{
    return attn_real_at(bias, at, plan->kernels->size) == (double)-INFINITY;
}

static void add_real(void *reals, ptrdiff_t at, int size, double x)
{
    attn_put_real(reals, at, size, attn_real_at(reals, at, size) + x);
}

void attn_add_nonfinite(const attn_task *task, const attn_block *block, uint64_t bits, ptrdiff_t from,
                        const int32_t *first, const int32_t *last, const void *bias, const void *weights)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    const tile_steps step = steps_of(plan, block);
    const int size = plan->kernels->size;
    for (int n = 0; n < ATTN_BLOCK_KEYS; n++) {
        if (!(bits >> n & 1)) continue;
        const char *value = attn_value_at(task, from + n);
        int sees[ATTN_MAX_WIDTH], count = 0;
        for (int r = 0; r < block->rows; r++)
            if (n >= first[r] && n < last[r] && !(bias && is_cut(plan, bias, r * step.row + n * step.key)))
                sees[count++] = r;
        for (ptrdiff_t d = 0; d < p->v_dim && count > 0; d++) {
            const char *at = value + d * p->value.column;
            if (attn_is_finite_at(at, p->value.dtype)) continue;
            const double x = attn_stored_at(at, p->value.dtype);
            for (int s = 0; s < count; s++)
                add_real(block->chunk_state.out, sees[s] * plan->columns + d, size,
                         attn_real_at(weights, sees[s] * step.row + n * step.key, size) * x);
        }
    }
}

static attn_tile_kind bias_tile(const attn_task *task, int which, int rows, int keys, const char *const *mask,
                                double times, void *tile, tile_steps step)
{
    const attn_problem *p = task->plan->problem;
    const attn_element dtype = p->mask_dtypes[which];
    const attn_long_state before = dtype == ATTN_ELEMENT_LONG ? attn_long_enter() : 0;
    const attn_tile_kind kind = task->plan->kernels->bias_tile(dtype, rows, keys, mask, p->masks[which].column, times,
                                                               tile, step.row, step.key);
    if (dtype == ATTN_ELEMENT_LONG) attn_long_leave(before);
    return kind;
}

/* A tile of `keys` columns of a mask. */
static attn_tile_kind read_columns(const attn_task *task, const attn_block *block, int which, ptrdiff_t from, int keys,
                                   double times, void *tile)
{
    const attn_problem *p = task->plan->problem;
    const attn_operand *mask = &p->masks[which];
    const char *rows[ATTN_MAX_WIDTH];
    for (int r = 0; r < block->rows; r++) rows[r] = (const char *)block->mask[which][r] + from * mask->column;
    return bias_tile(task, which, block->rows, keys, rows, times, tile, steps_of(task->plan, block));
}

/* The same for a mask that ends before the extra keys, which it leaves visible. */
static attn_tile_kind read_tile(const attn_task *task, const attn_block *block, int which, ptrdiff_t from, int keys,
                                double times, void *tile)
{
    const attn_plan *plan = task->plan;
    const ptrdiff_t columns = which == ATTN_KEEP ? keys : plan->problem->maskable_len - from;
    const tile_steps step = steps_of(plan, block);
    if (columns >= keys) return read_columns(task, block, which, from, keys, times, tile);
    if (columns <= 0) return ATTN_TILE_FREE;
    const attn_tile_kind kind = read_columns(task, block, which, from, (int)columns, times, tile);
    if (kind == ATTN_TILE_FREE) return kind;
    for (int r = 0; r < block->rows; r++)
        for (int n = kind == ATTN_TILE_MASKED ? 0 : (int)columns; n < keys; n++)
            attn_put_real(tile, r * step.row + n * step.key, plan->kernels->size, n < columns ? -(double)INFINITY : 0);
    return ATTN_TILE_MIXED;
}

/* Whether a bool mask alone masks every pair of the tile. Float masks are not read. */
int attn_tile_is_masked(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys)
{
    const attn_problem *p = task->plan->problem;
    for (int which = ATTN_MASK; which <= ATTN_PADDING; which++)
        if (p->masks[which].data && attn_is_bool(p->mask_dtypes[which]) &&
            read_tile(task, block, which, from, keys, ATTN_LOG2E, task->bias) == ATTN_TILE_MASKED)
            return 1;
    return 0;
}

int attn_hide_keys(const attn_task *task, const attn_block *block, int r, ptrdiff_t from, int keys,
                   unsigned char *hidden)
{
    const attn_problem *p = task->plan->problem;
    int visible = 0;
    memset(hidden, 0, (size_t)keys);
    for (int which = ATTN_MASK; which <= ATTN_PADDING; which++) {
        const int columns = (int)attn_min(keys, p->maskable_len - from);
        if (p->masks[which].data == NULL || columns <= 0) continue;
        const char *at = (const char *)block->mask[which][r] + from * p->masks[which].column;
        const attn_tile_kind kind =
            bias_tile(task, which, 1, columns, &at, 1, task->bias, (tile_steps){ATTN_BLOCK_KEYS, 1});
        for (int n = 0; n < columns; n++)
            hidden[n] |= kind == ATTN_TILE_MASKED || (kind == ATTN_TILE_MIXED && is_cut(task->plan, task->bias, n));
    }
    for (int n = 0; n < keys; n++) visible += !hidden[n];
    return visible;
}

/* Reads both masks into one tile; task->drop_mask, unused until dropout, holds the second one. Two float masks are
 * added before the scaling by log2(e), so that they are bit-identical to one mask of their sums. */
static attn_tile_kind read_masks(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys, void *tile)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    const int one = p->masks[ATTN_MASK].data != NULL, other = p->masks[ATTN_PADDING].data != NULL;
    const int added =
        one && other && !attn_is_bool(p->mask_dtypes[ATTN_MASK]) && !attn_is_bool(p->mask_dtypes[ATTN_PADDING]);
    const double times = added ? 1 : ATTN_LOG2E;
    attn_tile_kind first = ATTN_TILE_FREE, second;
    if (one) first = read_tile(task, block, ATTN_MASK, from, keys, times, tile);
    if (!other || first == ATTN_TILE_MASKED) return first;
    second = read_tile(task, block, ATTN_PADDING, from, keys, times, first == ATTN_TILE_FREE ? tile : task->drop_mask);
    if (second == ATTN_TILE_MIXED && first == ATTN_TILE_MIXED)
        plan->kernels->join_bias(tile_size(plan, block, keys), added ? ATTN_LOG2E : 1, task->drop_mask, tile);
    return second == ATTN_TILE_FREE ? first : second;
}

static attn_mask_tile *mask_tile_of(const attn_plan *plan, const attn_block *block, ptrdiff_t number)
{
    return (attn_mask_tile *)(void *)(block->mask_tiles + (size_t)number * plan->mask_tile_bytes);
}

void attn_forget_tiles(const attn_plan *plan, attn_block *block)
{
    for (ptrdiff_t n = 0; n < plan->mask_tiles; n++) mask_tile_of(plan, block, n)->keys = 0;
}

attn_tile_kind attn_read_masks(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys, void **bias)
{
    const attn_plan *plan = task->plan;
    *bias = task->bias;
    if (from / ATTN_BLOCK_KEYS >= plan->mask_tiles || from + keys > plan->problem->maskable_len)
        return read_masks(task, block, from, keys, task->bias); /* extra keys add each row's limits to the bias */
    attn_mask_tile *tile = mask_tile_of(plan, block, from / ATTN_BLOCK_KEYS);
    *bias = (char *)tile + ATTN_ALIGNMENT;
    if (tile->keys != keys) *tile = (attn_mask_tile){keys, read_masks(task, block, from, keys, *bias)};
    return tile->kind;
}

attn_tile_kind attn_read_drops(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    const tile_steps step = steps_of(plan, block);
    if (p->masks[ATTN_KEEP].data) return read_tile(task, block, ATTN_KEEP, from, keys, 1, task->drop_mask);
    plan->kernels->drop_mask_tile(&task->dropout, block->rows, keys, block->query, block->unit,
                                  (uint32_t)((p->key_start + from) / 4), task->drop_mask, step.row, step.key);
    return ATTN_TILE_MIXED;
}

/* Sets dropped weights to 0. The rows' sums already include them, as dropout comes after the softmax. */
void attn_drop(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys, void *weights)
{
    const attn_plan *plan = task->plan;
    const ptrdiff_t size = tile_size(plan, block, keys);
    const attn_tile_kind kind = attn_read_drops(task, block, from, keys);
    if (kind == ATTN_TILE_MASKED) memset(weights, 0, (size_t)(size * plan->kernels->size));
    if (kind == ATTN_TILE_MIXED) plan->kernels->drop_weights(size, task->drop_mask, weights);
}
