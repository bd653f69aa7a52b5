/* pyattn.attention: parse, convert, drop the GIL, call, wrap. */
#include "convert.h"

#include "problem.h"

#include "doc_attention.h"

enum {
    QUERY,
    KEY,
    VALUE,
    ATTN_MASK,
    IS_CAUSAL,
    ALIGN,
    SCALE,
    WINDOW,
    KEY_LENGTHS,
    QUERY_LENGTHS,
    DROPOUT_P,
    ENABLE_GQA,
    NEED_WEIGHTS,
    NEED_LSE,
    EMPTY_ROWS,
    LAYOUT,
    NUM_THREADS,
    OUT,
    ARGUMENTS
};
static const char *const argument_names[ARGUMENTS] = {
    "query",        "key",      "value",       "attn_mask",     "is_causal",   "align",
    "scale",        "window",   "key_lengths", "query_lengths", "dropout_p",   "enable_gqa",
    "need_weights", "need_lse", "empty_rows",  "layout",        "num_threads", "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"attention", ARGUMENTS, 3, 3, argument_names, interned_names};

/* What one call owns: all released in one place. */
typedef struct {
    PyArrayObject *inputs[3], *mask, *key_lengths, *query_lengths;
    PyArrayObject *output, *weights, *lse;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < 3; n++) Py_XDECREF(o->inputs[n]);
    Py_XDECREF(o->mask);
    Py_XDECREF(o->key_lengths);
    Py_XDECREF(o->query_lengths);
    Py_XDECREF(o->output);
    Py_XDECREF(o->weights);
    Py_XDECREF(o->lse);
}

/* Truth of an optional flag; -1 with an exception. Other objects have a truth too, 'False' for one: it is True. */
static int flag(PyObject *const *values, int argument)
{
    PyObject *object = values[argument];
    if (object == NULL || object == Py_False) return 0;
    if (object == Py_True) return 1;
    if (PyLong_Check(object) || PyArray_IsScalar(object, Bool)) return PyObject_IsTrue(object);
    PyErr_Format(PyExc_TypeError, "%s is of type %s, expected True or False", argument_names[argument],
                 Py_TYPE(object)->tp_name);
    return -1;
}

static int convert_mask(PyObject *object, owned *o)
{
    if (!pyattn_given(object)) return 0;
    if ((o->mask = pyattn_as_array(object, "attn_mask")) == NULL) return -1;
    const int type = PyArray_TYPE(o->mask);
    if (PyTypeNum_ISINTEGER(type)) {
        PyObject *flags = pyattn_cast(object, "attn_mask", "", "bool");
        PyObject *numbers = flags ? pyattn_cast(object, "attn_mask", "", "numpy.float32") : NULL;
        if (numbers != NULL)
            PyErr_Format(PyExc_TypeError,
                         "attn_mask has dtype %S; pass %U if nonzero means attend, or %U if it is to be added to the "
                         "scores",
                         PyArray_DESCR(o->mask), flags, numbers);
        Py_XDECREF(flags);
        Py_XDECREF(numbers);
        return -1;
    }
    if (type != NPY_BOOL && type != NPY_HALF && type != NPY_FLOAT && type != NPY_DOUBLE && type != NPY_LONGDOUBLE) {
        PyErr_Format(
            PyExc_TypeError,
            "attn_mask has dtype %S, expected bool (True = attend) or a float type (added to the scores); pass "
            "numpy.asarray(attn_mask, bool) or numpy.asarray(attn_mask, numpy.float32)",
            PyArray_DESCR(o->mask));
        return -1;
    }
    PyArrayObject *array = pyattn_well_behaved(o->mask, type);
    Py_SETREF(o->mask, array);
    return array == NULL ? -1 : 0;
}

/* Integers that int64 lacks, floats among them: NumPy reads [2**63, 2] so. Returns -1 with a ValueError. */
static int check_largest(PyArrayObject *lengths, const char *name)
{
    const int type = PyArray_TYPE(lengths);
    if (PyArray_SIZE(lengths) == 0 || !(PyTypeNum_ISUNSIGNED(type) || PyTypeNum_ISFLOAT(type))) return 0;
    PyObject *largest = PyArray_Max(lengths, NPY_RAVEL_AXIS, NULL);
    const double number = largest == NULL ? -1 : PyFloat_AsDouble(largest);
    if (number >= 0x1p63) PyErr_Format(PyExc_ValueError, "%s holds %S, more than any axis has", name, largest);
    Py_XDECREF(largest);
    return PyErr_Occurred() ? -1 : 0;
}

/* Always a copy: lengths that another thread changes after the check would send the core anywhere. */
static int convert_lengths(PyObject *object, const char *name, PyArrayObject **lengths)
{
    if (!pyattn_given(object)) return 0;
    if ((*lengths = pyattn_as_array(object, name)) == NULL || check_largest(*lengths, name) < 0) return -1;
    if (!PyTypeNum_ISINTEGER(PyArray_TYPE(*lengths)) && PyArray_SIZE(*lengths) > 0) { /* [] is an array of floats */
        PyErr_Format(PyExc_TypeError, "%s has dtype %S, expected integers; pass numpy.asarray(%s, numpy.int64)", name,
                     PyArray_DESCR(*lengths), name);
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)PyArray_FromArray(
        *lengths, PyArray_DescrFromType(NPY_INT64), NPY_ARRAY_CARRAY | NPY_ARRAY_ENSURECOPY | NPY_ARRAY_FORCECAST);
    Py_SETREF(*lengths, array);
    return array == NULL ? -1 : 0;
}

/* One of two words, as 0 or 1; -1 with an exception. */
static int choice(PyObject *object, const char *name, const char *zero, const char *one)
{
    if (object == NULL) return 0;
    if (PyUnicode_Check(object)) {
        if (PyUnicode_CompareWithASCIIString(object, zero) == 0) return 0;
        if (PyUnicode_CompareWithASCIIString(object, one) == 0) return 1;
    }
    PyErr_Format(PyExc_ValueError, "%s is %R, expected '%s' or '%s'", name, object, zero, one);
    return -1;
}

/* One side of a window: None, or how many keys it reaches. */
static int window_side(PyObject *object, const char *expected, ptrdiff_t *side)
{
    if (object == Py_None) {
        *side = ATTN_UNBOUNDED;
        return 0;
    }
    if (pyattn_integer(object, "window", expected, side) < 0) return -1;
    if (*side < 0) {
        PyErr_Format(PyExc_ValueError, "window is %zd, expected 0 or more keys on a side, or None for unbounded",
                     *side);
        return -1;
    }
    return 0;
}

static int convert_window(PyObject *object, attn_args *args)
{
    args->window_left = args->window_right = ATTN_UNBOUNDED;
    if (!pyattn_given(object)) return 0;
    if (PyLong_Check(object) || !PySequence_Check(object) ||
        (PyArray_Check(object) && PyArray_NDIM((PyArrayObject *)object) == 0)) {
        if (window_side(object, "an int or (left, right)", &args->window_left) < 0) return -1;
        args->window_right = args->window_left;
        return 0;
    }
    if (PySequence_Size(object) != 2) {
        PyErr_Format(PyExc_ValueError, "window is %R, expected an int or (left, right)", object);
        return -1;
    }
    for (int n = 0; n < 2; n++) {
        PyObject *side = PySequence_GetItem(object, n);
        ptrdiff_t *const to = n == 0 ? &args->window_left : &args->window_right;
        const int failed = side == NULL || window_side(side, "an int or None for a side", to) < 0;
        Py_XDECREF(side);
        if (failed) return -1;
    }
    return 0;
}

static int convert_options(PyObject *const *values, attn_args *args)
{
    int n;
    if ((args->is_causal = flag(values, IS_CAUSAL)) < 0 || (args->enable_gqa = flag(values, ENABLE_GQA)) < 0) return -1;
    if (pyattn_given(values[ALIGN])) {
        if ((n = choice(values[ALIGN], "align", "upper_left", "lower_right")) < 0) return -1;
        args->align = n ? ATTN_ALIGN_LOWER_RIGHT : ATTN_ALIGN_UPPER_LEFT;
    }
    if (pyattn_given(values[SCALE])) {
        args->has_scale = 1;
        if (pyattn_number(values[SCALE], "scale", &args->scale) < 0) return -1;
        if (!Py_IS_FINITE(args->scale)) {
            PyErr_Format(PyExc_ValueError, "scale is %R, expected a finite number", values[SCALE]);
            return -1;
        }
    }
    if (convert_window(values[WINDOW], args) < 0) return -1;
    if ((n = choice(values[EMPTY_ROWS], "empty_rows", "zero", "nan")) < 0) return -1;
    args->empty = n ? Py_NAN : 0;
    if ((n = choice(values[LAYOUT], "layout", "bhsd", "bshd")) < 0) return -1;
    args->layout = n ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD;
    if ((args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0) return -1;

    double dropout = 0;
    if (values[DROPOUT_P] && pyattn_number(values[DROPOUT_P], "dropout_p", &dropout) < 0) return -1;
    if (!(dropout >= 0 && dropout <= 1)) {
        PyErr_Format(PyExc_ValueError, "dropout_p is %R, expected 0 <= dropout_p <= 1", values[DROPOUT_P]);
        return -1;
    }
    if (dropout > 0) {
        PyErr_SetString(PyExc_NotImplementedError, "dropout_p > 0 is not there yet; pass dropout_p=0.0");
        return -1;
    }
    return 0;
}

/* Warnings point at the caller's line: past pyattn.functional, where that called. */
static int stack_level(void)
{
    PyObject *globals = PyEval_GetGlobals(), *name = globals ? PyDict_GetItemString(globals, "__name__") : NULL;
    const int wrapped =
        name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "pyattn.functional") == 0;
    return wrapped ? 2 : 1;
}

/* A warning of one of pyattn's own classes. Returns -1 when warnings are errors. */
static int warn(const char *class_name, const char *format, Py_ssize_t a, Py_ssize_t b)
{
    PyObject *module = PyImport_ImportModule("pyattn.functional");
    PyObject *class = module ? PyObject_GetAttrString(module, class_name) : NULL;
    const int result = class ? PyErr_WarnFormat(class, stack_level(), format, a, b) : -1;
    Py_XDECREF(class);
    Py_XDECREF(module);
    return result;
}

static int warn_of_likely_mistakes(const attn_shapes *shapes, attn_layout layout)
{
    if (shapes->mask_looks_like_ones &&
        warn(
            "MaskWarning",
            "attn_mask is a float mask whose first and last rows hold zeros and ones alone: it is added to the scores, "
            "and masks nothing. If 1 means attend, call attention(..., "
            "attn_mask=pyattn.masks.from_ones(attn_mask))",
            0, 0) < 0)
        return -1;
    if (shapes->heads_look_like_length &&
        warn(
            "ShapeWarning",
            layout == ATTN_LAYOUT_BHSD
                ? "the heads axis has size %zd and the length axis %zd; if query's axes are (batch, length, heads, dim), call "
                  "attention(..., layout='bshd')"
                : "the heads axis has size %zd and the length axis %zd; if query's axes are (batch, heads, length, dim), call "
                  "attention(..., layout='bhsd')",
            shapes->heads, shapes->q_len) < 0)
        return -1;
    return 0;
}

static int make_results(PyObject *const *values, const attn_shapes *shapes, attn_dtype dtype, owned *o)
{
    const int need_weights = flag(values, NEED_WEIGHTS), need_lse = flag(values, NEED_LSE);
    if (need_weights < 0 || need_lse < 0) return -1;
    PyArrayObject *const inputs[] = {o->inputs[0], o->inputs[1],   o->inputs[2],
                                     o->mask,      o->key_lengths, o->query_lengths};
    o->output = pyattn_result(values[OUT], shapes->axes, shapes->output, inputs, sizeof inputs / sizeof *inputs);
    if (o->output == NULL) return -1;
    if (need_weights && (o->weights = pyattn_new_array(shapes->weights_axes, shapes->weights, dtype)) == NULL)
        return -1;
    if (need_lse && (o->lse = pyattn_new_array(shapes->lse_axes, shapes->lse, dtype)) == NULL) return -1;
    return 0;
}

static attn_status compute(const attn_args *args, attn_problem *problem, const owned *o, attn_error *error)
{
    const attn_view none = {.data = NULL}, output = pyattn_view(o->output);
    const attn_view weights = o->weights ? pyattn_view(o->weights) : none, lse = o->lse ? pyattn_view(o->lse) : none;
    attn_status status = attn_check_outputs(args, output, weights, lse, problem, error);

    if (status != ATTN_OK) return status;
    if (attn_work(problem) < PYATTN_WORTH_THE_GIL) return attn_attend(problem, args->num_threads, error);
    PYATTN_BEGIN_ALLOW_THREADS status = attn_attend(problem, args->num_threads, error);
    Py_END_ALLOW_THREADS return status;
}

/* The output alone, or AttentionResult(output, weights, lse). */
static PyObject *wrap(PyObject *const *values, const owned *o)
{
    PyObject *output = pyattn_filled(values[OUT], o->output);
    if (output == NULL || (o->weights == NULL && o->lse == NULL)) return output;

    PyObject *module = PyImport_ImportModule("pyattn.functional");
    PyObject *class = module ? PyObject_GetAttrString(module, "AttentionResult") : NULL;
    PyObject *result =
        class ? PyObject_CallFunctionObjArgs(class, output, o->weights ? (PyObject *)o->weights : Py_None,
                                             o->lse ? (PyObject *)o->lse : Py_None, NULL)
              : NULL;
    Py_XDECREF(class);
    Py_XDECREF(module);
    Py_DECREF(output);
    return result;
}

static PyObject *attention(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.mask = NULL};
    attn_args args = {.scale = 0};
    attn_problem problem;
    attn_shapes shapes;
    attn_error error;
    attn_status status;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert_options(values, &args) < 0) goto done;
    if (pyattn_as_reals(values + QUERY, argument_names + QUERY, 3, 3, o.inputs) < 0 ||
        convert_mask(values[ATTN_MASK], &o) < 0)
        goto done;
    if (convert_lengths(values[KEY_LENGTHS], "key_lengths", &o.key_lengths) < 0) goto done;
    if (convert_lengths(values[QUERY_LENGTHS], "query_lengths", &o.query_lengths) < 0) goto done;

    args.query = pyattn_view(o.inputs[0]);
    args.key = pyattn_view(o.inputs[1]);
    args.value = pyattn_view(o.inputs[2]);
    if (o.mask) args.mask = pyattn_view(o.mask);
    if (o.key_lengths) args.key_lengths = pyattn_view(o.key_lengths);
    if (o.query_lengths) args.query_lengths = pyattn_view(o.query_lengths);

    if ((status = attn_check_inputs(&args, &problem, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    attn_describe(&args, &problem, &shapes);
    if (warn_of_likely_mistakes(&shapes, args.layout) < 0) goto done;
    if (make_results(values, &shapes, args.query.dtype, &o) < 0) goto done;
    if ((status = compute(&args, &problem, &o, &error)) != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = wrap(values, &o);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_attention_methods[] = {
    {"attention", (PyCFunction)(void (*)(void))attention, METH_FASTCALL | METH_KEYWORDS, DOC_ATTENTION},
    {NULL, NULL, 0, NULL},
};
