/* pyattn.linear: parse, convert, drop the GIL, call, wrap. */
#include "convert.h"

#include "doc_linear.h"

enum { X, WEIGHT, BIAS, ACTIVATION, RESIDUAL, NUM_THREADS, OUT, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"x",        "weight",      "bias", "activation",
                                                      "residual", "num_threads", "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"linear", ARGUMENTS, 3, 2, argument_names, interned_names};

enum { ARRAYS = 4 };
static const int array_arguments[ARRAYS] = {X, WEIGHT, BIAS, RESIDUAL};

/* What one call owns: x, weight, bias, residual, and y. */
typedef struct {
    PyArrayObject *arrays[ARRAYS], *y;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    Py_XDECREF(o->y);
}

/* All arrays, brought to one dtype, promoted as NumPy promotes. */
static int convert_arrays(PyObject *const *values, owned *o)
{
    int type = NPY_FLOAT;
    for (int n = 0; n < ARRAYS; n++) {
        PyObject *value = values[array_arguments[n]];
        const char *name = argument_names[array_arguments[n]];
        if (n >= 2 && !pyattn_given(value)) continue;
        if ((o->arrays[n] = pyattn_as_array(value, name)) == NULL) return -1;
        const int own = pyattn_real_type(o->arrays[n], name);
        if (own < 0) return -1;
        if (own == NPY_DOUBLE) type = NPY_DOUBLE;
    }
    for (int n = 0; n < ARRAYS; n++) {
        if (o->arrays[n] == NULL) continue;
        PyArrayObject *array = pyattn_well_behaved(o->arrays[n], type);
        if (array && n >= 2 && !pyattn_has_contiguous_rows(array)) /* what is added on the way out */
            Py_SETREF(array, (PyArrayObject *)PyArray_NewCopy(array, NPY_CORDER));
        Py_SETREF(o->arrays[n], array);
        if (array == NULL) return -1;
    }
    return 0;
}

static int convert_options(PyObject *const *values, attn_linear_args *args)
{
    PyObject *activation = values[ACTIVATION];
    if ((args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0) return -1;
    if (!pyattn_given(activation)) return 0;
    if (!PyUnicode_Check(activation) || PyUnicode_CompareWithASCIIString(activation, "relu") != 0) {
        PyErr_Format(PyExc_ValueError, "activation is %R, expected None or 'relu'", activation);
        return -1;
    }
    args->activation = ATTN_RELU;
    return 0;
}

/* y: new, or out where the core may write into it. */
static int make_result(PyObject *const *values, const attn_linear_args *args, owned *o)
{
    ptrdiff_t shape[ATTN_MAX_AXES];
    const int axes = args->x.axes;
    for (int n = 0; n < axes; n++) shape[n] = n < axes - 1 ? args->x.shape[n] : args->weight.shape[0];
    if (pyattn_given(values[OUT])) {
        PyArrayObject *out = (PyArrayObject *)values[OUT];
        if (pyattn_check_out(values[OUT], axes, shape, o->arrays[0]) < 0) return -1;
        int apart = pyattn_has_contiguous_rows(out);
        for (int n = 0; n < ARRAYS; n++)
            if (o->arrays[n] && pyattn_may_overlap(out, o->arrays[n])) apart = 0;
        if (apart) o->y = (PyArrayObject *)Py_NewRef(values[OUT]);
    }
    if (o->y == NULL) o->y = pyattn_new_array(axes, shape, args->x.dtype);
    return o->y == NULL ? -1 : 0;
}

static attn_status compute(const attn_linear_args *args, const owned *o, attn_error *error)
{
    enum { WORTH_THE_GIL = 100000 };
    const double work = (double)PyArray_SIZE(o->y) * (double)PyArray_DIM(o->arrays[1], 1);
    const attn_view y = pyattn_view(o->y);
    attn_status status;
    if (work < WORTH_THE_GIL) return attn_linear(args, y, error);
    Py_BEGIN_ALLOW_THREADS status = attn_linear(args, y, error);
    Py_END_ALLOW_THREADS return status;
}

static PyObject *linear(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.y = NULL};
    attn_linear_args args = {.num_threads = 0};
    attn_error error;
    attn_status status;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert_options(values, &args) < 0 || convert_arrays(values, &o) < 0) goto done;
    args.x = pyattn_view(o.arrays[0]);
    args.weight = pyattn_view(o.arrays[1]);
    if (o.arrays[2]) args.bias = pyattn_view(o.arrays[2]);
    if (o.arrays[3]) args.residual = pyattn_view(o.arrays[3]);

    if ((status = attn_check_linear(&args, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    if (make_result(values, &args, &o) < 0) goto done;
    if ((status = compute(&args, &o, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    if (pyattn_given(values[OUT]) && (PyObject *)o.y != values[OUT] &&
        PyArray_CopyInto((PyArrayObject *)values[OUT], o.y) < 0)
        goto done;
    result = Py_NewRef(pyattn_given(values[OUT]) ? values[OUT] : (PyObject *)o.y);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_linear_methods[] = {
    {"linear", (PyCFunction)(void (*)(void))linear, METH_FASTCALL | METH_KEYWORDS, DOC_LINEAR},
    {NULL, NULL, 0, NULL},
};
