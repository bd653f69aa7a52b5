/* Arguments of a call: which is which, and the numbers among them. */
#include "convert.h"

static int intern_names(const pyattn_signature *s)
{
    for (int n = 0; n < s->count; n++)
        if (s->interned[n] == NULL && (s->interned[n] = PyUnicode_InternFromString(s->names[n])) == NULL) return -1;
    return 0;
}

/* The place of a keyword, -1 when it is none. Names in a caller's code are interned: comparing pointers mostly does, and
 * they mostly come in the signature's order: the search starts at `from`. */
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

int pyattn_parse(const pyattn_signature *s, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                 PyObject **values)
{
    if (s->interned[s->count - 1] == NULL && intern_names(s) < 0) return -1;
    if (nargs > s->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %d positional arguments but %zd were given", s->function,
                     s->positional, nargs);
        return -1;
    }
    for (int n = 0; n < s->count; n++) values[n] = n < nargs ? args[n] : NULL;

    const Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    int place = -1;
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, i);
        place = find_name(s, keyword, place + 1);
        if (place < 0 || values[place] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         place < 0 ? "%s() got an unexpected keyword argument '%U'"
                                   : "%s() got multiple values for argument '%U'",
                         s->function, keyword);
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

/* A complaint about a value's type, in the argument's name; any other exception stays. */
static int refuse_type(PyObject *object, const char *name, const char *expected)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s is of type %s, expected %s", name, Py_TYPE(object)->tp_name, expected);
    else if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_ValueError, "%s is too large, expected %s", name, expected);
    return -1;
}

int pyattn_number(PyObject *object, const char *name, double *number)
{
    *number = PyFloat_AsDouble(object);
    return *number == -1 && PyErr_Occurred() ? refuse_type(object, name, "a number") : 0;
}

int pyattn_finite(PyObject *object, const char *name, double *number)
{
    if (pyattn_number(object, name, number) < 0) return -1;
    if (Py_IS_FINITE(*number)) return 0;
    PyErr_Format(PyExc_ValueError, "%s is %R, expected a finite number", name, object);
    return -1;
}

int pyattn_integer(PyObject *object, const char *name, const char *expected, Py_ssize_t *integer)
{
    if (PyBool_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is of type bool, expected %s", name, expected);
        return -1;
    }
    *integer = PyNumber_AsSsize_t(object, NULL); /* far too large is as good as the largest */
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
