/* The rows of a query block: their addresses, their visible keys, and their start and end. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "attend.h"
#include "dispatch.h"
#include "stored.h"

static ptrdiff_t clamp(ptrdiff_t x, ptrdiff_t low, ptrdiff_t high) { return x < low ? low : x > high ? high : x; }

ptrdiff_t attn_length_of(const attn_problem *p, const attn_operand *lengths, ptrdiff_t batch, ptrdiff_t otherwise)
{
    if (lengths->data == NULL) return otherwise;
    const int64_t *const length = (const int64_t *)(const void *)attn_part(p, lengths, batch, 0);
    return (ptrdiff_t)*length;
}

/* Visible keys of query i: an interval, [0, 0) when empty. The rules in check.c prevent overflow in the sums. */
static void visible_keys(const attn_task *task, ptrdiff_t i, ptrdiff_t *first, ptrdiff_t *last)
{
    const attn_problem *p = task->plan->problem;
    const ptrdiff_t centre = i + p->offset + (p->lower_right ? task->key_length - task->query_length : 0);

    *first = p->before == PTRDIFF_MAX ? 0 : centre < p->before ? 0 : centre - p->before;
    *last = task->key_length;
    if (p->after != PTRDIFF_MAX) *last = clamp(centre + p->after + 1, 0, *last);
    if (i >= task->query_length || *first >= *last) *first = *last = 0;
}

/* Head and query of a group's row. Stepping from row to row saves a division per row. */
typedef struct {
    ptrdiff_t head, i;
} row_place;

static row_place place_of(const attn_task *task, ptrdiff_t row)
{
    const attn_problem *p = task->plan->problem;
    const ptrdiff_t head = attn_fast_div(row, p->q_len);
    return (row_place){task->group * p->group + head, row - head * p->q_len};
}

void attn_row_addresses(const attn_task *task, const attn_operand *operand, const attn_block *block, void **address)
{
    const attn_problem *p = task->plan->problem;
    row_place at = place_of(task, block->row);
    char *row = attn_part(p, operand, task->batch, at.head) + at.i * operand->row;
    for (int r = 0; r < block->rows; r++) {
        address[r] = row;
        row += operand->row;
        if (++at.i == p->q_len) {
            at.i = 0;
            row += operand->head - p->q_len * operand->row;
        }
    }
}

/* Narrows the visible keys of a row by its pair of limits. */
static void limit_row(const attn_operand *limits, const void *pair, ptrdiff_t *first, ptrdiff_t *last)
{
    const int64_t from = *(const int64_t *)pair;
    const int64_t to = *(const int64_t *)(const void *)((const char *)pair + limits->column);
    if (from > *first) *first = from < *last ? (ptrdiff_t)from : *last;
    if (to < *last) *last = to > 0 ? (ptrdiff_t)to : 0;
    if (*first >= *last) *first = *last = 0;
}

static void limit_block(attn_task *task, attn_block *block)
{
    const attn_problem *p = task->plan->problem;
    ptrdiff_t i = place_of(task, block->row).i;
    void *limits[ATTN_MAX_WIDTH];
    if (p->key_limits.data) attn_row_addresses(task, &p->key_limits, block, limits);
    block->min_first = block->min_last = PTRDIFF_MAX;
    block->max_first = block->max_last = 0;
    for (int r = 0; r < block->rows; r++) {
        ptrdiff_t first, last;
        visible_keys(task, i, &first, &last);
        if (p->key_limits.data) limit_row(&p->key_limits, limits[r], &first, &last);
        block->first[r] = first;
        block->last[r] = last;
        if (first < last && first < block->min_first) block->min_first = first;
        if (first > block->max_first) block->max_first = first;
        if (last < block->min_last) block->min_last = last;
        if (last > block->max_last) block->max_last = last;
        if (++i == p->q_len) i = 0;
    }
}

/* Dropout's number of a head of the task's batch entry. */
static uint32_t unit_of(const attn_task *task, ptrdiff_t head)
{
    const attn_problem *p = task->plan->problem;
    if (p->units.data == NULL) return (uint32_t)(task->batch * p->heads + head);
    return (uint32_t) * (const int64_t *)(const void *)attn_part(p, &p->units, task->batch, head);
}

/* Dropout counters of each row: its head, counted over all batch entries, and its query. With a cache, the query counts
 * by its position in the cache, so that decoding step by step drops the same weights as prefill. */
static void name_rows(const attn_task *task, attn_block *block)
{
    const attn_problem *p = task->plan->problem;
    const ptrdiff_t before = p->cache && p->lower_right ? task->key_length - task->query_length : 0;
    row_place at = place_of(task, block->row);
    for (int r = 0; r < block->rows; r++) {
        block->unit[r] = unit_of(task, at.head);
        block->query[r] = (uint32_t)(p->query_start + before + at.i);
        if (++at.i == p->q_len) {
            at.i = 0;
            at.head++;
        }
    }
}

void attn_place_block(attn_task *task, attn_block *block)
{
    const attn_problem *p = task->plan->problem;
    limit_block(task, block);
    for (int which = 0; which < ATTN_MASKS; which++)
        if (p->masks[which].data) attn_row_addresses(task, &p->masks[which], block, block->mask[which]);
    if (p->drops && p->masks[ATTN_KEEP].data == NULL) name_rows(task, block);
}

/* Rows of queries as contiguous reals: in place, or gathered and prepared for the score function. */
static void query_rows(const attn_task *task, attn_block *block, void **query)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    const attn_kernels *k = plan->kernels;
    attn_row_addresses(task, &p->query, block, query);
    if (!plan->gather_queries) return;
    attn_load_rows(k, p->query.dtype, block->rows, p->head_dim, p->query.column, plan->features, query,
                   task->query_rows);
    if (plan->score->prepare_queries) plan->score->prepare_queries(task, block, query);
}

void attn_take_up_state(const attn_task *task, attn_block *block)
{
    const attn_plan *plan = task->plan;
    const ptrdiff_t size = plan->kernels->size, v_dim = plan->problem->v_dim;
    const attn_state *state = &block->running_state;
    void *from[ATTN_MAX_WIDTH];
    attn_row_addresses(task, &plan->problem->state, block, from);
    for (int r = 0; r < block->rows; r++) {
        char *out = (char *)state->out + r * plan->columns * size;
        for (ptrdiff_t d = 0; d < v_dim; d++)
            attn_put_real(out, d, size, attn_real_at(from[r], d, size) * task->factor);
        memset(out + v_dim * size, 0, (size_t)((plan->columns - v_dim) * size));
        attn_put_real(state->maximum, r, size, attn_real_at(from[r], v_dim, size));
        attn_put_real(state->sum, r, size, attn_real_at(from[r], v_dim + 1, size));
    }
    block->running_begun = 1; /* folding a chunk into a state of no keys changes no bit of the chunk's */
}

/* Writes the state of the block's `rows` as output. Returns those that are not finite and may be so because of a masked
 * pair. */
static uint64_t leave_state(const attn_task *task, const attn_block *block, uint64_t rows)
{
    const attn_plan *plan = task->plan;
    const ptrdiff_t size = plan->kernels->size, v_dim = plan->problem->v_dim;
    const attn_state *state = &block->running_state;
    uint64_t nonfinite = 0;
    void *to[ATTN_MAX_WIDTH];
    attn_row_addresses(task, &plan->problem->output, block, to);
    for (int r = 0; r < block->rows; r++) {
        const void *out = (const char *)state->out + r * plan->columns * size;
        if (!(rows >> r & 1)) continue;
        for (ptrdiff_t d = 0; d < v_dim; d++) {
            const double y = block->running_begun ? attn_real_at(out, d, size) : 0;
            attn_put_real(to[r], d, size, y);
            if (!isfinite(y)) nonfinite |= (uint64_t)1 << r;
        }
        const double top = block->running_begun ? attn_real_at(state->maximum, r, size) : (double)-INFINITY;
        const double sum = block->running_begun ? attn_real_at(state->sum, r, size) : 0;
        attn_put_real(to[r], v_dim, size, top);
        attn_put_real(to[r], v_dim + 1, size, sum);
        if (isnan(sum)) nonfinite &= ~((uint64_t)1 << r); /* a score is NaN */
    }
    return nonfinite;
}

void attn_begin_block(attn_task *task, attn_block *block, ptrdiff_t number)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    const attn_kernels *k = plan->kernels;
    const ptrdiff_t segment = attn_fast_div(number, plan->blocks_per_segment);
    const ptrdiff_t part = number - segment * plan->blocks_per_segment;
    const double factor = plan->score->scales_queries ? attn_factor_of(p) : 1;
    void *query[ATTN_MAX_WIDTH];

    /* 1. which rows: a segment is cut evenly, in units of one vector, so that no block is nearly empty */
    const ptrdiff_t units = plan->decode ? 1 : attn_ceil_div(plan->row_segment, k->lanes);
    const ptrdiff_t lanes = plan->decode ? plan->row_segment : k->lanes;
    const ptrdiff_t from = attn_fast_div(units * part, plan->blocks_per_segment) * lanes;
    const ptrdiff_t to =
        clamp(attn_fast_div(units * (part + 1), plan->blocks_per_segment) * lanes, 0, plan->row_segment);
    block->row = segment * plan->row_segment + from;
    block->rows = (int)(to - from);
    block->vectors = plan->decode ? 0 : (int)attn_ceil_div(block->rows, k->lanes);
    block->chunk_begun = block->running_begun = block->masked = 0;

    /* 2. visible keys, masks */
    attn_place_block(task, block);

    /* 3. packed queries */
    query_rows(task, block, query);
    for (int r = 0; plan->decode && r < block->rows; r++) /* not transposed */
        k->scale_row(plan->features, query[r], factor, NULL,
                     (char *)block->packed + (ptrdiff_t)r * plan->features * k->size);
    if (!plan->decode)
        k->pack_queries(block->rows, block->vectors, plan->features, (const void *const *)query, factor, block->packed);

    if (p->state.data) attn_take_up_state(task, block);
    if (block->saved_scores)
        for (ptrdiff_t n = 0; n * ATTN_BLOCK_KEYS < p->kv_len; n++) attn_saved_scores_of(plan, block, n)->keys = 0;
}

/* The natural logarithm of a row's sum, from its state in units of log2. A maximum of +-most was clamped from a bias at
 * the end of the dtype's range (bias.inc.h), so the result is that bias itself. A NaN in the sum stays. */
static double natural_log(double top, double sum, double most)
{
    if (sum == 0) return (double)-INFINITY;
    return fabs(top) == most && sum == sum ? top : top * 0.6931471805599453 + log(sum);
}

static void store_lse(const attn_problem *p, const attn_block *block, int r, void *lse)
{
    const attn_state *state = &block->running_state;
    double y;
    if (p->dtype == ATTN_F32)
        y = natural_log((double)((const float *)state->maximum)[r], (double)((const float *)state->sum)[r], FLT_MAX);
    else
        y = natural_log(((const double *)state->maximum)[r], ((const double *)state->sum)[r], DBL_MAX);
    if (p->dtype == ATTN_F32)
        *(float *)lse = (float)y;
    else
        *(double *)lse = y;
}

double attn_stored_at(const char *at, attn_dtype dtype)
{
    float single;
    if (dtype == ATTN_F64 || dtype == ATTN_F32) return attn_real_at(at, 0, attn_size_of_real(dtype));
    attn_kernels_for(ATTN_F32)->load_block((attn_element)dtype, 1, 1, at, 0, 0, 1, &single);
    return (double)single;
}

static uint16_t highest_exponent(attn_dtype half) { return half == ATTN_F16 ? 0x7c00 : 0x7f80; }

int attn_is_finite_at(const char *at, attn_dtype dtype)
{
    uint16_t bits;
    if (!attn_is_half(dtype)) return isfinite(attn_stored_at(at, dtype));
    memcpy(&bits, at, sizeof bits);
    return (bits & highest_exponent(dtype)) != highest_exponent(dtype);
}

/* Whether a row has a NaN or an infinity. */
static int has_nonfinite(const attn_operand *operand, const char *row, ptrdiff_t columns)
{
    const uint16_t *half = (const uint16_t *)(const void *)row, highest = highest_exponent(operand->dtype);
    const float *single = (const float *)row;
    const double *wide = (const double *)row;
    int any = 0;
    if (attn_is_half(operand->dtype) && operand->column == sizeof *half)
        for (ptrdiff_t d = 0; d < columns; d++) any |= (half[d] & highest) == highest;
    else if (operand->dtype == ATTN_F32 && operand->column == sizeof *single)
        for (ptrdiff_t d = 0; d < columns; d++) any |= single[d] - single[d] != 0;
    else if (operand->dtype == ATTN_F64 && operand->column == sizeof *wide)
        for (ptrdiff_t d = 0; d < columns; d++) any |= wide[d] - wide[d] != 0;
    else
        for (ptrdiff_t d = 0; d < columns; d++) any |= !attn_is_finite_at(row + d * operand->column, operand->dtype);
    return any;
}

const char *attn_value_at(const attn_task *task, ptrdiff_t key)
{
    const attn_operand *value = &task->plan->problem->value;
    const ptrdiff_t in_block = key % ATTN_BLOCK_KEYS;
    return attn_rows_at(&task->value, value, key - in_block) + in_block * value->row;
}

/* Fills nonfinite_keys, from the keys that some row of the task sees. */
static void find_nonfinite(attn_task *task)
{
    const attn_problem *p = task->plan->problem;
    ptrdiff_t *first = task->nonfinite_keys, *last = first + p->v_dim, from, to;
    attn_visible_keys(task, &from, &to);
    for (ptrdiff_t d = 0; d < p->v_dim; d++) first[d] = last[d] = -1;
    for (ptrdiff_t key = from; key < attn_min(to, task->key_length); key++) {
        const char *row = attn_value_at(task, key);
        if (!has_nonfinite(&p->value, row, p->v_dim)) continue;
        for (ptrdiff_t d = 0; d < p->v_dim; d++) {
            if (attn_is_finite_at(row + d * p->value.column, p->value.dtype)) continue;
            if (first[d] < 0) first[d] = key;
            last[d] = key;
        }
    }
    task->knows_nonfinite = 1;
}

/* Whether this column of a key's value is NaN where the output `y` is, or the same infinity. */
static int explains(const attn_task *task, ptrdiff_t key, ptrdiff_t column, double y)
{
    const attn_operand *value = &task->plan->problem->value;
    const double x = attn_stored_at(attn_value_at(task, key) + column * value->column, value->dtype);
    return isnan(y) ? isnan(x) : x == y;
}

/* Whether a key that row r sees explains the output `y` of this column. Looks at the last one that is not finite and
 * at a few visible keys from the first one on: may be 0, too, where only others are seen. No mask array shows a key
 * before `shown`. */
static int sees_cause(attn_task *task, const attn_block *block, int r, ptrdiff_t column, double y, ptrdiff_t *shown)
{
    enum { FEW = 32 };
    const ptrdiff_t *const keys = task->nonfinite_keys;
    const ptrdiff_t first = keys[column], last = keys[column + task->plan->problem->v_dim];
    const ptrdiff_t to = attn_min(last + 1, block->last[r]);
    unsigned char hidden[ATTN_BLOCK_KEYS];
    int looked_at = 0;
    if (first < 0) return 0;
    if (block->first[r] <= last && last < to && explains(task, last, column, y) &&
        attn_hide_keys(task, block, r, last, 1, hidden))
        return 1;
    for (ptrdiff_t key = attn_max(first, *shown), end; key < to && looked_at < FEW; key = end) {
        end = attn_min(to, key + ATTN_BLOCK_KEYS - key % ATTN_BLOCK_KEYS);
        const int visible = attn_hide_keys(task, block, r, key, (int)(end - key), hidden);
        if (visible == 0 && key == *shown) *shown = end;
        for (int n = 0; visible > 0 && n < end - key; n++)
            if (!hidden[n] && looked_at++ < FEW && explains(task, key + n, column, y)) return 1;
    }
    return 0;
}

/* Which of a row's first and last key in its interval it sees: -1 where it does not. */
static void visible_ends(const attn_task *task, const attn_block *block, int r, ptrdiff_t ends[2])
{
    unsigned char hidden;
    ends[0] = block->last[r] - 1, ends[1] = block->first[r];
    for (int n = 0; n < 2; n++)
        if (block->first[r] >= block->last[r] || !attn_hide_keys(task, block, r, ends[n], 1, &hidden)) ends[n] = -1;
}

/* Whether redoing row r cannot help: its sum is NaN, or each column that is not finite sees the cause. In decode,
 * redoing the few rows is faster than looking at all values. */
static int stays_nonfinite(attn_task *task, const attn_block *block, int r, const void *output)
{
    const int size = task->plan->kernels->size;
    ptrdiff_t shown = block->first[r], ends[2];
    if (isnan(attn_real_at(block->running_state.sum, r, size))) return 1;
    visible_ends(task, block, r, ends);
    for (ptrdiff_t d = 0; d < task->plan->problem->v_dim; d++) {
        const double y = attn_real_at(output, d, size);
        if (isfinite(y) || (ends[0] >= 0 && explains(task, ends[0], d, y)) ||
            (ends[1] >= 0 && explains(task, ends[1], d, y)))
            continue;
        if (task->plan->decode) return 0;
        if (!task->knows_nonfinite) find_nonfinite(task);
        if (!sees_cause(task, block, r, d, y, &shown)) return 0;
    }
    return 1;
}

/* Gives every NaN of an output row the same bits, which otherwise may be those of a NaN that is masked; infinities
 * become such NaN, too, if the row is redone. */
static void mark_nonfinite(const attn_plan *plan, void *output, int is_redone)
{
    const int size = plan->kernels->size;
    for (ptrdiff_t d = 0; d < plan->problem->v_dim; d++) {
        const double y = attn_real_at(output, d, size);
        if (is_redone ? !isfinite(y) : isnan(y)) attn_put_real(output, d, size, (double)NAN);
    }
}

/* Takes from the row in memory what was right the first time: all but the NaN. Values that were scaled down for the
 * other columns may have lost it. */
static void keep_finite(const attn_plan *plan, const char *stored, void *output)
{
    const attn_dtype dtype = plan->problem->output.dtype;
    for (ptrdiff_t d = 0; d < plan->problem->v_dim; d++) {
        const double y = attn_stored_at(stored + d * attn_size_of_real(dtype), dtype);
        if (!isnan(y)) attn_put_real(output, d, plan->kernels->size, y);
    }
}

uint64_t attn_finish_block(attn_task *task, attn_block *block, uint64_t rows)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    const int rounds = attn_is_half(p->output.dtype);
    void *output[ATTN_MAX_WIDTH], *stored[ATTN_MAX_WIDTH];

    if (p->unfinished) return leave_state(task, block, rows);
    if (!block->running_begun) memset(block->running_state.sum, 0, (size_t)(block->rows * plan->kernels->size));
    if (p->lse.data) {
        attn_row_addresses(task, &p->lse, block, output);
        for (int r = 0; r < block->rows; r++) store_lse(p, block, r, output[r]);
    }
    attn_row_addresses(task, &p->output, block, stored);
    for (int r = 0; r < block->rows; r++) { /* aside: in a state that is not needed now */
        void *aside = (char *)block->chunk_state.out + (size_t)(r * plan->columns * plan->kernels->size);
        output[r] = !(rows >> r & 1) ? NULL : rounds || task->redoes ? aside : stored[r];
    }
    const int is_mean =
        task->factor != 1 && task->keep_prob == 1; /* of values that were made small, and nothing dropped */
    uint64_t nonfinite = plan->kernels->finish_rows(block->rows, p->v_dim, &block->running_state, plan->columns,
                                                    task->factor * task->keep_prob, is_mean, p->empty, output);
    for (int r = 0; nonfinite >> r != 0 && r < block->rows; r++) {
        if (!(nonfinite >> r & 1)) continue;
        if (task->factor != 1 || stays_nonfinite(task, block, r, output[r])) nonfinite &= ~((uint64_t)1 << r);
        mark_nonfinite(plan, output[r], nonfinite >> r & 1);
    }
    for (int r = 0; (rounds || task->redoes) && r < block->rows; r++) {
        if (output[r] == NULL) continue;
        if (task->redoes) keep_finite(plan, stored[r], output[r]);
        if (rounds)
            plan->kernels->store_row((attn_element)p->output.dtype, p->v_dim, output[r], stored[r]);
        else
            memcpy(stored[r], output[r], (size_t)(p->v_dim * plan->kernels->size));
    }
    return nonfinite;
}

/* Writes the rows' weights, one key block at a time. Advances `row`. */
static void write_weights(const attn_task *task, const attn_block *block, void **row)
{
    const attn_plan *plan = task->plan;
    const ptrdiff_t kv_len = plan->problem->kv_len;
    const int size = plan->kernels->size;
    for (ptrdiff_t n = 0; n * ATTN_BLOCK_KEYS < kv_len; n++) {
        const attn_saved_scores *saved = attn_saved_scores_of(plan, block, n);
        const ptrdiff_t keys = attn_min(kv_len - n * ATTN_BLOCK_KEYS, ATTN_BLOCK_KEYS);
        if (saved->keys > 0 && plan->decode)
            plan->kernels->decode_weights(block->rows, saved->keys, saved->weights, saved->seen, &block->running_state,
                                          task->keep_prob, row);
        else if (saved->keys > 0)
            plan->kernels->weights_block(block->vectors, block->rows, saved->keys, saved->weights, saved->seen,
                                         &block->running_state, task->keep_prob, row);
        for (int r = 0; r < block->rows; r++) {
            memset((char *)row[r] + (ptrdiff_t)saved->keys * size, 0, (size_t)((keys - saved->keys) * size));
            row[r] = (char *)row[r] + keys * size;
        }
    }
}

void attn_finish_weights(attn_task *task, const attn_block *block)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    const int rounds = attn_is_half(p->weights.dtype);
    void *output[ATTN_MAX_WIDTH], *row[ATTN_MAX_WIDTH];

    attn_row_addresses(task, &p->weights, block, output);
    if (!p->average && !rounds) {
        write_weights(task, block, output);
        return;
    }
    for (int r = 0; r < block->rows; r++) row[r] = task->weights + (size_t)r * plan->weights_row_bytes;
    write_weights(task, block, row);
    for (int r = 0; r < block->rows; r++) {
        const ptrdiff_t head = place_of(task, block->row + r).head;
        void *weights = task->weights + (size_t)r * plan->weights_row_bytes, *mean = output[r];
        if (p->average && rounds) mean = task->mean + (size_t)r * plan->weights_row_bytes;
        if (p->average) /* heads in order, so that the sum is reproducible */
            plan->kernels->share_row(p->kv_len, weights, 1 / (double)p->heads, head == 0, mean);
        if (rounds && (!p->average || head == p->heads - 1))
            plan->kernels->store_row((attn_element)p->weights.dtype, p->kv_len, p->average ? mean : weights, output[r]);
    }
}
