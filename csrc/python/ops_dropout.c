/* pyattn._core.fill_keep_mask and drop_rows. */
#include "convert.h"

/* fill_keep_mask(keep, dropout_p, seed): fills a C-contiguous array of bools, (units, q_len, kv_len). */
static PyObject *fill_keep_mask(PyObject *self, PyObject *args)
{
    PyArrayObject *keep;
    double dropout_p;
    unsigned long long seed;
    attn_error error;
    attn_status status;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!dK", &PyArray_Type, &keep, &dropout_p, &seed)) return NULL;
    if (PyArray_NDIM(keep) != 3 || PyArray_TYPE(keep) != NPY_BOOL || !PyArray_ISCARRAY(keep)) {
        PyErr_SetString(PyExc_ValueError, "keep must be a C-contiguous array of bools, of three axes");
        return NULL;
    }
    const ptrdiff_t units = PyArray_DIM(keep, 0), q_len = PyArray_DIM(keep, 1), kv_len = PyArray_DIM(keep, 2);
    unsigned char *const data = PyArray_DATA(keep);
    PYATTN_RUN(status, 1, attn_dropout_keep(dropout_p, seed, units, q_len, kv_len, data, 0, &error));
    if (status != ATTN_OK) return pyattn_raise(status, &error);
    Py_RETURN_NONE;
}

/* drop_rows(x, dropout_p, seed): dropout of a C-contiguous array of floats, a new array. */
static PyObject *drop_rows(PyObject *self, PyObject *args)
{
    PyArrayObject *x;
    double dropout_p;
    unsigned long long seed;
    attn_error error;
    attn_status status;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!dK", &PyArray_Type, &x, &dropout_p, &seed)) return NULL;
    const int dtype = pyattn_stored_dtype(x);
    const int axes = PyArray_NDIM(x);
    if (axes == 0 || !PyArray_ISCARRAY_RO(x) || dtype < 0) {
        PyErr_SetString(PyExc_ValueError, "x must be a C-contiguous array of real numbers");
        return NULL;
    }

    PyArrayObject *y = pyattn_new_like(axes, (const ptrdiff_t *)PyArray_DIMS(x), x);
    if (y == NULL) return NULL;
    const npy_intp features = PyArray_DIM(x, axes - 1), rows = features > 0 ? PyArray_SIZE(x) / features : 0;
    const void *const from = PyArray_DATA(x);
    void *const to = PyArray_DATA(y);
    PYATTN_RUN(status, 1, attn_drop_rows(dtype, rows, features, from, to, dropout_p, seed, 0, &error));
    if (status == ATTN_OK) return (PyObject *)y;
    Py_DECREF(y);
    return pyattn_raise(status, &error);
}

PyMethodDef pyattn_dropout_methods[] = {
    {"fill_keep_mask", fill_keep_mask, METH_VARARGS,
     "fill_keep_mask($module, keep, dropout_p, seed, /)\n--\n\n"
     "Fill an array with a seed's dropout mask. See pyattn.dropout_keep_mask."},
    {"drop_rows", drop_rows, METH_VARARGS,
     "drop_rows($module, x, dropout_p, seed, /)\n--\n\n"
     "Dropout of a C-contiguous array's rows. See pyattn.dropout."},
    {NULL, NULL, 0, NULL},
};
