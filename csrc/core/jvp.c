/* Forward mode of attention: the tangent of its output, from those of its inputs, the output and its logsumexp.
 *
 *     weights    P = exp(scale Q K^T + mask - lse), dropped: W = keep P / (1 - dropout_p)
 *     scores     dS = scale (dQ K^T + Q dK^T) + dmask
 *     result     dO = (W dS) V + W dV - c O,  c = sum of P dS over a row
 *
 * dS is that of the dot product; a table, score_tangents, has those of the other scores. W (dS - c) V is not summed as
 * such, since c is known at the end alone: c O has the rounding errors of a sum as large as its largest dS.
 *
 * Weights are computed again, tile by tile (tiles.h). A task walks the keys for some blocks of queries, of one batch
 * entry and head. A row's sums are in the order of its keys whatever the number of threads.
 */
#include "jvp.h"

#include <string.h>

#include "error.h"
#include "stored.h"
#include "tiles.h"

enum { QUERIES = ATTN_TILE_QUERIES };
enum { BLOCKS_TOGETHER = 4 }; /* blocks of queries that walk the keys together, which are read once for them */

/* A block of queries, and its sums. */
typedef struct {
    attn_tile_queries tile;
    void *packed, *of_packed; /* queries and their tangents, as score_tangent reads them */
    void *sum;                /* (QUERIES, v_columns): W dS V + W dV */
    void *mean;               /* (QUERIES): c */
} query_block;

/* A block of keys and values, and their tangents. */
typedef struct {
    attn_tile_keys tile;
    int read;                         /* it is in memory */
    void *of_key;                     /* (keys, features) */
    void *value, *of_value;           /* (keys, v_columns), finite */
    uint64_t nonfinite, of_nonfinite; /* bits of the keys in which a NaN or an infinity was replaced */
} key_block;

typedef struct {
    const attn_jvp_problem *problem;
    attn_tile_plan tile;
    const struct score_tangent *score;
    ptrdiff_t pieces; /* tasks of a batch entry and head */
    double scale;
    size_t worker_bytes;
    char *scratch;
} jvp_plan;

/* One worker's view of the task at hand. */
typedef struct {
    const jvp_plan *plan;
    attn_tile_walk tile;
    attn_source of_key, of_value;
    query_block *queries; /* (BLOCKS_TOGETHER) */
    key_block key;
    void *of_scores, *of_mask; /* of a part of a tile: dS, dmask */
    void *weights, *changes;   /* of a tile: W, W dS */
    void *of_rows;             /* (QUERIES, features): dQ */
    void *output;              /* (QUERIES, v_columns) */
    void *ones;                /* (QUERIES) */
} walk;

/* How a score function differs from the others. */
typedef struct score_tangent {
    int scales; /* packed queries and their tangents are multiplied by the scale; else the kernel applies it */
    /* From tangents of `rows` rows, as given, to those of the rows as they were prepared. May be NULL. */
    void (*prepare)(const jvp_plan *plan, int rows, const void *row, void *tangent);
    /* dS of the part of a block that begins at row r, without the mask's: at w->of_scores. */
    void (*tile)(const walk *w, const query_block *q, int r, int keys);
} score_tangent;

static char *real_at(const jvp_plan *plan, void *reals, ptrdiff_t n) { return attn_tile_real(&plan->tile, reals, n); }

/* Score functions ---------------------------------------------------------------------------------------------------
 */

/* dQ K^T + Q dK^T, where dQ and Q have been scaled. */
static void add_products(const walk *w, const query_block *q, int r, int keys)
{
    const jvp_plan *plan = w->plan;
    const attn_kernels *k = plan->tile.plan.kernels;
    const ptrdiff_t features = plan->problem->forward.head_dim, stride = plan->tile.plan.features;
    const int vectors = attn_tile_vectors(&w->tile, &q->tile.block, r);
    k->score_block(vectors, keys, features, real_at(plan, q->of_packed, r * features), w->key.tile.key, stride,
                   &attn_no_epilogue, 0, w->of_scores, w->tile.task.maximum);
    if (plan->problem->key.data)
        k->score_block(vectors, keys, features, real_at(plan, q->packed, r * features), w->key.of_key, stride,
                       &attn_no_epilogue, 1, w->of_scores, w->tile.task.maximum);
}

/* Cosine: the tiles are those of unit vectors. The derivative of x / |x| is symmetric: it is its own transpose. */
static void prepare_cosine(const jvp_plan *plan, int rows, const void *row, void *tangent)
{
    plan->tile.plan.kernels->normalise_rows_backward(rows, plan->problem->forward.head_dim, plan->tile.plan.features,
                                                     row, tangent);
}

/* -2 scale (q - k) . (dq - dk), of differences: products would cancel. */
static void add_differences(const walk *w, const query_block *q, int r, int keys)
{
    const jvp_plan *plan = w->plan;
    const ptrdiff_t features = plan->problem->forward.head_dim;
    plan->tile.plan.kernels->distance_tangent(attn_tile_vectors(&w->tile, &q->tile.block, r), keys, features,
                                              real_at(plan, q->packed, r * features),
                                              real_at(plan, q->of_packed, r * features), w->key.tile.key, w->key.of_key,
                                              plan->tile.plan.features, NULL, -2 * plan->scale, w->of_scores);
}

/* scale weight . ((1 - tanh^2) (dq + dk)). */
static void add_slopes(const walk *w, const query_block *q, int r, int keys)
{
    const jvp_plan *plan = w->plan;
    const ptrdiff_t features = plan->problem->forward.head_dim;
    plan->tile.plan.kernels->additive_tangent(
        attn_tile_vectors(&w->tile, &q->tile.block, r), keys, features, real_at(plan, q->packed, r * features),
        real_at(plan, q->of_packed, r * features), w->key.tile.key, w->key.of_key, plan->tile.plan.features,
        plan->problem->forward.score_weight, plan->scale, w->of_scores);
}

static const score_tangent score_tangents[] = {
    [ATTN_SCORE_DOT] = {.scales = 1, .tile = add_products},
    [ATTN_SCORE_COSINE] = {.scales = 1, .prepare = prepare_cosine, .tile = add_products},
    [ATTN_SCORE_DISTANCE] = {.tile = add_differences},
    [ATTN_SCORE_ADDITIVE] = {.tile = add_slopes},
};

/* Rows --------------------------------------------------------------------------------------------------------------
 */

/* Reads and packs block `number` of the queries, and empties its sums. */
static void begin_queries(walk *w, query_block *q, ptrdiff_t number)
{
    const jvp_plan *plan = w->plan;
    const attn_jvp_problem *j = plan->problem;
    const attn_block *block = &q->tile.block;
    const ptrdiff_t features = j->forward.head_dim, stride = plan->tile.plan.features;
    const size_t size = (size_t)plan->tile.plan.kernels->size;
    const double factor = plan->score->scales ? plan->scale : 1;
    void *const rows = w->tile.task.query_rows;
    attn_begin_tile_queries(&w->tile, &q->tile, number);
    attn_pack_tile_rows(&w->tile, block, features, stride, rows, factor, q->packed);
    if (j->query.data) {
        attn_load_tile_rows(&w->tile, &j->query, block, features, stride, w->of_rows);
        if (plan->score->prepare) {
            attn_load_tile_rows(&w->tile, &j->forward.query, block, features, stride, rows);
            plan->score->prepare(plan, block->rows, rows, w->of_rows);
        }
        attn_pack_tile_rows(&w->tile, block, features, stride, w->of_rows, factor, q->of_packed);
    } else {
        memset(q->of_packed, 0, (size_t)(QUERIES * features) * size);
    }
    memset(q->sum, 0, (size_t)(block->rows * plan->tile.v_columns) * size);
    memset(q->mean, 0, QUERIES * size);
    attn_find_shifts(&w->tile, &q->tile, &w->key.tile);
}

/* Reads rows of values, or of their tangents. Returns the bits of those that are not finite. */
static uint64_t load_values(const walk *w, const attn_source *source, const attn_operand *values, void *to)
{
    const jvp_plan *plan = w->plan;
    const attn_kernels *k = plan->tile.plan.kernels;
    const ptrdiff_t columns = plan->tile.v_columns;
    attn_load_tile_keys(&w->tile, source, values, &w->key.tile, plan->problem->forward.v_dim, columns, to);
    return k->finite_values(w->key.tile.keys, (int)(columns / k->lanes), to, columns, 1, to);
}

static void load_keys(const walk *w, const attn_source *source, const attn_operand *keys, void *to)
{
    attn_load_tile_keys(&w->tile, source, keys, &w->key.tile, w->plan->problem->forward.head_dim,
                        w->plan->tile.plan.features, to);
}

/* Reads the block of keys and values at hand, and their tangents. */
static void begin_keys(walk *w)
{
    const jvp_plan *plan = w->plan;
    const attn_jvp_problem *j = plan->problem;
    key_block *key = &w->key;
    if (key->read) return;
    key->read = 1;
    if (j->key.data) {
        load_keys(w, &w->of_key, &j->key, key->of_key);
        if (plan->score->prepare) {
            load_keys(w, &w->tile.task.key, &j->forward.key, key->tile.key);
            plan->score->prepare(plan, key->tile.keys, key->tile.key, key->of_key);
        }
    }
    attn_read_tile_keys(&w->tile, &key->tile);
    key->nonfinite = load_values(w, &w->tile.task.value, &j->forward.value, key->value);
    if (j->value.data) key->of_nonfinite = load_values(w, &w->of_value, &j->value, key->of_value);
}

/* Tiles -------------------------------------------------------------------------------------------------------------
 */

/* dS += dmask, of the part of a block that begins at row r. */
static void add_mask(const walk *w, const attn_block *block, int r, int keys)
{
    const attn_problem *p = &w->plan->problem->forward;
    const attn_kernels *k = w->plan->tile.plan.kernels;
    const attn_operand *mask = &w->plan->problem->mask;
    const ptrdiff_t width = (ptrdiff_t)attn_tile_vectors(&w->tile, block, r) * k->lanes;
    const int rows = (int)attn_min(block->rows - r, k->width);
    const int columns = (int)attn_min(keys, p->maskable_len - w->key.tile.from);
    void *row[ATTN_MAX_WIDTH];
    const char *from[ATTN_MAX_WIDTH];
    if (columns <= 0) return;
    attn_row_addresses(&w->tile.task, mask, block, row);
    for (int n = 0; n < rows; n++) from[n] = (const char *)row[r + n] + w->key.tile.from * mask->column;
    k->bias_tile((attn_element)mask->dtype, rows, columns, from, mask->column, 1, w->of_mask, 1, width);
    k->scale_row(columns * width, w->of_mask, 1, w->of_scores, w->of_scores);
}

/* W and W dS of a tile, and what it adds to c. Returns 0 if no pair of it is visible. */
static int compute_tile(const walk *w, const query_block *q, int keys, attn_tile_place *at)
{
    const jvp_plan *plan = w->plan;
    const attn_kernels *k = plan->tile.plan.kernels;
    const attn_block *block = &q->tile.block;
    double kept;
    if (!attn_place_tile(&w->tile, block, w->key.tile.from, keys, at)) return 0;
    const void *const drop_mask = attn_tile_drops(&w->tile, block, at, &kept);
    const int drops = drop_mask != NULL || kept != 1;
    for (int r = 0; r < block->rows; r += k->width) {
        const int vectors = attn_tile_vectors(&w->tile, block, r);
        const attn_softmax_rows rows = {real_at(plan, q->tile.shift, r), real_at(plan, q->tile.factor, r),
                                        w->tile.zeros};
        const attn_score_epilogue part = attn_part_epilogue(&w->tile, at, r);
        const void *const scores = attn_score_part(&w->tile, &q->tile, r, &w->key.tile, keys);
        void *const weights = real_at(plan, w->weights, r), *const changes = real_at(plan, w->changes, r);
        plan->score->tile(w, q, r, keys);
        if (plan->problem->mask.data) add_mask(w, block, r, keys);
        k->softmax_backward(vectors, keys, scores, w->of_scores, &part, NULL, &rows, 1, at->width, weights, changes);
        k->score_sums(vectors, keys, w->of_scores, weights, at->width, real_at(plan, q->mean, r));
        if (drops)
            k->softmax_backward(vectors, keys, scores, w->of_scores, &part,
                                drop_mask ? (const char *)drop_mask + r * k->size : NULL, &rows, kept, at->width,
                                weights, changes);
    }
    return 1;
}

/* sum += tile . values. */
static void add_values(const walk *w, const query_block *q, const attn_tile_place *at, const void *tile,
                       const void *value, uint64_t nonfinite, const attn_source *source, const attn_operand *values)
{
    const jvp_plan *plan = w->plan;
    const attn_kernels *k = plan->tile.plan.kernels;
    const ptrdiff_t columns = plan->tile.v_columns;
    k->value_block(attn_reals(k), q->tile.block.rows, at->keys, (int)(columns / k->lanes), tile, 1, at->width, NULL,
                   NULL, value, columns, w->ones, 0, q->sum, columns);
    if (nonfinite)
        attn_add_nonfinite_rows(&w->tile, &q->tile.block, at, nonfinite, source, values, plan->problem->forward.v_dim,
                                1, tile, q->sum, columns);
}

static void walk_tile(walk *w, const query_block *q)
{
    const attn_jvp_problem *j = w->plan->problem;
    const key_block *key = &w->key;
    const int keys = attn_keys_seen(&j->forward, &q->tile.block, key->tile.from, j->forward.kv_len);
    attn_tile_place at;
    if (keys == 0) return;
    begin_keys(w);
    if (!compute_tile(w, q, keys, &at)) return;
    add_values(w, q, &at, w->changes, key->value, key->nonfinite, &w->tile.task.value, &j->forward.value);
    if (j->value.data) add_values(w, q, &at, w->weights, key->of_value, key->of_nonfinite, &w->of_value, &j->value);
}

/* Writes the rows of a block. */
static void end_queries(const walk *w, const query_block *q)
{
    const jvp_plan *plan = w->plan;
    const attn_jvp_problem *j = plan->problem;
    const attn_kernels *k = plan->tile.plan.kernels;
    const attn_block *block = &q->tile.block;
    const ptrdiff_t columns = plan->tile.v_columns;
    void *row[ATTN_MAX_WIDTH];
    attn_load_tile_rows(&w->tile, &j->output, block, j->forward.v_dim, columns, w->output);
    attn_row_addresses(&w->tile.task, &j->tangent_output, block, row);
    for (int r = 0; r < block->rows; r++)
        k->scale_row(j->forward.v_dim, real_at(plan, w->output, r * columns), -attn_real_at(q->mean, r, k->size),
                     real_at(plan, q->sum, r * columns), row[r]);
}

/* Blocks [first, last) of the queries, at most BLOCKS_TOGETHER, against all keys. Returns 0 if the task must stop. */
static int walk_blocks(walk *w, ptrdiff_t first, ptrdiff_t last)
{
    const attn_tile_plan *tile = &w->plan->tile;
    for (ptrdiff_t n = first; n < last; n++) {
        if (attn_should_stop(w->tile.task.job, w->tile.task.worker)) return 0;
        begin_queries(w, &w->queries[n - first], n);
    }
    for (ptrdiff_t m = 0; m < tile->key_blocks; m++) {
        attn_place_tile_keys(&w->tile, &w->key.tile, m);
        w->key.read = 0;
        for (ptrdiff_t n = first; n < last; n++) {
            if (attn_should_stop(w->tile.task.job, w->tile.task.worker)) return 0;
            walk_tile(w, &w->queries[n - first]);
        }
    }
    for (ptrdiff_t n = first; n < last; n++) end_queries(w, &w->queries[n - first]);
    return 1;
}

/* Tasks -------------------------------------------------------------------------------------------------------------
 */

static size_t layout_walk(const jvp_plan *plan, char *memory, walk *w)
{
    const size_t size = (size_t)plan->tile.plan.kernels->size, tile = (size_t)ATTN_BLOCK_KEYS * QUERIES * size;
    const size_t features = attn_saturating_mul((size_t)plan->tile.plan.features, size);
    const size_t columns = attn_saturating_mul((size_t)plan->tile.v_columns, size);
    const size_t query_bytes = attn_saturating_mul(features, QUERIES);
    const size_t value_bytes = attn_saturating_mul(columns, ATTN_BLOCK_KEYS);
    size_t used = 0;
    attn_layout_tiles(&plan->tile, memory, &used, &w->tile);
    w->of_scores = attn_next_part(memory, &used, tile);
    w->of_mask = attn_next_part(memory, &used, plan->problem->mask.data ? tile : 0);
    w->weights = attn_next_part(memory, &used, tile);
    w->changes = attn_next_part(memory, &used, tile);
    w->of_rows = attn_next_part(memory, &used, query_bytes);
    w->output = attn_next_part(memory, &used, attn_saturating_mul(columns, QUERIES));
    w->ones = attn_next_part(memory, &used, QUERIES * size);
    attn_layout_tile_keys(&plan->tile, memory, &used, &w->key.tile);
    w->key.of_key = attn_next_part(memory, &used, attn_saturating_mul(features, ATTN_BLOCK_KEYS));
    w->key.value = attn_next_part(memory, &used, value_bytes);
    w->key.of_value = attn_next_part(memory, &used, plan->problem->value.data ? value_bytes : 0);
    w->queries = attn_next_part(memory, &used, BLOCKS_TOGETHER * sizeof *w->queries);
    for (int n = 0; n < BLOCKS_TOGETHER; n++) {
        query_block unused, *q = memory ? &w->queries[n] : &unused;
        attn_layout_tile_queries(&plan->tile, memory, &used, &q->tile);
        q->packed = attn_next_part(memory, &used, query_bytes);
        q->of_packed = attn_next_part(memory, &used, query_bytes);
        q->sum = attn_next_part(memory, &used, attn_saturating_mul(columns, QUERIES));
        q->mean = attn_next_part(memory, &used, QUERIES * size);
    }
    return used;
}

static void walk_task(void *context, ptrdiff_t number, int worker, attn_job *job)
{
    const jvp_plan *plan = context;
    const attn_jvp_problem *j = plan->problem;
    const attn_problem *p = &j->forward;
    const attn_kernels *k = plan->tile.plan.kernels;
    const ptrdiff_t slice = number / plan->pieces, piece = number % plan->pieces;
    const ptrdiff_t batch = slice / p->heads, head = slice % p->heads, blocks = plan->tile.query_blocks;
    const ptrdiff_t last = blocks * (piece + 1) / plan->pieces;
    walk w = {.plan = plan};
    layout_walk(plan, plan->scratch + (size_t)worker * plan->worker_bytes, &w);
    attn_begin_tiles(&w.tile, job, worker);
    for (int n = 0; n < QUERIES; n++) attn_put_real(w.ones, n, k->size, 1);
    memset(w.key.of_key, 0, (size_t)(ATTN_BLOCK_KEYS * plan->tile.plan.features * k->size));
    attn_begin_slice(&w.tile, batch, head);
    if (j->key.data) w.of_key.first = attn_part(p, &j->key, batch, head / p->key_group);
    if (j->value.data) w.of_value.first = attn_part(p, &j->value, batch, head / p->value_group);
    for (ptrdiff_t n = blocks * piece / plan->pieces; n < last; n += BLOCKS_TOGETHER)
        if (!walk_blocks(&w, n, attn_min(n + BLOCKS_TOGETHER, last))) return;
}

attn_status attn_attend_jvp(const attn_jvp_problem *j, int num_threads, attn_error *error)
{
    const attn_problem *p = &j->forward;
    jvp_plan plan = {.problem = j, .tile = attn_plan_tiles(p, &j->lse, 0), .score = &score_tangents[p->score]};
    const ptrdiff_t slices = p->batches * p->heads;
    walk unused;
    if (slices == 0 || p->q_len == 0 || p->v_dim == 0) return ATTN_OK;

    const int workers = attn_workers(attn_work(p) > ATTN_WORTH_THREADS / 2 ? num_threads : 1, PTRDIFF_MAX);
    const ptrdiff_t enough = workers > 1 ? 4 * (ptrdiff_t)workers : 1;
    plan.pieces = attn_min(plan.tile.query_blocks, attn_ceil_div(enough, slices));
    plan.worker_bytes = layout_walk(&plan, NULL, &unused);
    const ptrdiff_t tasks = slices * plan.pieces;
    const attn_float_state before = attn_float_enter(); /* the next line raises flags */
    plan.scale = attn_scale_of(p);
    attn_float_leave(before);
    return attn_run_with_scratch("attention_jvp", tasks, attn_workers(workers, tasks), plan.worker_bytes, &plan.scratch,
                                 walk_task, &plan, error);
}

attn_status attn_attention_jvp(const attn_jvp_args *args, attn_tensor tangent_output, attn_error *error)
{
    attn_jvp_problem problem;
    attn_status status = attn_check_tangents(args, &problem, error);
    if (status == ATTN_OK) status = attn_check_tangent_output(args, &tangent_output, &problem, error);
    return status == ATTN_OK ? attn_attend_jvp(&problem, args->attention.num_threads, error) : status;
}
