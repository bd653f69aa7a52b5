/* The rules on the gradients and tangents of attention, beyond those of attention itself. */
#include "backward.h"
#include "check.h"
#include "error.h"
#include "jvp.h"

/* An array that was a result of the forward call, or is the gradient of one. */
static attn_status check_result(const char *name, const attn_tensor *tensor, int axes, const ptrdiff_t *shape,
                                attn_dtype dtype, attn_error *error)
{
    if (tensor->data == NULL) FAIL("%s must be given", name);
    return attn_check_result(name, tensor, axes, shape, dtype, error);
}

static attn_status check_gradient(const char *name, const attn_tensor *gradient, const attn_tensor *of,
                                  const attn_problem *p, attn_error *error)
{
    if (gradient->data == NULL) return ATTN_OK;
    if (of->data == NULL) FAIL("the gradient of %s is wanted, but it was not given", name);
    const attn_status status = attn_check_result(name, gradient, of->ndim, of->shape, p->dtype, error);
    if (status != ATTN_OK) return status;
    if (gradient->dtype != p->dtype) FAIL("the gradient of %s must be float64 for float64, else float32", name);
    int empty = 0; /* then it may have any strides */
    for (int n = 0; n < gradient->ndim; n++) empty |= gradient->shape[n] == 0;
    if (!empty && gradient->ndim > 0 && attn_last_size(gradient) > 1 &&
        attn_last_stride(gradient) != attn_size_of_real(gradient->dtype))
        FAIL("the gradient of %s must have a contiguous last axis", name);
    return ATTN_OK;
}

attn_status attn_check_gradients(const attn_backward_args *args, const attn_gradients *gradients,
                                 attn_backward_problem *b, attn_error *error)
{
    const attn_args *attention = &args->attention;
    attn_problem *p = &b->forward;
    attn_shapes want;
    attn_status status;
    if (attention->cache) FAIL("gradients of attention to a cache: pass its keys and values as arrays");
    if (attention->state.data || attention->unfinished) FAIL("gradients of a part of the keys: pass all keys at once");
    if ((status = attn_check_inputs(attention, p, error)) != ATTN_OK) return status;
    attn_describe(attention, p, &want);
    const attn_dtype stored = attention->query.dtype;
    if ((status = check_result("grad_output", &args->grad_output, want.ndim, want.output, stored, error)) != ATTN_OK)
        return status;
    if ((status = check_result("output", &args->output, want.ndim, want.output, stored, error)) != ATTN_OK)
        return status;
    if ((status = check_result("lse", &args->lse, want.lse_ndim, want.lse, p->dtype, error)) != ATTN_OK) return status;
    status = attn_check_result("grad_lse", &args->grad_lse, want.lse_ndim, want.lse, p->dtype, error);
    if (status != ATTN_OK) return status;
    if (args->lse.dtype != p->dtype || (args->grad_lse.data && args->grad_lse.dtype != p->dtype))
        FAIL("lse and grad_lse must be float64 for float64, else float32");
    if (gradients->mask.data && (!attention->mask.data || attn_is_bool(p->mask_dtypes[ATTN_MASK])))
        FAIL("the gradient of attn_mask is wanted, but it is not a float mask");
    if ((status = check_gradient("query", &gradients->query, &attention->query, p, error)) != ATTN_OK) return status;
    if ((status = check_gradient("key", &gradients->key, &attention->key, p, error)) != ATTN_OK) return status;
    if ((status = check_gradient("value", &gradients->value, &attention->value, p, error)) != ATTN_OK) return status;
    if ((status = check_gradient("attn_mask", &gradients->mask, &attention->mask, p, error)) != ATTN_OK) return status;

    if (gradients->score_weight.data && p->score != ATTN_SCORE_ADDITIVE)
        FAIL("the gradient of score_weight is wanted, but only score='additive' has one");
    status = check_gradient("score_weight", &gradients->score_weight, &attention->score_weight, p, error);
    if (status != ATTN_OK) return status;

    const attn_axis_places at = attn_places_of(attention->layout, p->has_heads);
    const attn_axis_places mask_at = attn_places_of(ATTN_LAYOUT_BHSD, p->has_heads);
    const attn_axis_places lse_at = attn_lse_places(p->has_heads);
    attn_resolve(&args->grad_output, &at, p, &b->grad_output);
    attn_resolve(&args->output, &at, p, &b->output);
    attn_resolve(&args->lse, &lse_at, p, &b->lse);
    attn_resolve(&args->grad_lse, &lse_at, p, &b->grad_lse);
    attn_resolve(&gradients->query, &at, p, &b->query);
    attn_resolve(&gradients->key, &at, p, &b->key);
    attn_resolve(&gradients->value, &at, p, &b->value);
    attn_resolve(&gradients->mask, &mask_at, p, &b->mask);
    b->scale = gradients->scale;
    b->score_weight = gradients->score_weight.data;
    b->unscaled = p->has_scale && p->scale == 0;
    if (b->unscaled) p->scale = 1; /* for scores of which the gradient of the scale is taken */
    return ATTN_OK;
}

attn_status attn_check_backward(const attn_backward_args *args, const attn_gradients *gradients, attn_error *error)
{
    attn_backward_problem problem;
    return attn_check_gradients(args, gradients, &problem, error);
}

/* The shapes of the results of the forward call, for a problem that is checked. */
static attn_status check_forward(const attn_jvp_args *args, const attn_problem *p, attn_error *error)
{
    attn_shapes want;
    attn_status status;
    attn_describe(&args->attention, p, &want);
    if ((status = check_result("output", &args->output, want.ndim, want.output, p->dtype, error)) != ATTN_OK)
        return status;
    if ((status = check_result("lse", &args->lse, want.lse_ndim, want.lse, p->dtype, error)) != ATTN_OK) return status;
    if (args->output.dtype != p->dtype || args->lse.dtype != p->dtype)
        FAIL("output and lse must be float64 for float64, else float32");
    return ATTN_OK;
}

static attn_status check_tangent(const char *name, const attn_tensor *tangent, const attn_tensor *of,
                                 const attn_problem *p, attn_error *error)
{
    return attn_check_result(name, tangent, of->ndim, of->shape, p->dtype, error);
}

attn_status attn_check_tangents(const attn_jvp_args *args, attn_jvp_problem *j, attn_error *error)
{
    const attn_args *attention = &args->attention;
    attn_problem *p = &j->forward;
    attn_status status;
    if (attention->cache) FAIL("tangents of attention to a cache: pass its keys and values as arrays");
    if (attention->state.data || attention->unfinished) FAIL("tangents of a part of the keys: pass all keys at once");
    if ((status = attn_check_inputs(attention, p, error)) != ATTN_OK) return status;
    if ((status = check_forward(args, p, error)) != ATTN_OK) return status;
    if ((status = check_tangent("tangent_query", &args->query, &attention->query, p, error)) != ATTN_OK) return status;
    if ((status = check_tangent("tangent_key", &args->key, &attention->key, p, error)) != ATTN_OK) return status;
    if ((status = check_tangent("tangent_value", &args->value, &attention->value, p, error)) != ATTN_OK) return status;
    if (args->mask.data && (!attention->mask.data || attn_is_bool(p->mask_dtypes[ATTN_MASK])))
        FAIL("tangent_attn_mask is given, but attn_mask is not an array of floats: pass both, or neither");
    status = check_tangent("tangent_attn_mask", &args->mask, &attention->mask, p, error);
    if (status != ATTN_OK) return status;

    const attn_axis_places at = attn_places_of(attention->layout, p->has_heads);
    const attn_axis_places mask_at = attn_places_of(ATTN_LAYOUT_BHSD, p->has_heads);
    const attn_axis_places lse_at = attn_lse_places(p->has_heads);
    attn_resolve(&args->output, &at, p, &j->output);
    attn_resolve(&args->lse, &lse_at, p, &j->lse);
    attn_resolve(&args->query, &at, p, &j->query);
    attn_resolve(&args->key, &at, p, &j->key);
    attn_resolve(&args->value, &at, p, &j->value);
    attn_resolve(&args->mask, &mask_at, p, &j->mask);
    return ATTN_OK;
}

attn_status attn_check_tangent_output(const attn_jvp_args *args, const attn_tensor *tangent_output, attn_jvp_problem *j,
                                      attn_error *error)
{
    const attn_problem *p = &j->forward;
    const attn_axis_places at = attn_places_of(args->attention.layout, p->has_heads);
    attn_shapes want;
    attn_describe(&args->attention, p, &want);
    const attn_status status = check_result("tangent_output", tangent_output, want.ndim, want.output, p->dtype, error);
    if (status != ATTN_OK) return status;
    if (tangent_output->dtype != p->dtype) FAIL("tangent_output must be float64 for float64, else float32");
    const int written = p->batches > 0 && p->heads > 0 && p->q_len > 0; /* empty arrays may have any strides */
    if (written && p->v_dim > 1 && attn_stride_of(tangent_output, 1) != attn_size_of_real(p->dtype))
        FAIL("tangent_output's last axis must be contiguous");
    attn_resolve(tangent_output, &at, p, &j->tangent_output);
    return ATTN_OK;
}

attn_status attn_check_jvp(const attn_jvp_args *args, attn_error *error)
{
    attn_jvp_problem problem;
    return attn_check_tangents(args, &problem, error);
}
