/* pyattn._core.argmax_rows and top_k_rows. */
#include "convert.h"

/* Checks that the argument is a C-contiguous array of floats; else NULL with an exception. */
static PyArrayObject *rows_argument(PyObject *object)
{
    PyArrayObject *x = (PyArrayObject *)object;
    if (PyArray_CheckExact(object) && PyArray_NDIM(x) > 0 && PyArray_ISCARRAY_RO(x) &&
        (PyArray_TYPE(x) == NPY_FLOAT || PyArray_TYPE(x) == NPY_DOUBLE))
        return x;
    PyErr_SetString(PyExc_TypeError, "x must be a C-contiguous array of float32 or float64");
    return NULL;
}

static npy_intp count_rows(PyArrayObject *x) { return PyArray_MultiplyList(PyArray_DIMS(x), PyArray_NDIM(x) - 1); }

/* argmax_rows(x): indices of the maxima along the last axis, a new array without that axis. */
static PyObject *argmax_rows(PyObject *self, PyObject *object)
{
    PyArrayObject *x = rows_argument(object);
    attn_error error;
    attn_status status;
    (void)self;
    if (x == NULL) return NULL;

    const int last = PyArray_NDIM(x) - 1;
    PyArrayObject *indices = (PyArrayObject *)PyArray_SimpleNew(last, PyArray_DIMS(x), NPY_INT64);
    if (indices == NULL) return NULL;
    const attn_dtype dtype = pyattn_dtype(x);
    const ptrdiff_t rows = count_rows(x), n = PyArray_DIM(x, last);
    const void *const from = PyArray_DATA(x);
    int64_t *const found = PyArray_DATA(indices);
    PYATTN_RUN(status, 1, attn_argmax(dtype, rows, n, from, found, 0, &error));
    if (status == ATTN_OK) return (PyObject *)indices;
    Py_DECREF(indices);
    return pyattn_raise(status, &error);
}

/* top_k_rows(x, k): the k largest elements along the last axis and their indices, two new arrays. */
static PyObject *top_k_rows(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyArrayObject *x, *values = NULL, *indices = NULL;
    PyObject *result = NULL;
    npy_intp shape[NPY_MAXDIMS];
    Py_ssize_t k;
    attn_error error;
    attn_status status;
    (void)self;
    if (nargs != 2) PyErr_SetString(PyExc_TypeError, "top_k_rows(x: ndarray, k: int)");
    if (nargs != 2 || pyattn_integer(args[1], "k", "an int", &k) < 0) return NULL;
    if ((x = rows_argument(args[0])) == NULL) return NULL; /* last, as an int's own code may change the array */

    const int axes = PyArray_NDIM(x);
    const attn_dtype dtype = pyattn_dtype(x);
    const ptrdiff_t rows = count_rows(x), n = PyArray_DIM(x, axes - 1);
    for (int axis = 0; axis < axes; axis++) shape[axis] = PyArray_DIM(x, axis);
    shape[axes - 1] = k < 0 || k > n ? 0 : k; /* the core refuses an invalid k */
    values = pyattn_new_array(axes, (const ptrdiff_t *)shape, dtype);
    indices = (PyArrayObject *)PyArray_SimpleNew(axes, shape, NPY_INT64);
    if (values == NULL || indices == NULL) goto done;
    const void *const from = PyArray_DATA(x);
    void *const largest = PyArray_DATA(values);
    int64_t *const found = PyArray_DATA(indices);
    PYATTN_RUN(status, 1, attn_top_k(dtype, rows, n, from, k, largest, found, 0, &error));
    if (status == ATTN_OK)
        result = PyTuple_Pack(2, values, indices);
    else
        pyattn_raise(status, &error);
done:
    Py_XDECREF(values);
    Py_XDECREF(indices);
    return result;
}

PyMethodDef pyattn_topk_methods[] = {
    {"argmax_rows", argmax_rows, METH_O,
     "argmax_rows($module, x, /)\n--\n\nIndex of the maximum along a C-contiguous array's last axis."},
    {"top_k_rows", (PyCFunction)(void (*)(void))top_k_rows, METH_FASTCALL,
     "top_k_rows($module, x, k, /)\n--\n\nThe k largest along a C-contiguous array's last axis, and their indices."},
    {NULL, NULL, 0, NULL},
};
