/* pyattn.embedding and _core.embedding_backward: parse, convert, drop the GIL, call, wrap. */
#include "convert.h"

#include "arena.h"
#include "embedding.h"

#include "doc_embedding.h"

enum { INPUT, WEIGHT, PADDING_IDX, SCALE, RESIDUAL, NUM_THREADS, OUT, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"input",    "weight",      "padding_idx", "scale",
                                                      "residual", "num_threads", "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"embedding", ARGUMENTS, 3, 2, argument_names, interned_names};

/* All objects that a call owns: ids, weight, residual and y. */
enum { FLOAT_WEIGHT, FLOAT_RESIDUAL, FLOATS };
typedef struct {
    PyArrayObject *ids, *floats[FLOATS], *y;
} owned;

static void release(owned *o)
{
    Py_XDECREF(o->ids);
    for (int n = 0; n < FLOATS; n++) Py_XDECREF(o->floats[n]);
    Py_XDECREF(o->y);
}

static int convert_arrays(PyObject *const *values, owned *o)
{
    static const char *const names[FLOATS] = {"weight", "residual"};
    PyObject *const floats[FLOATS] = {values[WEIGHT], values[RESIDUAL]};
    if (pyattn_as_integers(values[INPUT], "input", &o->ids) < 0) return -1;
    return pyattn_as_reals(floats, names, FLOATS, FLOAT_RESIDUAL, o->floats);
}

/* Conversions that may run the caller's code, which must come before any tensor is filled. */
static int convert_options(PyObject *const *values, attn_embedding_args *args, Py_ssize_t *padding_idx)
{
    PyObject *const padding = values[PADDING_IDX];
    *padding_idx = 0;
    if (pyattn_given(padding) && pyattn_integer(padding, "padding_idx", "an int", padding_idx) < 0) return -1;
    if (values[SCALE] && pyattn_finite(values[SCALE], "scale", &args->scale) < 0) return -1;
    return (args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0 ? -1 : 0;
}

/* Checks that padding_idx is a row of weight. Only a backward pass would use it. */
static int check_padding_idx(PyObject *object, Py_ssize_t index, const attn_tensor *weight)
{
    if (!pyattn_given(object)) return 0;
    const ptrdiff_t rows = weight->shape[0];
    if (-rows <= index && index < rows) return 0;
    PyErr_Format(PyExc_ValueError, "padding_idx is %zd, expected %zd <= padding_idx < %zd: weight has %zd rows", index,
                 -rows, rows, rows);
    return -1;
}

/* Sets y to a new array, or to `out` if the core can write to it. */
static int make_result(PyObject *const *values, const attn_embedding_args *args, owned *o)
{
    ptrdiff_t shape[ATTN_MAX_AXES];
    const int axes = args->ids.ndim + 1;
    for (int n = 0; n < axes; n++) shape[n] = n < axes - 1 ? args->ids.shape[n] : args->weight.shape[1];
    o->y = pyattn_result(values[OUT], axes, shape, pyattn_widest(o->floats, FLOATS), o->floats, FLOATS);
    return o->y == NULL ? -1 : 0;
}

static attn_status compute(const attn_embedding_args *args, const owned *o, attn_error *error)
{
    attn_lookup lookup;
    attn_status status = attn_layout_embedding(args, pyattn_tensor(o->y), &lookup, error);
    if (status != ATTN_OK) return status;
    PYATTN_RUN(status, PyArray_SIZE(o->y) >= PYATTN_WORTH_THE_GIL, attn_look_up(&lookup, args->num_threads, error));
    return status;
}

static PyObject *embedding(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.y = NULL};
    attn_embedding_args args = {.scale = 1};
    attn_error error;
    attn_status status;
    Py_ssize_t padding_idx;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    const int exceeds = pyattn_exceeds(values[INPUT], ATTN_MAX_AXES - 1); /* the result has one more */
    if (exceeds != 0) return exceeds < 0 ? NULL : pyattn_merge_axes("embedding", positional, nargs, kwnames);
    if (convert_options(values, &args, &padding_idx) < 0 || pyattn_check_out(values[OUT]) < 0) goto done;
    if (convert_arrays(values, &o) < 0) goto done;
    pyattn_fill(&args.ids, o.ids);
    pyattn_fill(&args.weight, o.floats[FLOAT_WEIGHT]);
    pyattn_fill(&args.residual, o.floats[FLOAT_RESIDUAL]);
    if (PyErr_Occurred()) goto done;

    if ((status = attn_check_embedding_shapes(&args, &error)) != ATTN_OK) { /* compute checks the ids, only once */
        pyattn_raise(status, &error);
        goto done;
    }
    if (check_padding_idx(values[PADDING_IDX], padding_idx, &args.weight) < 0) goto done;
    if (make_result(values, &args, &o) < 0) goto done;
    if ((status = compute(&args, &o, &error)) != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = pyattn_filled(values[OUT], o.y);

done:
    release(&o);
    return result;
}

/* The gradient of the weight ----------------------------------------------------------------------------------------
 */

enum { GRAD_OUTPUT, IDS, NUM_EMBEDDINGS, BACK_PADDING_IDX, BACK_SCALE, BACK_NUM_THREADS, BACK_ARGUMENTS };
static const char *const back_names[BACK_ARGUMENTS] = {"grad_output", "ids",   "num_embeddings",
                                                       "padding_idx", "scale", "num_threads"};
static PyObject *back_interned[BACK_ARGUMENTS];
static const pyattn_signature back_signature = {"embedding_backward", BACK_ARGUMENTS, 3, 3, back_names, back_interned};

/* Counts a negative index from the end. */
static int convert_padding(PyObject *object, Py_ssize_t rows, attn_embedding_backward_args *args)
{
    Py_ssize_t index;
    if (!pyattn_given(object)) return 0;
    if (pyattn_integer(object, "padding_idx", "an int", &index) < 0) return -1;
    args->has_padding = 1;
    args->padding_idx = index < 0 ? index + rows : index;
    if (0 <= args->padding_idx && args->padding_idx < rows) return 0;
    PyErr_Format(PyExc_ValueError, "padding_idx is %zd, expected %zd <= padding_idx < %zd: num_embeddings is %zd",
                 index, -rows, rows, rows);
    return -1;
}

static int convert_backward(PyObject *const *values, attn_embedding_backward_args *args, Py_ssize_t *rows,
                            PyArrayObject **ids, PyArrayObject **upstream)
{
    if (pyattn_integer(values[NUM_EMBEDDINGS], "num_embeddings", "an int", rows) < 0) return -1;
    if (*rows < 0) {
        PyErr_Format(PyExc_ValueError, "num_embeddings is %zd, expected 0 or more", *rows);
        return -1;
    }
    if (convert_padding(values[BACK_PADDING_IDX], *rows, args) < 0) return -1;
    if (values[BACK_SCALE] && pyattn_finite(values[BACK_SCALE], "scale", &args->scale) < 0) return -1;
    if ((args->num_threads = pyattn_num_threads(values[BACK_NUM_THREADS])) < 0) return -1;
    if (pyattn_as_integers(values[IDS], "ids", ids) < 0) return -1;
    if (pyattn_as_reals(values, back_names, 1, 1, upstream) < 0) return -1;
    return pyattn_make_rows_contiguous(upstream, 1);
}

/* embedding_backward(grad_output, ids, num_embeddings): a new array (num_embeddings, dim). */
static PyObject *embedding_backward(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[BACK_ARGUMENTS], *result = NULL;
    PyArrayObject *ids = NULL, *upstream = NULL, *gradient = NULL;
    attn_embedding_backward_args args = {.scale = 1};
    attn_scatter scatter;
    attn_error error;
    attn_status status;
    Py_ssize_t rows;
    (void)self;

    if (pyattn_parse(&back_signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert_backward(values, &args, &rows, &ids, &upstream) < 0) goto done;
    pyattn_fill(&args.grad_output, upstream);
    pyattn_fill(&args.ids, ids);
    if (PyErr_Occurred()) goto done;
    if ((status = attn_check_embedding_backward(&args, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    const attn_tensor *const tensor = &args.grad_output;
    const ptrdiff_t shape[] = {rows, tensor->shape[tensor->ndim - 1]};
    ptrdiff_t bytes;
    if (__builtin_mul_overflow(shape[0], shape[1], &bytes) ||
        __builtin_mul_overflow(bytes, (ptrdiff_t)sizeof(double), &bytes)) {
        PyErr_Format(PyExc_ValueError, "num_embeddings is %zd: the gradient, (%zd, %zd), is too large for memory", rows,
                     shape[0], shape[1]);
        goto done;
    }
    gradient = pyattn_new_array(2, shape, tensor->dtype);
    if (gradient == NULL) goto done;
    status = attn_layout_embedding_backward(&args, pyattn_tensor(gradient), &scatter, &error);
    if (status == ATTN_OK)
        PYATTN_RUN(status, PyArray_SIZE(gradient) + PyArray_SIZE(upstream) >= PYATTN_WORTH_THE_GIL,
                   attn_scatter_add(&scatter, args.num_threads, &error));
    if (status != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = Py_NewRef((PyObject *)gradient);

done:
    Py_XDECREF(ids);
    Py_XDECREF(upstream);
    Py_XDECREF(gradient);
    return result;
}

PyMethodDef pyattn_embedding_methods[] = {
    {"embedding", (PyCFunction)(void (*)(void))embedding, METH_FASTCALL | METH_KEYWORDS, DOC_EMBEDDING},
    {"embedding_backward", (PyCFunction)(void (*)(void))embedding_backward, METH_FASTCALL | METH_KEYWORDS,
     "embedding_backward($module, grad_output, ids, num_embeddings, *, padding_idx=None, scale=1.0, num_threads=None)"
     "\n--\n\nGradient of an embedding's weight. See pyattn.functional.embedding_backward."},
    {NULL, NULL, 0, NULL},
};
