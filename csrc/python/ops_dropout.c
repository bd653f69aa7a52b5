/* pyattn._core.fill_keep_mask: what dropping.py wraps. */
#include "convert.h"

/* fill_keep_mask(keep, dropout_p, seed): a new C-contiguous array of bools, (heads in all, q_len, kv_len). */
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
    PYATTN_BEGIN_ALLOW_THREADS status = attn_dropout_keep(dropout_p, seed, units, q_len, kv_len, data, 0, &error);
    Py_END_ALLOW_THREADS if (status != ATTN_OK) return pyattn_raise(status, &error);
    Py_RETURN_NONE;
}

PyMethodDef pyattn_dropout_methods[] = {
    {"fill_keep_mask", fill_keep_mask, METH_VARARGS,
     "fill_keep_mask($module, keep, dropout_p, seed, /)\n--\n\n"
     "Fill an array with the keeps of a seed. See pyattn.dropout_keep_mask."},
    {NULL, NULL, 0, NULL},
};
