/* The pages of a cache: ndarrays in Python, addresses in the core. */
#ifndef PYATTN_PAGES_H
#define PYATTN_PAGES_H

#include "convert.h"

/* What a call holds of a cache while it runs: another thread may drop pages meanwhile. */
typedef struct {
    attn_cache cache;
    PyObject *held;    /* a tuple of each batch entry's pages */
    ptrdiff_t *counts; /* (batches), and behind them the tables; released with PyMem_Free */
} pyattn_pages;

/* tables: a list or tuple of lists or tuples of pages, one for each batch entry; a page is a contiguous array of `dtype`
 * that has one axis. cache.length is left to the caller. Returns -1 with an exception; what is in pages then is the
 * caller's, too. */
int pyattn_convert_pages(PyObject *tables, attn_dtype dtype, const ptrdiff_t sizes[3], pyattn_pages *pages);
void pyattn_release_pages(pyattn_pages *pages);

/* What a call does with a cache: a tuple (pages, kv_heads, head_dim, v_head_dim, length, start, first, new). `start` is
 * the position of the first page's first row; first and new, tuples of ints, say where new rows go, counted from
 * there, and how many, or are None: none come. */
typedef struct {
    pyattn_pages pages;
    ptrdiff_t start, *positions; /* positions (2, batches): first, new; NULL where none come */
} pyattn_cache_use;

/* Returns -1 with an exception; what is in `use` then is the caller's, too. */
int pyattn_convert_cache_use(PyObject *given, attn_dtype dtype, pyattn_cache_use *use);
void pyattn_release_cache_use(pyattn_cache_use *use);
/* Makes attention read it, and multi-head attention write to it first; where there is no use of one, nothing. */
void pyattn_use_cache(const pyattn_cache_use *use, attn_args *args);
void pyattn_fill_cache(const pyattn_cache_use *use, attn_multihead_args *args);

/* An int of 0 or more. Returns -1 with an exception. */
int pyattn_size(PyObject *object, const char *name, Py_ssize_t *size);

#endif
