/* Parses the arguments of a call, and converts numbers. */
#include "convert.h"

static int intern_names(const pyattn_signature *s)
{
    for (int n = 0; n < s->count; n++)
        if (s->interned[n] == NULL && (s->interned[n] = PyUnicode_InternFromString(s->names[n])) == NULL) return -1;
    return 0;
}

/* The index of a keyword, or -1. Keywords are usually interned strings in the signature's order, so the search first
 * compares pointers, starting at `from`. */
static int find_name(const pyattn_signature *s, PyObject *keyword, int from)
{
    for (int n = from; n < s->count; n++)
        if (s->interned[n] == keyword) return n;
    for (int n = 0; n < from; n++)
        if (s->interned[n] == keyword) return n;
    for (int n = 0; n < s->count; n++)
        if (PyUnicode_Compare(s->interned[n], keyword) == 0) return n;
    return -1;
}

/* Raises a TypeError: the message, then the names from `first` on, which the call may use. Steals the message. */
static int refuse_call(const pyattn_signature *s, PyObject *message, const char *offer, int first)
{
    PyObject *comma = PyUnicode_FromString(", "), *names = PyTuple_New(s->count - first), *joined = NULL;
    if (message != NULL && comma != NULL && names != NULL) {
        for (int n = first; n < s->count; n++) PyTuple_SET_ITEM(names, n - first, Py_NewRef(s->interned[n]));
        joined = PyUnicode_Join(comma, names);
    }
    if (joined != NULL) PyErr_Format(PyExc_TypeError, "%U; %s %U", message, offer, joined);
    Py_XDECREF(message);
    Py_XDECREF(comma);
    Py_XDECREF(names);
    Py_XDECREF(joined);
    return -1;
}

/* Calls a function of pyattn._util.names. Steals the tuple of its arguments. */
static PyObject *call_names(const char *function, PyObject *args)
{
    PyObject *module = args == NULL ? NULL : PyImport_ImportModule("pyattn._util.names");
    PyObject *called = module == NULL ? NULL : PyObject_GetAttrString(module, function);
    PyObject *result = called == NULL ? NULL : PyObject_CallObject(called, args);
    Py_XDECREF(called);
    Py_XDECREF(module);
    Py_XDECREF(args);
    return result;
}

/* Raises a TypeError for an unknown keyword, which says what was probably meant. */
static int refuse_keyword(const pyattn_signature *s, PyObject *keyword)
{
    PyObject *names = PyTuple_New(s->count);
    for (int n = 0; names != NULL && n < s->count; n++) PyTuple_SET_ITEM(names, n, Py_NewRef(s->interned[n]));
    PyObject *offer = names == NULL ? NULL : call_names("offer", Py_BuildValue("(ON)", keyword, names));
    const char *text = offer == NULL ? NULL : PyUnicode_AsUTF8(offer);
    if (text != NULL)
        refuse_call(s, PyUnicode_FromFormat("%s() got an unexpected keyword argument '%U'", s->function, keyword), text,
                    0);
    Py_XDECREF(offer);
    return -1;
}

int pyattn_parse(const pyattn_signature *s, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                 PyObject **values)
{
    if (s->interned[s->count - 1] == NULL && intern_names(s) < 0) return -1;
    if (nargs > s->positional) {
        PyObject *instead = call_names("instead", Py_BuildValue("(s)", s->function));
        PyObject *message = instead == NULL
                                ? NULL
                                : PyUnicode_FromFormat("%s() takes %d positional arguments but %zd were given%S",
                                                       s->function, s->positional, nargs, instead);
        Py_XDECREF(instead);
        return s->count > s->positional ? refuse_call(s, message, "pass by name:", s->positional)
                                        : refuse_call(s, message, "it takes", 0);
    }
    for (int n = 0; n < s->count; n++) values[n] = NULL;
    for (Py_ssize_t n = 0; n < nargs; n++) values[n] = args[n];

    const Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    int place = -1;
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, i);
        place = find_name(s, keyword, place + 1);
        if (place < 0) return refuse_keyword(s, keyword);
        if (values[place] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", s->function, keyword);
            return -1;
        }
        values[place] = args[nargs + i];
    }
    for (int n = 0; n < s->required; n++)
        if (values[n] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s' (position %d)", s->function, s->names[n],
                         n + 1);
            return -1;
        }
    return 0;
}

/* Replaces a TypeError or OverflowError by one that names the argument; other exceptions stay. */
static int refuse_type(PyObject *object, const char *name, const char *expected)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s is of type %s, expected %s", name, Py_TYPE(object)->tp_name, expected);
    else if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_ValueError, "%s is too large, expected %s", name, expected);
    return -1;
}

int pyattn_is_bool(PyObject *object)
{
    return PyBool_Check(object) || PyArray_IsScalar(object, Bool) ||
           (PyArray_Check(object) && PyArray_ISBOOL((PyArrayObject *)object));
}

int pyattn_number(PyObject *object, const char *name, double *number)
{
    if (pyattn_is_bool(object)) { /* scale=False is likelier a mistake than 0 */
        PyErr_Format(PyExc_TypeError, "%s is of type bool, expected a number", name);
        return -1;
    }
    *number = PyFloat_AsDouble(object);
    return *number == -1 && PyErr_Occurred() ? refuse_type(object, name, "a number") : 0;
}

int pyattn_finite(PyObject *object, const char *name, double *number)
{
    if (pyattn_number(object, name, number) < 0) return -1;
    if (Py_IS_FINITE(*number)) return 0;
    PyErr_Format(PyExc_ValueError, "%s is %.100R, expected a finite number", name, object);
    return -1;
}

int pyattn_integer(PyObject *object, const char *name, const char *expected, Py_ssize_t *integer)
{
    if (PyBool_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is of type bool, expected %s", name, expected);
        return -1;
    }
    *integer = PyNumber_AsSsize_t(object, NULL); /* larger ints are clamped */
    return *integer == -1 && PyErr_Occurred() ? refuse_type(object, name, expected) : 0;
}

int pyattn_num_threads(PyObject *object)
{
    Py_ssize_t n;
    if (object == NULL || object == Py_None) return 0;
    if (pyattn_integer(object, "num_threads", "an int", &n) < 0) return -1;
    if (n < 1) {
        PyErr_Format(PyExc_ValueError, "num_threads is %zd, expected 1 or more, or None", n);
        return -1;
    }
    return n > 1024 ? 1024 : (int)n;
}
