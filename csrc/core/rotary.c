/* Rotary position embedding (RoPE): tables of cosines and sines, and rotation of rows by them.
 *
 * A unit is a block of positions of a batch entry. A worker computes a block's table, rotates all heads with it, and
 * reuses it for the next units with the same positions.
 *
 * Angles are exact: position * inv_freq in double, plus the rounding error of that product. A sine costs as much as
 * rotating a hundred pairs, so positions are split into p = base + r, with base a multiple of 32. The sines of base and
 * of r are cached, and the angle sum formula gives those of p. A row's result depends only on its own position, and
 * cosines and sines are accurate to 3 ULP of double.
 */
#include "rotary.h"

#include <math.h>

#include "dispatch.h"
#include "error.h"
#include "stored.h"

enum { STEPS = 32 }; /* positions per block, and per base */

typedef struct {
    const attn_rope *rope;
    const attn_kernels *kernels;
    attn_row_cut cut;        /* cuts units (own, blocks, shared) */
    ptrdiff_t blocks, width; /* reals in a row of a table */
    size_t worker_bytes;
    char *scratch;
} rope_plan;

/* A worker's cached table and sines. */
typedef struct {
    ptrdiff_t table_of; /* number of the (own, block) whose table this is, plus 1 */
    int64_t base;
    uint32_t has_base, has_steps; /* has_steps: a bit per step */
} table_cache;

/* One worker's scratch. */
typedef struct {
    table_cache *cache;
    double *bases, *steps; /* (2, pairs), (STEPS, 2, pairs): cosines and sines */
    char *table;           /* (STEPS, width) */
    void *row;             /* of x in half precision */
} worker_memory;

static size_t layout_scratch(const rope_plan *plan, char *memory, worker_memory *w)
{
    const size_t row = attn_saturating_mul((size_t)plan->rope->pairs, 2 * sizeof(double));
    size_t used = 0;
    w->cache = attn_next_part(memory, &used, sizeof *w->cache);
    w->bases = attn_next_part(memory, &used, row);
    w->steps = attn_next_part(memory, &used, attn_saturating_mul(STEPS, row));
    w->table = attn_next_part(
        memory, &used,
        attn_saturating_mul(STEPS, attn_saturating_mul((size_t)plan->width, (size_t)plan->kernels->size)));
    w->row = attn_next_part(memory, &used, attn_row_bytes(plan->rope->dtype, plan->rope->dim));
    return used;
}

/* out (2, pairs): cosines and sines of position * inv_freq, corrected to first order for the product's rounding. */
static void sines_of(ptrdiff_t pairs, const double *inv_freq, double position, double *out)
{
    for (ptrdiff_t n = 0; n < pairs; n++) {
        const double angle = position * inv_freq[n], lost = fma(position, inv_freq[n], -angle);
        const double c = cos(angle), s = sin(angle);
        out[n] = c - s * lost;
        out[pairs + n] = s + c * lost;
    }
}

static void make_table_row(const rope_plan *plan, const worker_memory *w, int64_t position, void *row)
{
    const attn_rope *t = plan->rope;
    const int step = (int)(position & (STEPS - 1));
    const int64_t base = position - step;
    double *steps = w->steps + step * 2 * t->pairs;
    if (!w->cache->has_base || w->cache->base != base) {
        sines_of(t->pairs, t->inv_freq, (double)base, w->bases);
        w->cache->base = base;
        w->cache->has_base = 1;
    }
    if (!(w->cache->has_steps >> step & 1)) {
        sines_of(t->pairs, t->inv_freq, step, steps);
        w->cache->has_steps |= (uint32_t)1 << step;
    }
    plan->kernels->rotary_table(t->interleaved, t->pairs, w->bases, steps, t->scale, row);
}

/* Advances the offsets into x, y and ids to entry n of some axes. */
static void walk(const attn_rotary_axis *axes, int count, ptrdiff_t n, ptrdiff_t *x, ptrdiff_t *y, ptrdiff_t *ids)
{
    for (int axis = count - 1; axis >= 0 && n > 0; axis--) {
        const ptrdiff_t rest = attn_fast_div(n, axes[axis].size), at = n - rest * axes[axis].size;
        *x += at * axes[axis].x;
        *y += at * axes[axis].y;
        *ids += at * axes[axis].ids;
        n = rest;
    }
}

static void make_table(const rope_plan *plan, const worker_memory *w, ptrdiff_t first, ptrdiff_t rows, ptrdiff_t ids)
{
    const attn_rope *t = plan->rope;
    for (ptrdiff_t i = 0; i < rows; i++) {
        const char *id = t->ids + ids + (first + i) * t->row.ids;
        const int64_t position = t->ids ? *(const int64_t *)(const void *)id : t->offset + first + i;
        make_table_row(plan, w, position, w->table + i * plan->width * plan->kernels->size);
    }
}

/* Rotates the rows of all heads. The inner loop runs along heads or positions, whichever has the smaller stride. */
static void rotate_rows(const rope_plan *plan, const worker_memory *w, ptrdiff_t rows, const char *x, char *y)
{
    const attn_rope *t = plan->rope;
    const attn_kernels *k = plan->kernels;
    const ptrdiff_t size = k->size;
    const int along_heads = rows == 1 || (t->heads > 1 && t->head.x < t->row.x);
    const attn_rotary_axis *in = along_heads ? &t->head : &t->row, *out = along_heads ? &t->row : &t->head;
    const ptrdiff_t inner = along_heads ? t->heads : rows, outer = along_heads ? rows : t->heads;
    const ptrdiff_t table_step = along_heads ? 0 : plan->width;
    for (ptrdiff_t n = 0; n < outer; n++, x += out->x, y += out->y) {
        const char *const table = w->table + (along_heads ? n * plan->width * size : 0);
        if (!attn_is_half(t->dtype)) {
            k->rotary_rows(t->interleaved, inner, t->pairs, t->dim, table, table_step, x, in->x / size, y,
                           in->y / size);
            continue;
        }
        for (ptrdiff_t i = 0; i < inner; i++) {
            attn_read_row(k, t->dtype, t->dim, x + i * in->x, w->row);
            k->rotary_rows(t->interleaved, 1, t->pairs, t->dim, table + i * table_step * size, 0, w->row, 0, w->row, 0);
            attn_round_row(k, t->dtype, t->dim, w->row, y + i * in->y);
        }
    }
}

static void rotate_unit(const rope_plan *plan, const worker_memory *w, ptrdiff_t unit)
{
    const attn_rope *t = plan->rope;
    const ptrdiff_t table = attn_fast_div(unit, t->shared), own = attn_fast_div(table, plan->blocks);
    const ptrdiff_t first = (table - own * plan->blocks) * STEPS, rows = attn_min(STEPS, t->length - first);
    ptrdiff_t x = first * t->row.x, y = first * t->row.y, ids = 0;
    walk(t->own_axis, t->own_axes, own, &x, &y, &ids);
    if (w->cache->table_of != table + 1) {
        make_table(plan, w, first, rows, ids);
        w->cache->table_of = table + 1;
    }
    walk(t->shared_axis, t->shared_axes, unit - table * t->shared, &x, &y, &ids);
    rotate_rows(plan, w, rows, t->x + x, t->y + y);
}

static void some_units(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const rope_plan *plan = context;
    worker_memory w;
    layout_scratch(plan, plan->scratch + (size_t)worker * plan->worker_bytes, &w);
    for (ptrdiff_t unit = attn_first_row(&plan->cut, task); unit < attn_first_row(&plan->cut, task + 1); unit++) {
        if (attn_should_stop(job, worker)) return;
        rotate_unit(plan, &w, unit);
    }
}

attn_status attn_apply_rope(const attn_rope *t, int num_threads, attn_error *error)
{
    worker_memory w;
    attn_arena arena;
    rope_plan plan = {.rope = t, .kernels = attn_kernels_for(attn_computed(t->dtype))};
    const ptrdiff_t rows = attn_min(STEPS, t->length);
    if (t->own == 0 || t->shared == 0 || t->heads == 0 || t->length == 0 || t->dim == 0) return ATTN_OK;

    plan.blocks = attn_ceil_div(t->length, STEPS);
    plan.width = (t->interleaved ? 4 : 2) * t->pairs;
    plan.cut = attn_cut_rows(t->own * plan.blocks * t->shared, (size_t)(rows * t->heads * t->dim));
    plan.worker_bytes = layout_scratch(&plan, NULL, &w);
    const int workers = attn_workers(num_threads, plan.cut.tasks);
    const size_t bytes = attn_saturating_mul((size_t)workers, plan.worker_bytes);
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "rotary_embedding needs %zu bytes of scratch memory", bytes);

    plan.scratch = arena.scratch;
    for (int n = 0; n < workers; n++) {
        layout_scratch(&plan, plan.scratch + (size_t)n * plan.worker_bytes, &w);
        *w.cache = (table_cache){.table_of = 0};
    }
    const attn_status status = attn_parallel_for(plan.cut.tasks, workers, some_units, &plan);
    attn_arena_give(&arena);
    return status;
}
