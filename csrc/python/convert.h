/* ndarray <-> tensor, status -> exception: the code that knows both NumPy and the core. */
#ifndef PYATTN_CONVERT_H
#define PYATTN_CONVERT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API  NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION     NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL pyattn_array_api
#ifndef PYATTN_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include "attn.h"

/* Approximate multiply-adds above which a call releases the GIL. */
enum { PYATTN_WORTH_THE_GIL = 200000 };

/* Converts any object to a plain ndarray of bools, integers or floats. Raises a TypeError with a fix for masked arrays,
 * matrices, sparse arrays and tensors not on the CPU. New reference. */
PyArrayObject *pyattn_as_array(PyObject *object, const char *name);

/* The Python code of a cast of `name`, or of a part of it (".real", or ""), for messages: with the object's astype if
 * it has one, else with numpy.asarray. `type` is like "numpy.float32". New reference to a str. */
PyObject *pyattn_cast(PyObject *object, const char *name, const char *part, const char *type);

/* Describes an `object` of the wrong dtype, which is now `array`, for messages: "has dtype int64", "holds an object of
 * type Fraction", "is an object of type NoneType". Sets `numbers` to 0 for an object array with items that are not
 * numbers, else to 1. New reference to a str. */
PyObject *pyattn_what_came(PyArrayObject *array, PyObject *object, int *numbers);

/* 1 for a masked array, 2 for a matrix, which both behave unlike an ndarray; 0 for others, -1 on error. */
int pyattn_is_other_array(PyObject *object);

/* Converts an array for the core: this dtype, aligned, native byte order. New reference; copies only if necessary. */
PyArrayObject *pyattn_well_behaved(PyArrayObject *array, int typenum);

/* The type number of float16, bfloat16, float or double for an array of numbers (bool and integers: double), or -1 and
 * a TypeError. `object` is the caller's original argument. */
int pyattn_real_type(PyArrayObject *array, PyObject *object, const char *name);

/* Converts objects to arrays of float or double, by NumPy's promotion, and of at most ATTN_MAX_AXES axes; unless one is
 * double, float16 and bfloat16 stay as they are. A TypeError refuses both of these together. Optional objects, after
 * the first `required`, become NULL if not given. Returns -1 with an exception; the caller must release `arrays` in any
 * case. */
int pyattn_as_reals(PyObject *const *objects, const char *const *names, int count, int required,
                    PyArrayObject **arrays);

/* The array whose dtype results have: the first that is not in half precision, or the first one. */
PyArrayObject *pyattn_widest(PyArrayObject *const *arrays, int count);

/* A new array of the dtype of another one. */
PyArrayObject *pyattn_new_like(int axes, const ptrdiff_t *shape, PyArrayObject *like);

/* Refuses an array of more than ATTN_MAX_AXES axes. Returns -1 with a ValueError. */
int pyattn_check_axes(PyArrayObject *array, const char *name);

/* Copies an object to a C-contiguous array of int64, of at most ATTN_MAX_AXES axes. It is always a copy: if another
 * thread changed the integers after the check, the core would read out of bounds. Returns -1 with an exception that
 * names the argument. */
int pyattn_as_integers(PyObject *object, const char *name, PyArrayObject **integers);

/* Zeroes a struct. Not inlined: for a known size gcc on x86 writes `rep stos`, which is slow to start. */
void pyattn_clear(void *memory, size_t bytes);

void pyattn_fill_given(attn_tensor *tensor, PyArrayObject *array);
/* Describes an array for the core; a NULL array is one that is not given. Fill tensors after the last Python code of a
 * call has run, as that may change any array's shape or memory. Should an array have got more than ATTN_MAX_AXES axes
 * since its conversion, a ValueError is set: ask PyErr_Occurred once after the last one. */
static inline void pyattn_fill(attn_tensor *tensor, PyArrayObject *array)
{
    tensor->data = NULL;
    tensor->dtype = ATTN_BOOL;
    tensor->ndim = 0;
    if (array != NULL) pyattn_fill_given(tensor, array);
}
static inline attn_tensor pyattn_tensor(PyArrayObject *array)
{
    attn_tensor tensor;
    pyattn_fill(&tensor, array);
    return tensor;
}

/* Calls `function` of pyattn.functional._many_axes, which merges the batch axes of arrays with more than ATTN_MAX_AXES
 * axes. */
PyObject *pyattn_merge_axes(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Whether an argument has more than `most` axes; lists do not count. Returns -1 with an exception. */
int pyattn_exceeds(PyObject *object, int most);

/* Splits q, which stacks the rows of query, key and value as torch's in_proj_weight does, into q, k and v. Returns -1
 * with a ValueError that calls the array `name`. */
int pyattn_split_in_proj(attn_tensor *q, attn_tensor *k, attn_tensor *v, const char *name);
/* An attn_dtype, or -1. */
int pyattn_dtype_of(PyArray_Descr *dtype);
int pyattn_dtype(PyArrayObject *array);
int pyattn_stored_dtype(PyArrayObject *array); /* of float16, bfloat16, float32 and float64 alone */
/* A new array of float64 for ATTN_F64, of float32 for all else. */
PyArrayObject *pyattn_new_array(int axes, const ptrdiff_t *shape, attn_dtype dtype);

/* 1 for an aligned array in native byte order with a contiguous last axis, which the core can write to. */
int pyattn_has_contiguous_rows(PyArrayObject *array);

/* Copies those arrays whose rows are not contiguous, as the epilogue reads biases and residuals a vector at a time. An
 * array may be NULL. Returns -1 with an exception. */
int pyattn_make_rows_contiguous(PyArrayObject **arrays, int count);

/* Checks that `out`, if given, is an ndarray, else raises a TypeError and returns -1. It may run the caller's code,
 * which may change any array, so call it before taking tensors. */
int pyattn_check_out(PyObject *out);
/* Checks that `out`, seen by pyattn_check_out, can hold a result of this shape and the dtype of `like`, else raises a
 * ValueError and returns -1. Runs Python code only to raise it. */
int pyattn_check_fit(PyObject *out, int axes, const ptrdiff_t *shape, PyArrayObject *like);

/* The array that the core writes to, with the dtype of `like`: `out` itself if given and without memory in
 * common with an input, else a new array. Raises if `out`, already seen by pyattn_check_out, does not fit. An input may
 * be NULL. Runs Python code only to raise an exception. New reference. */
PyArrayObject *pyattn_result(PyObject *out, int axes, const ptrdiff_t *shape, PyArrayObject *like,
                             PyArrayObject *const *inputs, int count);

/* The return value: `out`, if given, with the result copied into it; else the result. New reference. */
PyObject *pyattn_filled(PyObject *out, PyArrayObject *result);

/* Raises the exception for a status; always returns NULL. */
PyObject *pyattn_raise(attn_status status, const attn_error *error);

/* The argument parser of METH_FASTCALL | METH_KEYWORDS functions: the first `positional` names may be given by
 * position, the first `required` must be given. values (count) are borrowed, NULL where not given. Returns -1 with a
 * TypeError. */
typedef struct {
    const char *function;
    int count, positional, required;
    const char *const *names;
    PyObject **interned; /* (count), filled at first use */
} pyattn_signature;
int pyattn_parse(const pyattn_signature *signature, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                 PyObject **values);

/* Convert a float; a finite float; an int. A bool is refused as an int, as it is probably a mistake. They return -1
 * with an exception that names the argument; `expected` is like "an int". */
int pyattn_is_bool(PyObject *object); /* of Python or NumPy */
int pyattn_number(PyObject *object, const char *name, double *number);
int pyattn_finite(PyObject *object, const char *name, double *number);
int pyattn_integer(PyObject *object, const char *name, const char *expected, Py_ssize_t *integer);

/* Given, and not None. */
static inline int pyattn_given(PyObject *object) { return object != NULL && object != Py_None; }

/* Converts None or an int of 1 or more to the core's num_threads, at most 1024. Returns -1 with an exception. */
int pyattn_num_threads(PyObject *object);

/* Converts None or the name of an activation. Returns -1 with an exception. */
int pyattn_activation(PyObject *object, attn_activation *activation);

/* gil.c: runs a call of the core, without the GIL if `releases`, which pays for long calls only. A child that was
 * forked during the call restarts it. */
#define PYATTN_RUN(status, releases, call)                                                                             \
    do {                                                                                                               \
        PyThreadState *const released = pyattn_release_gil(releases);                                                  \
        do (status) = (call);                                                                                          \
        while ((status) == ATTN_FORKED);                                                                               \
        pyattn_acquire_gil(released);                                                                                  \
    } while (0)
PyThreadState *pyattn_release_gil(int releases);
void pyattn_acquire_gil(PyThreadState *released);

/* Whether calls of this thread handle signals. A call that works in place must not: a handler may fork, and the child
 * could not restart the call. */
void pyattn_ask_for_signals(int asks);

int pyattn_find_main_thread(void); /* at import; -1 with an exception */
int pyattn_interrupted(void);      /* handles signals if this is the main thread; 1 with an exception */

/* ops_*.c: the methods that module.c lists */
extern PyMethodDef pyattn_activation_methods[], pyattn_attention_methods[], pyattn_attention_backward_methods[],
    pyattn_attention_jvp_methods[], pyattn_cache_methods[], pyattn_topk_methods[], pyattn_dropout_methods[],
    pyattn_embedding_methods[], pyattn_feed_forward_methods[], pyattn_layer_methods[], pyattn_linear_methods[],
    pyattn_loss_methods[], pyattn_multihead_methods[], pyattn_norm_methods[], pyattn_norm_backward_methods[],
    pyattn_optimizer_methods[], pyattn_rotary_methods[], pyattn_rows_methods[], pyattn_runtime_methods[];

#endif
