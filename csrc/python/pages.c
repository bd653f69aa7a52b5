/* Converts lists of ndarrays to page tables. See pages.h. */
#include "pages.h"

int pyattn_size(PyObject *object, const char *name, Py_ssize_t *size)
{
    if (pyattn_integer(object, name, "an int", size) < 0) return -1;
    if (*size >= 0) return 0;
    PyErr_Format(PyExc_ValueError, "%s is %zd, expected 0 or more", name, *size);
    return -1;
}

static PyObject *as_tuple(PyObject *object)
{
    if (PyList_Check(object) || PyTuple_Check(object)) return PySequence_Tuple(object);
    PyErr_Format(PyExc_TypeError, "pages is of type %s, expected a list of lists of arrays", Py_TYPE(object)->tp_name);
    return NULL;
}

/* Copies the tables to a tuple of tuples, which holds references to the pages. */
static PyObject *hold(PyObject *tables)
{
    PyObject *outer = as_tuple(tables), *held = outer ? PyTuple_New(PyTuple_GET_SIZE(outer)) : NULL;
    for (Py_ssize_t b = 0; held != NULL && b < PyTuple_GET_SIZE(outer); b++) {
        PyObject *inner = as_tuple(PyTuple_GET_ITEM(outer, b));
        if (inner == NULL)
            Py_CLEAR(held);
        else
            PyTuple_SET_ITEM(held, b, inner);
    }
    Py_XDECREF(outer);
    return held;
}

/* The address of a page, or NULL with an exception. */
static void *address_of(PyObject *object, attn_dtype dtype, npy_intp elements)
{
    PyArrayObject *page = (PyArrayObject *)object;
    if (PyArray_CheckExact(object) && pyattn_dtype(page) == (int)dtype && PyArray_ISCARRAY(page) &&
        PyArray_SIZE(page) == elements)
        return PyArray_DATA(page);
    PyErr_Format(PyExc_ValueError, "a page must be a contiguous array of %zd elements of the cache's dtype", elements);
    return NULL;
}

/* tables is a list or tuple of lists or tuples of pages, one for each batch entry; a page is a contiguous 1-d array of
 * `dtype`. The caller sets cache.length. Returns -1 with an exception; the caller must release `pages` in any case. */
static int convert_pages(PyObject *tables, attn_dtype dtype, const ptrdiff_t sizes[3], pyattn_pages *pages)
{
    attn_cache *c = &pages->cache;
    ptrdiff_t columns, elements;
    if ((pages->held = hold(tables)) == NULL) return -1;
    *c = (attn_cache){.dtype = dtype, .batches = PyTuple_GET_SIZE(pages->held)};
    c->kv_heads = sizes[0], c->head_dim = sizes[1], c->v_dim = sizes[2];
    if (__builtin_add_overflow(c->head_dim, c->v_dim, &columns) ||
        __builtin_mul_overflow(columns, c->kv_heads, &elements) ||
        __builtin_mul_overflow(elements, (ptrdiff_t)ATTN_PAGE_KEYS, &elements)) {
        PyErr_SetString(PyExc_ValueError, "a page is too large for memory");
        return -1;
    }

    size_t total = 0;
    for (ptrdiff_t b = 0; b < c->batches; b++) total += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(pages->held, b));
    pages->counts = PyMem_Malloc((2 * (size_t)c->batches + total + 1) * sizeof(ptrdiff_t)); /* sizeof(void *) */
    if (pages->counts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pages->elements = elements;
    return 0;
}

int pyattn_fill_pages(pyattn_pages *pages)
{
    attn_cache *c = &pages->cache;
    if (pages->held == NULL) return 0;
    void ***const starts = (void ***)(void *)(pages->counts + c->batches);
    void **next = (void **)(starts + c->batches);
    for (ptrdiff_t b = 0; b < c->batches; b++) {
        PyObject *const table = PyTuple_GET_ITEM(pages->held, b);
        pages->counts[b] = PyTuple_GET_SIZE(table);
        starts[b] = next;
        for (ptrdiff_t n = 0; n < pages->counts[b]; n++)
            if ((*next++ = address_of(PyTuple_GET_ITEM(table, n), c->dtype, pages->elements)) == NULL) return -1;
    }
    c->pages = (void *const *const *)starts;
    c->page_count = pages->counts;
    return 0;
}

static void release_pages(pyattn_pages *pages)
{
    PyMem_Free(pages->counts);
    Py_XDECREF(pages->held);
}

/* Converts a tuple of `batches` ints. */
static int convert_positions(PyObject *object, const char *name, ptrdiff_t batches, ptrdiff_t *positions)
{
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != batches) {
        PyErr_Format(PyExc_ValueError, "%s must be a tuple of %zd ints", name, batches);
        return -1;
    }
    for (ptrdiff_t b = 0; b < batches; b++)
        if (pyattn_size(PyTuple_GET_ITEM(object, b), name, &positions[b]) < 0) return -1;
    return 0;
}

int pyattn_convert_cache_use(PyObject *given, pyattn_cache_use *use)
{
    enum { PAGES, DTYPE, KV_HEADS, HEAD_DIM, V_HEAD_DIM, LENGTH, START, FIRST, NEW, MEMBERS };
    static const char *const names[MEMBERS] = {"pages",  "dtype", "kv_heads", "head_dim", "v_head_dim",
                                               "length", "start", "first",    "new"};
    ptrdiff_t sizes[FIRST];
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != MEMBERS) {
        PyErr_Format(PyExc_TypeError, "the cache argument must be a tuple of %d items", MEMBERS);
        return -1;
    }
    for (int n = KV_HEADS; n < FIRST; n++)
        if (pyattn_size(PyTuple_GET_ITEM(given, n), names[n], &sizes[n]) < 0) return -1;
    PyObject *const described = PyTuple_GET_ITEM(given, DTYPE);
    const int dtype = PyArray_DescrCheck(described) ? pyattn_dtype_of((PyArray_Descr *)described) : -1;
    if (dtype < 0) {
        PyErr_Format(PyExc_TypeError, "dtype is %.100R, expected the dtype of the pages", described);
        return -1;
    }
    if (convert_pages(PyTuple_GET_ITEM(given, PAGES), (attn_dtype)dtype, sizes + KV_HEADS, &use->pages) < 0) return -1;
    use->pages.cache.length = sizes[LENGTH];
    use->start = sizes[START];
    if (PyTuple_GET_ITEM(given, FIRST) == Py_None) return 0;

    const ptrdiff_t batches = use->pages.cache.batches;
    if ((use->positions = PyMem_Malloc((2 * (size_t)batches + 1) * sizeof *use->positions)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int n = FIRST; n <= NEW; n++)
        if (convert_positions(PyTuple_GET_ITEM(given, n), names[n], batches, use->positions + (n - FIRST) * batches) <
            0)
            return -1;
    return 0;
}

void pyattn_release_cache_use(pyattn_cache_use *use)
{
    release_pages(&use->pages);
    PyMem_Free(use->positions);
}

void pyattn_use_cache(const pyattn_cache_use *use, attn_args *args)
{
    if (use->pages.held == NULL) return;
    args->cache = &use->pages.cache;
    args->query_start = args->key_start = use->start; /* queries and keys both count from there */
}

int pyattn_fill_cache(pyattn_cache_use *use, attn_multihead_args *args)
{
    pyattn_use_cache(use, &args->attention);
    args->cache_first = use->positions;
    args->cache_count = use->positions ? use->positions + use->pages.cache.batches : NULL;
    return pyattn_fill_pages(&use->pages);
}
