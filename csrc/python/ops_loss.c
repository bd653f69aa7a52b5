/* pyattn._core.cross_entropy and sum_squares. */
#include "convert.h"

enum { INPUT, TARGET, WEIGHT, ARRAYS };
static const char *const array_names[ARRAYS] = {"input", "target", "weight"};

typedef struct {
    PyArrayObject *arrays[ARRAYS], *ids, *losses, *gradient;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    Py_XDECREF(o->ids);
    Py_XDECREF(o->losses);
    Py_XDECREF(o->gradient);
}

/* Allocates the gradient and, if the losses are not reduced, an array of them. */
static int make_results(const attn_cross_entropy_args *args, owned *o)
{
    const attn_dtype dtype = args->x.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    if (args->x.ndim < 1) {
        PyErr_SetString(PyExc_ValueError, "input has no axes, expected (..., classes)");
        return -1;
    }
    if ((o->gradient = pyattn_new_array(args->x.ndim, args->x.shape, dtype)) == NULL) return -1;
    if (args->reduction != ATTN_REDUCE_NONE) return 0;
    return (o->losses = pyattn_new_array(args->x.ndim - 1, args->x.shape, dtype)) == NULL ? -1 : 0;
}

/* cross_entropy(input, ids, target, weight, ignore_index, reduction, label_smoothing): the loss, a float or an array,
 * and its gradient. One of ids and target is None; so may weight be. reduction is one of attn_reduction's. */
static PyObject *cross_entropy(PyObject *self, PyObject *given)
{
    PyObject *objects[ARRAYS], *ids, *result = NULL;
    attn_cross_entropy_args args = {.num_threads = 0};
    owned o = {.ids = NULL};
    long long ignore_index;
    int reduction;
    double loss;
    attn_error error;
    attn_status status;
    (void)self;
    if (!PyArg_ParseTuple(given, "OOOOLid", &objects[INPUT], &ids, &objects[TARGET], &objects[WEIGHT], &ignore_index,
                          &reduction, &args.label_smoothing))
        return NULL;
    args.ignore_index = ignore_index;
    args.reduction = reduction == 0 ? ATTN_REDUCE_MEAN : reduction == 1 ? ATTN_REDUCE_SUM : ATTN_REDUCE_NONE;
    if (pyattn_as_reals(objects, array_names, ARRAYS, TARGET, o.arrays) < 0) goto done;
    if (pyattn_make_rows_contiguous(o.arrays, ARRAYS) < 0) goto done;
    if (pyattn_given(ids) && pyattn_as_integers(ids, "target", &o.ids) < 0) goto done;
    pyattn_fill(&args.x, o.arrays[INPUT]);
    pyattn_fill(&args.target, o.arrays[TARGET]);
    pyattn_fill(&args.weight, o.arrays[WEIGHT]);
    pyattn_fill(&args.ids, o.ids);
    if (PyErr_Occurred() || make_results(&args, &o) < 0) goto done;

    const attn_tensor losses = pyattn_tensor(o.losses), gradient = pyattn_tensor(o.gradient);
    PYATTN_RUN(status, PyArray_SIZE(o.gradient) >= PYATTN_WORTH_THE_GIL / 16,
               attn_cross_entropy(&args, losses, gradient, &loss, &error));
    if (status != ATTN_OK)
        pyattn_raise(status, &error);
    else if (o.losses)
        result = PyTuple_Pack(2, (PyObject *)o.losses, (PyObject *)o.gradient);
    else
        result = Py_BuildValue("dO", loss, (PyObject *)o.gradient);

done:
    release(&o);
    return result;
}

/* sum_squares(x): of a float32 or float64 array, contiguous in C or Fortran order; a float. */
static PyObject *sum_squares(PyObject *self, PyObject *object)
{
    PyArrayObject *x = (PyArrayObject *)object;
    double sum = 0;
    attn_error error;
    attn_status status;
    (void)self;
    if (!PyArray_CheckExact(object) || !(PyArray_ISCARRAY_RO(x) || PyArray_ISFARRAY_RO(x)) ||
        (PyArray_TYPE(x) != NPY_FLOAT && PyArray_TYPE(x) != NPY_DOUBLE)) {
        PyErr_SetString(PyExc_TypeError, "x must be a contiguous array of float32 or float64");
        return NULL;
    }
    const attn_dtype dtype = pyattn_dtype(x);
    const ptrdiff_t n = PyArray_SIZE(x);
    const void *const data = PyArray_DATA(x);
    PYATTN_RUN(status, n >= PYATTN_WORTH_THE_GIL, attn_sum_squares(dtype, n, data, &sum, 0, &error));
    return status == ATTN_OK ? PyFloat_FromDouble(sum) : pyattn_raise(status, &error);
}

PyMethodDef pyattn_loss_methods[] = {
    {"cross_entropy", cross_entropy, METH_VARARGS,
     "cross_entropy($module, input, ids, target, weight, ignore_index, reduction, label_smoothing, /)\n--\n\n"
     "Cross entropy and its gradient. See pyattn.nn.losses.cross_entropy."},
    {"sum_squares", sum_squares, METH_O,
     "sum_squares($module, x, /)\n--\n\nThe sum of squares of an array, in double."},
    {NULL, NULL, 0, NULL},
};
