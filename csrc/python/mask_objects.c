/* Mask objects, of pyattn.masks, become the arrays and limits that the core reads. */
#include "options.h"

static PyObject *shape_of(PyArrayObject *array) { return PyObject_GetAttrString((PyObject *)array, "shape"); }

/* Calls pyattn.masks._lowering.for_attention(mask, the shapes of query, key and value, layout, enable_gqa). */
static PyObject *lower(PyObject *module, PyObject *const *values, PyArrayObject *const *inputs)
{
    PyObject *const layout = values[PYATTN_LAYOUT], *const gqa = values[PYATTN_ENABLE_GQA];
    PyObject *query = shape_of(inputs[0]), *key = shape_of(inputs[1]), *value = shape_of(inputs[2]);
    PyObject *function = query && key && value ? PyObject_GetAttrString(module, "for_attention") : NULL;
    PyObject *const given[] = {values[PYATTN_ATTN_MASK], query, key, value, layout ? layout : Py_None,
                               gqa ? gqa : Py_None};
    PyObject *result = function ? PyObject_Vectorcall(function, given, sizeof given / sizeof *given, NULL) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(query);
    Py_XDECREF(key);
    Py_XDECREF(value);
    return result;
}

int pyattn_lower_mask(PyObject **values, PyArrayObject *const *inputs, PyObject **lowered, pyattn_option_arrays *arrays)
{
    PyObject *mask = values[PYATTN_ATTN_MASK];
    if (!pyattn_given(mask) || PyArray_Check(mask)) return 0;
    PyObject *module = PyImport_ImportModule("pyattn.masks._lowering");
    PyObject *class = module ? PyObject_GetAttrString(module, "Mask") : NULL;
    const int is_object = class ? PyObject_IsInstance(mask, class) : -1;
    if (is_object > 0) *lowered = lower(module, values, inputs);
    Py_XDECREF(class);
    Py_XDECREF(module);
    if (is_object <= 0) return is_object;
    if (*lowered == NULL) return -1;
    PyObject *limits = PyTuple_GetItem(*lowered, 1);
    if (limits == NULL) return -1;
    values[PYATTN_ATTN_MASK] = PyTuple_GetItem(*lowered, 0);
    if (!pyattn_given(limits)) return 0;
    if (arrays->key_limits != NULL) {
        PyErr_SetString(PyExc_TypeError, "attn_mask is an object that has key limits; pass it without key_limits");
        return -1;
    }
    return pyattn_as_integers(limits, "key_limits", &arrays->key_limits);
}
