/* pyattn._core.layer: a layer of a Transformer in one call. pyattn/nn calls it, and has already checked torch's
 * arguments.
 */
#include "options.h"
#include "pages.h"

enum { SELF, CROSS, ATTENTIONS };

/* Arguments: x, memory, then the tuples of weights. */
enum {
    X,
    MEMORY,
    SELF_WEIGHTS,
    CROSS_WEIGHTS,
    FEED_WEIGHTS,
    NORM_WEIGHTS,
    HEADS,
    KV_HEADS,
    ACTIVATION,
    NORM_FIRST,
    RMS,
    EPS,
    SCALE, /* of the scores, for both attentions */
    BLOCKED, /* True in a bool mask means blocked */
    ATTN_MASK,
    KEY_PADDING_MASK,
    KEY_LIMITS,
    KEY_LENGTHS,
    IS_CAUSAL,
    QUERY_LENGTHS,
    WINDOW,
    CACHE,
    ROTARY,
    MEMORY_MASK,
    MEMORY_KEY_PADDING_MASK,
    MEMORY_KEY_LIMITS,
    MEMORY_KEY_LENGTHS,
    MEMORY_IS_CAUSAL,
    MEMORY_CACHE,
    EMPTY_ROWS,
    NEED_WEIGHTS,
    AVERAGE_WEIGHTS,
    NUM_THREADS,
    ARGUMENTS
};
static const char *const argument_names[ARGUMENTS] = {"x",
                                                      "memory",
                                                      "self_attention",
                                                      "cross_attention",
                                                      "feed_forward",
                                                      "norms",
                                                      "heads",
                                                      "kv_heads",
                                                      "activation",
                                                      "norm_first",
                                                      "rms",
                                                      "eps",
                                                      "scale",
                                                      "blocked",
                                                      "attn_mask",
                                                      "key_padding_mask",
                                                      "key_limits",
                                                      "key_lengths",
                                                      "is_causal",
                                                      "query_lengths",
                                                      "window",
                                                      "cache",
                                                      "rotary",
                                                      "memory_mask",
                                                      "memory_key_padding_mask",
                                                      "memory_key_limits",
                                                      "memory_key_lengths",
                                                      "memory_is_causal",
                                                      "memory_cache",
                                                      "empty_rows",
                                                      "need_weights",
                                                      "average_weights",
                                                      "num_threads"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"layer", ARGUMENTS, HEADS, HEADS, argument_names, interned_names};

/* All float arrays, in the order of the tuples. */
enum { ATTENTION_WEIGHTS = 8, FEED_ARRAYS = 6, NORM_ARRAYS = 6 };
enum {
    OF_SELF = MEMORY + 1,
    OF_CROSS = OF_SELF + ATTENTION_WEIGHTS,
    OF_FEED = OF_CROSS + ATTENTION_WEIGHTS,
    OF_NORMS = OF_FEED + FEED_ARRAYS,
    ARRAYS = OF_NORMS + NORM_ARRAYS
};
static const char *const array_names[ARRAYS] = {
    "x",          "memory",       "q_weight",    "k_weight",     "v_weight",
    "out_weight", "q_bias",       "k_bias",      "v_bias",       "out_bias",
    "q_weight",   "k_weight",     "v_weight",    "out_weight",   "q_bias",
    "k_bias",     "v_bias",       "out_bias",    "in_weight",    "in_bias",
    "out_weight", "out_bias",     "gate_weight", "gate_bias",    "norm1.weight",
    "norm1.bias", "norm2.weight", "norm2.bias",  "norm3.weight", "norm3.bias"};

typedef struct {
    PyArrayObject *arrays[ARRAYS], *padding[ATTENTIONS], *y, *weights[ATTENTIONS];
    pyattn_option_arrays options[ATTENTIONS];
    pyattn_cache_use caches[ATTENTIONS];
    pyattn_rope_arrays rope;
} owned;

/* A call's data, which is too large for the stack of a small thread. */
typedef struct {
    owned owned;
    attn_layer_args args;
    attn_shapes shapes[ATTENTIONS];
} layer_call;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    for (int n = SELF; n < ATTENTIONS; n++) {
        Py_XDECREF(o->padding[n]);
        Py_XDECREF(o->weights[n]);
        pyattn_release_options(&o->options[n]);
        pyattn_release_cache_use(&o->caches[n]);
    }
    pyattn_release_rope(&o->rope);
    Py_XDECREF(o->y);
}

/* Unpacks a tuple of weights; all NULL if it is None and optional. */
static int spread(PyObject *tuple, const char *name, Py_ssize_t count, int optional, PyObject **objects)
{
    for (Py_ssize_t n = 0; n < count; n++) objects[n] = NULL;
    if (optional && tuple == Py_None) return 0;
    if (!PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of %zd arrays", name, count);
        return -1;
    }
    for (Py_ssize_t n = 0; n < count; n++) objects[n] = PyTuple_GET_ITEM(tuple, n);
    return 0;
}

static int convert_arrays(PyObject *const *values, owned *o)
{
    PyObject *objects[ARRAYS] = {values[X], values[MEMORY]};
    if (spread(values[SELF_WEIGHTS], "self_attention", ATTENTION_WEIGHTS, 0, objects + OF_SELF) < 0) return -1;
    if (spread(values[CROSS_WEIGHTS], "cross_attention", ATTENTION_WEIGHTS, 1, objects + OF_CROSS) < 0) return -1;
    if (spread(values[FEED_WEIGHTS], "feed_forward", FEED_ARRAYS, 0, objects + OF_FEED) < 0) return -1;
    if (spread(values[NORM_WEIGHTS], "norms", NORM_ARRAYS, 0, objects + OF_NORMS) < 0) return -1;
    if (pyattn_as_reals(objects, array_names, ARRAYS, MEMORY, o->arrays) < 0) return -1;
    /* the core reads biases and x, as the residual, a vector at a time */
    static const int rows[] = {X,
                               OF_SELF + 4,
                               OF_SELF + 5,
                               OF_SELF + 6,
                               OF_SELF + 7,
                               OF_CROSS + 4,
                               OF_CROSS + 5,
                               OF_CROSS + 6,
                               OF_CROSS + 7,
                               OF_FEED + 1,
                               OF_FEED + 3,
                               OF_FEED + 5};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        if (pyattn_make_rows_contiguous(&o->arrays[rows[n]], 1) < 0) return -1;
    return pyattn_make_rows_contiguous(o->arrays + OF_NORMS, NORM_ARRAYS);
}

/* Converts masks and flags of the self-attention or cross attention. */
static int convert_attention(PyObject *const *values, int which, owned *o, attn_multihead_args *args)
{
    static const int masks[] = {ATTN_MASK, MEMORY_MASK}, paddings[] = {KEY_PADDING_MASK, MEMORY_KEY_PADDING_MASK};
    static const int causal[] = {IS_CAUSAL, MEMORY_IS_CAUSAL}, lengths[] = {KEY_LENGTHS, MEMORY_KEY_LENGTHS};
    static const int limits[] = {KEY_LIMITS, MEMORY_KEY_LIMITS};
    PyObject *options[PYATTN_OPTIONS] = {NULL};
    const int blocked = pyattn_flag(values[BLOCKED], "blocked");
    if (blocked < 0) return -1;
    options[PYATTN_ATTN_MASK] = values[masks[which]];
    options[PYATTN_KEY_LENGTHS] = values[lengths[which]];
    options[PYATTN_IS_CAUSAL] = values[causal[which]];
    options[PYATTN_QUERY_LENGTHS] = which == SELF ? values[QUERY_LENGTHS] : NULL;
    options[PYATTN_WINDOW] = which == SELF ? values[WINDOW] : NULL;
    options[PYATTN_SCALE] = values[SCALE];
    options[PYATTN_EMPTY_ROWS] = values[EMPTY_ROWS];
    options[PYATTN_NUM_THREADS] = values[NUM_THREADS];
    args->attention.mask_blocked = args->attention.padding_blocked = blocked;
    if (pyattn_convert_mask(values[paddings[which]], argument_names[paddings[which]], blocked ? "blocked" : "attend",
                            &o->padding[which]) < 0)
        return -1;
    if (pyattn_given(values[limits[which]]) &&
        pyattn_as_integers(values[limits[which]], "key_limits", &o->options[which].key_limits) < 0)
        return -1;
    if (pyattn_convert_options(options, &args->attention, &o->options[which]) < 0) return -1;
    /* the last row of x is at the last position of the cache */
    args->attention.align =
        which == SELF && pyattn_given(values[CACHE]) ? ATTN_ALIGN_LOWER_RIGHT : ATTN_ALIGN_UPPER_LEFT;
    args->attention.average_weights = pyattn_flag(values[AVERAGE_WEIGHTS], "average_weights");
    if (args->attention.average_weights < 0) return -1;
    args->heads = args->kv_heads = 1;
    if (values[HEADS] && pyattn_integer(values[HEADS], "heads", "an int", &args->heads) < 0) return -1;
    args->kv_heads = args->heads;
    if (!pyattn_given(values[KV_HEADS])) return 0;
    return pyattn_integer(values[KV_HEADS], "kv_heads", "an int", &args->kv_heads);
}

/* Converts the caches. */
static int convert_caches(PyObject *const *values, owned *o, attn_layer_args *args)
{
    static const int caches[] = {CACHE, MEMORY_CACHE};
    for (int n = SELF; n < ATTENTIONS; n++)
        if (pyattn_given(values[caches[n]]) && pyattn_convert_cache_use(values[caches[n]], &o->caches[n]) < 0)
            return -1;
    return pyattn_given(values[ROTARY]) ? pyattn_convert_rope(values[ROTARY], &args->self.rotary, &o->rope) : 0;
}

static int convert(PyObject *const *values, owned *o, attn_layer_args *args)
{
    int rms;
    double epsilon = 1e-5;
    if ((args->norm_first = pyattn_flag(values[NORM_FIRST], "norm_first")) < 0) return -1;
    if ((rms = pyattn_flag(values[RMS], "rms")) < 0) return -1;
    if (values[EPS] && pyattn_number(values[EPS], "eps", &epsilon) < 0) return -1;
    for (int n = 0; n < 3; n++) {
        args->norms[n].kind = rms ? ATTN_NORM_RMS : ATTN_NORM_LAYER;
        args->norms[n].epsilon = epsilon;
    }
    if (pyattn_activation(values[ACTIVATION], &args->feed.activation) < 0) return -1;
    if ((args->feed.num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0) return -1;
    if (convert_attention(values, SELF, o, &args->self) < 0) return -1;
    if (convert_attention(values, CROSS, o, &args->cross) < 0) return -1;
    return convert_arrays(values, o) < 0 ? -1 : convert_caches(values, o, args);
}

static int fill_weights(PyArrayObject *const *arrays, attn_multihead_args *args)
{
    attn_tensor *const tensors[ATTENTION_WEIGHTS] = {&args->q_weight,   &args->k_weight, &args->v_weight,
                                                     &args->out_weight, &args->q_bias,   &args->k_bias,
                                                     &args->v_bias,     &args->out_bias};
    for (int n = 0; n < ATTENTION_WEIGHTS; n++) pyattn_fill(tensors[n], arrays[n]);
    if (arrays[0] == NULL || arrays[1] || arrays[2]) return 0;
    if (pyattn_split_in_proj(tensors[0], tensors[1], tensors[2], "in_proj_weight") < 0) return -1;
    return arrays[4] ? pyattn_split_in_proj(tensors[4], tensors[5], tensors[6], "in_proj_bias") : 0;
}

/* Takes tensors after all conversions. Runs Python code only to raise an exception. */
static int fill_tensors(owned *o, attn_layer_args *args)
{
    attn_feed_forward_args *feed = &args->feed;
    attn_tensor *const feeds[FEED_ARRAYS] = {&feed->in_weight, &feed->in_bias,     &feed->out_weight,
                                             &feed->out_bias,  &feed->gate_weight, &feed->gate_bias};
    attn_multihead_args *const attentions[ATTENTIONS] = {&args->self, &args->cross};
    pyattn_fill(&args->x, o->arrays[X]);
    pyattn_fill(&args->memory, o->arrays[MEMORY]);
    for (int n = 0; n < FEED_ARRAYS; n++) pyattn_fill(feeds[n], o->arrays[OF_FEED + n]);
    for (int n = 0; n < NORM_ARRAYS; n++)
        pyattn_fill(n % 2 ? &args->norms[n / 2].bias : &args->norms[n / 2].weight, o->arrays[OF_NORMS + n]);
    for (int n = SELF; n < ATTENTIONS; n++) {
        if (fill_weights(o->arrays + (n == SELF ? OF_SELF : OF_CROSS), attentions[n]) < 0) return -1;
        pyattn_fill_options(&o->options[n], &attentions[n]->attention);
        if (pyattn_fill_cache(&o->caches[n], attentions[n]) < 0) return -1;
        pyattn_fill(&attentions[n]->attention.padding_mask, o->padding[n]);
    }
    pyattn_fill_rope(&o->rope, &args->self.rotary);
    return PyErr_Occurred() ? -1 : 0;
}

/* Whether memory is given, as an array or as keys and values in a cache. */
static int has_memory(const attn_layer_args *args)
{
    return args->memory.data != NULL || args->cross.attention.cache != NULL;
}

/* Warns with torch's names of the masks. Returns 1 after a warning, 0 without, -1 with an exception. */
static int warn_of_ones(const attn_layer_args *args, const attn_shapes *shapes, int which)
{
    static const char *const masks[] = {"src_mask", "tgt_mask", "memory_mask"};
    static const char *const paddings[] = {"src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask"};
    const int name = which == CROSS ? 2 : has_memory(args);
    if (shapes->mask_looks_like_ones && pyattn_warn_of_ones(masks[name]) < 0) return -1;
    if (shapes->padding_looks_like_ones && pyattn_warn_of_ones(paddings[name]) < 0) return -1;
    return shapes->mask_looks_like_ones || shapes->padding_looks_like_ones;
}

/* Takes tensors of all arrays, checks them, and gets the shapes of the results. */
static int check(layer_call *c)
{
    attn_error error;
    c->shapes[SELF] = c->shapes[CROSS] = (attn_shapes){.ndim = 0};
    if (fill_tensors(&c->owned, &c->args) < 0) return -1;
    const attn_status status = attn_layer_shapes(&c->args, &c->shapes[SELF], &c->shapes[CROSS], &error);
    if (status != ATTN_OK) pyattn_raise(status, &error);
    return status == ATTN_OK ? 0 : -1;
}

/* Checks, warns, and checks again if Python code has run, as it may have changed any array. */
static int prepare(layer_call *c)
{
    if (check(c) < 0) return -1;
    const int warned = warn_of_ones(&c->args, &c->shapes[SELF], SELF);
    const int again = warned < 0 ? -1 : warn_of_ones(&c->args, &c->shapes[CROSS], CROSS);
    if (again < 0) return -1;
    return warned || again ? check(c) : 0;
}

/* Returns y; with need_weights, (y, weights of self-attention, weights of cross attention or None). */
static PyObject *compute(const attn_layer_args *args, const attn_shapes *shapes, int need_weights, owned *o)
{
    const int attentions = need_weights ? 1 + has_memory(args) : 0;
    attn_tensor weights[ATTENTIONS] = {{.data = NULL}, {.data = NULL}};
    attn_error error;
    attn_status status;
    for (int n = SELF; n < attentions; n++) {
        o->weights[n] = pyattn_new_array(shapes[n].weights_ndim, shapes[n].weights, args->x.dtype);
        if (o->weights[n] == NULL) return NULL;
        weights[n] = pyattn_tensor(o->weights[n]);
    }
    if ((o->y = pyattn_new_array(args->x.ndim, args->x.shape, args->x.dtype)) == NULL) return NULL;
    const attn_tensor y = pyattn_tensor(o->y);
    const int is_long = shapes[SELF].work >= PYATTN_WORTH_THE_GIL;
    PYATTN_RUN(status, is_long, attn_layer(args, y, weights[SELF], weights[CROSS], &error));
    if (status != ATTN_OK) return pyattn_raise(status, &error);
    if (!need_weights) return Py_NewRef((PyObject *)o->y);
    return PyTuple_Pack(3, (PyObject *)o->y, (PyObject *)o->weights[SELF],
                        o->weights[CROSS] ? (PyObject *)o->weights[CROSS] : Py_None);
}

static PyObject *layer(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    const int need_weights = pyattn_flag(values[NEED_WEIGHTS], "need_weights");
    layer_call *c = need_weights < 0 ? NULL : PyMem_Malloc(sizeof *c);
    if (c == NULL) return need_weights < 0 ? NULL : PyErr_NoMemory();
    c->owned = (owned){.y = NULL};
    c->args = (attn_layer_args){.norm_first = 0};

    if (convert(values, &c->owned, &c->args) == 0 && prepare(c) == 0)
        result = compute(&c->args, c->shapes, need_weights, &c->owned);
    release(&c->owned);
    PyMem_Free(c);
    return result;
}

PyMethodDef pyattn_layer_methods[] = {
    {"layer", (PyCFunction)(void (*)(void))layer, METH_FASTCALL | METH_KEYWORDS,
     "layer($module, x, memory, self_attention, cross_attention, feed_forward, norms, **options)\n--\n\n"
     "A layer of a Transformer: the output; with need_weights (output, weights, weights of memory or None). See "
     "pyattn.nn.TransformerEncoderLayer. Tuples of weights: q, k, v, out and their biases, twice; in_weight, in_bias, "
     "out_weight, out_bias, gate_weight, gate_bias; weight and bias of three norms."},
    {NULL, NULL, 0, NULL},
};
