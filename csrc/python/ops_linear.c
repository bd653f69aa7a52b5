/* pyattn.linear: parse, convert, drop the GIL, call, wrap. */
#include "convert.h"

#include "arena.h"
#include "linear.h"

#include "doc_linear.h"

enum { X, WEIGHT, BIAS, GATE, RESIDUAL, ARRAYS, ACTIVATION = ARRAYS, NUM_THREADS, OUT, ARGUMENTS }; /* arrays first */
static const char *const argument_names[ARGUMENTS] = {"x",        "weight",     "bias",        "gate",
                                                      "residual", "activation", "num_threads", "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"linear", ARGUMENTS, 3, 2, argument_names, interned_names};

/* All objects that a call owns: x, weight, bias, gate, residual and y. */
typedef struct {
    PyArrayObject *arrays[ARRAYS], *y;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    Py_XDECREF(o->y);
}

static int convert_arrays(PyObject *const *values, owned *o)
{
    if (pyattn_as_reals(values, argument_names, ARRAYS, BIAS, o->arrays) < 0) return -1;
    return pyattn_make_rows_contiguous(o->arrays + BIAS, ARRAYS - BIAS);
}

static int convert_options(PyObject *const *values, attn_linear_args *args)
{
    if ((args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0) return -1;
    return pyattn_activation(values[ACTIVATION], &args->activation);
}

/* Sets y to a new array, or to `out` if the core can write to it. */
static int make_result(PyObject *const *values, const attn_linear_args *args, owned *o)
{
    ptrdiff_t shape[ATTN_MAX_AXES];
    const int axes = args->x.ndim;
    for (int n = 0; n < axes; n++) shape[n] = n < axes - 1 ? args->x.shape[n] : args->weight.shape[0];
    o->y = pyattn_result(values[OUT], axes, shape, pyattn_widest(o->arrays, ARRAYS), o->arrays, ARRAYS);
    return o->y == NULL ? -1 : 0;
}

static attn_status compute(attn_product *product, int num_threads, PyArrayObject *result, attn_error *error)
{
    const size_t work = attn_saturating_mul((size_t)PyArray_SIZE(result), (size_t)product->inner);
    const attn_tensor y = pyattn_tensor(result);
    attn_status status;
    attn_rows_of(&y, &product->y);
    PYATTN_RUN(status, work >= PYATTN_WORTH_THE_GIL, attn_multiply(product, num_threads, error));
    return status;
}

static PyObject *linear(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.y = NULL};
    attn_linear_args args; /* not zeroed, as all of it is set: a small call would notice */
    attn_product product;
    attn_error error;
    attn_status status;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    const int exceeds = pyattn_exceeds(values[X], ATTN_MAX_AXES);
    if (exceeds != 0) return exceeds < 0 ? NULL : pyattn_merge_axes("linear", positional, nargs, kwnames);
    if (convert_options(values, &args) < 0 || pyattn_check_out(values[OUT]) < 0) goto done;
    if (convert_arrays(values, &o) < 0) goto done;
    pyattn_fill(&args.x, o.arrays[X]);
    pyattn_fill(&args.weight, o.arrays[WEIGHT]);
    pyattn_fill(&args.bias, o.arrays[BIAS]);
    pyattn_fill(&args.gate, o.arrays[GATE]);
    pyattn_fill(&args.residual, o.arrays[RESIDUAL]);
    if (PyErr_Occurred()) goto done;

    if ((status = attn_setup_linear(&args, &product, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    if (make_result(values, &args, &o) < 0) goto done;
    if ((status = compute(&product, args.num_threads, o.y, &error)) != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = pyattn_filled(values[OUT], o.y);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_linear_methods[] = {
    {"linear", (PyCFunction)(void (*)(void))linear, METH_FASTCALL | METH_KEYWORDS, DOC_LINEAR},
    {NULL, NULL, 0, NULL},
};
