/* The pages of a cache: ndarrays in Python, addresses in the core. */
#ifndef PYATTN_PAGES_H
#define PYATTN_PAGES_H

#include "convert.h"

/* The pages that a call uses, with references to them, as another thread may drop pages meanwhile. */
typedef struct {
    attn_cache cache;
    PyObject *held;    /* a tuple of each batch entry's pages; NULL without a cache */
    ptrdiff_t elements; /* of a page */
    ptrdiff_t *counts; /* (batches), followed by the tables; released with PyMem_Free */
} pyattn_pages;

/* Looks up the pages' addresses, after the last Python code of a call has run. Returns -1 with an exception. */
int pyattn_fill_pages(pyattn_pages *pages);

/* A call's use of a cache: a tuple (pages, dtype, kv_heads, head_dim, v_head_dim, length, start, first, new). `start`
 * is the position of the first row of the first page. `first` and `new` are tuples of ints, the position of new rows
 * relative to start and their number, or None without new rows. */
typedef struct {
    pyattn_pages pages;
    ptrdiff_t start, *positions; /* positions (2, batches): first, new; NULL without new rows */
} pyattn_cache_use;

/* Returns -1 with an exception; the caller must release `use` in any case. */
int pyattn_convert_cache_use(PyObject *given, pyattn_cache_use *use);
void pyattn_release_cache_use(pyattn_cache_use *use);
/* Makes attention read the cache, and multi-head attention write to it first. Does nothing without a cache. */
void pyattn_use_cache(const pyattn_cache_use *use, attn_args *args);
int pyattn_fill_cache(pyattn_cache_use *use, attn_multihead_args *args); /* pyattn_fill_pages, too */

/* Converts an int of 0 or more. Returns -1 with an exception. */
int pyattn_size(PyObject *object, const char *name, Py_ssize_t *size);

#endif
