/* Threads, instruction-set levels, and machine speeds for the benchmarks. */
#include "convert.h"

static PyObject *set_num_threads(PyObject *self, PyObject *object)
{
    const int n = pyattn_num_threads(object);
    (void)self;
    if (n < 0) return NULL;
    attn_set_num_threads(n);
    Py_RETURN_NONE;
}

static PyObject *call_on_threads(PyObject *self, PyObject *args)
{
    PyObject *number, *capsule, *function, *arguments, *named;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO!O!", &number, &capsule, &function, &PyTuple_Type, &arguments, &PyDict_Type,
                          &named))
        return NULL;
    const int n = pyattn_num_threads(number);
    if (n < 0) return NULL;
    void *team = NULL;
    if (capsule != Py_None && (team = PyCapsule_GetPointer(capsule, "GOMP_parallel")) == NULL) return NULL;
    const attn_suggestion before = attn_suggest_threads((attn_suggestion){n, (attn_team)team});
    PyObject *result = PyObject_Call(function, arguments, named);
    attn_suggest_threads(before);
    return result;
}

static PyObject *get_num_threads(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromLong(attn_get_num_threads());
}

static PyObject *isa(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyUnicode_FromString(attn_isa());
}

/* A list of the names name_of(0), name_of(1) ... */
static PyObject *name_list(const char *(*name_of)(int))
{
    PyObject *list = PyList_New(0);
    const char *name;
    for (int n = 0; list != NULL && (name = name_of(n)) != NULL; n++) {
        PyObject *text = PyUnicode_FromString(name);
        if (text == NULL || PyList_Append(list, text) < 0) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}

static PyObject *levels(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return name_list(attn_isa_name);
}

static PyObject *levels_compiled(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return name_list(attn_isa_compiled);
}

static PyObject *set_isa(PyObject *self, PyObject *name)
{
    attn_error error;
    (void)self;
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "the name of a level must be a str");
        return NULL;
    }
    const attn_status status = attn_set_isa(text, &error);
    if (status != ATTN_OK) return pyattn_raise(status, &error);
    Py_RETURN_NONE;
}

static PyObject *fma_peak(PyObject *self, PyObject *seconds)
{
    (void)self;
    const double limit = PyFloat_AsDouble(seconds);
    double peak;
    if (limit == -1 && PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS peak = attn_measure_fma(limit);
    Py_END_ALLOW_THREADS return PyFloat_FromDouble(peak * 1e-9);
}

static PyObject *read_speed(PyObject *self, PyObject *args)
{
    PyObject *array, *threads;
    double speed;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!O", &PyArray_Type, &array, &threads)) return NULL;
    const int n = pyattn_num_threads(threads);
    if (n < 0) return NULL;
    if (PyArray_TYPE((PyArrayObject *)array) != NPY_FLOAT || !PyArray_ISCARRAY_RO((PyArrayObject *)array)) {
        PyErr_SetString(PyExc_ValueError, "expected a C-contiguous array of float32");
        return NULL;
    }
    const float *data = PyArray_DATA((PyArrayObject *)array);
    const npy_intp count = PyArray_SIZE((PyArrayObject *)array);
    PyThreadState *const released = pyattn_release_gil(1);
    speed = attn_measure_read(data, count, n);
    pyattn_acquire_gil(released);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(speed * 1e-9); /* a signal handler's */
}

PyMethodDef pyattn_runtime_methods[] = {
    {"set_num_threads", set_num_threads, METH_O, "set_num_threads($module, num_threads, /)\n--\n\nSee pyattn.runtime."},
    {"call_on_threads", call_on_threads, METH_VARARGS,
     "call_on_threads($module, num_threads, team, function, args, kwargs, /)\n--\n\n"
     "Call a function whose calls of pyattn compute on a team unless told otherwise; None: pyattn's own threads."},
    {"get_num_threads", get_num_threads, METH_NOARGS, "get_num_threads($module, /)\n--\n\nSee pyattn.runtime."},
    {"isa", isa, METH_NOARGS, "isa($module, /)\n--\n\nThe instruction-set level in use."},
    {"_levels", levels, METH_NOARGS, "_levels($module, /)\n--\n\nLevels of this machine, best first."},
    {"_levels_compiled", levels_compiled, METH_NOARGS, "_levels_compiled($module, /)\n--\n\nLevels compiled in."},
    {"_set_isa", set_isa, METH_O, "_set_isa($module, name, /)\n--\n\nSwitch the level; for tests."},
    {"_fma_peak", fma_peak, METH_O,
     "_fma_peak($module, seconds, /)\n--\n\nGFLOP/s of fma on one thread; for benchmarks."},
    {"_read_speed", read_speed, METH_VARARGS,
     "_read_speed($module, array, num_threads, /)\n--\n\nGB/s of a pure read; for benchmarks."},
    {NULL, NULL, 0, NULL},
};
