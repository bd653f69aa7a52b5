/* pyattn._core.activate, and the names of activations. */
#include "convert.h"

#include <string.h>

int pyattn_activation(PyObject *object, attn_activation *activation)
{
    static const struct {
        const char *name;
        attn_activation activation;
    } known[] = {{"relu", ATTN_RELU},
                 {"gelu", ATTN_GELU},
                 {"gelu_tanh", ATTN_GELU_TANH},
                 {"silu", ATTN_SILU},
                 {"tanh", ATTN_TANH}};
    char names[256];
    size_t length = 0;
    names[0] = '\0';
    *activation = ATTN_IDENTITY;
    if (!pyattn_given(object)) return 0;
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        if (PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, known[n].name) == 0) {
            *activation = known[n].activation;
            return 0;
        }
        length += (size_t)PyOS_snprintf(names + length, sizeof names - length, ", '%s'", known[n].name);
    }
    PyErr_Format(PyExc_ValueError, "activation is %.100R, expected None%s", object, names);
    return -1;
}

/* activate(x, activation): returns the activation of a C-contiguous float array, a new array. */
static PyObject *activate(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    attn_activation activation;
    attn_error error;
    attn_status status;
    (void)self;
    if (nargs != 2 || !PyArray_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "activate(x: ndarray, activation: str)");
        return NULL;
    }
    PyArrayObject *x = (PyArrayObject *)args[0];
    const int dtype = pyattn_stored_dtype(x);
    if (pyattn_activation(args[1], &activation) < 0) return NULL;
    if (!PyArray_ISCARRAY_RO(x) || dtype < 0) {
        PyErr_SetString(PyExc_ValueError, "x must be a C-contiguous array of real numbers");
        return NULL;
    }
    PyArrayObject *y = pyattn_new_like(PyArray_NDIM(x), (const ptrdiff_t *)PyArray_DIMS(x), x);
    if (y == NULL) return NULL;
    const npy_intp n = PyArray_SIZE(x);
    const void *const from = PyArray_DATA(x);
    void *const to = PyArray_DATA(y);
    PYATTN_RUN(status, 1, attn_activate(dtype, activation, n, from, to, 0, &error));
    if (status == ATTN_OK) return (PyObject *)y;
    Py_DECREF(y);
    return pyattn_raise(status, &error);
}

PyMethodDef pyattn_activation_methods[] = {
    {"activate", (PyCFunction)(void (*)(void))activate, METH_FASTCALL,
     "activate($module, x, activation, /)\n--\n\nAn activation of each element of a C-contiguous array."},
    {NULL, NULL, 0, NULL},
};
