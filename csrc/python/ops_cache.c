/* pyattn._core.new_page and append_to_pages: allocates pages of a KV cache, and writes keys and values to them.
 * pyattn/cache calls them.
 */
#include "options.h"
#include "pages.h"

enum { CACHE, KEY, VALUE, LAYOUT, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"cache", "key", "value", "layout"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"append_to_pages", ARGUMENTS,      ARGUMENTS,
                                           ARGUMENTS,         argument_names, interned_names};

enum { WORTH_THE_GIL = 1 << 18 }; /* elements: a tenth of a millisecond of copying */

/* All objects that a call owns. */
typedef struct {
    pyattn_cache_use use;
    PyArrayObject *rows[2];
} owned;

static void release(owned *o)
{
    pyattn_release_cache_use(&o->use);
    Py_XDECREF(o->rows[0]);
    Py_XDECREF(o->rows[1]);
}

static attn_status append(const owned *o, attn_layout layout, attn_error *error)
{
    const attn_tensor rows[] = {pyattn_tensor(o->rows[0]), pyattn_tensor(o->rows[1])};
    attn_status status;
    const attn_cache *cache = &o->use.pages.cache;
    const ptrdiff_t *first = o->use.positions, *count = first + cache->batches;
    const int is_long = PyArray_SIZE(o->rows[0]) >= WORTH_THE_GIL || PyArray_SIZE(o->rows[1]) >= WORTH_THE_GIL;
    PYATTN_RUN(status, is_long, attn_cache_append(cache, first, count, rows[0], rows[1], layout, error));
    return status;
}

static PyObject *append_to_pages(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.rows = {NULL, NULL}};
    attn_error error;
    (void)self;
    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    const int bshd = pyattn_choice(values[LAYOUT], "layout", "bhsd", "bshd");
    if (bshd < 0) return NULL;

    if (pyattn_as_reals(values + KEY, argument_names + KEY, 2, 2, o.rows) < 0) goto done;
    if (pyattn_convert_cache_use(values[CACHE], &o.use) < 0) goto done;
    if (o.use.positions == NULL) {
        PyErr_SetString(PyExc_ValueError, "first and new are missing: pass the position and number of new rows");
        goto done;
    }
    if (pyattn_fill_pages(&o.use.pages) < 0) goto done;
    const attn_status status = append(&o, bshd ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD, &error);
    result = status == ATTN_OK ? Py_NewRef(Py_None) : pyattn_raise(status, &error);

done:
    release(&o);
    return result;
}

/* new_page(elements, dtype): zeros, aligned to a cache line inside a larger array. */
static PyObject *new_page(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    enum { LINE = 64 };
    Py_ssize_t elements;
    (void)self;
    if (nargs > 0 && pyattn_size(args[0], "elements", &elements) < 0) return NULL;
    PyArray_Descr *const dtype = nargs == 2 && PyArray_DescrCheck(args[1]) ? (PyArray_Descr *)args[1] : NULL;
    const int type = dtype == NULL ? -1 : pyattn_dtype_of(dtype);
    if (type != ATTN_F16 && type != ATTN_BF16 && type != ATTN_F32 && type != ATTN_F64) {
        PyErr_SetString(PyExc_TypeError, "new_page(elements: int, dtype: float16, bfloat16, float32 or float64)");
        return NULL;
    }
    const npy_intp size = PyDataType_ELSIZE(dtype), spare = LINE / size;
    const npy_intp all = elements < NPY_MAX_INTP - spare ? elements + spare : elements;
    Py_INCREF(dtype); /* for the memory */
    Py_INCREF(dtype); /* for the page */
    PyArrayObject *const memory = (PyArrayObject *)PyArray_Zeros(1, &all, dtype, 0);
    if (memory == NULL) {
        Py_DECREF(dtype);
        return NULL;
    }
    char *const start = (char *)(((uintptr_t)PyArray_DATA(memory) + LINE - 1) & ~(uintptr_t)(LINE - 1));
    PyArrayObject *page =
        (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, dtype, 1, &elements, NULL, start, NPY_ARRAY_CARRAY, NULL);
    if (page != NULL && PyArray_SetBaseObject(page, Py_NewRef((PyObject *)memory)) < 0) Py_CLEAR(page);
    Py_DECREF(memory);
    return (PyObject *)page;
}

PyMethodDef pyattn_cache_methods[] = {
    {"new_page", (PyCFunction)(void (*)(void))new_page, METH_FASTCALL,
     "new_page($module, elements, dtype, /)\n--\n\nZeros that begin at a cache line."},
    {"append_to_pages", (PyCFunction)(void (*)(void))append_to_pages, METH_FASTCALL | METH_KEYWORDS,
     "append_to_pages($module, cache, key, value, layout)\n--\n\n"
     "Write rows of keys and values into pages. See pyattn.KVCache.append."},
    {NULL, NULL, 0, NULL},
};
