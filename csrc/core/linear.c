/* Linear layers, in either memory order of the weight, with the same bits.
 *
 *     (features, inner)   attention's query-key product with the rows of the weight as keys: rows of x are packed into
 *                         blocks of lanes and multiplied with every block of features. A few rows take the decode
 *                         kernels instead.
 *     (inner, features)   gemm.inc.h: lanes hold features and x is read in place.
 *
 * A few rows read the weight in place, and so do many rows a weight of a few columns; other rows times a weight (inner,
 * features) copy it a tile at a time. One that is neither is copied, a block of features at a time. Halves become reals
 * where they are packed or copied.
 *
 * Rows are cut into chunks of blocks. Many chunks are shared out among the workers; otherwise the workers pack a chunk
 * together and share out its features, so that each chunk is packed once. Rows that are read in place need no packing:
 * a task is then any chunk times any tiles. The inner axis of a few rows' product is shared out by folds. A cut never
 * changes an element's sum.
 */
#include "linear.h"

#include <string.h>

#include "arena.h"
#include "dispatch.h"
#include "error.h"
#include "parallel.h"
#include "stored.h"

enum {
    MOST_BLOCKS = 16,          /* per chunk */
    CHUNK_BYTES = 1 << 22,     /* packed rows of a chunk, about */
    TASKS_PER_WORKER = 8,      /* so that no worker waits long for the last one */
    NEAR_BYTES = 1 << 18,      /* packed rows that may be read again and again */
    NEAR_WEIGHT = 1 << 22,     /* bytes of a weight that is probably in the cache: gemm then pays for fewer rows */
    NR = 8,                    /* features of a register tile, or a multiple of that */
    STREAM_FEATURES = 1 << 14, /* that gemv reads from each row of the weight at a time, at most: prefetchers need long
                                * streams. Out of memory one row of x reads 38 GB/s, and 31 with 1024 (Zen 5) */
    STREAM_BYTES = 1 << 18,    /* of unfinished sums, which should stay in the L2 cache */
    ROW_STEP = 12,             /* whole register tiles at every level */
    LEAST_ROWS = 2 * ROW_STEP, /* of a task where rows are shared out */
    LEAST_PACKED = 256,        /* inner elements that a worker packs at a time, at least where workers share them */
    MOST_PACKED = 1 << 18,     /* and at most, so that a signal is seen soon */
    FOLDS_BYTES = 1 << 20,     /* sums of all folds, at most, where workers share them out */
    WORKER_WORK = 1 << 19,     /* multiply-adds that are worth a further worker */
    FEATURES = ATTN_BLOCK_KEYS,
    TILE_REALS = ATTN_FOLD_FEATURES * ATTN_TILE_FEATURES
};

typedef enum {
    DECODE, /* (features, inner), a few rows: rows are queries of the decode layout */
    LANES,  /* (features, inner): rows are packed into lanes */
    STREAM, /* (inner, features), a few rows or a few columns: a stream over the weight */
    TILES   /* (inner, features): tiles of the weight are packed */
} product_form;

typedef struct {
    const attn_product *product;
    const attn_kernels *kernels;
    product_form form;

    /* x, in blocks of rows and chunks of blocks */
    ptrdiff_t block_rows; /* at most; not in LANES */
    ptrdiff_t blocks, blocks_per_chunk, chunks;
    int packs_x;                      /* rows are packed or copied before they are multiplied */
    int copy_x;                       /* it can't be read in place; LANES copies each row before it is packed */
    ptrdiff_t x_row;                  /* row stride of copies, in bytes: an odd number of cache lines */
    ptrdiff_t pack_inner, pack_parts; /* inner elements packed at a time; such parts of a block */
    ptrdiff_t part_row;               /* LANES: row stride of a part's copies, as x_row */

    /* the weight and the bias */
    ptrdiff_t step; /* features multiplied at a time, and stored */
    int nr;         /* DECODE, LANES: features processed together */
    ptrdiff_t kc;   /* DECODE, LANES: inner elements per pass over them */
    int copy_weight;
    ptrdiff_t weight_size; /* bytes of an element */
    ptrdiff_t weight_row;  /* DECODE, LANES: row stride of copies, as x_row */
    int prefetch;          /* ATTN_FROM_MEMORY, ATTN_TO_L1. From a cache L2 is near enough */
    const void *bias;      /* reals */

    /* tasks */
    int by_chunks; /* a task is a chunk times a part of the features, or else such a part of the current chunk */
    ptrdiff_t feature_blocks, features_per_task, feature_parts, tasks; /* features_per_task is in blocks */
    ptrdiff_t folds, fold_tasks; /* STREAM: folds that workers share out, or 0; the tasks that sum them */
    ptrdiff_t chunk;             /* the current one, unless by_chunks */
    ptrdiff_t done;              /* tasks that later ones wait for; atomic */

    /* memory */
    ptrdiff_t panel_row; /* row stride of a panel, in reals; 0: lanes hold rows */
    ptrdiff_t skew;      /* STREAM: bytes from a cache line's start to the sums: the same as the weight's */
    size_t block_bytes, panel_bytes, weight_bytes, row_bytes, stored_bytes, bias_bytes, fold_bytes, worker_bytes;
    char *packed, *sums, *scratch;
} linear_plan;

/* A block of rows, in so many vectors of lanes if lanes hold rows. */
typedef struct {
    int rows, vectors;
    ptrdiff_t row;
} row_block;

/* Blocks [first, last), packed. */
typedef struct {
    ptrdiff_t first, last;
    char *packed;
} row_chunk;

/* A worker of a job, and its scratch. */
typedef struct {
    attn_job *job;
    int number;
    char *packed, *panels, *weight, *rows, *maximum;
    char *y, *gate, *residual; /* as reals, of a block's features, where they are halves */
} linear_worker;

static int stopped(const linear_worker *w) { return attn_should_stop(w->job, w->number); }

/* Addresses of `count` rows, each plus `offset` bytes. */
static void addresses_of(const attn_tensor *rows, ptrdiff_t first, int count, ptrdiff_t offset, void **address)
{
    for (int i = 0; i < count; i++) address[i] = attn_row_at(rows, first + i) + offset;
}

/* The cut ---------------------------------------------------------------------------------------------------------- */

static size_t chunk_bytes(const linear_plan *plan)
{
    return attn_saturating_mul((size_t)plan->blocks_per_chunk, plan->block_bytes);
}

static size_t layout_scratch(const linear_plan *plan, char *memory, linear_worker *w)
{
    size_t used = 0;
    w->packed = attn_next_part(memory, &used, plan->by_chunks ? chunk_bytes(plan) : 0);
    w->panels = attn_next_part(memory, &used, attn_saturating_mul((size_t)plan->blocks_per_chunk, plan->panel_bytes));
    if (memory) w->panels += plan->skew;
    w->weight = attn_next_part(memory, &used, plan->weight_bytes);
    w->rows = attn_next_part(memory, &used, plan->row_bytes);
    w->maximum = attn_next_part(memory, &used, ATTN_MAX_WIDTH * sizeof(double));
    w->y = attn_next_part(memory, &used, attn_is_half(plan->product->y.dtype) ? plan->stored_bytes : 0);
    w->gate = attn_next_part(memory, &used, attn_is_half(plan->product->gate.dtype) ? plan->stored_bytes : 0);
    w->residual = attn_next_part(memory, &used, attn_is_half(plan->product->residual.dtype) ? plan->stored_bytes : 0);
    return used;
}

static int unit_stride(ptrdiff_t stride, ptrdiff_t count, ptrdiff_t size) { return stride == size || count <= 1; }

/* An inner axis that fits in memory (check_linear.c) fits with its padding, too. */
static ptrdiff_t copied_row(ptrdiff_t inner, int size)
{
    return (ptrdiff_t)(attn_padded((size_t)inner * (size_t)size) | ATTN_ALIGNMENT);
}

/* Cuts for each memory order of the weight: bytes of a block and of its panels, and which operands are copied. */
static void cut_out_in(linear_plan *plan)
{
    const attn_product *p = plan->product;
    const attn_kernels *k = plan->kernels;
    const int decode = p->rows <= k->decode_rows;
    const size_t size = (size_t)k->size, rows = decode ? (size_t)p->rows : (size_t)k->width;
    plan->form = decode ? DECODE : LANES;
    plan->block_rows = ATTN_MAX_WIDTH;
    plan->step = FEATURES;
    plan->copy_x = !attn_is_in_place(p->x.dtype, p->inner, attn_last_stride(&p->x));
    /* the decode kernels take one step from row to row, and rows that do not share sets of the cache */
    plan->packs_x = !decode || plan->copy_x || p->x.ndim > 2 || (p->rows > 1 && attn_aliases(p->x.strides[0]));
    plan->copy_weight =
        !unit_stride(p->weight_column, p->inner, plan->weight_size) || (!decode && attn_is_half(p->weight_dtype));
    plan->blocks = decode ? 1 : attn_ceil_div(attn_ceil_div(p->rows, k->lanes), ATTN_VECTORS);
    plan->block_bytes =
        plan->packs_x ? attn_saturating_mul(rows, decode ? (size_t)plan->x_row : (size_t)p->inner * size) : 0;

    /* a single block of rows shares nothing with others: rows of the weight are then read whole, in memory order. For
     * 16 rows of 768 to 30,000 features this takes 7.5 ms instead of 9.5 (Zen 4, one thread) */
    const size_t used = attn_saturating_mul(attn_padded(attn_saturating_mul((size_t)p->rows, size)), (size_t)p->inner);
    const int in_order = unit_stride(p->weight_column, p->inner, plan->weight_size);
    const int alone = !decode && plan->blocks == 1 && in_order && used <= NEAR_BYTES;
    plan->nr = alone ? NR : FEATURES;
    plan->kc = alone || decode ? p->inner : attn_min(p->inner, ATTN_FOLD_FEATURES);

    plan->weight_row = copied_row(plan->kc, k->size);
    plan->weight_bytes = plan->copy_weight ? attn_saturating_mul((size_t)plan->weight_row, (size_t)plan->nr) : 0;
    plan->panel_row = decode ? FEATURES : 0;
    plan->panel_bytes = FEATURES * (decode ? (size_t)k->decode_rows : (size_t)k->width) * size;
}

static ptrdiff_t stream_step(const attn_product *p, int size)
{
    ptrdiff_t step = STREAM_FEATURES;
    while (attn_min(p->rows, ATTN_MAX_WIDTH) * step * size > STREAM_BYTES) step /= 2;
    return attn_min(step, attn_ceil_div(p->features, FEATURES) * FEATURES);
}

/* Cuts x into blocks of so many rows. */
static void cut_blocks(linear_plan *plan, ptrdiff_t block_rows)
{
    const attn_product *p = plan->product;
    const size_t rows = (size_t)attn_min(p->rows, block_rows),
                 sums = plan->form == STREAM ? 2 : 1; /* unfinished ones */
    plan->block_rows = block_rows;
    plan->blocks = attn_ceil_div(p->rows, block_rows);
    plan->block_bytes = plan->packs_x ? attn_saturating_mul(rows, (size_t)plan->x_row) : 0;
    plan->panel_bytes = sums * rows * (size_t)(plan->panel_row * plan->kernels->size);
}

/* Whether so few rows are multiplied with a weight (inner, features) that reading it takes the time. */
static int is_gemv(const linear_plan *plan)
{
    const attn_kernels *k = plan->kernels;
    return plan->product->rows <= (plan->prefetch & ATTN_FROM_MEMORY ? k->gemv_rows : k->gemv_rows * 2 / 3);
}

static void cut_in_out(linear_plan *plan)
{
    const attn_product *p = plan->product;
    const attn_kernels *k = plan->kernels;
    const size_t size = (size_t)k->size;
    /* A narrow weight of whole vectors is read in place, unless its rows are far apart: packed, it would look the same,
     * or be wider. Many rows pay for packing whole panels of four vectors. */
    const int packing_pays = p->rows > ATTN_MAX_WIDTH && p->features % (4 * k->lanes) == 0;
    const ptrdiff_t apart = p->weight_column < 0 ? -p->weight_column : p->weight_column;
    const int narrow = p->features <= 8 * k->lanes && p->features % k->lanes == 0 && !packing_pays &&
                       apart <= 2 * p->features * k->size && p->weight_dtype == p->dtype;
    const int streams = narrow || is_gemv(plan);
    plan->form = streams ? STREAM : TILES;
    plan->step = streams ? stream_step(p, k->size) : ATTN_TILE_FEATURES;
    plan->packs_x = !attn_is_in_place(p->x.dtype, p->inner, attn_last_stride(&p->x)) || p->x.ndim > 2;
    plan->panel_row = streams ? plan->step + ATTN_ALIGNMENT / k->size : ATTN_TILE_FEATURES;
    cut_blocks(plan, ATTN_MAX_WIDTH);
    plan->skew = streams ? (ptrdiff_t)((uintptr_t)p->weight / (size_t)plan->weight_size * size % ATTN_ALIGNMENT) : 0;
    plan->weight_bytes = streams ? 0 : 2 * TILE_REALS * size; /* one tile in use, one being packed */
}

static void cut_rows(const attn_product *p, linear_plan *plan)
{
    const attn_kernels *k = attn_kernels_for(p->dtype);
    const ptrdiff_t weight_size = attn_size_of_real(p->weight_dtype);
    const size_t weight =
        attn_saturating_mul(attn_saturating_mul((size_t)p->features, (size_t)weight_size), (size_t)p->inner);
    *plan = (linear_plan){.product = p,
                          .kernels = k,
                          .prefetch = weight > NEAR_WEIGHT ? ATTN_FROM_MEMORY | attn_prefetch_flags() : 0,
                          .weight_size = weight_size,
                          .bias = p->bias,
                          .x_row = copied_row(p->inner, k->size)};
    if (!unit_stride(p->weight_column, p->inner, weight_size) && unit_stride(p->weight_row, p->features, weight_size))
        cut_in_out(plan);
    else
        cut_out_in(plan);

    const size_t rows = (size_t)attn_min(p->rows, ATTN_MAX_WIDTH);
    plan->stored_bytes = attn_saturating_mul(rows, (size_t)(plan->step * k->size));
    plan->bias_bytes = p->bias && attn_is_half(p->bias_dtype) ? attn_row_bytes(p->bias_dtype, p->features) : 0;
    plan->blocks_per_chunk = attn_min(MOST_BLOCKS, plan->blocks);
    while (plan->blocks_per_chunk > 1 && chunk_bytes(plan) > CHUNK_BYTES) plan->blocks_per_chunk--;
}

/* Cuts few rows among several workers where a single tile of features can't be split. Returns whether it did. */
static int split_rows(linear_plan *plan, int workers)
{
    const attn_product *p = plan->product;
    const ptrdiff_t parts = workers > 1 ? attn_min(2 * workers, p->rows / LEAST_ROWS) : 1;
    const int in_out = plan->form == STREAM || plan->form == TILES;
    if (!in_out || parts < 2 || p->features > ATTN_TILE_FEATURES || plan->blocks >= 2 * workers) return 0;
    if (plan->blocks < parts) cut_blocks(plan, attn_ceil_div(attn_ceil_div(p->rows, parts), ROW_STEP) * ROW_STEP);
    plan->blocks_per_chunk = 1;
    return 1;
}

/* Cuts the inner axis of a few rows' product among several workers, so that each reads memory from end to end. The sums
 * of each fold wait to be added in order. One long task each: usually a worker gets the same one again, in its cache.
 */
static void cut_folds(linear_plan *plan, int workers)
{
    const attn_product *p = plan->product;
    const ptrdiff_t folds = attn_ceil_div(p->inner, ATTN_FOLD_FEATURES);
    if (plan->form != STREAM || !is_gemv(plan) || plan->by_chunks || folds < 2 || p->features > plan->step) return;
    plan->fold_bytes = (size_t)(p->rows * plan->panel_row * plan->kernels->size);
    if (attn_saturating_mul(plan->fold_bytes, (size_t)folds) > FOLDS_BYTES) return;
    plan->folds = folds;
    plan->fold_tasks = workers;
}

/* Cuts blocks into parts to pack. Workers that pack together share a lone block, so that none waits while another one
 * packs. */
static void cut_packing(linear_plan *plan, int workers)
{
    const ptrdiff_t inner = plan->product->inner, line = ATTN_ALIGNMENT / plan->kernels->size;
    const ptrdiff_t shares = plan->by_chunks ? 1 : attn_min(workers / plan->blocks_per_chunk, inner / LEAST_PACKED);
    const ptrdiff_t parts = attn_max(shares, attn_ceil_div(inner, MOST_PACKED));
    plan->pack_inner = parts > 1 ? attn_ceil_div(attn_ceil_div(inner, parts), line) * line : inner;
    plan->pack_parts = parts > 1 ? attn_ceil_div(inner, plan->pack_inner) : 1;
    plan->part_row = copied_row(plan->pack_inner, plan->kernels->size);
    plan->row_bytes = plan->form == LANES && plan->copy_x
                          ? attn_saturating_mul((size_t)plan->kernels->width, (size_t)plan->part_row)
                          : 0;
}

/* Splits chunks, or the features of each, among tasks: enough for every worker, but not more than needed. Returns the
 * workers. */
static int cut_tasks(linear_plan *plan, int num_threads)
{
    const attn_product *p = plan->product;
    const int gemv =
        plan->form == DECODE || (plan->form == STREAM && is_gemv(plan)); /* then reading the weight counts */
    const size_t rows = gemv ? attn_saturating_mul(4, (size_t)p->rows) : (size_t)p->rows;
    const size_t work = attn_saturating_mul(attn_saturating_mul(rows, (size_t)p->inner), (size_t)p->features);
    const int workers = attn_workers(num_threads, work > ATTN_WORTH_THREADS ? (ptrdiff_t)(work / WORKER_WORK) : 1);
    plan->feature_blocks = attn_ceil_div(p->features, FEATURES);

    const ptrdiff_t enough = 2 * workers;
    const int by_rows = split_rows(plan, workers);
    /* Where rows are read in place, a task is any chunk times any tiles of the weight. */
    const int by_both = plan->form == TILES && !plan->packs_x && !by_rows && workers > 1;
    const ptrdiff_t tiles = attn_ceil_div(plan->feature_blocks, 2);
    const ptrdiff_t least = by_both ? attn_ceil_div(enough, tiles) : plan->feature_blocks < enough ? enough : 1;
    if (workers > 1 && plan->blocks >= least) /* smaller chunks copy the weight's tiles more often */
        plan->blocks_per_chunk = attn_min(plan->blocks_per_chunk, plan->blocks / least);
    plan->chunks = attn_ceil_div(plan->blocks, plan->blocks_per_chunk);
    plan->blocks_per_chunk = attn_ceil_div(plan->blocks, plan->chunks); /* evenly: every chunk reads the whole weight */
    plan->by_chunks = workers == 1 || by_rows || by_both || plan->chunks >= enough;
    /* STREAM takes fewer, longer tasks: the hardware prefetcher follows long streams */
    ptrdiff_t wanted = (plan->form == STREAM ? 2 : TASKS_PER_WORKER) * workers; /* parts of the features */
    if (plan->by_chunks) wanted = by_both ? attn_ceil_div(wanted, plan->chunks) : 1;
    plan->features_per_task = attn_ceil_div(plan->feature_blocks, attn_min(wanted, plan->feature_blocks));
    /* whole tiles, rounded down: the other workers wait for the last task */
    if (plan->form == TILES && wanted > 1) plan->features_per_task = attn_max(2, plan->features_per_task / 2 * 2);
    plan->feature_parts = attn_ceil_div(plan->feature_blocks, plan->features_per_task);
    plan->tasks = plan->by_chunks ? plan->chunks * plan->feature_parts : plan->feature_parts;
    cut_folds(plan, workers);
    const int used = attn_workers(workers, attn_max(plan->tasks, plan->fold_tasks));
    cut_packing(plan, used);
    return used;
}

/* Rows ------------------------------------------------------------------------------------------------------------- */

/* Lanes are spread evenly over the blocks, as in attention; otherwise blocks are full. */
static row_block block_of(const linear_plan *plan, ptrdiff_t number)
{
    const ptrdiff_t rows = plan->product->rows, lanes = plan->kernels->lanes, vectors = attn_ceil_div(rows, lanes);
    if (plan->form != LANES) {
        const ptrdiff_t row = number * plan->block_rows;
        return (row_block){(int)attn_min(rows - row, plan->block_rows), 0, row};
    }
    const ptrdiff_t from = vectors * number / plan->blocks, to = vectors * (number + 1) / plan->blocks;
    return (row_block){(int)(attn_min(rows, to * lanes) - from * lanes), (int)(to - from), from * lanes};
}

static row_chunk chunk_of(const linear_plan *plan, ptrdiff_t number, char *packed)
{
    const ptrdiff_t first = number * plan->blocks_per_chunk;
    return (row_chunk){first, attn_min(plan->blocks, first + plan->blocks_per_chunk), packed};
}

static char *packed_block(const linear_plan *plan, const row_chunk *chunk, ptrdiff_t number)
{
    return chunk->packed + (size_t)(number - chunk->first) * plan->block_bytes;
}

/* The parts in which a chunk is packed. */
static ptrdiff_t parts_to_pack(const linear_plan *plan, const row_chunk *chunk)
{
    return plan->packs_x ? (chunk->last - chunk->first) * plan->pack_parts : 0;
}

static void pack(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t part)
{
    const attn_tensor *x = &plan->product->x;
    const attn_kernels *k = plan->kernels;
    const attn_element element = (attn_element)x->dtype;
    const ptrdiff_t number = chunk->first + part / plan->pack_parts, stride = attn_last_stride(x);
    const ptrdiff_t from = part % plan->pack_parts * plan->pack_inner;
    const ptrdiff_t inner = attn_min(plan->product->inner - from, plan->pack_inner);
    const row_block block = block_of(plan, number);
    char *packed = packed_block(plan, chunk, number);
    void *row[ATTN_MAX_WIDTH];

    addresses_of(x, block.row, block.rows, from * stride, row);
    if (plan->form != LANES && plan->pack_parts == 1) {
        attn_load_rows(k, x->dtype, block.rows, inner, stride, plan->x_row / k->size, row, packed);
        return;
    }
    if (plan->form != LANES) {
        for (int i = 0; i < block.rows; i++)
            k->load_block(element, 1, inner, row[i], 0, stride, inner, packed + i * plan->x_row + from * k->size);
        return;
    }
    if (plan->copy_x) attn_load_rows(k, x->dtype, block.rows, inner, stride, plan->part_row / k->size, row, w->rows);
    packed += from * block.vectors * k->lanes * k->size;
    k->pack_queries(block.rows, block.vectors, inner, (const void *const *)row, 1, packed);
}

/* Rows of a chunk from a block and an inner element on, in place or copied. Sets their stride in reals. */
static const char *rows_of(const linear_plan *plan, const row_chunk *chunk, ptrdiff_t number, ptrdiff_t from,
                           ptrdiff_t *stride)
{
    const attn_product *p = plan->product;
    const int size = plan->kernels->size;
    *stride = plan->packs_x ? plan->x_row / size : p->x.ndim > 1 ? p->x.strides[0] / size : 0;
    const char *rows =
        plan->packs_x ? packed_block(plan, chunk, number) : attn_row_at(&p->x, block_of(plan, number).row);
    return rows + from * size;
}

/* The weight as (features, inner) ---------------------------------------------------------------------------------- */

/* Sets the address of `features` rows of the weight, over part of the inner axis, in place or copied as reals, and
 * their stride in elements. Returns 0 if it was stopped. */
static int weight_part(const linear_plan *plan, const linear_worker *w, ptrdiff_t feature, int features, ptrdiff_t from,
                       ptrdiff_t inner, const char **part, ptrdiff_t *stride)
{
    const attn_product *p = plan->product;
    const attn_kernels *k = plan->kernels;
    const char *own = p->weight + feature * p->weight_row + from * p->weight_column;
    *part = plan->copy_weight ? w->weight : own;
    *stride = plan->copy_weight ? plan->weight_row / k->size : p->weight_row / plan->weight_size;
    if (!plan->copy_weight) return !stopped(w);
    const int rows = inner > MOST_PACKED ? 1 : features; /* copied at a time */
    for (int i = 0; i < features; i += rows) {
        if (stopped(w)) return 0;
        k->load_block((attn_element)p->weight_dtype, rows, inner, own + i * p->weight_row, p->weight_row,
                      p->weight_column, *stride, w->weight + i * plan->weight_row);
    }
    return 1;
}

/* Multiplies features [at, at + features) of a panel with all blocks of a chunk, kc inner elements at a time.
 * Returns 0 if it was stopped. */
static int multiply_panel(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t feature,
                          int at, int features)
{
    const attn_product *p = plan->product;
    const attn_kernels *k = plan->kernels;
    const attn_element element = plan->copy_weight ? attn_reals(k) : (attn_element)p->weight_dtype;
    const ptrdiff_t size = plan->copy_weight ? k->size : plan->weight_size;
    ptrdiff_t from = 0, stride, x_stride;
    do { /* runs once even for an inner axis of 0, as the products are then 0 */
        const ptrdiff_t inner = attn_min(plan->kc, p->inner - from);
        const char *weight;
        if (!weight_part(plan, w, feature + at, features, from, inner, &weight, &stride)) return 0;
        for (ptrdiff_t n = chunk->first; n < chunk->last; n++) {
            const row_block block = block_of(plan, n);
            char *panel =
                w->panels + (size_t)(n - chunk->first) * plan->panel_bytes + at * block.vectors * k->lanes * k->size;
            if (plan->form == DECODE) {
                const char *x = rows_of(plan, chunk, n, 0, &x_stride);
                k->decode_scores(element, block.rows, features, inner, x, x_stride, weight, stride,
                                 weight + FEATURES * stride * size, plan->prefetch, panel);
                continue;
            }
            const char *packed = packed_block(plan, chunk, n) + from * block.vectors * k->lanes * k->size;
            k->score_block(block.vectors, features, inner, packed, weight, stride, &attn_no_epilogue, from > 0, panel,
                           w->maximum);
        }
        from += inner;
    } while (from < p->inner);
    return 1;
}

static int multiply_panels(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t feature,
                           int features)
{
    for (int at = 0; at < features; at += plan->nr)
        if (!multiply_panel(plan, w, chunk, feature, at, (int)attn_min(plan->nr, features - at))) return 0;
    return 1;
}

/* The epilogue ----------------------------------------------------------------------------------------------------- */

/* Addresses of a block's columns of `tensor`; of rows in `reals` where they are halves. */
static void columns_of(const linear_plan *plan, const attn_tensor *tensor, const row_block *block, ptrdiff_t feature,
                       char *reals, void **row)
{
    if (!attn_is_half(tensor->dtype)) {
        addresses_of(tensor, block->row, block->rows, feature * plan->kernels->size, row);
        return;
    }
    for (int i = 0; i < block->rows; i++) row[i] = reals + i * plan->step * plan->kernels->size;
}

static void read_columns(const linear_plan *plan, const attn_tensor *tensor, const row_block *block, ptrdiff_t feature,
                         ptrdiff_t features, char *reals, void **row)
{
    const attn_element element = (attn_element)tensor->dtype;
    columns_of(plan, tensor, block, feature, reals, row);
    for (int i = 0; attn_is_half(tensor->dtype) && i < block->rows; i++)
        plan->kernels->load_block(element, 1, features, attn_row_at(tensor, block->row + i) + 2 * feature, 0, 2,
                                  features, row[i]);
}

/* Applies the epilogue to `features` columns of a block's product, and stores them. */
static void store_block(const linear_plan *plan, const linear_worker *w, const row_block *block, const char *product,
                        ptrdiff_t feature, ptrdiff_t features)
{
    const attn_product *p = plan->product;
    const attn_kernels *k = plan->kernels;
    void *y[ATTN_MAX_WIDTH], *gate[ATTN_MAX_WIDTH], *residual[ATTN_MAX_WIDTH];
    const attn_epilogue epilogue = {.bias = plan->bias ? (const char *)plan->bias + feature * k->size : NULL,
                                    .activation = (attn_activation_kind)p->activation,
                                    .gate = p->gate.data ? (const void *const *)gate : NULL,
                                    .residual = p->residual.data ? (const void *const *)residual : NULL};

    columns_of(plan, &p->y, block, feature, w->y, y);
    if (epilogue.gate) read_columns(plan, &p->gate, block, feature, features, w->gate, gate);
    if (epilogue.residual) read_columns(plan, &p->residual, block, feature, features, w->residual, residual);
    if (plan->form == LANES)
        k->linear_block(block->vectors, block->rows, (int)features, product, &epilogue, y);
    else
        k->linear_rows(block->rows, features, product, plan->panel_row, &epilogue, y);
    for (int i = 0; attn_is_half(p->y.dtype) && i < block->rows; i++)
        k->store_row((attn_element)p->y.dtype, features, y[i], attn_row_at(&p->y, block->row + i) + 2 * feature);
}

static void store_features(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t feature,
                           ptrdiff_t features)
{
    for (ptrdiff_t n = chunk->first; n < chunk->last; n++) {
        const row_block block = block_of(plan, n);
        store_block(plan, w, &block, w->panels + (size_t)(n - chunk->first) * plan->panel_bytes, feature, features);
    }
}

/* The weight as (inner, features) ---------------------------------------------------------------------------------- */

/* Block n of a chunk times `features` columns of one fold of the weight: sums = the product, or else sums + it. */
static void stream_fold(const linear_plan *plan, const row_chunk *chunk, ptrdiff_t n, ptrdiff_t fold, ptrdiff_t feature,
                        ptrdiff_t features, int begins, char *part, char *sums)
{
    const attn_product *p = plan->product;
    const ptrdiff_t from = fold * ATTN_FOLD_FEATURES, inner = attn_min(ATTN_FOLD_FEATURES, p->inner - from);
    ptrdiff_t stride;
    const char *x = rows_of(plan, chunk, n, from, &stride);
    plan->kernels->gemv((attn_element)p->weight_dtype, block_of(plan, n).rows, (int)inner, features, x, stride,
                        p->weight + from * p->weight_column + feature * p->weight_row,
                        p->weight_column / plan->weight_size, plan->prefetch, begins, part, sums, plan->panel_row);
}

/* Blocks of rows times `features` columns of the weight, a fold at a time. Returns 0 if it was stopped. */
static int stream_features(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t feature,
                           ptrdiff_t features)
{
    for (ptrdiff_t fold = 0; fold * ATTN_FOLD_FEATURES < plan->product->inner; fold++)
        for (ptrdiff_t n = chunk->first; n < chunk->last; n++) {
            if (stopped(w)) return 0;
            char *sums = w->panels + (size_t)(n - chunk->first) * plan->panel_bytes;
            char *part = sums + (size_t)(block_of(plan, n).rows * plan->panel_row * plan->kernels->size);
            stream_fold(plan, chunk, n, fold, feature, features, fold == 0, part, sums);
        }
    return 1;
}

/* x times blocks [first, last) of the weight, which are counted from left to right in each fold. */
static void sum_folds(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t first,
                      ptrdiff_t last)
{
    const ptrdiff_t blocks = plan->feature_blocks;
    for (ptrdiff_t n = first, end; n < last; n = end) {
        const ptrdiff_t fold = n / blocks, from = n % blocks * FEATURES;
        end = attn_min(last, (fold + 1) * blocks);
        const ptrdiff_t to = attn_min(plan->product->features, (end - fold * blocks) * FEATURES);
        stream_fold(plan, chunk, chunk->first, fold, from, to - from, 1, w->panels,
                    plan->sums + (size_t)fold * plan->fold_bytes + from * plan->kernels->size);
    }
}

/* Adds the folds of features [from, to) from left to right, and stores them. */
static void store_folds(const linear_plan *plan, const linear_worker *w, ptrdiff_t from, ptrdiff_t to)
{
    const attn_kernels *k = plan->kernels;
    const row_block block = block_of(plan, 0);
    char *sums = plan->sums + from * k->size;
    for (ptrdiff_t fold = 1; fold < plan->folds; fold++)
        for (int i = 0; i < block.rows; i++) {
            char *sum = sums + i * plan->panel_row * k->size;
            k->scale_row(to - from, sum, 1, sum + (size_t)fold * plan->fold_bytes, sum);
        }
    store_block(plan, w, &block, sums, from, to - from);
}

/* Tile number n of features [from, to), in the order in which they are multiplied: down the inner axis first. */
static attn_tile tile_of(const linear_plan *plan, const linear_worker *w, ptrdiff_t from, ptrdiff_t to, ptrdiff_t n)
{
    const attn_product *p = plan->product;
    const ptrdiff_t folds = attn_ceil_div(p->inner, ATTN_FOLD_FEATURES);
    const ptrdiff_t inner = n % folds * ATTN_FOLD_FEATURES, feature = from + n / folds * ATTN_TILE_FEATURES;
    return (attn_tile){.weight = p->weight + inner * p->weight_column + feature * p->weight_row,
                       .element = (attn_element)p->weight_dtype,
                       .stride = p->weight_column / plan->weight_size,
                       .inner = (int)attn_min(p->inner - inner, ATTN_FOLD_FEATURES),
                       .features = (int)attn_min(to - feature, ATTN_TILE_FEATURES),
                       .packed = w->weight + n % 2 * TILE_REALS * plan->kernels->size};
}

/* All rows of a chunk times one tile after another; each packs the next one. */
static void multiply_tiles(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t from,
                           ptrdiff_t to)
{
    const ptrdiff_t folds = attn_ceil_div(plan->product->inner, ATTN_FOLD_FEATURES);
    const ptrdiff_t tiles = folds * attn_ceil_div(to - from, ATTN_TILE_FEATURES);
    const row_block first = block_of(plan, chunk->first), last = block_of(plan, chunk->last - 1);
    const int rows = (int)(last.row + last.rows - first.row);
    attn_tile tile = tile_of(plan, w, from, to, 0);
    plan->kernels->pack_tile(&tile);
    for (ptrdiff_t n = 0; n < tiles && !stopped(w); n++) {
        const attn_tile next = n + 1 < tiles ? tile_of(plan, w, from, to, n + 1) : (attn_tile){.weight = NULL};
        ptrdiff_t stride;
        const char *x = rows_of(plan, chunk, chunk->first, n % folds * ATTN_FOLD_FEATURES, &stride);
        plan->kernels->gemm(rows, &tile, x, stride, n + 1 < tiles ? &next : NULL, n % folds == 0, w->panels,
                            plan->panel_row);
        if (n % folds == folds - 1)
            store_features(plan, w, chunk, from + n / folds * ATTN_TILE_FEATURES, tile.features);
        tile = next;
    }
}

/* Tasks ------------------------------------------------------------------------------------------------------------ */

/* Features [from, to) of a packed chunk. */
static void multiply(const linear_plan *plan, const linear_worker *w, const row_chunk *chunk, ptrdiff_t from,
                     ptrdiff_t to)
{
    if (plan->form == TILES) {
        multiply_tiles(plan, w, chunk, from, to);
        return;
    }
    for (ptrdiff_t feature = from; feature < to; feature += plan->step) {
        const ptrdiff_t features = attn_min(to - feature, plan->step);
        const int done = plan->form == STREAM ? stream_features(plan, w, chunk, feature, features)
                                              : multiply_panels(plan, w, chunk, feature, (int)features);
        if (!done) return;
        store_features(plan, w, chunk, feature, features);
    }
}

static linear_worker worker_of(const linear_plan *plan, int number, attn_job *job)
{
    linear_worker w = {.job = job, .number = number};
    layout_scratch(plan, plan->scratch + (size_t)number * plan->worker_bytes, &w);
    return w;
}

/* The first feature of a part. */
static ptrdiff_t first_feature(const linear_plan *plan, ptrdiff_t part)
{
    return attn_min(plan->product->features, part * plan->features_per_task * FEATURES);
}

/* Packs a part of the current chunk, then sums folds, then stores features. Each stage waits for the one before;
 * without folds the last one multiplies. */
static void part_task(void *context, ptrdiff_t number, int worker, attn_job *job)
{
    linear_plan *plan = context;
    const linear_worker w = worker_of(plan, worker, job);
    const row_chunk chunk = chunk_of(plan, plan->chunk, plan->packed);
    const ptrdiff_t parts = parts_to_pack(plan, &chunk), ready = parts + plan->fold_tasks;
    if (stopped(&w)) return;
    if (number < parts) {
        pack(plan, &w, &chunk, number);
        __atomic_add_fetch(&plan->done, 1, __ATOMIC_RELEASE);
    } else if (number < ready) {
        if (!attn_wait_for(&plan->done, parts, worker, job)) return;
        const ptrdiff_t blocks = plan->folds * plan->feature_blocks, task = number - parts;
        const ptrdiff_t from = blocks * task / plan->fold_tasks, to = blocks * (task + 1) / plan->fold_tasks;
        sum_folds(plan, &w, &chunk, from, to);
        __atomic_add_fetch(&plan->done, 1, __ATOMIC_RELEASE);
    } else if (attn_wait_for(&plan->done, ready, worker, job)) {
        const ptrdiff_t from = first_feature(plan, number - ready), to = first_feature(plan, number - ready + 1);
        if (plan->folds > 0)
            store_folds(plan, &w, from, to);
        else
            multiply(plan, &w, &chunk, from, to);
    }
}

/* Packs a chunk and multiplies it with a part of the features. */
static void chunk_task(void *context, ptrdiff_t number, int worker, attn_job *job)
{
    const linear_plan *plan = context;
    const linear_worker w = worker_of(plan, worker, job);
    const row_chunk chunk = chunk_of(plan, number / plan->feature_parts, w.packed);
    const ptrdiff_t part = number % plan->feature_parts;
    for (ptrdiff_t n = 0; n < parts_to_pack(plan, &chunk); n++) {
        if (stopped(&w)) return;
        pack(plan, &w, &chunk, n);
    }
    multiply(plan, &w, &chunk, first_feature(plan, part), first_feature(plan, part + 1));
}

static attn_status run(linear_plan *plan, int workers)
{
    attn_status status = ATTN_OK;
    if (plan->by_chunks) return attn_parallel_for(plan->tasks, workers, chunk_task, plan);
    for (plan->chunk = 0; status == ATTN_OK && plan->chunk < plan->chunks; plan->chunk++) {
        const row_chunk chunk = chunk_of(plan, plan->chunk, plan->packed);
        const ptrdiff_t tasks = parts_to_pack(plan, &chunk) + plan->fold_tasks + plan->tasks;
        plan->done = 0;
        status = attn_parallel_for(tasks, workers, part_task, plan);
    }
    return status;
}

attn_status attn_multiply(const attn_product *p, int num_threads, attn_error *error)
{
    linear_plan plan;
    linear_worker unused;
    attn_arena arena;
    if (p->rows == 0 || p->features == 0) return ATTN_OK;

    cut_rows(p, &plan);
    const int workers = cut_tasks(&plan, num_threads);
    plan.worker_bytes = layout_scratch(&plan, NULL, &unused);
    const size_t packed = plan.by_chunks ? 0 : attn_padded(chunk_bytes(&plan));
    const size_t shared = attn_saturating_add(packed, attn_padded((size_t)plan.folds * plan.fold_bytes));
    const size_t bytes = attn_saturating_add(attn_saturating_add(shared, plan.bias_bytes),
                                             attn_saturating_mul((size_t)workers, plan.worker_bytes));
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "linear needs %zu bytes of scratch memory", bytes);
    plan.packed = arena.scratch;
    plan.sums = arena.scratch + packed;
    plan.scratch = arena.scratch + shared + plan.bias_bytes;
    if (plan.bias_bytes > 0)
        plan.bias = attn_read_outside(plan.kernels, p->bias_dtype, p->features, p->bias, arena.scratch + shared);
    const attn_status status = run(&plan, workers);
    attn_arena_give(&arena);
    return status;
}
