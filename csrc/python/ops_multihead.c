/* pyattn._core.multi_head: multi-head attention in one call. The Python modules that call it have already checked
 * torch's arguments, or those of the articles.
 */
#include "options.h"
#include "pages.h"

enum {
    QUERY,
    KEY,
    VALUE,
    Q_WEIGHT,
    K_WEIGHT,
    V_WEIGHT,
    OUT_WEIGHT,
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    OUT_BIAS,
    EXTRA_KEY,
    EXTRA_VALUE,
    ARRAYS,
    REQUIRED = K_WEIGHT,
    HEADS = ARRAYS,
    KV_HEADS,
    ADD_ZERO,
    AVERAGE_WEIGHTS,
    KEY_PADDING_MASK,
    KEY_LIMITS,
    BLOCKED, /* True in a bool mask means blocked */
    CACHE,
    ROTARY,
    OPTIONS,
    ARGUMENTS = OPTIONS + PYATTN_OPTIONS
};
static const char *const argument_names[ARGUMENTS] = {
    "query",       "key",     "value",    "q_weight", "k_weight",         "v_weight",
    "out_weight",  "q_bias",  "k_bias",   "v_bias",   "out_bias",         "extra_key",
    "extra_value", "heads",   "kv_heads", "add_zero", "average_weights",  "key_padding_mask",
    "key_limits",  "blocked", "cache",    "rotary",   PYATTN_OPTION_NAMES};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"multi_head", ARGUMENTS, ARRAYS, REQUIRED, argument_names, interned_names};

/* All objects that a call owns. */
typedef struct {
    PyArrayObject *arrays[ARRAYS], *padding, *output, *weights;
    pyattn_option_arrays options;
    pyattn_cache_use cache;
    pyattn_rope_arrays rope;
} owned;

/* A call's data, which is too large for the stack of a small thread. */
typedef struct {
    owned owned;
    attn_multihead_args args;
    attn_shapes shapes;
} multi_head_call;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    Py_XDECREF(o->padding);
    Py_XDECREF(o->output);
    Py_XDECREF(o->weights);
    pyattn_release_options(&o->options);
    pyattn_release_cache_use(&o->cache);
    pyattn_release_rope(&o->rope);
}

static int convert_arrays(PyObject *const *values, owned *o, attn_multihead_args *args)
{
    /* without new keys and values, the cache holds all of them */
    const int required = pyattn_given(values[CACHE]) && values[KEY] == Py_None ? KEY : REQUIRED;
    if (pyattn_as_reals(values, argument_names, ARRAYS, required, o->arrays) < 0) return -1;
    if (pyattn_make_rows_contiguous(o->arrays + Q_BIAS, OUT_BIAS + 1 - Q_BIAS) < 0) return -1;
    if (pyattn_given(values[CACHE]) && pyattn_convert_cache_use(values[CACHE], &o->cache) < 0) return -1;
    return pyattn_given(values[ROTARY]) ? pyattn_convert_rope(values[ROTARY], &args->rotary, &o->rope) : 0;
}

/* Takes tensors of all arrays. Runs Python code only to raise an exception. */
static int fill_tensors(owned *o, attn_multihead_args *args)
{
    static const size_t places[ARRAYS] = {[QUERY] = offsetof(attn_multihead_args, query),
                                          [KEY] = offsetof(attn_multihead_args, key),
                                          [VALUE] = offsetof(attn_multihead_args, value),
                                          [Q_WEIGHT] = offsetof(attn_multihead_args, q_weight),
                                          [K_WEIGHT] = offsetof(attn_multihead_args, k_weight),
                                          [V_WEIGHT] = offsetof(attn_multihead_args, v_weight),
                                          [OUT_WEIGHT] = offsetof(attn_multihead_args, out_weight),
                                          [Q_BIAS] = offsetof(attn_multihead_args, q_bias),
                                          [K_BIAS] = offsetof(attn_multihead_args, k_bias),
                                          [V_BIAS] = offsetof(attn_multihead_args, v_bias),
                                          [OUT_BIAS] = offsetof(attn_multihead_args, out_bias),
                                          [EXTRA_KEY] = offsetof(attn_multihead_args, extra_key),
                                          [EXTRA_VALUE] = offsetof(attn_multihead_args, extra_value)};
    for (int n = 0; n < ARRAYS; n++) pyattn_fill((attn_tensor *)(void *)((char *)args + places[n]), o->arrays[n]);
    if (o->arrays[K_WEIGHT] == NULL && o->arrays[V_WEIGHT] == NULL) {
        if (pyattn_split_in_proj(&args->q_weight, &args->k_weight, &args->v_weight, "in_proj_weight") < 0) return -1;
        if (o->arrays[Q_BIAS] && pyattn_split_in_proj(&args->q_bias, &args->k_bias, &args->v_bias, "in_proj_bias") < 0)
            return -1;
    }
    pyattn_fill_options(&o->options, &args->attention);
    pyattn_fill_rope(&o->rope, &args->rotary);
    if (pyattn_fill_cache(&o->cache, args) < 0) return -1;
    pyattn_fill(&args->attention.padding_mask, o->padding);
    return PyErr_Occurred() ? -1 : 0;
}

static int convert_numbers(PyObject *const *values, attn_multihead_args *args)
{
    args->heads = args->kv_heads = 1;
    if (values[HEADS] && pyattn_integer(values[HEADS], "heads", "an int", &args->heads) < 0) return -1;
    args->kv_heads = args->heads;
    if (pyattn_given(values[KV_HEADS]) && pyattn_integer(values[KV_HEADS], "kv_heads", "an int", &args->kv_heads) < 0)
        return -1;
    if ((args->add_zero = pyattn_flag(values[ADD_ZERO], "add_zero")) < 0) return -1;
    args->attention.average_weights = pyattn_flag(values[AVERAGE_WEIGHTS], "average_weights");
    return args->attention.average_weights < 0 ? -1 : 0;
}

/* Converts masks and limits; True means blocked if `blocked`, else attend. */
static int convert_masks(PyObject *const *values, owned *o, attn_args *args)
{
    const int blocked = pyattn_flag(values[BLOCKED], "blocked");
    if (blocked < 0) return -1;
    args->mask_blocked = args->padding_blocked = blocked;
    if (pyattn_convert_mask(values[KEY_PADDING_MASK], "key_padding_mask", blocked ? "blocked" : "attend", &o->padding) <
        0)
        return -1;
    if (pyattn_given(values[KEY_LIMITS]) &&
        pyattn_as_integers(values[KEY_LIMITS], "key_limits", &o->options.key_limits) < 0)
        return -1;
    return pyattn_convert_options(values + OPTIONS, args, &o->options);
}

/* Returns 1 after a warning, 0 without, -1 with an exception. */
static int warn_of_ones(const attn_shapes *shapes)
{
    if (shapes->mask_looks_like_ones && pyattn_warn_of_ones("attn_mask") < 0) return -1;
    if (shapes->padding_looks_like_ones && pyattn_warn_of_ones("key_padding_mask") < 0) return -1;
    return shapes->mask_looks_like_ones || shapes->padding_looks_like_ones;
}

/* Takes tensors of all arrays, checks them, and gets the shapes of the results. */
static int check(multi_head_call *c)
{
    attn_error error;
    if (fill_tensors(&c->owned, &c->args) < 0) return -1;
    const attn_status status = attn_multihead_shapes(&c->args, &c->shapes, &error);
    if (status != ATTN_OK) pyattn_raise(status, &error);
    return status == ATTN_OK ? 0 : -1;
}

/* Checks, warns, and checks again if Python code has run, as it may have changed any array. */
static int prepare(PyObject *const *values, multi_head_call *c)
{
    attn_args *const attention = &c->args.attention;
    if (check(c) < 0) return -1;
    const int warned = warn_of_ones(&c->shapes);
    const int drew = warned < 0 ? -1 : pyattn_draw_seed(values + OPTIONS, attention, &attention->dropout_seed);
    if (drew < 0) return -1;
    return warned || drew ? check(c) : 0;
}

/* (output, weights or None). */
static PyObject *compute(const attn_multihead_args *args, const attn_shapes *shapes, int need_weights, owned *o)
{
    PyArrayObject *const like = pyattn_widest(o->arrays, ARRAYS);
    attn_tensor weights = {.data = NULL};
    attn_error error;
    attn_status status;
    if ((o->output = pyattn_new_like(shapes->ndim, shapes->output, like)) == NULL) return NULL;
    if (need_weights) {
        o->weights = pyattn_new_like(shapes->weights_ndim, shapes->weights, like);
        if (o->weights == NULL) return NULL;
        weights = pyattn_tensor(o->weights);
    }
    const attn_tensor output = pyattn_tensor(o->output);
    PYATTN_RUN(status, shapes->work >= PYATTN_WORTH_THE_GIL, attn_multihead(args, output, weights, &error));
    if (status != ATTN_OK) return pyattn_raise(status, &error);
    return PyTuple_Pack(2, (PyObject *)o->output, o->weights ? (PyObject *)o->weights : Py_None);
}

static PyObject *multi_head(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    const int exceeds = pyattn_exceeds(values[QUERY], ATTN_MAX_AXES - 1); /* heads are one more axis */
    if (exceeds != 0) return exceeds < 0 ? NULL : pyattn_merge_axes("multi_head", positional, nargs, kwnames);
    const int need_weights = pyattn_flag(values[OPTIONS + PYATTN_NEED_WEIGHTS], "need_weights");
    multi_head_call *c = need_weights < 0 ? NULL : PyMem_Malloc(sizeof *c);
    if (c == NULL) return need_weights < 0 ? NULL : PyErr_NoMemory();
    c->owned = (owned){.output = NULL};
    c->args = (attn_multihead_args){.add_zero = 0};

    if (convert_masks(values, &c->owned, &c->args.attention) == 0 && convert_numbers(values, &c->args) == 0 &&
        convert_arrays(values, &c->owned, &c->args) == 0 && prepare(values, c) == 0)
        result = compute(&c->args, &c->shapes, need_weights, &c->owned);
    release(&c->owned);
    PyMem_Free(c);
    return result;
}

PyMethodDef pyattn_multihead_methods[] = {
    {"multi_head", (PyCFunction)(void (*)(void))multi_head, METH_FASTCALL | METH_KEYWORDS,
     "multi_head($module, query, key, value, q_weight, *more_arrays, **options)\n--\n\n"
     "Multi-head attention: (output, weights or None). See pyattn.multi_head_attention_forward. Without k_weight and "
     "v_weight, q_weight and q_bias hold those of query, key and value on top of one another."},
    {NULL, NULL, 0, NULL},
};
