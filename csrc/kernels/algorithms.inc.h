/* All algorithms for one dtype, and their table. Included twice by each isa_<name>.c. */
#include "part.inc.h"
#include "exp2.inc.h"
#include "rowwise.inc.h"
#include "embedding.inc.h"
#include "norm.inc.h"
#include "norm_backward.inc.h"
#include "stream.inc.h"
#include "square.inc.h"
#include "elements.inc.h"
#include "score.inc.h"
#include "prepare.inc.h"
#include "distance.inc.h"
#include "tanh.inc.h"
#include "activation.inc.h"
#include "activation_backward.inc.h"
#include "additive.inc.h"
#include "softmax.inc.h"
#include "softmax_backward.inc.h"
#include "score_backward.inc.h"
#include "score_tangent.inc.h"
#include "decode.inc.h"
#include "pack.inc.h"
#include "value.inc.h"
#include "gemm.inc.h"
#include "bias.inc.h"
#include "dropout.inc.h"
#include "state.inc.h"
#include "weights.inc.h"
#include "linear.inc.h"
#include "rotary.inc.h"
#include "cross_entropy.inc.h"
#include "sum_products.inc.h"
#include "optimizer.inc.h"
#include "topk.inc.h"
#include "measure.inc.h"

static const attn_kernels K(kernels) = {
    .lanes = LANES,
    .width = LANES * ATTN_VECTORS,
    .size = (int)sizeof(real),
    .decode_rows = LANES / 2 < ATTN_DECODE_ROWS ? LANES / 2 : ATTN_DECODE_ROWS,
    .gemv_rows = 4 * K(panel_rows) - 1,
    .load_block = K(load_block),
#if REAL_F32
    .store_row = K(store_row),
#endif
    .pack_queries = K(pack_queries),
    .score_block = K(score_block),
    .normalise_rows = K(normalise_rows),
    .normalise_rows_backward = K(normalise_rows_backward),
    .distance_queries = K(distance_queries),
    .distance_keys = K(distance_keys),
    .distance_block = K(distance_block),
    .additive_block = K(additive_block),
    .softmax_block = K(softmax_block),
    .softmax_backward = K(softmax_backward),
    .score_sums = K(score_sums),
    .difference_block = K(difference_block),
    .additive_backward = K(additive_backward),
    .distance_tangent = K(distance_tangent_block),
    .additive_tangent = K(additive_tangent_block),
    .value_block = K(value_block),
    .finite_values = K(finite_values),
    .decode_scores = K(decode_scores),
    .decode_softmax = K(decode_softmax),
    .bias_tile = K(bias_tile),
    .join_bias = K(join_bias),
    .drop_mask_tile = K(drop_mask_tile),
    .drop_weights = K(drop_weights),
    .drop_features = K(drop_features),
    .fold_state = K(fold_state),
    .finish_rows = K(finish_rows),
    .weights_block = K(weights_block),
    .decode_weights = K(decode_weights),
    .share_row = K(share_row),
    .linear_block = K(linear_block),
    .linear_rows = K(linear_rows),
    .gemv = K(gemv),
    .pack_tile = K(pack_tile),
    .gemm = K(gemm),
    .norm_row = K(norm_row),
    .norm_backward_row = K(norm_backward_row),
    .scale_row = K(scale_row),
    .rotary_table = K(rotary_table),
    .rotary_rows = K(rotary_rows),
    .softmax_row = K(softmax_row),
    .cross_entropy_row = K(cross_entropy_row),
    .sum_products = K(sum_products),
    .adam = K(adam),
    .sgd = K(sgd),
    .softmax_row_backward = K(softmax_row_backward),
    .topk = K(topk),
    .topk_order = K(topk_order),
    .exp2_array = K(exp2_array),
    .activate = K(activate),
    .activate_backward = K(activate_backward),
    .fma_rounds = K(fma_rounds),
    .read_array = K(read_array),
};
