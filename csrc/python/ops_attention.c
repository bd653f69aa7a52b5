/* pyattn.attention, on arrays, on parts of them and on the pages of a cache: parse, convert, drop the GIL, call, wrap. */
#include "options.h" /* Python.h before any other header: it settles their macros */

#include "linear.h"
#include "pages.h"
#include "problem.h"

#include "doc_attention.h"

enum { QUERY, KEY, VALUE, SCORE_WEIGHT, ARRAYS, OPTIONS = ARRAYS, OUT = OPTIONS + PYATTN_OPTIONS, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"query", "key", "value", "score_weight", PYATTN_OPTION_NAMES,
                                                      "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"attention",  ARGUMENTS,      SCORE_WEIGHT,
                                           SCORE_WEIGHT, argument_names, interned_names};

/* paged_attention takes the same arguments from score_weight on. */
enum { CACHE = 1, PAGED_REST };
enum { PAGED_ARGUMENTS = PAGED_REST + ARGUMENTS - SCORE_WEIGHT };
static const char *const paged_names[PAGED_ARGUMENTS] = {"query", "cache", "score_weight", PYATTN_OPTION_NAMES, "out"};
static PyObject *interned_paged_names[PAGED_ARGUMENTS];
static const pyattn_signature paged_signature = {"paged_attention", PAGED_ARGUMENTS, PAGED_REST,
                                                 PAGED_REST,        paged_names,     interned_paged_names};

/* attention_part takes more. */
enum { QUERY_START = ARGUMENTS, KEY_START, KEY_LIMITS, UNITS, SEED, STATE, UNFINISHED, PART_ARGUMENTS };
static const char *const part_names[PART_ARGUMENTS] = {
    "query",      "key",   "value", "score_weight", PYATTN_OPTION_NAMES, "out", "query_start", "key_start",
    "key_limits", "units", "seed",  "state",        "unfinished"};
static PyObject *interned_part_names[PART_ARGUMENTS];
static const pyattn_signature part_signature = {"attention_part", PART_ARGUMENTS, SCORE_WEIGHT,
                                                SCORE_WEIGHT,     part_names,     interned_part_names};

/* All objects that a call owns, which `release` releases. */
typedef struct {
    PyArrayObject *inputs[ARRAYS], *output, *weights, *lse;
    PyArrayObject *queries; /* bilinear score: query @ score_weight, in the dtype of the arithmetic */
    attn_product *product;  /* the plan of that product; released with PyMem_Free */
    PyArrayObject *vector;  /* additive score: score_weight in that dtype, contiguous */
    pyattn_option_arrays options;
    pyattn_cache_use cache;
    PyObject *lowered; /* tuple of option values that replace a mask object */
    PyArrayObject *units, *state;
    int need_weights, need_lse;
    int is_part; /* its dropout has a seed; it warns of nothing */
    int is_check;
    PyObject *shape; /* a check's result */
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->inputs[n]);
    Py_XDECREF(o->queries);
    Py_XDECREF(o->vector);
    PyMem_Free(o->product);
    Py_XDECREF(o->lowered);
    Py_XDECREF(o->shape);
    Py_XDECREF(o->units);
    Py_XDECREF(o->state);
    Py_XDECREF(o->output);
    Py_XDECREF(o->weights);
    Py_XDECREF(o->lse);
    pyattn_release_options(&o->options);
    pyattn_release_cache_use(&o->cache);
}

/* Warns of a bare bool mask that was probably meant with True = blocked. Its sizes and its first element rule out most
 * masks, Python code checks the rest. Returns 1 if it has run, 0 if not, -1 with an exception. */
static int warn_of_inverted(PyArrayObject *mask)
{
    const int axes = mask == NULL ? 0 : PyArray_NDIM(mask);
    if (axes < 2 || PyArray_TYPE(mask) != NPY_BOOL) return 0;
    const npy_intp *shape = PyArray_DIMS(mask), queries = shape[axes - 2], keys = shape[axes - 1];
    if (queries < 2 || keys < 2 || PyArray_SIZE(mask) / queries != keys || *(char *)PyArray_DATA(mask)) return 0;
    PyObject *module = PyImport_ImportModule("pyattn.masks._lowering");
    PyObject *warned = module ? PyObject_CallMethod(module, "warn_if_inverted", "O", mask) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(warned);
    return warned == NULL ? -1 : 1;
}

/* Returns 1 if Python code has run, 0 if not, -1 with an exception. */
static int warn_of_likely_mistakes(const attn_shapes *shapes, attn_layout layout, PyArrayObject *bare_mask)
{
    const int looked = warn_of_inverted(bare_mask);
    if (looked < 0 || (shapes->mask_looks_like_ones && pyattn_warn_of_ones("attn_mask") < 0)) return -1;
    if (!shapes->heads_look_like_length) return looked || shapes->mask_looks_like_ones;
    const char *const axes[] = {"(batch, length, heads, dim)", "(batch, heads, length, dim)"};
    const int other = layout == ATTN_LAYOUT_BSHD;
    const int status =
        pyattn_warn("ShapeWarning",
                    "the heads axis has size %zd and the length axis %zd; if query's axes are %s, call attention(..., "
                    "layout='%s')",
                    shapes->heads, shapes->q_len, axes[other], other ? "bhsd" : "bshd");
    return status < 0 ? -1 : 1;
}

static int make_results(PyObject *const *values, const attn_args *args, const attn_shapes *shapes, owned *o)
{
    PyArrayObject *const like = pyattn_widest(o->inputs, ARRAYS);
    PyArrayObject *const inputs[] = {
        o->inputs[0],    o->inputs[1],         o->inputs[2],           o->inputs[SCORE_WEIGHT],
        o->options.mask, o->options.keep_mask, o->options.key_lengths, o->options.query_lengths};
    const attn_dtype computed = attn_computed((attn_dtype)pyattn_dtype(like));
    Py_CLEAR(o->output);
    Py_CLEAR(o->weights);
    Py_CLEAR(o->lse);
    o->output = args->unfinished ? pyattn_new_array(shapes->ndim, shapes->output, computed)
                                 : pyattn_result(values[OUT], shapes->ndim, shapes->output, like, inputs,
                                                 sizeof inputs / sizeof *inputs);
    if (o->output == NULL) return -1;
    if (o->need_weights && (o->weights = pyattn_new_like(shapes->weights_ndim, shapes->weights, like)) == NULL)
        return -1;
    if (o->need_lse && (o->lse = pyattn_new_array(shapes->lse_ndim, shapes->lse, computed)) == NULL) return -1;
    return 0;
}

/* Features of a key; -1 if key has fewer than 2 axes, which the core will refuse. */
static npy_intp key_features(const attn_args *args)
{
    if (args->cache) return args->cache->head_dim;
    return args->key.ndim < 2 ? -1 : args->key.shape[args->key.ndim - 1];
}

/* Checks score_weight of a bilinear score against query and key. Returns -1 with a ValueError. */
static int check_bilinear(const attn_args *args, PyArrayObject *weight, const attn_tensor *w)
{
    const int q_axes = args->query.ndim;
    if (q_axes < 2 || key_features(args) < 0) return 0;
    const npy_intp wanted[] = {args->query.shape[q_axes - 1], key_features(args)};
    if (weight == NULL) {
        PyErr_Format(PyExc_ValueError,
                     "score='bilinear' needs score_weight, an array of shape (%zd, %zd): query's features, key's "
                     "features",
                     wanted[0], wanted[1]);
        return -1;
    }
    if (w->ndim == 2 && w->shape[0] == wanted[0] && w->shape[1] == wanted[1]) return 0;
    PyObject *found = PyObject_GetAttrString((PyObject *)weight, "shape");
    if (found != NULL)
        PyErr_Format(PyExc_ValueError,
                     "score_weight has shape %S, expected (%zd, %zd): query's features, key's features", found,
                     wanted[0], wanted[1]);
    Py_XDECREF(found);
    return -1;
}

/* Replaces query by query @ score_weight, unscaled, so that a bilinear score becomes a dot product. Only its shape is
 * needed here; its values are computed later, without the GIL. */
static int prepare_bilinear(PyObject *const *values, attn_args *args, owned *o)
{
    PyArrayObject *weight = o->inputs[SCORE_WEIGHT];
    const attn_tensor w = weight ? pyattn_tensor(weight) : attn_none;
    const int axes = args->query.ndim;
    npy_intp shape[NPY_MAXDIMS];
    attn_error error;
    if (!pyattn_given(values[OPTIONS + PYATTN_SCALE])) {
        args->has_scale = 1;
        args->scale = 1;
    }
    if (PyErr_Occurred() || check_bilinear(args, weight, &w) < 0) return -1;
    if (weight == NULL || axes < 2 || key_features(args) < 0) return 0;

    memcpy(shape, args->query.shape, (size_t)axes * sizeof *shape);
    shape[axes - 1] = w.shape[1];
    if (o->is_check) {
        args->query.shape[axes - 1] = w.shape[1];
        args->query.dtype = attn_computed(args->query.dtype);
        return 0;
    }
    Py_CLEAR(o->queries);
    if ((o->queries = pyattn_new_array(axes, shape, attn_computed(args->query.dtype))) == NULL) return -1;
    attn_linear_args linear = {.x = args->query, .weight = w, .num_threads = args->num_threads};
    linear.weight.shape[0] = w.shape[1], linear.weight.shape[1] = w.shape[0];
    linear.weight.strides[0] = w.strides[1], linear.weight.strides[1] = w.strides[0];
    const attn_tensor queries = pyattn_tensor(o->queries);
    const attn_status status = attn_layout_linear(&linear, &queries, o->product, &error);
    if (status != ATTN_OK) {
        pyattn_raise(status, &error);
        return -1;
    }
    pyattn_fill(&args->query, o->queries);
    return 0;
}

static attn_status run(const attn_args *args, const attn_problem *problem, const owned *o, attn_error *error)
{
    const attn_status status = o->queries ? attn_multiply(o->product, args->num_threads, error) : ATTN_OK;
    return status == ATTN_OK ? attn_attend(problem, args->num_threads, error) : status;
}

static attn_status compute(const attn_args *args, attn_problem *problem, const owned *o, attn_error *error)
{
    const attn_tensor output = pyattn_tensor(o->output), weights = pyattn_tensor(o->weights);
    const attn_tensor lse = pyattn_tensor(o->lse);
    const attn_product *product = o->queries ? o->product : NULL;
    attn_status status = attn_check_outputs(args, &output, &weights, &lse, problem, error);
    size_t work = attn_work(problem);
    if (product)
        work = attn_saturating_add(
            work, attn_saturating_mul(attn_saturating_mul((size_t)product->rows, (size_t)product->inner),
                                      (size_t)product->features));

    if (status != ATTN_OK) return status;
    PYATTN_RUN(status, work >= PYATTN_WORTH_THE_GIL, run(args, problem, o, error));
    return status;
}

/* The output alone, or an AttentionResult with the weights, the logsumexp or both. */
static PyObject *wrap(PyObject *const *values, const owned *o)
{
    PyObject *output = pyattn_filled(values[OUT], o->output);
    if (output == NULL || (o->weights == NULL && o->lse == NULL)) return output;

    PyObject *module = PyImport_ImportModule("pyattn.functional");
    PyObject *class = module ? PyObject_GetAttrString(module, "AttentionResult") : NULL;
    PyObject *result = class
                           ? PyObject_CallFunctionObjArgs(class, output, o->weights ? (PyObject *)o->weights : Py_None,
                                                          o->lse ? (PyObject *)o->lse : Py_None, NULL)
                           : NULL;
    Py_XDECREF(class);
    Py_XDECREF(module);
    Py_DECREF(output);
    return result;
}

/* The last conversions: after them, only a warning and a seed run Python code. */
static int convert_rest(PyObject **values, attn_args *args, owned *o)
{
    PyObject *const score = values[OPTIONS + PYATTN_SCORE];
    const int bilinear = score && PyUnicode_Check(score) && PyUnicode_CompareWithASCIIString(score, "bilinear") == 0;
    if (bilinear) values[OPTIONS + PYATTN_SCORE] = NULL;
    if (bilinear && (o->product = PyMem_Malloc(sizeof *o->product)) == NULL) return PyErr_NoMemory(), -1;
    if ((o->need_weights = pyattn_flag(values[OPTIONS + PYATTN_NEED_WEIGHTS], "need_weights")) < 0) return -1;
    if ((o->need_lse = pyattn_flag(values[OPTIONS + PYATTN_NEED_LSE], "need_lse")) < 0) return -1;
    if (args->cache == NULL && pyattn_lower_mask(values + OPTIONS, o->inputs, &o->lowered, &o->options) < 0) return -1;
    if (pyattn_check_out(values[OUT]) < 0 || pyattn_convert_options(values + OPTIONS, args, &o->options) < 0) return -1;
    PyArrayObject *const weight = o->inputs[SCORE_WEIGHT];
    if (bilinear || weight == NULL) return 0;
    return (o->vector = pyattn_weight_vector(weight)) == NULL ? -1 : 0;
}

static int fill_tensors(PyObject *const *values, attn_args *args, owned *o)
{
    pyattn_fill(&args->query, o->inputs[QUERY]);
    if (pyattn_fill_pages(&o->cache.pages) < 0) return -1;
    if (args->cache == NULL) {
        pyattn_fill(&args->key, o->inputs[KEY]);
        pyattn_fill(&args->value, o->inputs[VALUE]);
    }
    pyattn_fill_options(&o->options, args);
    pyattn_fill(&args->units, o->units);
    pyattn_fill(&args->state, o->state);
    if (!o->product) pyattn_fill(&args->score_weight, o->vector);
    if (PyErr_Occurred()) return -1;
    return o->product ? prepare_bilinear(values, args, o) : 0;
}

static PyObject *tuple_of(int count, const ptrdiff_t *sizes)
{
    PyObject *tuple = PyTuple_New(count);
    for (int n = 0; tuple != NULL && n < count; n++) {
        PyObject *size = PyLong_FromSsize_t(sizes[n]);
        if (size == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, n, size);
    }
    return tuple;
}

/* Checks all arrays, warns and draws a seed the first time, and creates the results. Returns 0, -1 with an exception,
 * or 1 if Python code has run: it may have changed any array, so that all must be checked again. */
static __attribute__((noinline)) int prepare(PyObject *const *values, attn_args *args, attn_problem *problem, owned *o,
                                             int first)
{
    attn_shapes shapes;
    attn_error error;
    if (fill_tensors(values, args, o) < 0) return -1;
    const attn_status status = attn_check_inputs(args, problem, &error);
    if (status != ATTN_OK) {
        pyattn_raise(status, &error);
        return -1;
    }
    attn_describe(args, problem, &shapes);
    const int asks = first && !o->is_part;
    const int warned =
        asks ? warn_of_likely_mistakes(&shapes, args->layout, o->lowered || args->cache ? NULL : o->options.mask) : 0;
    if (o->is_check) return warned < 0 || (o->shape = tuple_of(shapes.ndim, shapes.output)) == NULL ? -1 : 0;
    if (warned < 0 || make_results(values, args, &shapes, o) < 0) return -1;
    const int drew = asks ? pyattn_draw_seed(values + OPTIONS, args, &args->dropout_seed) : 0;
    return drew < 0 ? -1 : warned || drew;
}

/* The rest of a call, once keys and values are read into o's inputs or pages, and args. `values` has the layout of
 * attention's arguments. */
static PyObject *attend(PyObject **values, attn_args *args, owned *o)
{
    attn_problem problem;
    attn_error error;
    if (convert_rest(values, args, o) < 0) return NULL;
    for (int first = 1, again = 1; again; first = 0)
        if ((again = prepare(values, args, &problem, o, first)) < 0) return NULL;
    if (o->is_check) return Py_NewRef(o->shape);
    const attn_status status = compute(args, &problem, o, &error);
    return status == ATTN_OK ? wrap(values, o) : pyattn_raise(status, &error);
}

static PyObject *call(PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames, int is_check)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o;
    attn_args args;
    pyattn_clear(&o, sizeof o);
    pyattn_clear(&args, sizeof args);

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    for (int n = QUERY; n <= VALUE; n++) {
        const int exceeds = pyattn_exceeds(values[n], ATTN_MAX_AXES);
        if (exceeds != 0) return exceeds < 0 ? NULL : pyattn_merge_axes("attention", positional, nargs, kwnames);
    }
    o.is_check = is_check;
    if (pyattn_as_reals(values + QUERY, argument_names + QUERY, ARRAYS, SCORE_WEIGHT, o.inputs) == 0)
        result = attend(values, &args, &o);
    release(&o);
    return result;
}

static PyObject *attention(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)self;
    return call(positional, nargs, kwnames, 0);
}

static PyObject *attention_shape(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)self;
    return call(positional, nargs, kwnames, 1);
}

static int convert_part(PyObject *const *values, attn_args *args, owned *o)
{
    const char *const position = "a position";
    o->is_part = 1;
    if (pyattn_given(values[OUT])) {
        PyErr_SetString(PyExc_TypeError, "attention_part takes no out");
        return -1;
    }
    if (values[QUERY_START] && pyattn_integer(values[QUERY_START], "query_start", position, &args->query_start) < 0)
        return -1;
    if (values[KEY_START] && pyattn_integer(values[KEY_START], "key_start", position, &args->key_start) < 0) return -1;
    if ((args->unfinished = pyattn_flag(values[UNFINISHED], "unfinished")) < 0) return -1;
    if (pyattn_given(values[KEY_LIMITS]) &&
        pyattn_as_integers(values[KEY_LIMITS], "key_limits", &o->options.key_limits) < 0)
        return -1;
    if (pyattn_given(values[UNITS]) && pyattn_as_integers(values[UNITS], "units", &o->units) < 0) return -1;
    if (pyattn_given(values[SEED]) &&
        (args->dropout_seed = PyLong_AsUnsignedLongLong(values[SEED])) == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    return pyattn_given(values[STATE]) ? pyattn_as_reals(values + STATE, part_names + STATE, 1, 1, &o->state) : 0;
}

static PyObject *attention_part(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[PART_ARGUMENTS], *result = NULL;
    owned o;
    attn_args args;
    (void)self;
    pyattn_clear(&o, sizeof o);
    pyattn_clear(&args, sizeof args);

    if (pyattn_parse(&part_signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert_part(values, &args, &o) == 0 &&
        pyattn_as_reals(values + QUERY, part_names + QUERY, ARRAYS, SCORE_WEIGHT, o.inputs) == 0)
        result = attend(values, &args, &o);
    release(&o);
    return result;
}

/* Converts query, score_weight and the pages, whose dtype goes with query's. */
static int convert_paged(PyObject *const *given, owned *o, attn_args *args)
{
    static const char *const names[] = {"query", "score_weight"};
    PyObject *const arrays[] = {given[QUERY], given[PAGED_REST]};
    PyArrayObject *reals[] = {NULL, NULL};
    const int failed = pyattn_as_reals(arrays, names, 2, 1, reals) < 0;
    o->inputs[QUERY] = reals[0];
    o->inputs[SCORE_WEIGHT] = reals[1];
    if (failed || pyattn_convert_cache_use(given[CACHE], &o->cache) < 0) return -1;
    pyattn_use_cache(&o->cache, args);
    return 0;
}

static PyObject *paged_attention(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *given[PAGED_ARGUMENTS], *values[ARGUMENTS] = {NULL}, *result = NULL;
    owned o;
    attn_args args;
    (void)self;
    pyattn_clear(&o, sizeof o);
    pyattn_clear(&args, sizeof args);

    if (pyattn_parse(&paged_signature, positional, nargs, kwnames, given) < 0) return NULL;
    memcpy(values + SCORE_WEIGHT, given + PAGED_REST, (ARGUMENTS - SCORE_WEIGHT) * sizeof *values);
    if (convert_paged(given, &o, &args) == 0) result = attend(values, &args, &o);
    release(&o);
    return result;
}

PyMethodDef pyattn_attention_methods[] = {
    {"attention", (PyCFunction)(void (*)(void))attention, METH_FASTCALL | METH_KEYWORDS, DOC_ATTENTION},
    {"attention_part", (PyCFunction)(void (*)(void))attention_part, METH_FASTCALL | METH_KEYWORDS,
     "attention_part($module, query, key, value, **options)\n--\n\n"
     "attention over a part of longer arrays. See attn_args in attn.h."},
    {"attention_shape", (PyCFunction)(void (*)(void))attention_shape, METH_FASTCALL | METH_KEYWORDS,
     "attention_shape($module, query, key, value, **options)\n--\n\n"
     "Check a call of attention; return the shape of its output."},
    {"paged_attention", (PyCFunction)(void (*)(void))paged_attention, METH_FASTCALL | METH_KEYWORDS,
     "paged_attention($module, query, cache, **options)\n--\n\n"
     "attention over the pages of a cache. See pyattn.KVCache.attend."},
    {NULL, NULL, 0, NULL},
};
