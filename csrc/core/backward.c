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

#include "attend.h"
#include "dispatch.h"
#include "error.h"
#include "stored.h"

enum { QUERIES = ATTN_MAX_WIDTH }; /* of a block; a multiple of every width */
enum { WANTS_QUERY = 1, WANTS_KEY = 2, WANTS_MASK = 4 };

/* A block of queries, with what the walk over keys needs of it. */
typedef struct {
    attn_block block;
    void *packed, *packed_upstream;   /* of queries, for the score function, and of dO: part by part */
    void *unscaled;                   /* queries without a factor, packed: distances alone */
    double max_norm;                  /* distances: as in attn_block */
    void *rows, *upstream;            /* (QUERIES, columns): queries as add_tile reads them, and dO; finite */
    uint64_t nonfinite, nonfinite_up; /* bits of the rows in which a NaN or an infinity was replaced */
    void *shift, *factor, *delta;     /* (QUERIES): attn_softmax_rows */
    void *sum;                        /* (QUERIES, columns): dQ */
    void *scale_sum, *weight_sum;     /* (QUERIES), (columns): of dscale; of score_weight's gradient */
    int begun;                        /* sum holds something */
} query_block;

/* A block of keys and values, and the sums of their gradients. */
typedef struct {
    ptrdiff_t from;
    int keys, read, begun;     /* read: it is in memory; begun: the sums hold something */
    void *key, *rows, *value;  /* for the score function (keys, features); as add_tile reads them (keys, columns) */
    double max_norm;           /* distances: as in attn_key_block */
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
    attn_plan plan; /* what score functions and reading masks need */
    const struct score_gradient *score;
    unit_cut cut;
    ptrdiff_t query_blocks, key_blocks;
    ptrdiff_t keys_together;      /* key blocks for which a block of queries is read once */
    ptrdiff_t columns, v_columns; /* head_dim and v_dim, padded to whole vectors */
    double times;                 /* the scale; 1 where it is 0 */
    double *scale_parts;          /* (slices, query_blocks), or NULL */
    char *weight_parts;           /* (slices, query_blocks, columns) reals, or NULL */
    int workers;
    size_t worker_bytes;
    char *scratch;
} backward_plan;

/* One worker's view of the task at hand. */
typedef struct {
    const backward_plan *plan;
    attn_task task;
    query_block *queries;
    ptrdiff_t head, first_query, last_query; /* blocks of queries */
    void *scores, *upstream, *weights, *gradients, *ones;
    void *no_scores;  /* where the scale is 0: what they all are */
    void *lowest;     /* (QUERIES): zeros, from which maxima start that nothing reads */
    void *unused;     /* (columns): a sum that is not wanted */
    attn_block *part; /* of a block of queries, for the score function */
    key_block *keys;  /* that walk together */
} walk;

/* A tile that has been computed: its masks, for rows that are not finite. */
typedef struct {
    ptrdiff_t from;
    int keys;
    ptrdiff_t width; /* reals of a row of the tile */
    const void *bias;
    int32_t first[ATTN_MAX_WIDTH], last[ATTN_MAX_WIDTH];
} tile_place;

/* How a score function differs from the others. Sums are those of add_tile, over a slice. */
typedef struct score_gradient {
    double factor; /* of the rows that add_tile reads; times the scale if `scales` */
    int scales;
    void (*copy_rows)(const backward_plan *plan, int rows, const void *from, void *to, uint64_t *nonfinite);
    void (*add_tile)(const walk *w, query_block *q, key_block *key, const tile_place *at);
    /* From sums to gradients. `from` are the rows of query or key as they were given. May be NULL. */
    void (*finish)(const backward_plan *plan, int rows, const void *from, void *sum);
} score_gradient;

static char *real_at(const backward_plan *plan, void *reals, ptrdiff_t n)
{
    return (char *)reals + n * plan->plan.kernels->size;
}

/* Rows --------------------------------------------------------------------------------------------------------------
 */

/* Loads a block's rows of an array as contiguous reals, at `to`. */
static void load_rows(const walk *w, const attn_operand *operand, const attn_block *block, ptrdiff_t columns,
                      ptrdiff_t padded, void *to)
{
    void *row[ATTN_MAX_WIDTH];
    attn_row_addresses(&w->task, operand, block, row);
    attn_load_rows(w->plan->plan.kernels, operand->dtype, block->rows, columns, operand->column, padded, row, to);
}

/* Number of vectors in the part of a block that begins at row r. */
static int vectors_of(const walk *w, const attn_block *block, int r)
{
    return (int)attn_min(block->vectors - r / w->plan->plan.kernels->lanes, ATTN_VECTORS);
}

/* Packs rows for score_block: parts of up to ATTN_VECTORS vectors, one after the other. */
static void pack_upstream(const walk *w, const query_block *q)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->plan.kernels;
    const ptrdiff_t features = plan->problem->forward.v_dim;
    for (int r = 0; r < q->block.rows; r += k->width) {
        const void *row[ATTN_MAX_WIDTH];
        const int rows = (int)attn_min(q->block.rows - r, k->width);
        for (int n = 0; n < rows; n++) row[n] = real_at(plan, q->upstream, (r + n) * plan->v_columns);
        k->pack_queries(rows, vectors_of(w, &q->block, r), features, row, 1,
                        real_at(plan, q->packed_upstream, r * features));
    }
}

/* The part of a block that begins at row r, as a score function reads it. */
static attn_block *part_at(const walk *w, const query_block *q, int r)
{
    const backward_plan *plan = w->plan;
    attn_block *part = w->part;
    part->rows = (int)attn_min(q->block.rows - r, plan->plan.kernels->width);
    part->vectors = vectors_of(w, &q->block, r);
    part->packed = real_at(plan, q->packed, r * plan->plan.features);
    part->unscaled = real_at(plan, q->unscaled, r * plan->plan.features);
    part->max_norm = q->max_norm;
    return part;
}

/* Prepares a block's queries for the score function, and packs them. */
static void pack_queries(walk *w, query_block *q)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->plan.kernels;
    const attn_score_function *score = plan->plan.score;
    const double factor = score->scales_queries ? attn_factor_of(&plan->problem->forward) : 1;
    void *const all = w->task.query_rows;
    load_rows(w, &plan->problem->forward.query, &q->block, plan->problem->forward.head_dim, plan->plan.features, all);
    q->max_norm = 0;
    for (int r = 0; r < q->block.rows; r += k->width) {
        void *row[ATTN_MAX_WIDTH];
        attn_block *part = part_at(w, q, r);
        w->task.query_rows = real_at(plan, all, r * plan->plan.features);
        for (int n = 0; n < part->rows; n++) row[n] = real_at(plan, w->task.query_rows, n * plan->plan.features);
        if (score->prepare_queries) score->prepare_queries(&w->task, part, row);
        if (q->max_norm == q->max_norm && !(part->max_norm <= q->max_norm)) /* a NaN stays */
            q->max_norm = part->max_norm;
        k->pack_queries(part->rows, part->vectors, plan->plan.features, (const void *const *)row, factor, part->packed);
    }
    w->task.query_rows = all;
}

/* Where 2^(score - lse) would not be exact enough: a logsumexp is rounded, and 2^(its error) is the error of all
 * weights of its row. A mask of -1e9 on every key, say, leaves no digit. */
static int is_coarse(double lse) { return fabs(lse) > 64 && isfinite(lse); }

static void set_row(const backward_plan *plan, const query_block *q, int r, double shift, double factor)
{
    const int size = plan->plan.kernels->size;
    attn_put_real(q->shift, r, size, shift);
    const double left = attn_real_at(q->shift, r, size) - shift; /* what rounding the shift changed */
    attn_put_real(q->factor, r, size, isfinite(left) ? factor * (1 + left * 0.6931471805599453) : factor);
}

/* The products of two rows of reals, in four sums. */
static double dot(const void *a, const void *b, ptrdiff_t n, int size)
{
    double sum[4] = {0};
    if (size == 4)
        for (ptrdiff_t d = 0; d < n; d++) sum[d % 4] += (double)((const float *)a)[d] * (double)((const float *)b)[d];
    else
        for (ptrdiff_t d = 0; d < n; d++) sum[d % 4] += ((const double *)a)[d] * ((const double *)b)[d];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Sets shift, factor and delta of a block's rows; returns whether a logsumexp is coarse. Overwrites a block of values. */
static int begin_rows(const walk *w, const query_block *q)
{
    const backward_plan *plan = w->plan;
    const attn_backward_problem *b = plan->problem;
    const int size = plan->plan.kernels->size;
    int coarse = 0;
    void *lse[ATTN_MAX_WIDTH], *grad_lse[ATTN_MAX_WIDTH];
    attn_row_addresses(&w->task, &b->lse, &q->block, lse);
    if (b->grad_lse.data) attn_row_addresses(&w->task, &b->grad_lse, &q->block, grad_lse);
    void *const output = w->keys[0].value;
    load_rows(w, &b->output, &q->block, b->forward.v_dim, plan->v_columns, output);
    for (int r = 0; r < q->block.rows; r++) {
        const double sum = attn_real_at(lse[r], 0, size);
        const double total = dot(real_at(plan, output, r * plan->v_columns),
                                 real_at(plan, q->upstream, r * plan->v_columns), plan->v_columns, size);
        attn_put_real(q->delta, r, size, b->grad_lse.data ? total - attn_real_at(grad_lse[r], 0, size) : total);
        set_row(plan, q, r, sum == -(double)INFINITY ? 0 : sum * ATTN_LOG2E, 1); /* such a row sees nothing */
        coarse |= is_coarse(sum);
    }
    return coarse;
}

/* Reads, packs and places block `number` of the queries. Returns whether a logsumexp is coarse. */
static int begin_block(walk *w, query_block *q, ptrdiff_t number)
{
    const backward_plan *plan = w->plan;
    const attn_backward_problem *b = plan->problem;
    const attn_problem *p = &b->forward;
    const attn_kernels *k = plan->plan.kernels;
    attn_block *block = &q->block;
    const ptrdiff_t i = number * QUERIES;
    block->row = w->head % p->group * p->q_len + i;
    block->rows = (int)attn_min(p->q_len - i, QUERIES);
    block->vectors = (int)attn_ceil_div(block->rows, k->lanes);
    attn_place_block(&w->task, block);

    pack_queries(w, q);
    plan->score->copy_rows(plan, block->rows, w->task.query_rows, q->rows, &q->nonfinite);
    load_rows(w, &b->grad_output, block, p->v_dim, plan->v_columns, q->upstream);
    pack_upstream(w, q);
    const int coarse = begin_rows(w, q);
    q->nonfinite_up =
        k->finite_values(block->rows, (int)(plan->v_columns / k->lanes), q->upstream, plan->v_columns, 1, q->upstream);
    memset(q->sum, 0, (size_t)(block->rows * plan->columns * k->size));
    memset(q->scale_sum, 0, (size_t)(QUERIES * k->size));
    const ptrdiff_t part = (w->task.batch * p->heads + w->head) * plan->query_blocks + number;
    q->weight_sum = plan->weight_parts && plan->cut.wants & WANTS_QUERY
                        ? plan->weight_parts + part * plan->columns * k->size
                        : w->unused;
    q->begun = 0;
    return coarse;
}

/* Tiles -------------------------------------------------------------------------------------------------------------
 */

/* Scores of the part of a block that begins at row r, without masks: at w->scores; returns those to weigh by. */
static const void *score_part(const walk *w, const query_block *q, int r, const key_block *key, int keys)
{
    const backward_plan *plan = w->plan;
    const attn_key_block block = {.data = key->key,
                                  .element = attn_reals(plan->plan.kernels),
                                  .stride = plan->plan.features,
                                  .max_norm = key->max_norm};
    plan->plan.score->tile(&w->task, part_at(w, q, r), &block, keys, &attn_no_epilogue, w->scores);
    return plan->problem->unscaled ? w->no_scores : w->scores;
}

/* Reads a block of keys, for the score function. */
static void read_keys(walk *w, key_block *key)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    attn_key_block block = {.max_norm = 0};
    plan->plan.kernels->load_block((attn_element)p->key.dtype, key->keys, p->head_dim,
                                   attn_rows_at(&w->task.key, &p->key, key->from), p->key.row, p->key.column,
                                   plan->plan.features, key->key);
    w->task.key_copy = key->key;
    if (plan->plan.score->prepare_keys) plan->plan.score->prepare_keys(&w->task, &block, key->keys);
    key->max_norm = block.max_norm;
}

/* Reads the masks of a tile. Returns 0 if no pair of it is visible. */
static int place_tile(const walk *w, const query_block *q, ptrdiff_t from, int keys, tile_place *at,
                      attn_score_epilogue *epilogue)
{
    const attn_problem *p = &w->plan->problem->forward;
    const attn_block *block = &q->block;
    void *bias;
    at->from = from;
    at->keys = keys;
    at->width = (ptrdiff_t)block->vectors * w->plan->plan.kernels->lanes;
    const attn_tile_kind kind = attn_read_masks(&w->task, block, from, keys, &bias);
    if (kind == ATTN_TILE_MASKED) return 0;
    if (kind == ATTN_TILE_FREE) bias = NULL;
    int limited = from < block->max_first || from + keys > block->min_last;
    attn_limit_keys(block, from, keys, at->first, at->last);
    if (limited && from + keys > p->maskable_len) { /* visible keys are not one interval */
        attn_limit_by_bias(&w->task, block, from, keys, at->first, at->last, bias != NULL);
        bias = w->task.bias;
        limited = 0;
    }
    at->bias = bias;
    *epilogue = (attn_score_epilogue){.bias = bias, .first = limited ? at->first : NULL, .last = at->last};
    return 1;
}

static int is_visible(const walk *w, const tile_place *at, int r, int n)
{
    return n >= at->first[r] && n < at->last[r] &&
           !(at->bias && attn_real_at(at->bias, n * at->width + r, w->plan->plan.kernels->size) == -(double)INFINITY);
}

/* Weights, and gradients of scores, of a tile. Returns 0 if no pair of it is visible. */
static int compute_tile(const walk *w, const query_block *q, const key_block *key, int keys, tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_kernels *k = plan->plan.kernels;
    attn_score_epilogue epilogue;
    const void *drop_mask = NULL;
    double kept = 1;
    if (!place_tile(w, q, key->from, keys, at, &epilogue)) return 0;
    if (p->drops) {
        const attn_tile_kind kind = attn_read_drops(&w->task, &q->block, key->from, keys);
        for (ptrdiff_t n = 0; kind == ATTN_TILE_MASKED && n < keys * at->width; n++)
            attn_put_real(w->task.drop_mask, n, k->size, -(double)INFINITY);
        kept = p->dropout_p == 1 ? 0 : 1 / (1 - p->dropout_p);
        drop_mask = kind == ATTN_TILE_FREE ? NULL : w->task.drop_mask;
    }
    for (int r = 0; r < q->block.rows; r += k->width) {
        const int vectors = vectors_of(w, &q->block, r);
        const attn_softmax_rows rows = {real_at(plan, q->shift, r), real_at(plan, q->factor, r),
                                        real_at(plan, q->delta, r)};
        const attn_score_epilogue part = {.bias = at->bias ? (const char *)at->bias + r * k->size : NULL,
                                          .first = epilogue.first ? epilogue.first + r : NULL,
                                          .last = epilogue.last + r};
        const void *const scores = score_part(w, q, r, key, keys);
        k->score_block(vectors, keys, p->v_dim, real_at(plan, q->packed_upstream, r * p->v_dim), key->value,
                       plan->v_columns, &attn_no_epilogue, 0, w->upstream, w->task.maximum);
        k->softmax_backward(vectors, keys, scores, w->upstream, &part,
                            drop_mask ? (const char *)drop_mask + r * k->size : NULL, &rows, kept, at->width,
                            real_at(plan, w->weights, r), real_at(plan, w->gradients, r));
        if (plan->scale_parts && plan->cut.wants & WANTS_QUERY)
            k->score_sums(vectors, keys, w->scores, real_at(plan, w->gradients, r), at->width,
                          real_at(plan, q->scale_sum, r));
    }
    return 1;
}

/* 2^x for x <= 0, with the same bits on every machine. */
static double power_of_two(double x)
{
    double y;
    attn_kernels_for(ATTN_F64)->exp2_array(1, &x, &y);
    return y;
}

/* Takes the maximum and sum of coarse rows from their scores: all keys are walked once more. */
static void find_sums(walk *w, query_block *q)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_kernels *k = plan->plan.kernels;
    const int size = k->size;
    key_block *const key = &w->keys[0];
    double most[QUERIES], sum[QUERIES] = {0};
    for (int r = 0; r < QUERIES; r++) most[r] = -(double)INFINITY;
    for (ptrdiff_t from = 0; from < p->kv_len; from += ATTN_BLOCK_KEYS) {
        const int keys = attn_keys_seen(p, &q->block, from, p->kv_len);
        tile_place at;
        attn_score_epilogue epilogue;
        if (keys == 0 || !place_tile(w, q, from, keys, &at, &epilogue)) continue;
        key->from = from;
        key->keys = keys;
        read_keys(w, key);
        for (int part = 0; part < q->block.rows; part += k->width) {
            const int lanes = k->lanes * vectors_of(w, &q->block, part);
            const void *const scores = score_part(w, q, part, key, keys);
            for (int r = part; r < q->block.rows && r < part + lanes; r++)
                for (int n = 0; n < keys; n++) {
                    if (!is_visible(w, &at, r, n)) continue;
                    double s = attn_real_at(scores, n * lanes + r - part, size);
                    if (at.bias) { /* rounded, as the kernels do */
                        double rounded;
                        attn_put_real(&rounded, 0, size, s + attn_real_at(at.bias, n * at.width + r, size));
                        s = attn_real_at(&rounded, 0, size);
                    }
                    if (s > most[r]) {
                        sum[r] *= power_of_two(most[r] - s);
                        most[r] = s;
                    }
                    sum[r] += s == most[r] ? 1 : power_of_two(s - most[r]);
                }
        }
    }
    for (int r = 0; r < q->block.rows; r++) {
        void *lse[ATTN_MAX_WIDTH];
        attn_row_addresses(&w->task, &plan->problem->lse, &q->block, lse);
        if (is_coarse(attn_real_at(lse[r], 0, size)) && sum[r] > 0) set_row(plan, q, r, most[r], 1 / sum[r]);
    }
}

/* Sums --------------------------------------------------------------------------------------------------------------
 */

/* Adds to `sum` the products with those elements of an operand's rows that are not finite, which the kernels took as 0:
 * only visible pairs get them. The tile has key n of query r at n * width + r. `rows`: the rows are those of queries, and
 * the sums those of keys; else the opposite. */
static void add_nonfinite(const walk *w, const query_block *q, const tile_place *at, uint64_t bits, int rows,
                          const attn_operand *operand, ptrdiff_t columns, double times, const void *tile, void *sum,
                          ptrdiff_t padded)
{
    const int size = w->plan->plan.kernels->size;
    void *row[ATTN_MAX_WIDTH];
    if (rows) attn_row_addresses(&w->task, operand, &q->block, row);
    for (int n = 0; n < at->keys; n++)
        for (int r = 0; r < q->block.rows; r++) {
            if (!(bits >> (rows ? r : n) & 1) || !is_visible(w, at, r, n)) continue;
            const char *from = rows ? row[r] : attn_rows_at(&w->task.key, operand, at->from) + n * operand->row;
            const double weight = attn_real_at(tile, n * at->width + r, size);
            for (ptrdiff_t d = 0; d < columns; d++) {
                if (attn_is_finite_at(from + d * operand->column, operand->dtype)) continue;
                const ptrdiff_t to = (rows ? n : r) * padded + d;
                const double x = attn_stored_at(from + d * operand->column, operand->dtype);
                attn_put_real(sum, to, size, attn_real_at(sum, to, size) + weight * x * times);
            }
        }
}

/* dV += W^T dO. */
static void add_values(const walk *w, const query_block *q, key_block *key, const tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->plan.kernels;
    k->value_block(attn_reals(k), at->keys, q->block.rows, (int)(plan->v_columns / k->lanes), w->weights, at->width, 1,
                   NULL, NULL, q->upstream, plan->v_columns, w->ones, 0, key->value_sum, plan->v_columns);
    if (q->nonfinite_up)
        add_nonfinite(w, q, at, q->nonfinite_up, 1, &plan->problem->grad_output, plan->problem->forward.v_dim, 1,
                      w->weights, key->value_sum, plan->v_columns);
}

/* dmask += dS, summed over the axes that the mask broadcasts: within the tile first. */
static void add_mask(const walk *w, const query_block *q, const tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_operand *mask = &plan->problem->mask;
    const int size = plan->plan.kernels->size, keys = (int)attn_min(at->keys, p->maskable_len - at->from);
    void *row[ATTN_MAX_WIDTH];
    attn_row_addresses(&w->task, mask, &q->block, row);
    const int all = mask->row == 0; /* one row for all queries */
    for (int r = 0; r < (all ? 1 : q->block.rows); r++)
        for (int n = 0; n < keys; n++) {
            double sum = 0;
            for (int i = r; i < (all ? q->block.rows : r + 1); i++)
                sum += attn_real_at(w->gradients, n * at->width + i, size);
            char *to = (char *)row[r] + (at->from + n) * mask->column;
            attn_put_real(to, 0, size, attn_real_at(to, 0, size) + sum);
        }
}

/* Adds sums to the rows of a gradient, `step` bytes apart. */
static void add_rows(const attn_kernels *k, int rows, ptrdiff_t columns, const void *sum, ptrdiff_t padded, char *to,
                     ptrdiff_t step)
{
    for (int n = 0; n < rows; n++, to += step)
        k->scale_row(columns, (const char *)sum + n * padded * k->size, 1, to, to);
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
    const attn_kernels *k = plan->plan.kernels;
    *nonfinite =
        k->finite_values(rows, (int)(plan->columns / k->lanes), from, plan->plan.features, factor_of_rows(plan), to);
}

/* dK += dS^T Q and dQ += dS K, where one of the factors has been scaled. */
static void add_products(const walk *w, query_block *q, key_block *key, const tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_problem *p = &plan->problem->forward;
    const attn_kernels *k = plan->plan.kernels;
    const int vectors = (int)(plan->columns / k->lanes), rows = q->block.rows;
    if (wants_keys(plan)) {
        k->value_block(attn_reals(k), at->keys, rows, vectors, w->gradients, at->width, 1, NULL, NULL, q->rows,
                       plan->columns, w->ones, 0, key->key_sum, plan->columns);
        if (q->nonfinite)
            add_nonfinite(w, q, at, q->nonfinite, 1, &p->query, p->head_dim, plan->times, w->gradients, key->key_sum,
                          plan->columns);
    }
    if (wants_queries(plan)) {
        k->value_block(attn_reals(k), rows, at->keys, vectors, w->gradients, 1, at->width, NULL, NULL, key->rows,
                       plan->columns, w->ones, 0, q->sum, plan->columns);
        if (key->nonfinite)
            add_nonfinite(w, q, at, key->nonfinite, 0, &p->key, p->head_dim, plan->times, w->gradients, q->sum,
                          plan->columns);
    }
}

/* Cosine: the tiles are those of unit vectors. One that is not finite makes all gradients of its visible pairs NaN. */
static void finish_cosine(const backward_plan *plan, int rows, const void *from, void *sum)
{
    plan->plan.kernels->normalise_rows_backward(rows, plan->problem->forward.head_dim, plan->columns, from, sum);
}

/* Distance: dQ = -2 scale sum of dS (q - k), and dK likewise, from the differences themselves: sums of products with q
 * and k would cancel. Halves of q and k have differences that cannot overflow, as they might in a hidden pair. An
 * infinity is infinitely far away: no weight, no gradient. */
static void add_differences(const walk *w, query_block *q, key_block *key, const tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->plan.kernels;
    const int vectors = (int)(plan->columns / k->lanes), rows = q->block.rows;
    if (wants_keys(plan))
        k->difference_block(at->keys, rows, vectors, w->gradients, at->width, 1, key->rows, q->rows, key->key_sum);
    if (wants_queries(plan))
        k->difference_block(rows, at->keys, vectors, w->gradients, 1, at->width, q->rows, key->rows, q->sum);
}

static void finish_distance(const backward_plan *plan, int rows, const void *from, void *sum)
{
    (void)from;
    plan->plan.kernels->scale_row(rows * plan->columns, sum, -4 * plan->times, NULL, sum);
}

/* Additive: dQ = scale weight (sum of dS (1 - tanh^2)), and dK likewise. */
static void copy_given(const backward_plan *plan, int rows, const void *from, void *to, uint64_t *nonfinite)
{
    *nonfinite = 0;
    memcpy(to, from, (size_t)(rows * plan->columns * plan->plan.kernels->size));
}

static void add_slopes(const walk *w, query_block *q, key_block *key, const tile_place *at)
{
    const backward_plan *plan = w->plan;
    const attn_kernels *k = plan->plan.kernels;
    const int weighs = plan->weight_parts && plan->cut.wants & WANTS_QUERY;
    if (wants_queries(plan) || wants_keys(plan) || weighs)
        k->additive_backward(q->block.rows, at->keys, (int)(plan->columns / k->lanes), w->gradients, at->width, q->rows,
                             key->rows, q->sum, key->key_sum, q->weight_sum);
}

static void finish_additive(const backward_plan *plan, int rows, const void *from, void *sum)
{
    const attn_problem *p = &plan->problem->forward;
    const int size = plan->plan.kernels->size;
    (void)from;
    for (int n = 0; n < rows; n++)
        for (ptrdiff_t d = 0; d < p->head_dim; d++)
            attn_put_real(sum, n * plan->columns + d, size,
                          attn_real_at(sum, n * plan->columns + d, size) *
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
    const attn_kernels *k = plan->plan.kernels;
    if (key->read) return;
    key->read = 1;
    read_keys(w, key);
    plan->score->copy_rows(plan, key->keys, key->key, key->rows, &key->nonfinite);
    k->load_block((attn_element)p->value.dtype, key->keys, p->v_dim, attn_rows_at(&w->task.value, &p->value, key->from),
                  p->value.row, p->value.column, plan->v_columns, key->value);
    memset(key->key_sum, 0, (size_t)(key->keys * plan->columns * k->size));
    memset(key->value_sum, 0, (size_t)(key->keys * plan->v_columns * k->size));
}

/* Overwrites the keys. */
static void end_keys(const walk *w, const key_block *key)
{
    const backward_plan *plan = w->plan;
    const attn_backward_problem *b = plan->problem;
    const attn_problem *p = &b->forward;
    const attn_kernels *k = plan->plan.kernels;
    if (!key->begun) return;
    if (b->key.data && !b->unscaled) {
        if (plan->score->finish) {
            k->load_block((attn_element)p->key.dtype, key->keys, p->head_dim,
                          attn_rows_at(&w->task.key, &p->key, key->from), p->key.row, p->key.column, plan->columns,
                          key->key);
            plan->score->finish(plan, key->keys, key->key, key->key_sum);
        }
        add_rows(k, key->keys, p->head_dim, key->key_sum, plan->columns,
                 attn_part(p, &b->key, w->task.batch, w->head / p->key_group) + key->from * b->key.row, b->key.row);
    }
    if (b->value.data)
        add_rows(k, key->keys, p->v_dim, key->value_sum, plan->v_columns,
                 attn_part(p, &b->value, w->task.batch, w->head / p->value_group) + key->from * b->value.row,
                 b->value.row);
}

static void end_queries(const walk *w, const query_block *q, ptrdiff_t number)
{
    const backward_plan *plan = w->plan;
    const attn_backward_problem *b = plan->problem;
    const attn_problem *p = &b->forward;
    const int size = plan->plan.kernels->size;
    void *row[ATTN_MAX_WIDTH];
    if (!q->begun) return;
    if (b->query.data && !b->unscaled) {
        if (plan->score->finish) {
            load_rows(w, &p->query, &q->block, p->head_dim, plan->columns, w->task.query_rows);
            plan->score->finish(plan, q->block.rows, w->task.query_rows, q->sum);
        }
        attn_row_addresses(&w->task, &b->query, &q->block, row);
        add_rows(plan->plan.kernels, q->block.rows, p->head_dim, q->sum, plan->columns, row[0], b->query.row);
    }
    if (plan->scale_parts == NULL) return;
    double sum = 0;
    for (int r = 0; r < q->block.rows; r++) sum += attn_real_at(q->scale_sum, r, size);
    plan->scale_parts[(w->task.batch * p->heads + w->head) * plan->query_blocks + number] = sum / attn_factor_of(p);
}

/* All that one block of queries and one of keys add to the gradients. */
static void walk_tile(walk *w, query_block *q, key_block *key)
{
    const attn_problem *p = &w->plan->problem->forward;
    const int wants = w->plan->cut.wants, seen = attn_keys_seen(p, &q->block, key->from, p->kv_len);
    tile_place at;
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
    const attn_problem *p = &plan->problem->forward;
    const int wants = plan->cut.wants;
    attn_place_task(&plan->plan, batch, head / p->group, &w->task);
    w->head = head;
    w->task.key = (attn_source){.first = attn_part(p, &p->key, batch, head / p->key_group)};
    w->task.value = (attn_source){.first = attn_part(p, &p->value, batch, head / p->value_group)};
    for (ptrdiff_t n = w->first_query; n < w->last_query; n++) {
        if (attn_should_stop(w->task.job, w->task.worker)) return 0;
        query_block *q = &w->queries[n - w->first_query];
        if (begin_block(w, q, n)) find_sums(w, q);
    }
    for (ptrdiff_t first = first_key; first < last_key; first += plan->keys_together) {
        const ptrdiff_t together = attn_min(last_key - first, plan->keys_together);
        for (ptrdiff_t n = 0; n < together; n++) {
            key_block *key = &w->keys[n];
            key->from = (first + n) * ATTN_BLOCK_KEYS;
            key->keys = (int)attn_min(p->kv_len - key->from, ATTN_BLOCK_KEYS);
            key->read = key->begun = 0;
        }
        for (ptrdiff_t n = 0; n < w->last_query - w->first_query; n++) {
            if (attn_should_stop(w->task.job, w->task.worker)) return 0;
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
    const size_t size = (size_t)plan->plan.kernels->size, tile = (size_t)ATTN_BLOCK_KEYS * QUERIES * size;
    const size_t key_bytes = attn_saturating_mul((size_t)plan->columns, ATTN_BLOCK_KEYS * size);
    const size_t features = attn_saturating_mul((size_t)plan->plan.features, size);
    const size_t query_bytes = attn_saturating_mul(features, QUERIES);
    const size_t value_bytes = attn_saturating_mul((size_t)plan->v_columns, ATTN_BLOCK_KEYS * size);
    const ptrdiff_t blocks = attn_ceil_div(plan->query_blocks, plan->cut.query_pieces);
    size_t used = 0;
    w->scores = attn_next_part(memory, &used, tile);
    w->upstream = attn_next_part(memory, &used, tile);
    w->weights = attn_next_part(memory, &used, tile);
    w->gradients = attn_next_part(memory, &used, tile);
    w->task.bias = attn_next_part(memory, &used, tile);
    w->task.drop_mask = attn_next_part(memory, &used, tile);
    w->task.maximum = attn_next_part(memory, &used, QUERIES * size);
    w->task.query_rows = attn_next_part(memory, &used, query_bytes);
    w->task.scaled_queries = attn_next_part(memory, &used, plan->plan.score->unscaled ? query_bytes : 0);
    w->part = attn_next_part(memory, &used, sizeof *w->part);
    w->lowest = attn_next_part(memory, &used, QUERIES * size);
    w->ones = attn_next_part(memory, &used, ATTN_BLOCK_KEYS * size);
    w->unused = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->columns, size));
    w->no_scores = attn_next_part(memory, &used, plan->problem->unscaled ? tile : 0);
    w->keys = attn_next_part(memory, &used, (size_t)plan->keys_together * sizeof *w->keys);
    for (ptrdiff_t n = 0; n < plan->keys_together; n++) {
        key_block unused, *key = memory ? &w->keys[n] : &unused;
        key->key = attn_next_part(memory, &used, attn_saturating_mul(features, ATTN_BLOCK_KEYS));
        key->rows = attn_next_part(memory, &used, key_bytes);
        key->key_sum = attn_next_part(memory, &used, key_bytes);
        key->value = attn_next_part(memory, &used, value_bytes);
        key->value_sum = attn_next_part(memory, &used, value_bytes);
    }
    w->queries = attn_next_part(memory, &used, attn_saturating_mul((size_t)blocks, sizeof *w->queries));
    for (ptrdiff_t n = 0; n < blocks; n++) {
        query_block unused, *q = memory ? &w->queries[n] : &unused;
        const size_t row = QUERIES * size;
        q->packed = attn_next_part(memory, &used, query_bytes);
        q->unscaled = attn_next_part(memory, &used, plan->plan.score->unscaled ? query_bytes : 0);
        q->packed_upstream = attn_next_part(memory, &used, attn_saturating_mul((size_t)p->v_dim, row));
        q->rows = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->columns, row));
        q->upstream = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->v_columns, row));
        q->sum = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->columns, row));
        q->scale_sum = attn_next_part(memory, &used, row);
        q->shift = attn_next_part(memory, &used, row);
        q->factor = attn_next_part(memory, &used, row);
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
    w.task.job = job;
    w.task.worker = worker;
    memset(w.task.maximum, 0, (size_t)(QUERIES * plan->plan.kernels->size));
    memset(w.lowest, 0, (size_t)(QUERIES * plan->plan.kernels->size));
    memset(w.unused, 0, (size_t)(plan->columns * plan->plan.kernels->size));
    memset(w.part, 0, sizeof *w.part);
    w.part->chunk_state.maximum = w.lowest;
    if (plan->plan.score->unscaled) /* whose padding is only read */
        memset(w.task.scaled_queries, 0, (size_t)(QUERIES * plan->plan.features * plan->plan.kernels->size));
    if (plan->problem->unscaled) memset(w.no_scores, 0, (size_t)(ATTN_BLOCK_KEYS * QUERIES * plan->plan.kernels->size));
    for (int n = 0; n < ATTN_BLOCK_KEYS; n++) attn_put_real(w.ones, n, plan->plan.kernels->size, 1);
    w.first_query = plan->query_blocks * query / cut->query_pieces;
    w.last_query = plan->query_blocks * (query + 1) / cut->query_pieces;
    for (ptrdiff_t n = 0; n < cut->unit_batches; n++)
        for (ptrdiff_t head = 0; head < cut->heads; head++)
            if (!walk_slice(&w, batch_of(plan, unit / units_of_heads, n), unit % units_of_heads * cut->heads + head,
                            plan->key_blocks * key / cut->key_pieces, plan->key_blocks * (key + 1) / cut->key_pieces))
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
            plan->cut.key_pieces = pieces_of(plan, plan->key_blocks);
            status = run_pass(plan, error);
        }
        if (query && status == ATTN_OK) {
            cut_units(plan, query, &plan->cut);
            plan->cut.query_pieces = pieces_of(plan, plan->query_blocks);
            status = run_pass(plan, error);
        }
    }
    if (b->mask.data == NULL || status != ATTN_OK) return status;
    cut_units(plan, WANTS_MASK, &plan->cut);
    if (b->mask.row != 0)
        plan->cut.query_pieces = pieces_of(plan, plan->query_blocks);
    else if (b->mask.column != 0)
        plan->cut.key_pieces = pieces_of(plan, plan->key_blocks);
    return run_pass(plan, error);
}

/* As many as leave room in the L2 cache for a block of queries; a wide one does not pay. */
static ptrdiff_t keys_together(const backward_plan *plan)
{
    enum { KEYS_BYTES = 320 << 10 };
    const size_t sums = attn_saturating_mul(2, (size_t)plan->columns + (size_t)plan->v_columns);
    const size_t columns = attn_saturating_add((size_t)plan->plan.features, sums);
    const size_t bytes = attn_saturating_mul(columns, ATTN_BLOCK_KEYS * (size_t)plan->plan.kernels->size);
    const ptrdiff_t together = bytes == 0 ? 1 : attn_max(1, (ptrdiff_t)(KEYS_BYTES / bytes));
    return attn_min(attn_min(together, 8), plan->key_blocks);
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
    const size_t row = attn_saturating_mul((size_t)plan->columns, (size_t)plan->plan.kernels->size);
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
    const int size = plan->plan.kernels->size;
    for (size_t n = 0; b->scale && n < parts; n++) *b->scale += plan->scale_parts[n];
    for (ptrdiff_t d = 0; b->score_weight && !b->unscaled && d < b->forward.head_dim; d++) {
        double sum = 0;
        for (size_t n = 0; n < parts; n++)
            sum += attn_real_at(plan->weight_parts, (ptrdiff_t)n * plan->columns + d, size);
        attn_put_real(b->score_weight, d, size, sum * plan->times);
    }
}

attn_status attn_attend_backward(const attn_backward_problem *b, const attn_gradients *gradients, int num_threads,
                                 attn_error *error)
{
    const attn_problem *p = &b->forward;
    const attn_kernels *k = attn_kernels_for(p->dtype);
    const attn_score_function *score = &attn_score_functions[p->score];
    backward_plan plan = {.problem = b,
                          .plan = {.problem = p, .kernels = k, .score = score},
                          .score = &score_gradients[p->score],
                          .query_blocks = attn_ceil_div(p->q_len, QUERIES),
                          .key_blocks = attn_ceil_div(p->kv_len, ATTN_BLOCK_KEYS),
                          .columns = attn_ceil_div(p->head_dim, k->lanes) * k->lanes,
                          .v_columns = attn_ceil_div(p->v_dim, k->lanes) * k->lanes};
    attn_arena arena = {.base = NULL};
    const attn_tensor *const all[] = {&gradients->query, &gradients->key, &gradients->value, &gradients->mask,
                                      &gradients->score_weight};
    plan.plan.features = attn_ceil_div(p->head_dim + score->extra_features, k->lanes) * k->lanes;
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) clear(all[n]);
    if (b->scale) *b->scale = 0;
    if (p->batches == 0 || p->heads == 0 || p->q_len == 0 || p->kv_len == 0) return ATTN_OK;

    plan.keys_together = keys_together(&plan);
    const size_t parts = attn_saturating_mul((size_t)(p->batches * p->heads), (size_t)plan.query_blocks);
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
