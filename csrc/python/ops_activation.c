/* pyattn._core.activate and activate_backward, and the names of activations. */
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

enum { GRAD_OUTPUT, X, ACTIVATION, GATE, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"grad_output", "x", "activation", "gate"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"activate_backward", ARGUMENTS,     ARGUMENTS, 3,
                                           argument_names,      interned_names};

/* Checks that an array is C-contiguous and like x. Returns -1 with an exception. */
static int check_like(PyObject *object, const char *name, PyArrayObject *x)
{
    if (!PyArray_CheckExact(object)) {
        PyErr_Format(PyExc_TypeError, "%s is of type %s, expected numpy.ndarray", name, Py_TYPE(object)->tp_name);
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)object;
    if (PyArray_ISCARRAY_RO(array) && PyArray_TYPE(array) == PyArray_TYPE(x) && pyattn_stored_dtype(array) >= 0 &&
        PyArray_SAMESHAPE(array, x))
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be a C-contiguous array of real numbers, of x's shape and dtype", name);
    return -1;
}

/* activate_backward(grad_output, x, activation, gate=None): the gradient of x, or of (x, gate), in new arrays. */
static PyObject *activate_backward(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    attn_activation activation;
    attn_error error;
    attn_status status;
    (void)self;
    if (pyattn_parse(&signature, args, nargs, kwnames, values) < 0) return NULL;
    if (pyattn_activation(values[ACTIVATION], &activation) < 0) return NULL;
    PyArrayObject *const x = (PyArrayObject *)values[X];
    PyArrayObject *const gate = pyattn_given(values[GATE]) ? (PyArrayObject *)values[GATE] : NULL;
    if (check_like(values[X], "x", x) < 0 || check_like(values[GRAD_OUTPUT], "grad_output", x) < 0) return NULL;
    if (gate != NULL && check_like(values[GATE], "gate", x) < 0) return NULL;

    const ptrdiff_t *const shape = (const ptrdiff_t *)PyArray_DIMS(x);
    PyArrayObject *const grad_x = pyattn_new_like(PyArray_NDIM(x), shape, x);
    PyArrayObject *const grad_gate = grad_x && gate ? pyattn_new_like(PyArray_NDIM(x), shape, x) : NULL;
    if (grad_x == NULL || (gate != NULL && grad_gate == NULL)) goto done;
    const int dtype = pyattn_stored_dtype(x);
    const npy_intp n = PyArray_SIZE(x);
    const void *const upstream = PyArray_DATA((PyArrayObject *)values[GRAD_OUTPUT]), *const from = PyArray_DATA(x);
    const void *const factor = gate ? PyArray_DATA(gate) : NULL;
    void *const to = PyArray_DATA(grad_x), *const to_gate = gate ? PyArray_DATA(grad_gate) : NULL;
    PYATTN_RUN(status, 1, attn_activate_backward(dtype, activation, n, upstream, from, factor, to, to_gate, 0, &error));
    if (status != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = gate ? PyTuple_Pack(2, (PyObject *)grad_x, (PyObject *)grad_gate) : Py_NewRef((PyObject *)grad_x);

done:
    Py_XDECREF(grad_x);
    Py_XDECREF(grad_gate);
    return result;
}

PyMethodDef pyattn_activation_methods[] = {
    {"activate", (PyCFunction)(void (*)(void))activate, METH_FASTCALL,
     "activate($module, x, activation, /)\n--\n\nAn activation of each element of a C-contiguous array."},
    {"activate_backward", (PyCFunction)(void (*)(void))activate_backward, METH_FASTCALL | METH_KEYWORDS,
     "activate_backward($module, grad_output, x, activation, gate=None)\n--\n\n"
     "The gradient of x, or those of (x, gate), where y = activation(x) * gate; all C-contiguous, of one dtype."},
    {NULL, NULL, 0, NULL},
};
