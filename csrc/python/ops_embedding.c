/* pyattn.embedding: parse, convert, drop the GIL, call, wrap. */
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

PyMethodDef pyattn_embedding_methods[] = {
    {"embedding", (PyCFunction)(void (*)(void))embedding, METH_FASTCALL | METH_KEYWORDS, DOC_EMBEDDING},
    {NULL, NULL, 0, NULL},
};
