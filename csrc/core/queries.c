/* Processes many queries in parts: k and v exist for the whole call, q and the heads' output for one part at a time. */
#include "check.h"
#include "cut.h"
#include "multihead.h"

enum { Q = ATTN_Q, K = ATTN_K };

/* Fewest queries of a part. Each part packs its rows anew, which costs 3% in parts of 512 queries; long inputs gain 3
 * to 13% from parts (Zen 4). */
enum { LEAST = 768 };

/* Whether queries cannot be cut. query_lengths and a lower-right corner refer to all queries; new keys enter a cache
 * only once; without out_weight the output must stay contiguous; a part is not cut again. */
static int stays_whole(const attn_multihead_args *args)
{
    const attn_args *attention = &args->attention;
    return attention->query_lengths.data != NULL || attention->align == ATTN_ALIGN_LOWER_RIGHT ||
           attention->cache != NULL || args->out_weight.data == NULL || attention->query_start > 0;
}

static attn_status check_all(const attn_multihead_args *args, const attn_tensor *weights, attn_error *error)
{
    attn_shapes shapes;
    const attn_status status = attn_multihead_shapes(args, &shapes, error);
    if (status != ATTN_OK) return status;
    return attn_check_result("weights", weights, shapes.weights_ndim, shapes.weights, args->query.dtype, error);
}

attn_status attn_cut_queries(attn_multihead_plan *m, const attn_tensor *weights, attn_error *error)
{
    const ptrdiff_t length = m->heads.length, rows = attn_count_rows(&m->args->query, 1);
    m->cuts = stays_whole(m->args) ? 1 : attn_count_cuts(rows, length, LEAST, m->args->attention.num_threads);
    if (m->cuts == 1) return ATTN_OK;
    m->joined[K] = 0;
    m->part[Q].length = m->heads.length = attn_cut_of(length, m->cuts, 0).count;
    return check_all(m->args, weights, error);
}

void attn_take_queries(const attn_multihead_plan *m, attn_tensor output, attn_tensor weights, ptrdiff_t number,
                       attn_queries *part)
{
    const ptrdiff_t length = m->args->query.shape[m->batch_axes];
    const attn_cut cut = attn_cut_of(length, m->cuts, number);
    part->plan = *m; /* one by one: a literal would lie on the stack first */
    part->args = *m->args;
    part->output = output;
    part->weights = weights;
    part->plan.args = &part->args;
    part->plan.part[Q].length = part->plan.heads.length = cut.count;

    attn_multihead_args *args = &part->args;
    attn_args *attention = &args->attention;
    const struct {
        attn_tensor *tensor;
        int axis; /* the query axis, counted from the last one */
    } tensors[] = {
        {&args->query, 2},          {&args->residual, 2},        {&part->output, 2},
        {&part->weights, 2},        {&attention->mask, 2},       {&attention->padding_mask, 2},
        {&attention->keep_mask, 2}, {&attention->key_limits, 2}, {&args->rotary.position_ids, 1},
    };
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors; n++)
        attn_cut_tensor(tensors[n].tensor, tensors[n].axis, cut);
    if (args->rotary.inv_freq.data && !args->rotary.position_ids.data) args->rotary.offset += cut.first;
    attention->query_start += cut.first;
    if (attention->align != ATTN_ALIGN_OFFSET) attention->align = ATTN_ALIGN_UPPER_LEFT;
}
