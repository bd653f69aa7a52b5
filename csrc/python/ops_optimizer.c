/* pyattn._core.adam_step and sgd_step: in place, one pass over memory. */
#include "convert.h"

enum { PARAMETER, GRADIENT, MOMENTS, ARRAYS = MOMENTS + 3 };
static const char *const array_names[ARRAYS] = {"parameter", "gradient", "the first moment", "the second moment",
                                                "the third moment"};

/* Whether an array fills its memory, in some order of the axes, with positive strides. */
static int is_dense(PyArrayObject *array)
{
    npy_intp step = PyArray_ITEMSIZE(array);
    const int axes = PyArray_NDIM(array);
    if (PyArray_SIZE(array) <= 1 || PyArray_IS_C_CONTIGUOUS(array) || PyArray_IS_F_CONTIGUOUS(array)) return 1;
    unsigned char used[NPY_MAXDIMS] = {0};
    for (int found = 1; found;) {
        found = 0;
        for (int n = 0; n < axes; n++) {
            if (used[n] || PyArray_DIM(array, n) == 1 || PyArray_STRIDE(array, n) != step) continue;
            step *= PyArray_DIM(array, n);
            used[n] = 1;
            found = 1;
        }
    }
    for (int n = 0; n < axes; n++)
        if (!used[n] && PyArray_DIM(array, n) != 1) return 0;
    return 1;
}

/* Whether two arrays of one shape have their elements in the same order. */
static int is_same_order(PyArrayObject *a, PyArrayObject *b)
{
    for (int n = 0; n < PyArray_NDIM(a); n++)
        if (PyArray_DIM(a, n) > 1 &&
            PyArray_STRIDE(a, n) / PyArray_ITEMSIZE(a) != PyArray_STRIDE(b, n) / PyArray_ITEMSIZE(b))
            return 0;
    return 1;
}

/* Reads the parameter, its gradient and the moments; the latter may be None. Returns 1, or 0 where the arrays are not
 * dense in one memory order, or -1 with an exception. */
static int read_arrays(PyObject *const *objects, PyArrayObject **arrays)
{
    for (int n = 0; n < ARRAYS; n++) {
        arrays[n] = n >= MOMENTS && objects[n] == Py_None ? NULL : (PyArrayObject *)objects[n];
        if (arrays[n] == NULL) continue;
        if (!PyArray_Check(objects[n]) || pyattn_stored_dtype(arrays[n]) < 0) {
            PyErr_Format(PyExc_TypeError, "%s must be an array of floats", array_names[n]);
            return -1;
        }
        if (!PyArray_SAMESHAPE(arrays[n], arrays[PARAMETER])) {
            PyErr_Format(PyExc_ValueError, "%s has another shape than the parameter", array_names[n]);
            return -1;
        }
        if (n != GRADIENT && !PyArray_ISWRITEABLE(arrays[n])) {
            PyErr_Format(PyExc_ValueError, "%s is read-only", array_names[n]);
            return -1;
        }
    }
    const int type = pyattn_stored_dtype(arrays[PARAMETER]) == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT;
    for (int n = 0; n < ARRAYS; n++) {
        if (arrays[n] == NULL) continue;
        if (n != PARAMETER && PyArray_TYPE(arrays[n]) != type) {
            PyErr_Format(PyExc_TypeError, "%s has dtype %S, expected float%d", array_names[n], PyArray_DESCR(arrays[n]),
                         type == NPY_DOUBLE ? 64 : 32);
            return -1;
        }
        if (!PyArray_ISALIGNED(arrays[n]) || !PyArray_ISNOTSWAPPED(arrays[n])) return 0;
        if (!is_same_order(arrays[n], arrays[PARAMETER])) return 0;
    }
    return is_dense(arrays[PARAMETER]);
}

/* Where the elements are. Nothing of an array is read after this, as other threads may run then. */
typedef struct {
    attn_dtype dtype;
    ptrdiff_t n;
    void *data[ARRAYS];
} elements;

static elements elements_of(PyArrayObject *const *arrays)
{
    elements found = {pyattn_stored_dtype(arrays[PARAMETER]), PyArray_SIZE(arrays[PARAMETER]), {NULL}};
    for (int n = 0; n < ARRAYS; n++) found.data[n] = arrays[n] == NULL ? NULL : PyArray_DATA(arrays[n]);
    return found;
}

static PyObject *done(attn_status status, const attn_error *error)
{
    return status == ATTN_OK ? Py_NewRef(Py_True) : pyattn_raise(status, error);
}

/* adam_step(parameter, gradient, mean, square, max_square or None, lr, beta1, beta2, eps, weight_decay, step,
 * decoupled, maximize): True, or False, with nothing written, unless the arrays are dense in one memory order. */
static PyObject *adam_step(PyObject *self, PyObject *given)
{
    PyObject *objects[ARRAYS];
    PyArrayObject *arrays[ARRAYS];
    attn_adam_args a = {.num_threads = 0};
    attn_error error;
    attn_status status;
    (void)self;
    if (!PyArg_ParseTuple(given, "OOOOOddddddpp", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &a.lr, &a.beta1, &a.beta2, &a.epsilon, &a.weight_decay, &a.step, &a.decoupled, &a.maximize))
        return NULL;
    if (objects[MOMENTS] == Py_None || objects[MOMENTS + 1] == Py_None) {
        PyErr_SetString(PyExc_TypeError, "the first and second moment must be arrays");
        return NULL;
    }
    const int fits = read_arrays(objects, arrays);
    if (fits <= 0) return fits < 0 ? NULL : Py_NewRef(Py_False);
    const elements e = elements_of(arrays);
    pyattn_ask_for_signals(0);
    PYATTN_RUN(status, e.n >= PYATTN_WORTH_THE_GIL / 16,
               attn_adam(&a, e.dtype, e.n, e.data[PARAMETER], e.data[GRADIENT], e.data[MOMENTS], e.data[MOMENTS + 1],
                         e.data[MOMENTS + 2], &error));
    pyattn_ask_for_signals(1);
    return done(status, &error);
}

/* sgd_step(parameter, gradient, momentum buffer or None, lr, momentum, dampening, weight_decay, begins, nesterov,
 * maximize): as adam_step. */
static PyObject *sgd_step(PyObject *self, PyObject *given)
{
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL, Py_None, Py_None};
    PyArrayObject *arrays[ARRAYS];
    attn_sgd_args a = {.num_threads = 0};
    attn_error error;
    attn_status status;
    (void)self;
    if (!PyArg_ParseTuple(given, "OOOddddppp", &objects[0], &objects[1], &objects[2], &a.lr, &a.momentum, &a.dampening,
                          &a.weight_decay, &a.begins, &a.nesterov, &a.maximize))
        return NULL;
    const int fits = read_arrays(objects, arrays);
    if (fits <= 0) return fits < 0 ? NULL : Py_NewRef(Py_False);
    const elements e = elements_of(arrays);
    pyattn_ask_for_signals(0);
    PYATTN_RUN(status, e.n >= PYATTN_WORTH_THE_GIL / 16,
               attn_sgd(&a, e.dtype, e.n, e.data[PARAMETER], e.data[GRADIENT], e.data[MOMENTS], &error));
    pyattn_ask_for_signals(1);
    return done(status, &error);
}

PyMethodDef pyattn_optimizer_methods[] = {
    {"adam_step", adam_step, METH_VARARGS,
     "adam_step($module, parameter, gradient, mean, square, max_square, lr, beta1, beta2, eps, weight_decay, step, "
     "decoupled, maximize, /)\n--\n\n"
     "A step of Adam in place; False, with nothing written, unless the arrays are dense in one memory order."},
    {"sgd_step", sgd_step, METH_VARARGS,
     "sgd_step($module, parameter, gradient, buffer, lr, momentum, dampening, weight_decay, begins, nesterov, "
     "maximize, /)\n--\n\n"
     "A step of SGD in place; False, with nothing written, unless the arrays are dense in one memory order."},
    {NULL, NULL, 0, NULL},
};
