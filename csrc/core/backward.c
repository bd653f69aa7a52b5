/* Gradients of attention, from its output and logsumexp: weights are computed again, tile by tile.
 *
 *     weights    P = exp(scale Q K^T + mask - lse), dropped: W = keep P / (1 - dropout_p)
 *     upstream   dP = keep (dO V^T) / (1 - dropout_p)
 *     scores     dS = P (dP - delta),  delta = sum of dO O over a row, less its grad_lse
 *     results    dV = W^T dO,  dK = scale dS^T Q,  dQ = scale dS K,  dmask = dS,  dscale = sum of dS scores / scale
 *
 * dK and dQ are those of the dot product; a table, score_gradients, has those of the other scores.
 *
 * A tile is a block of keys and a block of ATTN_MAX_WIDTH queries, at every instruction-set level: sums over queries are
 * cut at the same places. A task walks blocks of keys, and for each the blocks of queries, of one slice (batch entry and
 * head) after the other. Each element of a gradient belongs to one task, so that it is summed in this order whatever
 * the number of threads. Units are what tasks must not share: the slices that add to the same gradient.
 *
 * With enough units for the workers, a task computes all gradients of a unit, in five products a tile. Else two passes
 * cut units further, along the keys for dK and dV and along the queries for dQ, in seven products.
 */
#include "backward.h"

#include <math.h>
#include <string.h>

#include "dispatch.h"
#include "error.h"
#include "stored.h"
#include "tiles.h"

enum { QUERIES = ATTN_TILE_QUERIES };
enum { WANTS_QUERY = 1, WANTS_KEY = 2, WANTS_MASK = 4 };

/* A block of queries, with what the walk over keys needs of it. */
typedef struct {
    attn_tile_queries tile;
    void *packed_upstream;            /* dO, packed */
    void *rows, *upstream;            /* (QUERIES, columns): queries as add_tile reads them, and dO; finite */
    uint64_t nonfinite, nonfinite_up; /* bits of the rows in which a NaN or an infinity was replaced */
    void *delta;                      /* (QUERIES): attn_softmax_rows */
    void *sum;                        /* (QUERIES, columns): dQ */
    void *scale_sum, *weight_sum;     /* (QUERIES), (columns): of dscale; of score_weight's gradient */
    int begun;                        /* sum holds something */
} query_block;

/* A block of keys and values, and the sums of their gradients. */
typedef struct {
    attn_tile_keys tile;
    int read, begun;           /* read: it is in memory; begun: the sums hold something */
    void *rows, *value;        /* keys as add_tile reads them (keys, columns) */
    uint64_t nonfinite;        /* bits of the keys in which a NaN or an infinity was replaced */
    void *key_sum, *value_sum; /* (keys, columns): dK, dV */
} key_block;

/* How a pass is cut into tasks: units of slices, and pieces of a unit. */
typedef struct {
    int wants;
    int joined[ATTN_MAX_AXES];            /* batch axes that a unit runs along */
    ptrdiff_t units, unit_batches, heads; /* batch entries and heads of a unit */
    ptrdiff_t query_pieces, key_pieces;
} unit_cut;

typedef struct {
    const attn_backward_problem *problem;
    attn_tile_plan tile;
    const struct score_gradient *score;
    unit_cut cut;
    ptrdiff_t keys_together; /* key blocks for which a block of queries is read once */
    double times;            /* the scale; 1 where it is 0 */
    double *scale_parts;     /* (slices, query_blocks), or NULL */
    char *weight_parts;      /* (slices, query_blocks, columns) reals, or NULL */
    int workers;
    size_t worker_bytes;
    char *scratch;
} backward_plan;

/* One worker's view of the task at hand. */
typedef struct {
    const backward_plan *plan;
    attn_tile_walk tile;
    query_block *queries;
    ptrdiff_t first_query, last_query; /* blocks of queries */
    void *upstream, *weights, *gradients, *ones;
    void *unused;    /* (columns): a sum that is not wanted */
    key_block *keys; /* that walk together */
} walk;

/* How a score function differs from the others. Sums are those of add_tile, over a slice. */
typedef struct score_gradient {
    double factor; /* of the rows that add_tile reads; times the scale if `scales` */
    int scales;
    void (*copy_rows)(const backward_plan *plan, int rows, const void *from, void *to, uint64_t *nonfinite);
    void (*add_tile)(const walk *w, query_block *q, key_block *key, const attn_tile_place *at);
    /* From sums to gradients. `from` are the rows of query or key as they were given. May be NULL. */
    void (*finish)(const backward_plan *plan, int rows, const void *from, void *sum);
} score_gradient;

static char *real_at(const backward_plan *plan, void *reals, ptrdiff_t n)
{
    return attn_tile_real(&plan->tile, reals, n);
}

/* Rows --------------------------------------------------------------------------------------------------------------
 */

/* Sets delta of a block's rows, which needs room for a block of outputs. */
static void set_delta(const walk *w, const query_block *q, void *output)
{
    const backward_plan *plan = w->plan;
    const attn_backward_problem *b = plan->problem;
    const attn_block *block = &q->tile.block;
    const attn_kernels *k = plan->tile.plan.kernels;
    const ptrdiff_t columns = plan->tile.v_columns;
    const int size = k->size;
    void *grad_lse[ATTN_MAX_WIDTH];
    if (b->grad_lse.data) attn_row_addresses(&w->tile.task, &b->grad_lse, block, grad_lse);
    attn_load_tile_rows(&w->tile, &b->output, block, b->forward.v_dim, columns, output);
    for (int r = 0; r < block->rows; r++) {
        const double total = k->sum_products(b->forward.v_dim, real_at(plan, output, r * columns),
                                             real_at(plan, q->upstream, r * columns));
        attn_put_real(q->delta, r, size, b->grad_lse.data ? total - attn_real_at(grad_lse[r], 0, size) : total);
    }
}

/* Place of block `number` of the queries in scale_parts and weight_parts. */
static ptrdiff_t part_of(const walk *w, ptrdiff_t number)
{
    const backward_plan *plan = w->plan;
    return (w->tile.task.batch * plan->problem->forward.heads + w->tile.head) * plan->tile.query_blocks + number;
}

/* Reads, packs and places block `number` of the queries, and empties its sums. */
static void begin_queries(walk *w, query_block *q, ptrdiff_t number)
{
    const backward_plan *plan = w->plan;
    const attn_backward_problem *b = plan->problem;
    const attn_problem *p = &b->forward;
    const attn_kernels *k = plan->tile.plan.kernels;
    const attn_block *block = &q->tile.block;
    const ptrdiff_t columns = plan->tile.v_columns;
    attn_begin_tile_queries(&w->tile, &q->tile, number);
    plan->score->copy_rows(plan, block->rows, w->tile.task.query_rows, q->rows, &q->nonfinite);
    attn_load_tile_rows(&w->tile, &b->grad_output, block, p->v_dim, columns, q->upstream);
    attn_pack_tile_rows(&w->tile, block, p->v_dim, columns, q->upstream, 1, q->packed_upstream);
    set_delta(w, q, w->keys[0].value);
    q->nonfinite_up = k->finite_values(block->rows, (int)(columns / k->lanes), q->upstream, columns, 1, q->upstream);
    memset(q->sum, 0, (size_t)(block->rows * plan->tile.columns * k->size));
    memset(q->scale_sum, 0, (size_t)(QUERIES * k->size));
    q->weight_sum = plan->weight_parts && plan->cut.wants & WANTS_QUERY
                        ? real_at(plan, plan->weight_parts, part_of(w, number) * plan->tile.columns)
                        : w->unused;
    q->begun = 0;
    attn_find_shifts(&w->tile, &q->tile, &w->keys[0].tile);
}

/* Tiles -------------------------------------------------------------------------------------------------------------
 */

/* Weights, and gradients of scores, of a tile. Returns 0 if no pair of it is visible. */
static int compute_tile(const walk *w, const query_block *q, const key_block *key, int keys, attn_tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_kernels *k = plan->tile.plan.kernels;
    const attn_block *block = &q->tile.block;
    double kept;
    if (!attn_place_tile(&w->tile, block, key->tile.from, keys, at)) return 0;
    const void *const drop_mask = attn_tile_drops(&w->tile, block, at, &kept);
    for (int r = 0; r < block->rows; r += k->width) {
        const int vectors = attn_tile_vectors(&w->tile, block, r);
        const attn_softmax_rows rows = {real_at(plan, q->tile.shift, r), real_at(plan, q->tile.factor, r),
                                        real_at(plan, q->delta, r)};
        const attn_score_epilogue part = attn_part_epilogue(&w->tile, at, r);
        const void *const scores = attn_score_part(&w->tile, &q->tile, r, &key->tile, keys);
        k->score_block(vectors, keys, p->v_dim, real_at(plan, q->packed_upstream, r * p->v_dim), key->value,
                       plan->tile.v_columns, &attn_no_epilogue, 0, w->upstream, w->tile.task.maximum);
        k->softmax_backward(vectors, keys, scores, w->upstream, &part,
                            drop_mask ? (const char *)drop_mask + r * k->size : NULL, &rows, kept, at->width,
                            real_at(plan, w->weights, r), real_at(plan, w->gradients, r));
        if (plan->scale_parts && plan->cut.wants & WANTS_QUERY)
            k->score_sums(vectors, keys, w->tile.scores, real_at(plan, w->gradients, r), at->width,
                          real_at(plan, q->scale_sum, r));
    }
    return 1;
}

/* Sums --------------------------------------------------------------------------------------------------------------
 */

/* dV += W^T dO. */
static void add_values(const walk *w, const query_block *q, key_block *key, const attn_tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->tile.plan.kernels;
    k->value_block(attn_reals(k), at->keys, q->tile.block.rows, (int)(plan->tile.v_columns / k->lanes), w->weights,
                   at->width, 1, NULL, NULL, q->upstream, plan->tile.v_columns, w->ones, 0, key->value_sum,
                   plan->tile.v_columns);
    if (q->nonfinite_up)
        attn_add_nonfinite_rows(&w->tile, &q->tile.block, at, q->nonfinite_up, NULL, &plan->problem->grad_output,
                                plan->problem->forward.v_dim, 1, w->weights, key->value_sum, plan->tile.v_columns);
}

/* dmask += dS, summed over the axes that the mask broadcasts: within the tile first. */
static void add_mask(const walk *w, const query_block *q, const attn_tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_operand *mask = &plan->problem->mask;
    const int size = plan->tile.plan.kernels->size, keys = (int)attn_min(at->keys, p->maskable_len - at->from);
    void *row[ATTN_MAX_WIDTH];
    attn_row_addresses(&w->tile.task, mask, &q->tile.block, row);
    const int all = mask->row == 0; /* one row for all queries */
    for (int r = 0; r < (all ? 1 : q->tile.block.rows); r++)
        for (int n = 0; n < keys; n++) {
            double sum = 0;
            for (int i = r; i < (all ? q->tile.block.rows : r + 1); i++)
                sum += attn_real_at(w->gradients, n * at->width + i, size);
            char *to = (char *)row[r] + (at->from + n) * mask->column;
            attn_put_real(to, 0, size, attn_real_at(to, 0, size) + sum);
        }
}

/* Adds sums (rows, padded) to the rows of a gradient's head, from row `from` on. */
static void add_rows(const walk *w, const attn_operand *gradient, ptrdiff_t head, ptrdiff_t from, int rows,
                     ptrdiff_t columns, void *sum, ptrdiff_t padded)
{
    const backward_plan *plan = w->plan;
    char *to = attn_part(&plan->problem->forward, gradient, w->tile.task.batch, head) + from * gradient->row;
    for (int n = 0; n < rows; n++, to += gradient->row)
        plan->tile.plan.kernels->scale_row(columns, real_at(plan, sum, n * padded), 1, to, to);
}

/* Score functions ---------------------------------------------------------------------------------------------------
 */

static int wants_queries(const backward_plan *plan)
{
    return plan->cut.wants & WANTS_QUERY && plan->problem->query.data && !plan->problem->unscaled;
}

static int wants_keys(const backward_plan *plan)
{
    return plan->cut.wants & WANTS_KEY && plan->problem->key.data && !plan->problem->unscaled;
}

static double factor_of_rows(const backward_plan *plan)
{
    return plan->score->scales ? plan->score->factor * plan->times : plan->score->factor;
}

static void copy_finite(const backward_plan *plan, int rows, const void *from, void *to, uint64_t *nonfinite)
{
    const attn_kernels *k = plan->tile.plan.kernels;
    *nonfinite = k->finite_values(rows, (int)(plan->tile.columns / k->lanes), from, plan->tile.plan.features,
                                  factor_of_rows(plan), to);
}

/* dK += dS^T Q and dQ += dS K, where one of the factors has been scaled. */
static void add_products(const walk *w, query_block *q, key_block *key, const attn_tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_kernels *k = plan->tile.plan.kernels;
    const int vectors = (int)(plan->tile.columns / k->lanes), rows = q->tile.block.rows;
    if (wants_keys(plan)) {
        k->value_block(attn_reals(k), at->keys, rows, vectors, w->gradients, at->width, 1, NULL, NULL, q->rows,
                       plan->tile.columns, w->ones, 0, key->key_sum, plan->tile.columns);
        if (q->nonfinite)
            attn_add_nonfinite_rows(&w->tile, &q->tile.block, at, q->nonfinite, NULL, &p->query, p->head_dim,
                                    plan->times, w->gradients, key->key_sum, plan->tile.columns);
    }
    if (wants_queries(plan)) {
        k->value_block(attn_reals(k), rows, at->keys, vectors, w->gradients, 1, at->width, NULL, NULL, key->rows,
                       plan->tile.columns, w->ones, 0, q->sum, plan->tile.columns);
        if (key->nonfinite)
            attn_add_nonfinite_rows(&w->tile, &q->tile.block, at, key->nonfinite, &w->tile.task.key, &p->key,
                                    p->head_dim, plan->times, w->gradients, q->sum, plan->tile.columns);
    }
}

/* Cosine: the tiles are those of unit vectors. One that is not finite makes all gradients of its visible pairs NaN. */
static void finish_cosine(const backward_plan *plan, int rows, const void *from, void *sum)
{
    plan->tile.plan.kernels->normalise_rows_backward(rows, plan->problem->forward.head_dim, plan->tile.columns, from,
                                                     sum);
}

/* Distance: dQ = -2 scale sum of dS (q - k), and dK likewise, from the differences themselves: sums of products with q
 * and k would cancel. Halves of q and k have differences that cannot overflow, as they might in a hidden pair. An
 * infinity is infinitely far away: no weight, no gradient. */
static void add_differences(const walk *w, query_block *q, key_block *key, const attn_tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->tile.plan.kernels;
    const int vectors = (int)(plan->tile.columns / k->lanes), rows = q->tile.block.rows;
    if (wants_keys(plan))
        k->difference_block(at->keys, rows, vectors, w->gradients, at->width, 1, key->rows, q->rows, key->key_sum);
    if (wants_queries(plan))
        k->difference_block(rows, at->keys, vectors, w->gradients, 1, at->width, q->rows, key->rows, q->sum);
}

static void finish_distance(const backward_plan *plan, int rows, const void *from, void *sum)
{
    (void)from;
    plan->tile.plan.kernels->scale_row(rows * plan->tile.columns, sum, -4 * plan->times, NULL, sum);
}

/* Additive: dQ = scale weight (sum of dS (1 - tanh^2)), and dK likewise. */
static void copy_given(const backward_plan *plan, int rows, const void *from, void *to, uint64_t *nonfinite)
{
    *nonfinite = 0;
    memcpy(to, from, (size_t)(rows * plan->tile.columns * plan->tile.plan.kernels->size));
}

static void add_slopes(const walk *w, query_block *q, key_block *key, const attn_tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->tile.plan.kernels;
    const int weighs = plan->weight_parts && plan->cut.wants & WANTS_QUERY;
    if (wants_queries(plan) || wants_keys(plan) || weighs)
        k->additive_backward(q->tile.block.rows, at->keys, (int)(plan->tile.columns / k->lanes), w->gradients,
                             at->width, q->rows, key->rows, q->sum, key->key_sum, q->weight_sum);
}

static void finish_additive(const backward_plan *plan, int rows, const void *from, void *sum)
{
    const attn_problem *p = &plan->problem->forward;
    const int size = plan->tile.plan.kernels->size;
    (void)from;
    for (int n = 0; n < rows; n++)
        for (ptrdiff_t d = 0; d < p->head_dim; d++)
            attn_put_real(sum, n * plan->tile.columns + d, size,
                          attn_real_at(sum, n * plan->tile.columns + d, size) *
                              (attn_real_at(p->score_weight, d, size) * plan->times));
}

static const score_gradient score_gradients[] = {
    [ATTN_SCORE_DOT] = {.factor = 1, .scales = 1, .copy_rows = copy_finite, .add_tile = add_products},
    [ATTN_SCORE_COSINE] =
        {.factor = 1, .scales = 1, .copy_rows = copy_finite, .add_tile = add_products, .finish = finish_cosine},
    [ATTN_SCORE_DISTANCE] = {.factor = 0.5,
                             .copy_rows = copy_finite,
                             .add_tile = add_differences,
                             .finish = finish_distance},
    [ATTN_SCORE_ADDITIVE] = {.copy_rows = copy_given, .add_tile = add_slopes, .finish = finish_additive},
};

/* Slices ------------------------------------------------------------------------------------------------------------
 */

/* Reads a block of keys and values, and empties their sums. */
static void begin_keys(walk *w, key_block *key)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const int size = plan->tile.plan.kernels->size;
    if (key->read) return;
    key->read = 1;
    attn_read_tile_keys(&w->tile, &key->tile);
    plan->score->copy_rows(plan, key->tile.keys, key->tile.key, key->rows, &key->nonfinite);
    attn_load_tile_keys(&w->tile, &w->tile.task.value, &p->value, &key->tile, p->v_dim, plan->tile.v_columns,
                        key->value);
    memset(key->key_sum, 0, (size_t)(key->tile.keys * plan->tile.columns * size));
    memset(key->value_sum, 0, (size_t)(key->tile.keys * plan->tile.v_columns * size));
}

/* Overwrites the keys. */
static void end_keys(const walk *w, const key_block *key)
{
    const backward_plan *plan = w->plan;
    const attn_backward_problem *b = plan->problem;
    const attn_problem *p = &b->forward;
    const attn_tile_keys *tile = &key->tile;
    const ptrdiff_t columns = plan->tile.columns;
    if (!key->begun) return;
    if (wants_keys(plan)) {
        if (plan->score->finish) {
            attn_load_tile_keys(&w->tile, &w->tile.task.key, &p->key, tile, p->head_dim, columns, tile->key);
            plan->score->finish(plan, tile->keys, tile->key, key->key_sum);
        }
        add_rows(w, &b->key, w->tile.head / p->key_group, tile->from, tile->keys, p->head_dim, key->key_sum, columns);
    }
    if (b->value.data)
        add_rows(w, &b->value, w->tile.head / p->value_group, tile->from, tile->keys, p->v_dim, key->value_sum,
                 plan->tile.v_columns);
}

static void end_queries(const walk *w, const query_block *q, ptrdiff_t number)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_block *block = &q->tile.block;
    const ptrdiff_t columns = plan->tile.columns;
    void *const rows = w->tile.task.query_rows;
    if (!q->begun) return;
    if (wants_queries(plan)) {
        if (plan->score->finish) {
            attn_load_tile_rows(&w->tile, &p->query, block, p->head_dim, columns, rows);
            plan->score->finish(plan, block->rows, rows, q->sum);
        }
        add_rows(w, &plan->problem->query, w->tile.head, number * QUERIES, block->rows, p->head_dim, q->sum, columns);
    }
    if (plan->scale_parts == NULL) return;
    double sum = 0;
    for (int r = 0; r < block->rows; r++) sum += attn_real_at(q->scale_sum, r, plan->tile.plan.kernels->size);
    plan->scale_parts[part_of(w, number)] = sum / attn_factor_of(p);
}

/* All that one block of queries and one of keys add to the gradients. */
static void walk_tile(walk *w, query_block *q, key_block *key)
{
    const attn_problem *p = &w->plan->problem->forward;
    const int wants = w->plan->cut.wants, seen = attn_keys_seen(p, &q->tile.block, key->tile.from, p->kv_len);
    attn_tile_place at;
    if (seen == 0) return;
    begin_keys(w, key);
    if (!compute_tile(w, q, key, seen, &at)) return;
    if (wants & WANTS_KEY && w->plan->problem->value.data) add_values(w, q, key, &at);
    if (wants & WANTS_KEY) key->begun = 1;
    if (wants & WANTS_QUERY) q->begun = 1;
    if (wants & (WANTS_QUERY | WANTS_KEY)) w->plan->score->add_tile(w, q, key, &at);
    if (wants & WANTS_MASK) add_mask(w, q, &at);
}

/* One batch entry and head: its blocks of keys from first_key on, against its blocks of queries. Returns 0 if the task
 * must stop. */
static int walk_slice(walk *w, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t first_key, ptrdiff_t last_key)
{
    const backward_plan *plan = w->plan;
    const int wants = plan->cut.wants;
    attn_begin_slice(&w->tile, batch, head);
    for (ptrdiff_t n = w->first_query; n < w->last_query; n++) {
        if (attn_should_stop(w->tile.task.job, w->tile.task.worker)) return 0;
        begin_queries(w, &w->queries[n - w->first_query], n);
    }
    for (ptrdiff_t first = first_key; first < last_key; first += plan->keys_together) {
        const ptrdiff_t together = attn_min(last_key - first, plan->keys_together);
        for (ptrdiff_t n = 0; n < together; n++) {
            key_block *key = &w->keys[n];
            attn_place_tile_keys(&w->tile, &key->tile, first + n);
            key->read = key->begun = 0;
        }
        for (ptrdiff_t n = 0; n < w->last_query - w->first_query; n++) {
            if (attn_should_stop(w->tile.task.job, w->tile.task.worker)) return 0;
            for (ptrdiff_t m = 0; m < together; m++) walk_tile(w, &w->queries[n], &w->keys[m]);
        }
        for (ptrdiff_t n = 0; n < together; n++) end_keys(w, &w->keys[n]);
    }
    for (ptrdiff_t n = w->first_query; n < w->last_query && wants & WANTS_QUERY; n++)
        end_queries(w, &w->queries[n - w->first_query], n);
    return 1;
}

/* The batch entry with coordinates `unit` along the axes that are not joined, and `inner` along those that are. */
static ptrdiff_t batch_of(const backward_plan *plan, ptrdiff_t unit, ptrdiff_t inner)
{
    const attn_problem *p = &plan->problem->forward;
    ptrdiff_t batch = 0, step = 1;
    for (int axis = p->batch_axes - 1; axis >= 0; axis--) { /* the order of attn_part */
        ptrdiff_t *const rest = plan->cut.joined[axis] ? &inner : &unit;
        batch += *rest % p->batch_shape[axis] * step;
        *rest /= p->batch_shape[axis];
        step *= p->batch_shape[axis];
    }
    return batch;
}

static size_t layout_walk(const backward_plan *plan, char *memory, walk *w)
{
    const attn_problem *p = &plan->problem->forward;
    const size_t size = (size_t)plan->tile.plan.kernels->size, tile = (size_t)ATTN_BLOCK_KEYS * QUERIES * size;
    const size_t key_bytes = attn_saturating_mul((size_t)plan->tile.columns, ATTN_BLOCK_KEYS * size);
    const size_t value_bytes = attn_saturating_mul((size_t)plan->tile.v_columns, ATTN_BLOCK_KEYS * size);
    const ptrdiff_t blocks = attn_ceil_div(plan->tile.query_blocks, plan->cut.query_pieces);
    size_t used = 0;
    attn_layout_tiles(&plan->tile, memory, &used, &w->tile);
    w->upstream = attn_next_part(memory, &used, tile);
    w->weights = attn_next_part(memory, &used, tile);
    w->gradients = attn_next_part(memory, &used, tile);
    w->ones = attn_next_part(memory, &used, ATTN_BLOCK_KEYS * size);
    w->unused = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->tile.columns, size));
    w->keys = attn_next_part(memory, &used, (size_t)plan->keys_together * sizeof *w->keys);
    for (ptrdiff_t n = 0; n < plan->keys_together; n++) {
        key_block unused, *key = memory ? &w->keys[n] : &unused;
        attn_layout_tile_keys(&plan->tile, memory, &used, &key->tile);
        key->rows = attn_next_part(memory, &used, key_bytes);
        key->key_sum = attn_next_part(memory, &used, key_bytes);
        key->value = attn_next_part(memory, &used, value_bytes);
        key->value_sum = attn_next_part(memory, &used, value_bytes);
    }
    w->queries = attn_next_part(memory, &used, attn_saturating_mul((size_t)blocks, sizeof *w->queries));
    for (ptrdiff_t n = 0; n < blocks; n++) {
        query_block unused, *q = memory ? &w->queries[n] : &unused;
        const size_t row = QUERIES * size;
        attn_layout_tile_queries(&plan->tile, memory, &used, &q->tile);
        q->packed_upstream = attn_next_part(memory, &used, attn_saturating_mul((size_t)p->v_dim, row));
        q->rows = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->tile.columns, row));
        q->upstream = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->tile.v_columns, row));
        q->sum = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->tile.columns, row));
        q->scale_sum = attn_next_part(memory, &used, row);
        q->delta = attn_next_part(memory, &used, row);
    }
    return used;
}

static void walk_unit(void *context, ptrdiff_t number, int worker, attn_job *job)
{
    const backward_plan *plan = context;
    const attn_problem *p = &plan->problem->forward;
    const unit_cut *cut = &plan->cut;
    const ptrdiff_t pieces = cut->query_pieces * cut->key_pieces, unit = number / pieces, piece = number % pieces;
    const ptrdiff_t query = piece / cut->key_pieces, key = piece % cut->key_pieces;
    const ptrdiff_t units_of_heads = p->heads / cut->heads;
    walk w = {.plan = plan};
    layout_walk(plan, plan->scratch + (size_t)worker * plan->worker_bytes, &w);
    attn_begin_tiles(&w.tile, job, worker);
    memset(w.unused, 0, (size_t)(plan->tile.columns * plan->tile.plan.kernels->size));
    for (int n = 0; n < ATTN_BLOCK_KEYS; n++) attn_put_real(w.ones, n, plan->tile.plan.kernels->size, 1);
    w.first_query = plan->tile.query_blocks * query / cut->query_pieces;
    w.last_query = plan->tile.query_blocks * (query + 1) / cut->query_pieces;
    for (ptrdiff_t n = 0; n < cut->unit_batches; n++)
        for (ptrdiff_t head = 0; head < cut->heads; head++)
            if (!walk_slice(&w, batch_of(plan, unit / units_of_heads, n), unit % units_of_heads * cut->heads + head,
                            plan->tile.key_blocks * key / cut->key_pieces,
                            plan->tile.key_blocks * (key + 1) / cut->key_pieces))
                return;
}

/* Passes ------------------------------------------------------------------------------------------------------------
 */

static ptrdiff_t least_common_multiple(ptrdiff_t a, ptrdiff_t b)
{
    ptrdiff_t n = a;
    while (n % b != 0) n += a;
    return n;
}

/* Joins what adds to the same rows of a gradient. `heads`: query heads that share one of its heads. */
static void join(const attn_problem *p, const attn_operand *gradient, ptrdiff_t heads, unit_cut *cut)
{
    if (gradient->data == NULL) return;
    for (int axis = 0; axis < p->batch_axes; axis++)
        cut->joined[axis] |= p->batch_shape[axis] > 1 && gradient->batch[axis] == 0;
    cut->heads = least_common_multiple(cut->heads, gradient->head == 0 ? p->heads : heads);
}

static void cut_units(const backward_plan *plan, int wants, unit_cut *cut)
{
    const attn_backward_problem *b = plan->problem;
    const attn_problem *p = &b->forward;
    *cut = (unit_cut){.wants = wants, .heads = 1, .query_pieces = 1, .key_pieces = 1, .unit_batches = 1};
    if (wants & WANTS_QUERY) join(p, &b->query, 1, cut);
    if (wants & WANTS_KEY) join(p, &b->key, p->key_group, cut);
    if (wants & WANTS_KEY) join(p, &b->value, p->value_group, cut);
    if (wants & WANTS_MASK) join(p, &b->mask, 1, cut);
    cut->units = p->heads / cut->heads;
    for (int axis = 0; axis < p->batch_axes; axis++)
        *(cut->joined[axis] ? &cut->unit_batches : &cut->units) *= p->batch_shape[axis];
}

/* Runs a pass over all units. */
static attn_status run_pass(backward_plan *plan, attn_error *error)
{
    walk unused;
    const ptrdiff_t tasks = plan->cut.units * plan->cut.query_pieces * plan->cut.key_pieces;
    plan->worker_bytes = layout_walk(plan, NULL, &unused);
    return attn_run_with_scratch("attention_backward", tasks, attn_workers(plan->workers, tasks), plan->worker_bytes,
                                 &plan->scratch, walk_unit, plan, error);
}

/* The pieces of a unit that leave every worker some tasks. */
static ptrdiff_t pieces_of(const backward_plan *plan, ptrdiff_t blocks)
{
    const ptrdiff_t enough = plan->workers > 1 ? 4 * (ptrdiff_t)plan->workers : 1;
    return attn_max(1, attn_min(blocks, attn_ceil_div(enough, plan->cut.units)));
}

/* Whether whole units, in five products, keep the workers as busy as pieces in seven. */
static int units_are_enough(const backward_plan *plan)
{
    const ptrdiff_t rounds = attn_ceil_div(plan->cut.units, plan->workers);
    return 5 * rounds * plan->workers <= 7 * plan->cut.units;
}

static attn_status run_passes(backward_plan *plan, attn_error *error)
{
    const attn_backward_problem *b = plan->problem;
    const int query = b->query.data || b->score_weight || b->scale ? WANTS_QUERY : 0;
    const int key = b->key.data || b->value.data ? WANTS_KEY : 0;
    attn_status status = ATTN_OK;
    cut_units(plan, query | key, &plan->cut);
    if (query && key && units_are_enough(plan)) {
        status = run_pass(plan, error);
    } else {
        if (key) {
            cut_units(plan, key, &plan->cut);
            plan->cut.key_pieces = pieces_of(plan, plan->tile.key_blocks);
            status = run_pass(plan, error);
        }
        if (query && status == ATTN_OK) {
            cut_units(plan, query, &plan->cut);
            plan->cut.query_pieces = pieces_of(plan, plan->tile.query_blocks);
            status = run_pass(plan, error);
        }
    }
    if (b->mask.data == NULL || status != ATTN_OK) return status;
    cut_units(plan, WANTS_MASK, &plan->cut);
    if (b->mask.row != 0)
        plan->cut.query_pieces = pieces_of(plan, plan->tile.query_blocks);
    else if (b->mask.column != 0)
        plan->cut.key_pieces = pieces_of(plan, plan->tile.key_blocks);
    return run_pass(plan, error);
}

/* As many as leave room in the L2 cache for a block of queries; a wide one does not pay. */
static ptrdiff_t keys_together(const backward_plan *plan)
{
    enum { KEYS_BYTES = 320 << 10 };
    const size_t sums = attn_saturating_mul(2, (size_t)plan->tile.columns + (size_t)plan->tile.v_columns);
    const size_t columns = attn_saturating_add((size_t)plan->tile.plan.features, sums);
    const size_t bytes = attn_saturating_mul(columns, ATTN_BLOCK_KEYS * (size_t)plan->tile.plan.kernels->size);
    const ptrdiff_t together = bytes == 0 ? 1 : attn_max(1, (ptrdiff_t)(KEYS_BYTES / bytes));
    return attn_min(attn_min(together, 8), plan->tile.key_blocks);
}

/* Sets every element of a gradient to 0. */
static void clear(const attn_tensor *gradient)
{
    attn_tensor rows;
    if (gradient->data == NULL) return;
    attn_rows_of(gradient, &rows);
    const ptrdiff_t columns = gradient->ndim ? attn_last_size(gradient) : 1, count = attn_count_rows(gradient, columns);
    for (ptrdiff_t n = 0; n < count; n++)
        memset(attn_row_at(&rows, n), 0, (size_t)(columns * attn_size_of_real(gradient->dtype)));
}

/* Places the sums of query blocks in memory. Returns their bytes. */
static size_t take_parts(backward_plan *plan, char *memory, size_t parts)
{
    const attn_backward_problem *b = plan->problem;
    const size_t row = attn_saturating_mul((size_t)plan->tile.columns, (size_t)plan->tile.plan.kernels->size);
    size_t used = 0;
    if (b->scale)
        plan->scale_parts = attn_next_part(memory, &used, attn_saturating_mul(parts, sizeof *plan->scale_parts));
    if (b->score_weight) plan->weight_parts = attn_next_part(memory, &used, attn_saturating_mul(parts, row));
    return used;
}

/* The gradients of the scale and of score_weight, from the sums of query blocks, in order. */
static void add_parts(const backward_plan *plan, size_t parts)
{
    const attn_backward_problem *b = plan->problem;
    const int size = plan->tile.plan.kernels->size;
    for (size_t n = 0; b->scale && n < parts; n++) *b->scale += plan->scale_parts[n];
    for (ptrdiff_t d = 0; b->score_weight && !b->unscaled && d < b->forward.head_dim; d++) {
        double sum = 0;
        for (size_t n = 0; n < parts; n++)
            sum += attn_real_at(plan->weight_parts, (ptrdiff_t)n * plan->tile.columns + d, size);
        attn_put_real(b->score_weight, d, size, sum * plan->times);
    }
}

attn_status attn_attend_backward(const attn_backward_problem *b, const attn_gradients *gradients, int num_threads,
                                 attn_error *error)
{
    const attn_problem *p = &b->forward;
    backward_plan plan = {
        .problem = b, .tile = attn_plan_tiles(p, &b->lse, b->unscaled), .score = &score_gradients[p->score]};
    attn_arena arena = {.base = NULL};
    const attn_tensor *const all[] = {&gradients->query, &gradients->key, &gradients->value, &gradients->mask,
                                      &gradients->score_weight};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) clear(all[n]);
    if (b->scale) *b->scale = 0;
    if (p->batches == 0 || p->heads == 0 || p->q_len == 0 || p->kv_len == 0) return ATTN_OK;

    plan.keys_together = keys_together(&plan);
    const size_t parts = attn_saturating_mul((size_t)(p->batches * p->heads), (size_t)plan.tile.query_blocks);
    const size_t bytes = take_parts(&plan, NULL, parts);
    if (bytes > 0) {
        if (!attn_arena_take(&arena, bytes))
            return attn_fail(error, ATTN_NO_MEMORY, "attention_backward needs %zu bytes of scratch memory", bytes);
        memset(arena.scratch, 0, bytes);
        take_parts(&plan, arena.scratch, parts);
    }
    plan.workers = attn_workers(attn_work(p) > ATTN_WORTH_THREADS / 2 ? num_threads : 1, PTRDIFF_MAX);
    const attn_float_state before = attn_float_enter(); /* the next lines raise flags */
    plan.times = attn_scale_of(p);
    const attn_status status = run_passes(&plan, error);
    add_parts(&plan, parts);
    attn_float_leave(before);
    if (bytes > 0) attn_arena_give(&arena);
    return status;
}

attn_status attn_attention_backward(const attn_backward_args *args, const attn_gradients *gradients, attn_error *error)
{
    attn_backward_problem problem;
    const attn_status status = attn_check_gradients(args, gradients, &problem, error);
    if (status != ATTN_OK) return status;
    return attn_attend_backward(&problem, gradients, args->attention.num_threads, error);
}
