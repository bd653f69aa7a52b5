/* ndarray <-> tensor, status -> exception. See convert.h. */
#include "convert.h"

_Static_assert(sizeof(npy_intp) == sizeof(ptrdiff_t), "shapes and strides are passed to the core as they are");

/* A view of an array with other dimensions and strides. New reference. */
static PyArrayObject *view_of(PyArrayObject *array, int axes, const npy_intp *dims, const npy_intp *strides)
{
    PyArray_Descr *descr = PyArray_DESCR(array);
    Py_INCREF(descr);
    PyArrayObject *view = (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, descr, axes, dims, strides,
                                                                PyArray_DATA(array), 0, NULL);
    if (view != NULL && PyArray_SetBaseObject(view, Py_NewRef((PyObject *)array)) < 0) Py_CLEAR(view);
    return view;
}

/* Converts broadcast axes once and broadcasts the result, so that a small mask stays small. While NumPy converts, other
 * threads may run, and a warning's hook: the shape is the one from before. */
static PyArrayObject *converted(PyArrayObject *array, int typenum)
{
    npy_intp shape[NPY_MAXDIMS], dims[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    const int axes = PyArray_NDIM(array);
    for (int n = 0; n < axes; n++) {
        shape[n] = PyArray_DIM(array, n);
        dims[n] = PyArray_STRIDE(array, n) == 0 && shape[n] > 1 ? 1 : shape[n];
    }

    PyArrayObject *narrow = view_of(array, axes, dims, PyArray_STRIDES(array)), *wide = NULL;
    if (narrow == NULL) return NULL;
    Py_SETREF(narrow,
              (PyArrayObject *)PyArray_FromArray(narrow, PyArray_DescrFromType(typenum),
                                                 NPY_ARRAY_ALIGNED | NPY_ARRAY_NOTSWAPPED | NPY_ARRAY_FORCECAST));
    if (narrow == NULL) return NULL;
    for (int n = 0; n < axes; n++) strides[n] = dims[n] == shape[n] ? PyArray_STRIDE(narrow, n) : 0;
    wide = view_of(narrow, axes, shape, strides);
    Py_DECREF(narrow);
    return wide;
}

PyArrayObject *pyattn_well_behaved(PyArrayObject *array, int typenum)
{
    if (PyArray_TYPE(array) == typenum && PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array))
        return (PyArrayObject *)Py_NewRef((PyObject *)array);
    return converted(array, typenum);
}

/* Whether a dtype is bfloat16, which NumPy knows by its name alone. */
static int is_bfloat16(const PyArray_Descr *dtype)
{
    if (!PyTypeNum_ISUSERDEF(dtype->type_num) || PyDataType_ELSIZE(dtype) != 2) return 0;
    const char *name = dtype->typeobj->tp_name, *dot = strrchr(name, '.');
    return strcmp(dot ? dot + 1 : name, "bfloat16") == 0;
}

static int is_half(PyArrayObject *array)
{
    return PyArray_TYPE(array) == NPY_HALF || is_bfloat16(PyArray_DESCR(array));
}

#define REALS "float16, bfloat16, float32 or float64"

int pyattn_real_type(PyArrayObject *array, PyObject *object, const char *name)
{
    const int type = PyArray_TYPE(array);
    if (type == NPY_FLOAT || is_half(array)) return type;
    if (type == NPY_DOUBLE || PyTypeNum_ISINTEGER(type) || PyTypeNum_ISBOOL(type)) return NPY_DOUBLE;
    const int wide = type == NPY_LONGDOUBLE || type == NPY_CDOUBLE || type == NPY_OBJECT;
    int numbers;
    if (PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is a string: pass an array of numbers; for a file's name, numpy.load(%s)",
                     name, name);
        return -1;
    }
    PyObject *fix = type == NPY_VOID && PyArray_ITEMSIZE(array) == 2 /* what NumPy makes of bfloat16 in a file */
                        ? PyUnicode_FromFormat("%s.view(ml_dtypes.bfloat16)", name)
                        : pyattn_cast(object, name, PyTypeNum_ISCOMPLEX(type) ? ".real" : "",
                                      wide ? "numpy.float64" : "numpy.float32");
    const int text = type == NPY_UNICODE || type == NPY_STRING || type == NPY_VSTRING;
    if (fix != NULL && text)
        PyErr_Format(PyExc_TypeError,
                     "%s holds text (dtype %S): turn it into numbers first, such as a vector for each word; if it "
                     "spells numbers, pass %U",
                     name, PyArray_DESCR(array), fix);
    PyObject *came = fix == NULL || text ? NULL : pyattn_what_came(array, object, &numbers);
    if (came != NULL) PyErr_Format(PyExc_TypeError, "%s %U, expected " REALS "; pass %U", name, came, fix);
    Py_XDECREF(came);
    Py_XDECREF(fix);
    return -1;
}

int pyattn_check_axes(PyArrayObject *array, const char *name)
{
    if (PyArray_NDIM(array) <= ATTN_MAX_AXES) return 0;
    PyErr_Format(PyExc_ValueError, "%s has %d axes, expected at most %d", name, PyArray_NDIM(array),
                 (int)ATTN_MAX_AXES);
    return -1;
}

int pyattn_exceeds(PyObject *object, int most)
{
    if (PyArray_Check(object)) return PyArray_NDIM((PyArrayObject *)object) > most;
    if (PyList_Check(object) || PyTuple_Check(object)) return 0;
    PyObject *ndim = PyObject_GetAttrString(object, "ndim"); /* of a tensor of another library */
    const int exceeds = ndim != NULL && PyLong_Check(ndim) && PyLong_AsLong(ndim) > most;
    Py_XDECREF(ndim);
    if (ndim == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
    return PyErr_Occurred() ? -1 : exceeds;
}

PyObject *pyattn_merge_axes(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *module = PyImport_ImportModule("pyattn.functional._many_axes");
    PyObject *merging = module ? PyObject_GetAttrString(module, function) : NULL;
    PyObject *result = merging ? PyObject_Vectorcall(merging, args, (size_t)nargs, kwnames) : NULL;
    Py_XDECREF(merging);
    Py_XDECREF(module);
    return result;
}

static int refuse_both_halves(PyArrayObject *one, const char *name, PyArrayObject *other, const char *other_name)
{
    PyErr_Format(PyExc_TypeError, "%s has dtype %S and %s %S; convert one of them, or both to float32", name,
                 PyArray_DESCR(one), other_name, PyArray_DESCR(other));
    return -1;
}

int pyattn_as_reals(PyObject *const *objects, const char *const *names, int count, int required, PyArrayObject **arrays)
{
    int type = NPY_FLOAT, half = -1;
    for (int n = 0; n < count; n++) {
        if (n >= required && !pyattn_given(objects[n])) continue;
        if ((arrays[n] = pyattn_as_array(objects[n], names[n])) == NULL) return -1;
        if (pyattn_check_axes(arrays[n], names[n]) < 0) return -1;
        if (PyArray_TYPE(arrays[n]) == NPY_FLOAT) continue;
        const int own = pyattn_real_type(arrays[n], objects[n], names[n]);
        if (own < 0) return -1;
        if (own == NPY_DOUBLE) {
            type = NPY_DOUBLE;
            continue;
        }
        if (half >= 0 && PyArray_TYPE(arrays[half]) != own)
            return refuse_both_halves(arrays[half], names[half], arrays[n], names[n]);
        half = n;
    }
    for (int n = 0; n < count; n++) {
        if (arrays[n] == NULL) continue;
        const int keeps = half >= 0 && type == NPY_FLOAT && is_half(arrays[n]);
        PyArrayObject *array = pyattn_well_behaved(arrays[n], keeps ? PyArray_TYPE(arrays[n]) : type);
        Py_SETREF(arrays[n], array);
        if (array == NULL) return -1;
    }
    return 0;
}

PyArrayObject *pyattn_widest(PyArrayObject *const *arrays, int count)
{
    for (int n = 0; n < count; n++)
        if (arrays[n] != NULL && !is_half(arrays[n])) return arrays[n];
    return arrays[0];
}

/* 1 when an array of objects holds an int outside int64, -1 on error. */
static int holds_large_int(PyArrayObject *objects)
{
    PyArrayObject *flat = (PyArrayObject *)PyArray_Ravel(objects, NPY_CORDER);
    int overflow = 0;
    if (flat == NULL) return -1;
    for (npy_intp n = 0; overflow == 0 && n < PyArray_SIZE(flat); n++) {
        PyObject *item = *(PyObject **)PyArray_GETPTR1(flat, n); /* NULL stands for None */
        if (item != NULL && PyLong_Check(item)) PyLong_AsLongLongAndOverflow(item, &overflow);
    }
    Py_DECREF(flat);
    return overflow != 0;
}

/* Refuses numbers outside int64; floats, too, as NumPy reads [2**63, 2] as floats. Returns -1 with a ValueError. */
static int check_largest(PyArrayObject *integers, const char *name)
{
    const int type = PyArray_TYPE(integers), large = type == NPY_OBJECT ? holds_large_int(integers) : 0;
    if (large > 0) PyErr_Format(PyExc_ValueError, "%s holds an int that is too large for int64", name);
    if (large != 0) return -1;
    if (PyArray_SIZE(integers) == 0 || !(PyTypeNum_ISUNSIGNED(type) || PyTypeNum_ISFLOAT(type))) return 0;
    PyObject *largest = PyArray_Max(integers, NPY_RAVEL_AXIS, NULL);
    const double number = largest == NULL ? -1 : PyFloat_AsDouble(largest);
    if (number >= 0x1p63) PyErr_Format(PyExc_ValueError, "%s holds %S, which is out of range", name, largest);
    Py_XDECREF(largest);
    return PyErr_Occurred() ? -1 : 0;
}

int pyattn_as_integers(PyObject *object, const char *name, PyArrayObject **integers)
{
    if ((*integers = pyattn_as_array(object, name)) == NULL || check_largest(*integers, name) < 0) return -1;
    if (pyattn_check_axes(*integers, name) < 0) return -1;
    if (PyArray_TYPE(*integers) == NPY_BOOL && strstr(name, "lengths") != NULL) {
        PyErr_Format(PyExc_TypeError, "%s has dtype bool, expected integers: numbers of rows; a mask goes to attn_mask",
                     name);
        return -1;
    }
    if (!PyTypeNum_ISINTEGER(PyArray_TYPE(*integers)) && PyArray_SIZE(*integers) > 0) { /* [] is an array of floats */
        PyObject *fix = pyattn_cast(object, name, "", "numpy.int64");
        if (fix != NULL)
            PyErr_Format(PyExc_TypeError, "%s has dtype %S, expected integers; pass %U", name, PyArray_DESCR(*integers),
                         fix);
        Py_XDECREF(fix);
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)PyArray_FromArray(
        *integers, PyArray_DescrFromType(NPY_INT64), NPY_ARRAY_CARRAY | NPY_ARRAY_ENSURECOPY | NPY_ARRAY_FORCECAST);
    Py_SETREF(*integers, array);
    return array == NULL ? -1 : 0;
}

int pyattn_dtype_of(PyArray_Descr *dtype)
{
    switch (dtype->type_num) {
    case NPY_BOOL: return ATTN_BOOL;
    case NPY_HALF: return ATTN_F16;
    case NPY_FLOAT: return ATTN_F32;
    case NPY_DOUBLE: return ATTN_F64;
    case NPY_LONGDOUBLE: return ATTN_LONG_DOUBLE;
    case NPY_INT64: return ATTN_I64;
    default: return is_bfloat16(dtype) ? ATTN_BF16 : -1;
    }
}

int pyattn_dtype(PyArrayObject *array) { return pyattn_dtype_of(PyArray_DESCR(array)); }

int pyattn_stored_dtype(PyArrayObject *array)
{
    const int dtype = pyattn_dtype(array);
    return dtype == ATTN_F16 || dtype == ATTN_BF16 || dtype == ATTN_F32 || dtype == ATTN_F64 ? dtype : -1;
}

__attribute__((noinline)) void pyattn_clear(void *memory, size_t bytes) { memset(memory, 0, bytes); }

void pyattn_fill_given(attn_tensor *tensor, PyArrayObject *array)
{
    static const char name[] = "an array that changed during the call";
    const int dtype = PyArray_TYPE(array) == NPY_FLOAT ? (int)ATTN_F32 : pyattn_dtype(array);
    if (dtype < 0) PyErr_Format(PyExc_ValueError, "%s has dtype %S", name, PyArray_DESCR(array));
    if (dtype < 0 || pyattn_check_axes(array, name) < 0) return;
    tensor->data = PyArray_DATA(array);
    tensor->dtype = (attn_dtype)dtype;
    tensor->ndim = PyArray_NDIM(array);
    for (int n = 0; n < tensor->ndim; n++) {
        tensor->shape[n] = PyArray_DIM(array, n);
        tensor->strides[n] = PyArray_STRIDE(array, n);
    }
}

int pyattn_split_in_proj(attn_tensor *q, attn_tensor *k, attn_tensor *v, const char *name)
{
    if (q->ndim == 0 || q->shape[0] % 3 != 0 || k->data != NULL || v->data != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "%s stacks the rows of query, key and value: it must have a multiple of 3 rows, and has %zd", name,
                     q->ndim > 0 ? q->shape[0] : 0);
        return -1;
    }
    q->shape[0] /= 3;
    *k = *v = *q;
    k->data = (char *)q->data + q->shape[0] * q->strides[0];
    v->data = (char *)k->data + q->shape[0] * q->strides[0];
    return 0;
}

PyArrayObject *pyattn_new_array(int axes, const ptrdiff_t *shape, attn_dtype dtype)
{
    return (PyArrayObject *)PyArray_SimpleNew(axes, (const npy_intp *)shape,
                                              dtype == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT);
}

PyArrayObject *pyattn_new_like(int axes, const ptrdiff_t *shape, PyArrayObject *like)
{
    PyArray_Descr *descr = PyArray_DescrFromType(PyArray_TYPE(like)); /* native */
    return descr == NULL ? NULL : (PyArrayObject *)PyArray_SimpleNewFromDescr(axes, (const npy_intp *)shape, descr);
}

int pyattn_has_contiguous_rows(PyArrayObject *array)
{
    const int last = PyArray_NDIM(array) - 1;
    return PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array) &&
           (last < 0 || PyArray_DIM(array, last) <= 1 || PyArray_STRIDE(array, last) == PyArray_ITEMSIZE(array));
}

int pyattn_make_rows_contiguous(PyArrayObject **arrays, int count)
{
    for (int n = 0; n < count; n++) {
        if (arrays[n] == NULL || pyattn_has_contiguous_rows(arrays[n])) continue;
        Py_SETREF(arrays[n], (PyArrayObject *)PyArray_NewCopy(arrays[n], NPY_CORDER));
        if (arrays[n] == NULL) return -1;
    }
    return 0;
}

/* The address range [low, high) of an array; empty for an array without elements. */
static void extent(PyArrayObject *array, const char **low, const char **high)
{
    const char *from = PyArray_BYTES(array), *to = from + PyArray_ITEMSIZE(array);
    for (int axis = 0; axis < PyArray_NDIM(array); axis++) {
        const npy_intp reach = (PyArray_DIM(array, axis) - 1) * PyArray_STRIDE(array, axis);
        if (PyArray_DIM(array, axis) == 0) to = from;
        if (PyArray_DIM(array, axis) == 0) break;
        if (reach < 0)
            from += reach;
        else
            to += reach;
    }
    *low = from;
    *high = to;
}

/* 1 when the address ranges of both arrays overlap. */
static int may_overlap(PyArrayObject *a, PyArrayObject *b)
{
    const char *a_low, *a_high, *b_low, *b_high;
    extent(a, &a_low, &a_high);
    extent(b, &b_low, &b_high);
    return a_low < b_high && b_low < a_high;
}

int pyattn_check_out(PyObject *out)
{
    if (!pyattn_given(out)) return 0;
    if (!PyArray_Check(out)) {
        PyErr_Format(PyExc_TypeError, "out is of type %s, expected a numpy.ndarray", Py_TYPE(out)->tp_name);
        return -1;
    }
    const int other = pyattn_is_other_array(out);
    if (other > 0)
        PyErr_Format(PyExc_TypeError, "out is of type %s; pass a plain numpy.ndarray", Py_TYPE(out)->tp_name);
    return other == 0 ? 0 : -1;
}

/* 1 when strides alone show that no two elements overlap: in ascending order of strides, each axis steps over all
 * before it. This holds for every view made by indexing. 0 means unknown. */
static int has_nested_axes(PyArrayObject *array)
{
    npy_intp reach = PyArray_ITEMSIZE(array);
    uint64_t done = 0;
    for (int round = 0; round < PyArray_NDIM(array); round++) {
        int next = -1;
        for (int axis = 0; axis < PyArray_NDIM(array); axis++)
            if (!(done >> axis & 1) &&
                (next < 0 || Py_ABS(PyArray_STRIDE(array, axis)) < Py_ABS(PyArray_STRIDE(array, next))))
                next = axis;
        const npy_intp step = Py_ABS(PyArray_STRIDE(array, next)), size = PyArray_DIM(array, next);
        done |= (uint64_t)1 << next;
        if (size <= 1) continue;
        if (step < reach) return 0;
        reach += (size - 1) * step;
    }
    return 1;
}

static int compare_offsets(const void *a, const void *b)
{
    const npy_intp x = *(const npy_intp *)a, y = *(const npy_intp *)b;
    return (x > y) - (x < y);
}

/* 1 when two elements share memory, -1 with a MemoryError. For any strides: sorts the offsets of all elements. */
static int overlaps_itself(PyArrayObject *array)
{
    const npy_intp count = PyArray_SIZE(array), size = PyArray_ITEMSIZE(array);
    const int axes = PyArray_NDIM(array);
    npy_intp at = 0, index[NPY_MAXDIMS] = {0};
    const char *low, *high;
    int overlap = 0;
    if (count <= 1 || PyArray_IS_C_CONTIGUOUS(array) || has_nested_axes(array)) return 0;
    extent(array, &low, &high);
    if (count > (high - low) / size) return 1; /* too many elements for their address range */

    npy_intp *offsets = PyMem_Malloc((size_t)count * sizeof *offsets);
    if (offsets == NULL) return PyErr_NoMemory(), -1;
    for (npy_intp n = 0; n < count; n++) {
        offsets[n] = at;
        for (int axis = axes - 1; axis >= 0; axis--) { /* the next index, the last axis fastest */
            at += PyArray_STRIDE(array, axis);
            if (++index[axis] < PyArray_DIM(array, axis)) break;
            at -= PyArray_DIM(array, axis) * PyArray_STRIDE(array, axis);
            index[axis] = 0;
        }
    }
    qsort(offsets, (size_t)count, sizeof *offsets, compare_offsets);
    for (npy_intp n = 1; n < count && !overlap; n++) overlap = offsets[n] - offsets[n - 1] < size;
    PyMem_Free(offsets);
    return overlap;
}

int pyattn_check_fit(PyObject *given, int axes, const ptrdiff_t *shape, PyArrayObject *like)
{
    PyArrayObject *out = (PyArrayObject *)given;
    int same = PyArray_NDIM(out) == axes;
    for (int n = 0; same && n < axes; n++) same = PyArray_DIM(out, n) == shape[n];
    if (!same) {
        PyObject *expected = PyArray_IntTupleFromIntp(axes, (const npy_intp *)shape);
        PyObject *own = PyArray_IntTupleFromIntp(PyArray_NDIM(out), PyArray_DIMS(out));
        if (expected && own) PyErr_Format(PyExc_ValueError, "out has shape %R, expected %R", own, expected);
        Py_XDECREF(expected);
        Py_XDECREF(own);
        return -1;
    }
    if (PyArray_TYPE(out) != PyArray_TYPE(like)) {
        PyErr_Format(PyExc_ValueError, "out has dtype %S, expected %S", PyArray_DESCR(out), PyArray_DESCR(like));
        return -1;
    }
    if (!PyArray_ISWRITEABLE(out)) {
        PyErr_SetString(PyExc_ValueError, "out is read-only; pass an array that can be written");
        return -1;
    }
    const int overlap = overlaps_itself(out);
    if (overlap > 0)
        PyErr_SetString(PyExc_ValueError, "out overlaps itself: elements share memory; pass an array without overlap, "
                                          "such as numpy.empty_like(out)");
    return overlap == 0 ? 0 : -1;
}

PyArrayObject *pyattn_result(PyObject *out, int axes, const ptrdiff_t *shape, PyArrayObject *like,
                             PyArrayObject *const *inputs, int count)
{
    if (!pyattn_given(out)) return pyattn_new_like(axes, shape, like);
    if (pyattn_check_fit(out, axes, shape, like) < 0) return NULL;
    int apart = pyattn_has_contiguous_rows((PyArrayObject *)out);
    for (int n = 0; n < count; n++)
        if (inputs[n] && may_overlap((PyArrayObject *)out, inputs[n])) apart = 0;
    return apart ? (PyArrayObject *)Py_NewRef(out) : pyattn_new_like(axes, shape, like);
}

PyObject *pyattn_filled(PyObject *out, PyArrayObject *result)
{
    if (!pyattn_given(out) || out == (PyObject *)result) return Py_NewRef((PyObject *)result);
    return PyArray_CopyInto((PyArrayObject *)out, result) < 0 ? NULL : Py_NewRef(out);
}

PyObject *pyattn_raise(attn_status status, const attn_error *error)
{
    if (PyErr_Occurred()) return NULL; /* a signal handler's own exception */
    PyObject *type = status == ATTN_NO_MEMORY     ? PyExc_MemoryError
                     : status == ATTN_INTERRUPTED ? PyExc_KeyboardInterrupt
                                                  : PyExc_ValueError;
    const char *message = status == ATTN_INTERRUPTED ? "interrupted" : error->message;
    PyErr_Format(type, "%s", message); /* %s replaces a character that was cut in half */
    return NULL;
}
