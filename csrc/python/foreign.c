/* Converts objects other than plain ndarrays, or refuses them and says what to pass instead. See convert.h. */
#include "convert.h"

/* 1 when the object is an instance of numpy.<module>.<name>; -1 on error. */
static int is_instance_of(PyObject *object, const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    if (imported == NULL) return -1;
    PyObject *type = PyObject_GetAttrString(imported, name);
    Py_DECREF(imported);
    if (type == NULL) return -1;
    const int found = PyObject_IsInstance(object, type);
    Py_DECREF(type);
    return found;
}

int pyattn_is_other_array(PyObject *object)
{
    if (PyArray_CheckExact(object)) return 0;
    const int masked = is_instance_of(object, "numpy.ma", "MaskedArray");
    return masked != 0 ? masked : 2 * is_instance_of(object, "numpy", "matrix");
}

/* The attribute, or NULL without an exception. New reference. */
static PyObject *optional_attribute(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
    return value;
}

/* 1 when the attribute exists, -1 on error. PyObject_HasAttr would hide errors, even a MemoryError. */
static int has_attribute(PyObject *object, const char *name)
{
    PyObject *value = optional_attribute(object, name);
    const int found = value != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(value);
    return found;
}

/* 1 for a tensor of torch's bfloat16, which NumPy cannot read; -1 on error. */
static int is_bfloat16_tensor(PyObject *object)
{
    PyObject *dtype = optional_attribute(object, "dtype"), *name = NULL;
    if (dtype != NULL && strcmp(Py_TYPE(dtype)->tp_name, "torch.dtype") == 0) name = PyObject_Str(dtype);
    const int found = name != NULL && PyUnicode_CompareWithASCIIString(name, "torch.bfloat16") == 0;
    Py_XDECREF(dtype);
    Py_XDECREF(name);
    return PyErr_Occurred() ? -1 : found;
}

/* Raises a TypeError for a masked array or a matrix, else returns 0. `name` is its Python expression. */
static int refuse_other(PyObject *object, const char *name)
{
    const int other = pyattn_is_other_array(object);
    if (other == 1 && (strcmp(name, "key") == 0 || strcmp(name, "value") == 0))
        PyErr_Format(
            PyExc_TypeError,
            "%s is a masked array, whose mask would be lost; pass %s.filled(0) and, to leave out masked rows of "
            "(..., length, dim), attn_mask=~numpy.ma.getmaskarray(%s).any(axis=-1)[..., None, :]",
            name, name, name);
    else if (other == 1)
        PyErr_Format(PyExc_TypeError,
                     "%s is a masked array, whose mask would be lost; pass %s.filled(0), or with another value than 0",
                     name, name);
    if (other == 2)
        PyErr_Format(PyExc_TypeError, "%s is a numpy.matrix, which changes the meaning of *; pass numpy.asarray(%s)",
                     name, name);
    return other == 0 ? 0 : -1;
}

/* Writes the path of an item, such as "name[1][0]"; cuts it if `text` is full. */
static void place_text(const char *name, const Py_ssize_t *place, int depth, char *text, size_t size)
{
    size_t end = (size_t)snprintf(text, size, "%.50s", name);
    for (int n = 0; n <= depth && size - end > 24; n++)
        end += (size_t)snprintf(text + end, size - end, "[%zd]", place[n]);
}

/* The items of a list, a tuple or another sequence that NumPy reads item by item, such as a deque. NULL without an
 * exception for all else, and for a sequence that fails: NumPy reports that error itself. New reference. */
static PyObject *items_of(PyObject *object)
{
    static const char *const arrays[] = {"__array__", "__array_interface__", "__array_struct__", "__dlpack__"};
    if (PyList_Check(object) || PyTuple_Check(object)) return Py_NewRef(object);
    if (!PySequence_Check(object) || PyUnicode_Check(object) || PyObject_CheckBuffer(object)) return NULL;
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        if (has_attribute(object, arrays[n]) != 0) return NULL;
    /* An object without a length is a scalar to NumPy, and may be endless. */
    PyObject *items = PySequence_Size(object) < 0 ? NULL : PySequence_List(object);
    if (items == NULL && PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError))
        PyErr_Clear();
    return items;
}

/* refuse_other for the items of a sequence, at any depth, as NumPy would ignore a mask inside it. Numbers are skipped
 * quickly; an item's path is only written for arrays that may be refused. */
static int refuse_other_items(PyObject *object, const char *name, Py_ssize_t *place, int depth)
{
    PyObject *items = items_of(object);
    int refused = items == NULL && PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t n = 0; items != NULL && refused == 0 && n < PySequence_Fast_GET_SIZE(items); n++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, n);
        const int array = PyArray_Check(item);
        if (array ? PyArray_CheckExact(item) : !PySequence_Check(item)) continue;
        place[depth] = n;
        Py_INCREF(item); /* refuse_other's import may let another thread change the list */
        if (array) {
            char text[200];
            place_text(name, place, depth, text, sizeof text);
            refused = refuse_other(item, text);
        } else if (depth + 1 < NPY_MAXDIMS) {
            refused = refuse_other_items(item, name, place, depth + 1);
        }
        Py_DECREF(item);
    }
    Py_XDECREF(items);
    return refused;
}

/* Refuses sparse arrays, and tensors that require grad or are not on the CPU. Returns -1 with a TypeError. */
static int refuse_foreign(PyObject *object, const char *name)
{
    PyObject *attribute = optional_attribute(object, "toarray");
    if (PyErr_Occurred()) return -1;
    if (attribute != NULL) {
        Py_DECREF(attribute);
        PyErr_Format(PyExc_TypeError, "%s is a sparse array; pass %s.toarray()", name, name);
        return -1;
    }
    attribute = optional_attribute(object, "requires_grad");
    if (PyErr_Occurred()) return -1;
    if (attribute != NULL) {
        const int needs = PyObject_IsTrue(attribute);
        Py_DECREF(attribute);
        if (needs > 0)
            PyErr_Format(
                PyExc_TypeError,
                "%s is a tensor that requires grad; pass %s.detach(), or use pyattn.interop.torch, which has gradients",
                name, name);
        if (needs != 0) return -1;
    }
    attribute = optional_attribute(object, "layout");
    if (PyErr_Occurred()) return -1;
    if (attribute != NULL) {
        const int torch = strcmp(Py_TYPE(attribute)->tp_name, "torch.layout") == 0;
        PyObject *layout = torch ? PyObject_Str(attribute) : Py_NewRef(Py_None);
        Py_DECREF(attribute);
        if (layout == NULL) return -1;
        const int sparse = torch && PyUnicode_CompareWithASCIIString(layout, "torch.strided") != 0;
        Py_DECREF(layout);
        if (sparse) PyErr_Format(PyExc_TypeError, "%s is a sparse tensor; pass %s.to_dense()", name, name);
        if (sparse) return -1;
    }
    PyObject *device = optional_attribute(object, "device"), *type = NULL;
    if (PyErr_Occurred()) return -1;
    if (device != NULL) type = optional_attribute(device, "type");
    Py_XDECREF(device);
    if (PyErr_Occurred()) return -1;
    if (type != NULL && PyUnicode_Check(type) && PyUnicode_CompareWithASCIIString(type, "meta") == 0)
        PyErr_Format(PyExc_TypeError, "%s is a tensor without data (device 'meta'); pass one on the CPU", name);
    else if (type != NULL && PyUnicode_Check(type) && PyUnicode_CompareWithASCIIString(type, "cpu") != 0)
        PyErr_Format(PyExc_TypeError, "%s is a tensor on device '%U'; pass %s.cpu()", name, type, name);
    Py_XDECREF(type);
    return PyErr_Occurred() ? -1 : 0;
}

/* 1 for an object that NumPy can only read through DLPack; -1 on error. */
static int only_dlpack(PyObject *object)
{
    int found = PyObject_CheckBuffer(object) ? 0 : has_attribute(object, "__dlpack__");
    if (found == 1 && (found = has_attribute(object, "__array__")) >= 0) found = !found;
    return found;
}

static PyObject *from_dlpack(PyObject *object, const char *name)
{
    (void)name;
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL) return NULL;
    PyObject *array = PyObject_CallMethod(numpy, "from_dlpack", "O", object);
    Py_DECREF(numpy);
    return array;
}

static int is_exact_number(PyObject *object) { return PyFloat_CheckExact(object) || PyLong_CheckExact(object); }

/* 1 for a tensor of torch's bfloat16, or a list that holds one; -1 on error. */
static int holds_bfloat16_tensor(PyObject *object, int depth)
{
    if (is_exact_number(object) || PyArray_Check(object)) return 0;
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
        int holds = 0;
        for (Py_ssize_t n = 0; depth < NPY_MAXDIMS && holds == 0 && n < PySequence_Fast_GET_SIZE(object); n++) {
            PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(object, n)); /* its attributes may change the list */
            holds = holds_bfloat16_tensor(item, depth + 1);
            Py_DECREF(item);
        }
        return holds;
    }
    return is_bfloat16_tensor(object);
}

PyObject *pyattn_cast(PyObject *object, const char *name, const char *part, const char *type)
{
    const int own = has_attribute(object, "astype"), bfloat16 = own == 0 ? holds_bfloat16_tensor(object, 0) : 0;
    if (own < 0 || bfloat16 < 0) return NULL;
    if (own) return PyUnicode_FromFormat("%s%s.astype(%s)", name, part, type);
    if (*part != '\0') return PyUnicode_FromFormat("numpy.asarray(%s)%s.astype(%s)", name, part, type);
    const int listed = bfloat16 && (PyList_CheckExact(object) || PyTuple_CheckExact(object));
    return PyUnicode_FromFormat("numpy.asarray(%s%s, %s)%s", name, bfloat16 && !listed ? ".float()" : "", type,
                                listed ? " of tensors converted with .float()" : "");
}

static PyObject *from_bfloat16_tensor(PyObject *object, const char *name)
{
    PyObject *module = PyImport_ImportModule("pyattn._util.halves");
    PyObject *array = module ? PyObject_CallMethod(module, "of_tensor", "(Os)", object, name) : NULL;
    Py_XDECREF(module);
    return array;
}

/* "; pass NAME.float()" for a tensor of a dtype that NumPy lacks, such as float8; else "". NULL with an exception. */
static PyObject *tensor_fix(PyObject *object, const char *name)
{
    PyObject *dtype = optional_attribute(object, "dtype"), *size = NULL;
    int narrow = 0;
    if (dtype != NULL) size = optional_attribute(dtype, "itemsize");
    if (size != NULL && PyLong_Check(size)) narrow = PyLong_AsLong(size) < 4;
    Py_XDECREF(dtype);
    Py_XDECREF(size);
    if (narrow && !PyErr_Occurred()) narrow = has_attribute(object, "float");
    if (PyErr_Occurred()) return NULL;
    return narrow ? PyUnicode_FromFormat("; pass %s.float()", name) : PyUnicode_FromString("");
}

/* Whether a message names the argument, or an item of it, already. */
static int is_named(PyObject *said, const char *name)
{
    const char *text = PyUnicode_IS_ASCII(said) ? PyUnicode_AsUTF8(said) : "";
    const size_t length = strlen(name);
    return strncmp(text, name, length) == 0 && (text[length] == ' ' || text[length] == '[');
}

/* Makes the current exception the cause of a TypeError or ValueError that names the argument. The original class is not
 * used, as its constructor may need other arguments than a message. */
static void name_complaint(PyObject *object, const char *name)
{
    PyObject *type, *cause, *trace, *value;
    PyErr_Fetch(&type, &cause, &trace);
    PyErr_NormalizeException(&type, &cause, &trace);
    if (PyErr_GivenExceptionMatches(type, PyExc_MemoryError)) { /* no memory for another exception */
        PyErr_Restore(type, cause, trace);
        return;
    }
    if (trace != NULL) PyException_SetTraceback(cause, trace);
    PyObject *said = PyObject_Str(cause), *fix = said == NULL ? NULL : tensor_fix(object, name);
    PyObject *kind = PyErr_GivenExceptionMatches(type, PyExc_ValueError) ? PyExc_ValueError : PyExc_TypeError;
    if (fix != NULL && PyUnicode_IS_ASCII(said) && strstr(PyUnicode_AsUTF8(said), "inhomogeneous") != NULL)
        PyErr_Format(kind, "%s has rows of different lengths; pad them to one length (attention takes key_lengths)",
                     name);
    else if (fix != NULL && is_named(said, name))
        PyErr_SetObject(kind, said);
    else if (fix != NULL)
        PyErr_Format(kind, "%s is not an array of numbers: %U%U", name, said, fix);
    Py_XDECREF(fix);
    Py_XDECREF(said);
    Py_XDECREF(type);
    Py_XDECREF(trace);

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyException_SetContext(value, Py_NewRef(cause));
    PyException_SetCause(value, cause);
    PyErr_Restore(type, value, trace);
}

/* Converts an object by `read`. A masked array or matrix returned by __array__ is refused, too. */
static PyArrayObject *from_any(PyObject *object, const char *name, PyObject *(*read)(PyObject *, const char *))
{
    PyObject *array = read(object, name);
    if (array == NULL && (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_TypeError) ||
                          PyErr_ExceptionMatches(PyExc_RuntimeError)))
        name_complaint(object, name);
    if (array == NULL || PyArray_CheckExact(array)) return (PyArrayObject *)array;
    char text[100];
    snprintf(text, sizeof text, "numpy.asanyarray(%.60s)", name);
    const int refused = refuse_other(array, text);
    Py_SETREF(array, refused < 0 ? NULL : PyArray_EnsureArray(Py_NewRef(array)));
    return (PyArrayObject *)array;
}

/* A list of objects as a list of its own, at any depth. NumPy borrows the items of a list, and crashes when the
 * `__array__` of one changes the list. Plain numbers run no Python code: a list of them stays. New reference. */
static PyObject *unshared(PyObject *object, int depth)
{
    Py_ssize_t n = 0;
    if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) return Py_NewRef(object);
    while (n < PySequence_Fast_GET_SIZE(object) && is_exact_number(PySequence_Fast_GET_ITEM(object, n))) n++;
    if (n == PySequence_Fast_GET_SIZE(object) || depth == NPY_MAXDIMS) return Py_NewRef(object);
    PyObject *list = PySequence_List(object);
    for (n = 0; list != NULL && n < PyList_GET_SIZE(list); n++) {
        PyObject *item = unshared(PyList_GET_ITEM(list, n), depth + 1);
        if (item == NULL || PyList_SetItem(list, n, item) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *from_numpy(PyObject *object, const char *name)
{
    (void)name;
    PyObject *own = unshared(object, 0), *array = own ? PyArray_FROM_O(own) : NULL;
    Py_XDECREF(own);
    return array;
}

static PyArrayObject *from_foreign(PyObject *object, const char *name)
{
    const int plain = PyList_CheckExact(object) || PyTuple_CheckExact(object) || is_exact_number(object);
    Py_ssize_t place[NPY_MAXDIMS];
    if (refuse_other_items(object, name, place, 0) < 0) return NULL;
    if (!plain && refuse_foreign(object, name) < 0) return NULL;
    const int bfloat16 = holds_bfloat16_tensor(object, 0), dlpack = bfloat16 == 0 && !plain ? only_dlpack(object) : 0;
    if (bfloat16 < 0 || dlpack < 0) return NULL;
    return from_any(object, name, bfloat16 ? from_bfloat16_tensor : dlpack ? from_dlpack : from_numpy);
}

/* 1 for a number that fits a NumPy dtype, so that it did not cause the object array. */
static int is_plain_number(PyObject *item)
{
    int overflow = 0;
    if (PyLong_Check(item)) PyLong_AsLongLongAndOverflow(item, &overflow);
    if (PyArray_IsScalar(item, Integer) || PyArray_IsScalar(item, Floating) || PyArray_IsScalar(item, Bool)) return 1;
    return PyFloat_Check(item) || (PyLong_Check(item) && overflow == 0);
}

/* The first item of an object array that is not a number; else the first number without a NumPy dtype, such as a
 * Fraction. NULL when every item has a dtype, or with an exception. New reference. */
static PyObject *odd_item(PyArrayObject *array)
{
    PyArrayObject *flat = (PyArrayObject *)PyArray_Ravel(array, NPY_CORDER);
    PyObject *odd = NULL;
    for (npy_intp n = 0; flat != NULL && n < PyArray_SIZE(flat); n++) {
        PyObject *item = PyArray_GETITEM(flat, PyArray_GETPTR1(flat, n));
        const int number = item != NULL && PyNumber_Check(item);
        if (!number || (odd == NULL && !is_plain_number(item))) Py_XSETREF(odd, Py_XNewRef(item));
        Py_XDECREF(item);
        if (!number) break;
    }
    Py_XDECREF(flat);
    return odd;
}

PyObject *pyattn_what_came(PyArrayObject *array, PyObject *object, int *numbers)
{
    PyObject *odd = NULL, *text = NULL;
    *numbers = 1;
    if (!PyArray_CheckExact(object) && PyArray_TYPE(array) == NPY_OBJECT) {
        odd = odd_item(array);
        if (PyErr_Occurred()) return NULL;
    }
    if (odd != NULL) *numbers = PyNumber_Check(odd);
    if (odd == NULL)
        text = PyUnicode_FromFormat("has dtype %S", PyArray_DESCR(array));
    else if (PyLong_Check(odd))
        text = PyUnicode_FromFormat("holds an int of more than 64 bits");
    else
        text = PyUnicode_FromFormat("%s an object of type %s", odd == object ? "is" : "holds", Py_TYPE(odd)->tp_name);
    Py_XDECREF(odd);
    return text;
}

/* Refuses object arrays with items that are not numbers. Callers refuse the others, and know the dtype to cast to. */
static int refuse_objects(PyArrayObject *array, PyObject *object, const char *name)
{
    int numbers;
    PyObject *came = pyattn_what_came(array, object, &numbers);
    if (came != NULL && !numbers) PyErr_Format(PyExc_TypeError, "%s %U, expected an array of numbers", name, came);
    Py_XDECREF(came);
    return came != NULL && numbers ? 0 : -1;
}

PyArrayObject *pyattn_as_array(PyObject *object, const char *name)
{
    PyArrayObject *array;
    if (PyArray_CheckExact(object)) return (PyArrayObject *)Py_NewRef(object);
    if (PyArray_Check(object))
        array = refuse_other(object, name) < 0 ? NULL : (PyArrayObject *)PyArray_EnsureArray(Py_NewRef(object));
    else
        array = from_foreign(object, name);
    if (array != NULL && PyArray_TYPE(array) == NPY_OBJECT && refuse_objects(array, object, name) < 0) Py_CLEAR(array);
    return array;
}
