/* Tiles of attention's scores, computed again from the logsumexp: what its gradients (backward.c) and its tangents
 * (jvp.c) share.
 *
 * A tile is a block of keys and a block of ATTN_TILE_QUERIES queries, at every instruction-set level. It has key n of
 * query r at n * width + r. A block of queries is cut into parts of the kernels' width, which the score functions take.
 */
#ifndef ATTN_CORE_TILES_H
#define ATTN_CORE_TILES_H

#include "attend.h"

enum { ATTN_TILE_QUERIES = ATTN_MAX_WIDTH }; /* a multiple of every width */

typedef struct {
    attn_plan plan; /* what score functions and reading masks need */
    attn_operand lse;
    int unscaled;                       /* all scores are 0, whatever the problem's scale */
    ptrdiff_t query_blocks, key_blocks; /* of a batch entry and head */
    ptrdiff_t columns, v_columns;       /* head_dim and v_dim, padded to whole vectors */
} attn_tile_plan;

/* A block of queries. */
typedef struct {
    attn_block block;
    void *packed;         /* for the score function, part by part */
    void *unscaled;       /* queries without a factor, packed: distances alone */
    double max_norm;      /* distances: as in attn_block */
    void *shift, *factor; /* (ATTN_TILE_QUERIES): attn_softmax_rows */
} attn_tile_queries;

/* A block of keys. */
typedef struct {
    ptrdiff_t from;
    int keys;
    void *key;       /* for the score function: (keys, features) */
    double max_norm; /* distances: as in attn_key_block */
} attn_tile_keys;

/* One worker's view of the batch entry and head at hand. */
typedef struct {
    const attn_tile_plan *plan;
    attn_task task;
    ptrdiff_t head;
    void *scores;
    void *no_scores;  /* where all are 0 */
    void *zeros;      /* (ATTN_TILE_QUERIES); maxima start from them that nothing reads */
    attn_block *part; /* of a block of queries, for the score function */
} attn_tile_walk;

/* A tile's masks. */
typedef struct {
    ptrdiff_t from;
    int keys;
    ptrdiff_t width; /* reals of a row of the tile */
    int32_t first[ATTN_MAX_WIDTH], last[ATTN_MAX_WIDTH];
    attn_score_epilogue epilogue; /* points to them: not to be copied */
} attn_tile_place;

static inline char *attn_tile_real(const attn_tile_plan *plan, void *reals, ptrdiff_t n)
{
    return (char *)reals + n * plan->plan.kernels->size;
}

/* Number of vectors in the part of a block that begins at row r. */
static inline int attn_tile_vectors(const attn_tile_walk *w, const attn_block *block, int r)
{
    return (int)attn_min(block->vectors - r / w->plan->plan.kernels->lanes, ATTN_VECTORS);
}

/* The plan of a checked problem. */
attn_tile_plan attn_plan_tiles(const attn_problem *problem, const attn_operand *lse, int unscaled);

/* Place a worker's memory; with memory == NULL they only count the bytes. */
void attn_layout_tiles(const attn_tile_plan *plan, char *memory, size_t *used, attn_tile_walk *w);
void attn_layout_tile_queries(const attn_tile_plan *plan, char *memory, size_t *used, attn_tile_queries *q);
void attn_layout_tile_keys(const attn_tile_plan *plan, char *memory, size_t *used, attn_tile_keys *key);

/* Clears what is only read. */
void attn_begin_tiles(attn_tile_walk *w, attn_job *job, int worker);

/* Goes to a batch entry and head. */
void attn_begin_slice(attn_tile_walk *w, ptrdiff_t batch, ptrdiff_t head);

/* Places block `number` of the queries, and packs them. w->task.query_rows then has them as they were prepared. */
void attn_begin_tile_queries(attn_tile_walk *w, attn_tile_queries *q, ptrdiff_t number);

/* Sets shift and factor of a block's rows, from the logsumexp. Where that is not exact enough, all keys are walked:
 * `key` is room for a block of them. */
void attn_find_shifts(attn_tile_walk *w, attn_tile_queries *q, attn_tile_keys *key);

/* Sets from and keys of block `number`, and reads its keys. */
void attn_place_tile_keys(const attn_tile_walk *w, attn_tile_keys *key, ptrdiff_t number);
void attn_read_tile_keys(attn_tile_walk *w, attn_tile_keys *key);

/* Loads a block's rows of an array as contiguous reals, at `to`. */
void attn_load_tile_rows(const attn_tile_walk *w, const attn_operand *operand, const attn_block *block,
                         ptrdiff_t columns, ptrdiff_t padded, void *to);

/* The same of a block of keys, or of values: rows of an operand, from `source`. */
void attn_load_tile_keys(const attn_tile_walk *w, const attn_source *source, const attn_operand *operand,
                         const attn_tile_keys *key, ptrdiff_t columns, ptrdiff_t padded, void *to);

/* Packs rows (block->rows, stride) for score_block, part by part. */
void attn_pack_tile_rows(const attn_tile_walk *w, const attn_block *block, ptrdiff_t features, ptrdiff_t stride,
                         void *rows, double factor, void *packed);

/* Scores of the part of a block that begins at row r, without masks: at w->scores. Returns those to weigh by. */
const void *attn_score_part(const attn_tile_walk *w, const attn_tile_queries *q, int r, const attn_tile_keys *key,
                            int keys);

/* Reads the masks of a tile. Returns 0 if no pair of it is visible. */
int attn_place_tile(const attn_tile_walk *w, const attn_block *block, ptrdiff_t from, int keys, attn_tile_place *at);

/* The epilogue of the part of a tile that begins at row r. */
attn_score_epilogue attn_part_epilogue(const attn_tile_walk *w, const attn_tile_place *at, int r);

/* The dropout mask of a tile, or NULL where nothing is dropped; `kept` is the factor of the other weights. */
const void *attn_tile_drops(const attn_tile_walk *w, const attn_block *block, const attn_tile_place *at, double *kept);

/* Adds to `sum` the products with those elements of an operand's rows that are not finite, which the kernels took as 0:
 * only visible pairs get them. Bit n of `bits` is row n. The rows are those of keys, from `source`, and the sums those
 * of queries; without a source it is the opposite. */
void attn_add_nonfinite_rows(const attn_tile_walk *w, const attn_block *block, const attn_tile_place *at, uint64_t bits,
                             const attn_source *source, const attn_operand *operand, ptrdiff_t columns, double times,
                             const void *tile, void *sum, ptrdiff_t padded);

#endif
