/* ndarray <-> view, status -> exception. Everything that knows both NumPy and the core. */
#ifndef PYATTN_CONVERT_H
#define PYATTN_CONVERT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define PY_ARRAY_UNIQUE_SYMBOL pyattn_array_api
#ifndef PYATTN_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include "attn.h"

/* Multiply-adds, about, from which on a call lets other threads have the interpreter. */
enum { PYATTN_WORTH_THE_GIL = 200000 };

/* Any object as a plain ndarray of bools, integers or floats; a TypeError that says what to do for what has another
 * meaning (masked arrays, matrices, sparse arrays, tensors elsewhere). New reference. */
PyArrayObject *pyattn_as_array(PyObject *object, const char *name);

/* How the caller may write a cast of an object named `name`, of a part of it (".real", or ""): with its own astype, or
 * through numpy.asarray where it has none. `type` is like "numpy.float32". New reference to a str. */
PyObject *pyattn_cast(PyObject *object, const char *name, const char *part, const char *type);

/* What the caller's `object`, which is now `array`, is or holds instead of numbers of a dtype that is wanted: "has dtype
 * int64", "holds an object of type Fraction", "is an object of type NoneType". `numbers`: 0 where NumPy made objects of
 * what Python does not take for numbers, else 1. New reference to a str. */
PyObject *pyattn_what_came(PyArrayObject *array, PyObject *object, int *numbers);

/* 1 for a masked array, 2 for a matrix: subclasses whose numbers mean something else. 0 for others, -1 on error. */
int pyattn_is_other_array(PyObject *object);

/* An array as the core reads it: this dtype, aligned, native byte order. New reference; a copy only if it must be. */
PyArrayObject *pyattn_well_behaved(PyArrayObject *array, int typenum);

/* NPY_FLOAT or NPY_DOUBLE for an array of numbers (bool and integers: double), or -1 and a TypeError. `object` is what
 * the caller gave for it. */
int pyattn_real_type(PyArrayObject *array, PyObject *object, const char *name);

/* Objects as arrays of one dtype, promoted as NumPy promotes, read as the core reads; NULL for one after the first
 * `required` that is not given. Returns -1 with an exception; what is in arrays then is the caller's, too. */
int pyattn_as_reals(PyObject *const *objects, const char *const *names, int count, int required,
                    PyArrayObject **arrays);

/* An object as a C-contiguous array of int64 that is the caller's alone: integers that another thread changes after a check
 * would send the core anywhere. Returns -1 with an exception that names the argument. */
int pyattn_as_integers(PyObject *object, const char *name, PyArrayObject **integers);

attn_view pyattn_view(PyArrayObject *array);
attn_dtype pyattn_dtype(int typenum);
PyArrayObject *pyattn_new_array(int axes, const ptrdiff_t *shape, attn_dtype dtype);

/* 1 for an aligned array in native byte order with a contiguous last axis: one that the core writes into. */
int pyattn_has_contiguous_rows(PyArrayObject *array);

/* Copies those of the arrays that have no contiguous rows, as what is added on the way out is read a vector at a time; an
 * array may be NULL. Returns -1 with an exception. */
int pyattn_make_rows_contiguous(PyArrayObject **arrays, int count);

/* A TypeError for an `out` that is given and is not an ndarray. May run the caller's code, which may change any array: to
 * be called before views are taken. Returns -1 with an exception. */
int pyattn_check_out(PyObject *out);

/* The array that the core writes into, of the dtype of the first input: out itself where it was given (pyattn_check_out
 * has seen it) and fits, else an exception, and shares no memory with any input; else a new one. An input may be NULL. Runs
 * no Python code but for an exception. New reference. */
PyArrayObject *pyattn_result(PyObject *out, int axes, const ptrdiff_t *shape, PyArrayObject *const *inputs, int count);

/* What the caller gets: out, with the result in it, where it was given; else the result. New reference. */
PyObject *pyattn_filled(PyObject *out, PyArrayObject *result);

/* Raises what a status means; always returns NULL. */
PyObject *pyattn_raise(attn_status status, const attn_error *error);

/* The argument parser of METH_FASTCALL | METH_KEYWORDS functions: the first `positional` names may be given by
 * position, the first `required` must be given. values (count) are borrowed, NULL where not given. Returns -1 with a
 * TypeError. */
typedef struct {
    const char *function;
    int count, positional, required;
    const char *const *names;
    PyObject **interned; /* (count), made at first use */
} pyattn_signature;
int pyattn_parse(const pyattn_signature *signature, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                 PyObject **values);

/* A float; one that is neither infinite nor NaN; an int, which True is not (it is likelier a mistake than a 1). Return -1
 * with an exception that names the argument; `expected` is like "an int". */
int pyattn_number(PyObject *object, const char *name, double *number);
int pyattn_finite(PyObject *object, const char *name, double *number);
int pyattn_integer(PyObject *object, const char *name, const char *expected, Py_ssize_t *integer);

/* Given, and not None. */
static inline int pyattn_given(PyObject *object) { return object != NULL && object != Py_None; }

/* None or an int of 1 or more (above 1024 it is 1024), as the core's num_threads. Returns -1 with an exception. */
int pyattn_num_threads(PyObject *object);

/* None, or a name of an activation. Returns -1 with an exception. */
int pyattn_activation(PyObject *object, attn_activation *activation);

/* gil.c: Py_BEGIN_ALLOW_THREADS for calls that ask whether Ctrl-C was pressed; and whether this thread should ask. */
#define PYATTN_BEGIN_ALLOW_THREADS                                                                                     \
    pyattn_note_thread();                                                                                              \
    Py_BEGIN_ALLOW_THREADS
void pyattn_note_thread(void);
int pyattn_find_main_thread(void); /* when the module is imported; -1 with an exception */
int pyattn_is_main_thread(void);

/* ops_*.c: the methods that module.c lists */
extern PyMethodDef pyattn_activation_methods[], pyattn_attention_methods[], pyattn_cache_methods[],
    pyattn_choose_methods[], pyattn_dropout_methods[], pyattn_embedding_methods[], pyattn_feed_forward_methods[],
    pyattn_layer_methods[], pyattn_linear_methods[], pyattn_multihead_methods[], pyattn_norm_methods[],
    pyattn_rotary_methods[], pyattn_rows_methods[], pyattn_runtime_methods[];

#endif
