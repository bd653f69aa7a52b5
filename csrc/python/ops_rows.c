/* pyattn._core.softmax_rows, softmax_backward and merge_states, and conversions for the Python functions. */
#include "convert.h"

/* Parses (object, name) for as_array and as_real; returns the name, or NULL with an exception. */
static const char *name_argument(PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs == 2 && PyUnicode_Check(args[1])) return PyUnicode_AsUTF8(args[1]);
    PyErr_SetString(PyExc_TypeError, "expected an object and its name: str");
    return NULL;
}

/* as_array(x, name): any object as a plain ndarray, by the rules of attention. */
static PyObject *as_array(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const char *name = name_argument(args, nargs);
    (void)self;
    return name == NULL ? NULL : (PyObject *)pyattn_as_array(args[0], name);
}

/* as_real(x, name): the same as an aligned, native array of float16, bfloat16, float32 or float64. */
static PyObject *as_real(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const char *name = name_argument(args, nargs);
    (void)self;
    if (name == NULL) return NULL;
    PyArrayObject *array = pyattn_as_array(args[0], name), *real = NULL;
    const int type = array == NULL ? -1 : pyattn_real_type(array, args[0], name);
    if (type >= 0) real = pyattn_well_behaved(array, type);
    Py_XDECREF(array);
    return (PyObject *)real;
}

/* cast(x, name, dtype): the Python code of a cast, for messages. */
static PyObject *cast(PyObject *self, PyObject *args)
{
    PyObject *object;
    const char *name, *dtype;
    (void)self;
    return PyArg_ParseTuple(args, "Oss", &object, &name, &dtype) ? pyattn_cast(object, name, "", dtype) : NULL;
}

/* check_out(out, like): raises unless an array like another one can be copied to `out`. */
static PyObject *check_out(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 2 || !PyArray_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "check_out(out, like: ndarray)");
        return NULL;
    }
    PyArrayObject *like = (PyArrayObject *)args[1];
    return pyattn_check_out(args[0]) < 0 || pyattn_check_fit(args[0], PyArray_NDIM(like), PyArray_DIMS(like), like) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

/* softmax_rows(x, logarithm): softmax over the last axis of a C-contiguous float array, a new array. */
static PyObject *softmax_rows(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    attn_error error;
    attn_status status;
    (void)self;
    if (nargs != 2 || !PyArray_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "softmax_rows(x: ndarray, logarithm: bool)");
        return NULL;
    }
    PyArrayObject *x = (PyArrayObject *)args[0];
    const int logarithm = PyObject_IsTrue(args[1]); /* first, as its code may change the array */
    if (logarithm < 0) return NULL;
    const int dtype = pyattn_stored_dtype(x);
    const int axes = PyArray_NDIM(x);
    if (axes == 0 || !PyArray_ISCARRAY_RO(x) || dtype < 0) {
        PyErr_SetString(PyExc_ValueError, "x must be a C-contiguous array of real numbers");
        return NULL;
    }

    PyArrayObject *y = pyattn_new_like(axes, (const ptrdiff_t *)PyArray_DIMS(x), x);
    if (y == NULL) return NULL;
    const npy_intp n = PyArray_DIM(x, axes - 1), rows = n > 0 ? PyArray_SIZE(x) / n : 0;
    const void *const from = PyArray_DATA(x);
    void *const to = PyArray_DATA(y);
    PYATTN_RUN(status, 1, attn_softmax(dtype, rows, n, from, to, logarithm, 0, &error));
    if (status == ATTN_OK) return (PyObject *)y;
    Py_DECREF(y);
    return pyattn_raise(status, &error);
}

/* softmax_backward(grad_output, output, logarithm): the gradient of softmax_rows's x, a new array. */
static PyObject *softmax_backward(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    attn_error error;
    attn_status status;
    (void)self;
    if (nargs != 3 || !PyArray_CheckExact(args[0]) || !PyArray_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "softmax_backward(grad_output: ndarray, output: ndarray, logarithm: bool)");
        return NULL;
    }
    PyArrayObject *upstream = (PyArrayObject *)args[0], *output = (PyArrayObject *)args[1];
    const int logarithm = PyObject_IsTrue(args[2]); /* first, as its code may change the arrays */
    if (logarithm < 0) return NULL;
    const int dtype = pyattn_stored_dtype(output), axes = PyArray_NDIM(output);
    if (axes == 0 || dtype < 0 || !PyArray_ISCARRAY_RO(output) || !PyArray_ISCARRAY_RO(upstream) ||
        PyArray_TYPE(upstream) != PyArray_TYPE(output) || !PyArray_SAMESHAPE(upstream, output)) {
        PyErr_SetString(PyExc_ValueError,
                        "grad_output and output must be C-contiguous arrays of real numbers, of one shape and dtype");
        return NULL;
    }

    PyArrayObject *grad_x = pyattn_new_like(axes, (const ptrdiff_t *)PyArray_DIMS(output), output);
    if (grad_x == NULL) return NULL;
    const npy_intp n = PyArray_DIM(output, axes - 1), rows = n > 0 ? PyArray_SIZE(output) / n : 0;
    const void *const from = PyArray_DATA(upstream), *const y = PyArray_DATA(output);
    void *const to = PyArray_DATA(grad_x);
    PYATTN_RUN(status, 1, attn_softmax_backward(dtype, rows, n, from, y, to, logarithm, 0, &error));
    if (status == ATTN_OK) return (PyObject *)grad_x;
    Py_DECREF(grad_x);
    return pyattn_raise(status, &error);
}

/* Data pointers of a list or tuple of C-contiguous arrays of one dtype and size. NULL with an exception. */
static const void **data_of(PyObject *list, Py_ssize_t parts, int type, npy_intp size)
{
    const void **data = PyMem_Malloc((size_t)(parts > 0 ? parts : 1) * sizeof *data);
    if (data == NULL) return (const void **)PyErr_NoMemory();
    for (Py_ssize_t n = 0; n < parts; n++) {
        PyArrayObject *array = (PyArrayObject *)PyTuple_GET_ITEM(list, n);
        if (!PyArray_CheckExact(array) || PyArray_TYPE(array) != type || PyArray_SIZE(array) != size ||
            !PyArray_ISCARRAY_RO(array)) {
            PyErr_SetString(PyExc_ValueError, "all parts must be C-contiguous, of one dtype and shape");
            PyMem_Free(data);
            return NULL;
        }
        data[n] = PyArray_DATA(array);
    }
    return data;
}

/* merge_states(outputs, lses, output, lse): merges tuples of C-contiguous arrays into output and lse. */
static PyObject *merge_states(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 4 || !PyTuple_CheckExact(args[0]) || !PyTuple_CheckExact(args[1]) || !PyArray_CheckExact(args[2]) ||
        !PyArray_CheckExact(args[3]) || PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "merge_states(outputs: tuple, lses: tuple, output: ndarray, lse: ndarray)");
        return NULL;
    }
    PyArrayObject *output = (PyArrayObject *)args[2], *lse = (PyArrayObject *)args[3];
    const Py_ssize_t parts = PyTuple_GET_SIZE(args[0]);
    const npy_intp rows = PyArray_SIZE(lse), size = PyArray_SIZE(output);
    const npy_intp dim = PyArray_NDIM(output) > 0 ? PyArray_DIM(output, PyArray_NDIM(output) - 1) : 0;
    attn_error error;
    attn_status status;
    const int dtype = pyattn_stored_dtype(output);
    if (!PyArray_ISCARRAY(output) || !PyArray_ISCARRAY(lse) || rows * dim != size || dtype < 0 ||
        PyArray_TYPE(lse) != (dtype == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT)) {
        PyErr_SetString(PyExc_ValueError, "output and lse must be C-contiguous, (..., dim) and (...), of real numbers");
        return NULL;
    }

    const void **lses = NULL, **outputs = data_of(args[0], parts, PyArray_TYPE(output), size);
    PyObject *result = NULL;
    if (outputs == NULL || (lses = data_of(args[1], parts, PyArray_TYPE(lse), rows)) == NULL) goto done;
    void *const merged = PyArray_DATA(output), *const sums = PyArray_DATA(lse);
    PYATTN_RUN(status, 1, attn_merge_states((attn_dtype)dtype, parts, rows, dim, outputs, lses, merged, sums, &error));
    result = status == ATTN_OK ? Py_NewRef(Py_None) : pyattn_raise(status, &error);
done:
    PyMem_Free(outputs);
    PyMem_Free(lses);
    return result;
}

PyMethodDef pyattn_rows_methods[] = {
    {"as_array", (PyCFunction)(void (*)(void))as_array, METH_FASTCALL,
     "as_array($module, x, name, /)\n--\n\nAn object as a plain array, by the rules of attention."},
    {"check_out", (PyCFunction)(void (*)(void))check_out, METH_FASTCALL,
     "check_out($module, out, like, /)\n--\n\nRaise unless an array like `like` can be copied to `out`."},
    {"cast", cast, METH_VARARGS, "cast($module, x, name, dtype, /)\n--\n\nHow to write a cast of x, for messages."},
    {"as_real", (PyCFunction)(void (*)(void))as_real, METH_FASTCALL,
     "as_real($module, x, name, /)\n--\n\nAn object as an array of floats, by the rules of attention."},
    {"softmax_rows", (PyCFunction)(void (*)(void))softmax_rows, METH_FASTCALL,
     "softmax_rows($module, x, logarithm, /)\n--\n\nsoftmax or log_softmax over a C-contiguous array's last axis."},
    {"softmax_backward", (PyCFunction)(void (*)(void))softmax_backward, METH_FASTCALL,
     "softmax_backward($module, grad_output, output, logarithm, /)\n--\n\n"
     "The gradient of softmax or log_softmax over C-contiguous arrays' last axis."},
    {"merge_states", (PyCFunction)(void (*)(void))merge_states, METH_FASTCALL,
     "merge_states($module, outputs, lses, output, lse, /)\n--\n\nMerge tuples of C-contiguous partial results."},
    {NULL, NULL, 0, NULL},
};
