/* How a checked problem is cut into tasks, and the state of a task. plan.c makes the cut, attend.c and splits.c run
 * the tasks, attention.c walks the keys of one, rows.c begins and ends its rows, score.c knows the score functions.
 *
 * Query heads that share their key and value heads form a group; the (head, query) rows of a group are numbered
 * head * q_len + query. Rows are cut into query blocks, neighbouring blocks into super-blocks, which walk the keys
 * together. None of these cuts changes a row's arithmetic: keys are blocked and chunked at fixed multiples.
 */
#ifndef ATTN_CORE_ATTEND_H
#define ATTN_CORE_ATTEND_H

#include "kernels.h"
#include "parallel.h"
#include "problem.h"

#define ATTN_LOG2E 1.4426950408889634 /* scores are in units of log2 */

enum { ATTN_MOST_BLOCKS = 8 }; /* query blocks of a super-block */

/* Both masks of a key block as one bias, for the other heads that share them. */
typedef struct {
    int keys; /* 0: not read yet */
    attn_tile_kind kind;
} attn_mask_tile;

/* A block of query rows, its running state, and where its rows live. */
typedef struct {
    int rows, vectors;
    int chunk_begun, running_begun;                        /* the state holds something */
    int masked;                                            /* some pair of a tile that it processed was masked */
    ptrdiff_t row;                                         /* index of its first row in the group */
    ptrdiff_t min_first, max_first, min_last, max_last;    /* over its rows; min_first: those that see some key */
    ptrdiff_t first[ATTN_MAX_WIDTH], last[ATTN_MAX_WIDTH]; /* visible keys of each row: [first, last) */
    void *mask[ATTN_MASKS][ATTN_MAX_WIDTH];
    uint32_t query[ATTN_MAX_WIDTH], unit[ATTN_MAX_WIDTH]; /* Philox counters of its rows, for dropout */
    double max_norm; /* distances: the largest factor |q|^2 of its rows (distance.inc.h), or NaN */
    void *packed;    /* queries, as score_block or decode_scores reads them */
    void *unscaled;  /* unscaled queries, as distance_block reads them */
    attn_state chunk_state, running_state; /* of this chunk; of the chunks before it */
    char *saved_scores;                    /* need_weights: an attn_saved_scores for each key block */
    char *mask_tiles;                      /* an attn_mask_tile for each of the first key blocks */
} attn_block;

/* need_weights: the scores of one key block, saved until its rows are finished. */
typedef struct {
    int keys;      /* 0: the block was masked, or not visited */
    void *seen;    /* (rows) running maximum that the weights were computed with */
    void *weights; /* unnormalised weights, in place of the scores */
} attn_saved_scores;

typedef struct {
    const attn_problem *problem;
    const attn_kernels *kernels;
    const struct attn_score_function *score;
    int decode;
    int prefetch;                              /* ATTN_FROM_MEMORY, ATTN_TO_L1: of the keys in decode */
    ptrdiff_t groups, rows;                    /* groups of heads in a batch entry; rows of a group */
    ptrdiff_t row_segment, blocks_per_segment; /* rows that are cut into blocks together */
    ptrdiff_t blocks, blocks_per_task, tasks_per_group;
    ptrdiff_t chunks, kv_splits;        /* kv_splits > 1: a task handles some chunks; their states are folded later */
    ptrdiff_t split_batch, split_start; /* chunks that are split at a time; the first of the current ones */
    ptrdiff_t heads_per_task;           /* that one task handles in order: all for average_weights; sharing a mask, as
                                           many as leave every worker several tasks; else 1 */
    ptrdiff_t mask_tiles;               /* of a block: key blocks whose masks are read once for all heads of a task */
    ptrdiff_t columns;                  /* v_dim, padded to whole vectors */
    int copy_keys, copy_values, gather_queries;
    ptrdiff_t features; /* length of a packed row: head_dim, plus 2 for distances */
    int workers;
    /* bytes of one worker's scratch and of its parts */
    size_t packed_bytes, state_bytes, scores_bytes, saved_bytes, saved_block_bytes, mask_tile_bytes, key_bytes,
        value_bytes, query_bytes, transposed_bytes;
    size_t weights_row_bytes; /* of a row of weights that is not written at once: averaged or rounded; else 0 */
    size_t worker_bytes, partial_bytes;
    char *scratch, *partials;
} attn_plan;

/* The keys or values of a task: rows from `first` on; or pages, in which its head begins at byte `offset`. */
typedef struct {
    const char *first;
    void *const *pages;
    ptrdiff_t page_count, offset;
} attn_source;

/* One worker's view of the task at hand. */
typedef struct {
    const attn_plan *plan;
    attn_job *job;
    int worker, count;
    int redoes;          /* values that are not finite reach only rows that see them; others are scaled by `factor` */
    double factor;       /* 1 unless it redoes */
    int knows_nonfinite; /* nonfinite_keys has been filled: only where a result is not finite */
    ptrdiff_t *nonfinite_keys; /* (2, v_dim): first and last visible key with no finite value in that column, or -1 */
    double keep_prob;          /* 1 - dropout_p, which divides the weights; infinite for 0 */
    attn_dropout dropout;
    ptrdiff_t batch, group;
    ptrdiff_t key_length, query_length; /* of this batch entry */
    attn_source key, value;
    void *scores, *bias, *drop_mask, *maximum, *correction, *key_copy, *value_copy, *query_rows, *scaled_queries,
        *transposed_keys;
    char *weights, *mean; /* of a block's rows: one head's, and the mean so far */
    attn_block *blocks;   /* in scratch: too large for the stack of a small thread */
} attn_task;

/* A block of keys or values as the kernels read it. */
typedef struct {
    const void *data, *next; /* next: the rows after a whole block */
    attn_element element;
    ptrdiff_t stride; /* of rows, in elements */
    double max_norm;  /* distances: the largest factor |k|^2 of the block */
} attn_key_block;

/* score.c: how a score function differs from the others. A function that prepares has copies to change: task->key_copy,
 * and task->query_rows, to which `query` points. */
typedef struct attn_score_function {
    double scale;       /* the default */
    int over_root;      /* divided by the root of head_dim */
    int extra_features; /* of a packed row, after head_dim */
    int scales_queries; /* packed queries are multiplied by the factor; else a kernel applies it */
    int unscaled;       /* queries are also kept without a factor */
    int transposes;     /* decode computes tiles with queries and keys exchanged, from keys that are reals */
    void (*prepare_keys)(const attn_task *task, attn_key_block *key, int keys);
    void (*prepare_queries)(const attn_task *task, attn_block *block, void **query);
    /* Scores in the prefill layout, which raise task->maximum; and in the decode layout. */
    void (*tile)(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys,
                 const attn_score_epilogue *epilogue, void *scores);
    void (*decode)(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys, void *scores);
} attn_score_function;

extern const attn_score_function attn_score_functions[]; /* by attn_score */
/* The scale, and the factor of scores in units of log2. Computed inside a task, where flags are not the caller's. */
double attn_scale_of(const attn_problem *problem);
double attn_factor_of(const attn_problem *problem);

/* plan.c */
void attn_make_plan(const attn_problem *problem, int num_threads, attn_plan *plan);
size_t attn_plan_bytes(const attn_plan *plan);
/* One worker's scratch; returns its bytes. */
size_t attn_layout_scratch(const attn_plan *plan, char *memory, attn_task *task);
void attn_layout_state(const attn_plan *plan, char *memory, attn_state *state);
attn_saved_scores *attn_saved_scores_of(const attn_plan *plan, const attn_block *block, ptrdiff_t key_block);
ptrdiff_t attn_chunk_end(const attn_problem *problem, ptrdiff_t key);

/* A number of any stored dtype. */
double attn_stored_at(const char *at, attn_dtype dtype);
int attn_is_finite_at(const char *at, attn_dtype dtype);

/* rows.c */
ptrdiff_t attn_length_of(const attn_problem *problem, const attn_operand *lengths, ptrdiff_t batch,
                         ptrdiff_t otherwise);
void attn_begin_block(attn_task *task, attn_block *block, ptrdiff_t number);
/* The geometry of a block whose row and rows are set: visible keys, addresses of masks, counters of dropout. */
void attn_place_block(attn_task *task, attn_block *block);
/* Continues from the problem's state. */
void attn_take_up_state(const attn_task *task, attn_block *block);
/* Addresses of a block's rows in one array. */
void attn_row_addresses(const attn_task *task, const attn_operand *operand, const attn_block *block, void **address);
/* Writes the block's `rows`. Returns those that are not finite and may become so when they are redone: what is not
 * finite in them is NaN, and redoing changes only that. */
uint64_t attn_finish_block(attn_task *task, attn_block *block, uint64_t rows);
const char *attn_value_at(const attn_task *task, ptrdiff_t key); /* a row of values, before any copy */
void attn_finish_weights(attn_task *task, const attn_block *block);

/* mask.c */
void attn_limit_keys(const attn_block *block, ptrdiff_t from, int keys, int32_t *first, int32_t *last);
void attn_limit_by_bias(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys, int32_t *first,
                        int32_t *last, int adds);
int attn_tile_is_masked(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys);
/* Marks those of up to ATTN_BLOCK_KEYS keys that mask arrays hide from row r; returns how many they do not. Overwrites
 * task->bias. */
int attn_hide_keys(const attn_task *task, const attn_block *block, int r, ptrdiff_t from, int keys,
                   unsigned char *hidden);
/* Both masks of a tile: what they hide and, if some of its pairs, the bias that hides them. */
attn_tile_kind attn_read_masks(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys, void **bias);
void attn_forget_tiles(const attn_plan *plan, attn_block *block);
/* Adds weight * value to the output of rows that see keys whose bits are set, for values that are not finite. */
void attn_add_nonfinite(const attn_task *task, const attn_block *block, uint64_t bits, ptrdiff_t from,
                        const int32_t *first, const int32_t *last, const void *bias, const void *weights);
void attn_drop(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys, void *weights);
/* Fills task->drop_mask, unless all weights of the tile are kept or dropped. */
attn_tile_kind attn_read_drops(const attn_task *task, const attn_block *block, ptrdiff_t from, int keys);

/* attention.c */
/* Address of row `from`, a multiple of ATTN_BLOCK_KEYS. Clamped to the last page, as prefetches may run past it. */
const char *attn_rows_at(const attn_source *source, const attn_operand *operand, ptrdiff_t from);
/* Number of keys to compute in the block [from, to): up to the last one that any row sees; 0 if none. */
int attn_keys_seen(const attn_problem *problem, const attn_block *block, ptrdiff_t from, ptrdiff_t to);
/* What a task needs of its batch entry and group of heads to read masks, lengths and dropout. */
void attn_place_task(const attn_plan *plan, ptrdiff_t batch, ptrdiff_t group, attn_task *task);
ptrdiff_t attn_task_of(const attn_plan *plan, ptrdiff_t number, ptrdiff_t part); /* task number of part `part` */
ptrdiff_t attn_begin_task(const attn_plan *plan, ptrdiff_t number, int worker, attn_job *job, attn_task *task);
void attn_visible_keys(const attn_task *task, ptrdiff_t *from, ptrdiff_t *to); /* keys that some row of it sees */
void attn_walk_chunk(attn_task *task, ptrdiff_t from, ptrdiff_t to);
int attn_walk_keys(attn_task *task); /* all chunks; returns 0 when interrupted */
void attn_fold_chunk(const attn_plan *plan, attn_block *block);
void attn_end_block(attn_task *task, int n, ptrdiff_t number, int masked); /* writes the output of block n */

/* splits.c: tasks 0 .. tasks - 1 of a plan with kv_splits > 1 */
attn_status attn_attend_splits(attn_plan *plan, ptrdiff_t tasks);

#endif
