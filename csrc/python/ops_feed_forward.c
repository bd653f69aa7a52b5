/* pyattn.feed_forward: parse, convert, drop the GIL, call, wrap. */
#include "convert.h"

#include "arena.h"
#include "layer.h"

#include "doc_feed_forward.h"

/* Arrays come first, except the keyword-only ones after the activation. */
enum {
    X,
    IN_WEIGHT,
    IN_BIAS,
    OUT_WEIGHT,
    OUT_BIAS,
    GATE_WEIGHT,
    GATE_BIAS,
    RESIDUAL,
    ARRAYS,
    POSITIONAL = GATE_WEIGHT,
    ACTIVATION = ARRAYS,
    NUM_THREADS,
    OUT,
    ARGUMENTS
};
static const char *const argument_names[ARGUMENTS] = {"x",          "in_weight",   "in_bias",   "out_weight",
                                                      "out_bias",   "gate_weight", "gate_bias", "residual",
                                                      "activation", "num_threads", "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"feed_forward", ARGUMENTS,      POSITIONAL,
                                           POSITIONAL,     argument_names, interned_names};

typedef struct {
    PyArrayObject *arrays[ARRAYS], *y;
} owned;

/* A call's data, which is large for the stack of a small thread. */
typedef struct {
    owned owned;
    attn_feed_forward_args args;
} feed_forward_call;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    Py_XDECREF(o->y);
}

/* x and the weights are required; a bias may be None. */
static int convert(PyObject *const *values, owned *o, attn_feed_forward_args *args)
{
    static const char *const names[] = {"x",        "in_weight",   "out_weight", "in_bias",
                                        "out_bias", "gate_weight", "gate_bias",  "residual"};
    static const int places[ARRAYS] = {X, IN_WEIGHT, OUT_WEIGHT, IN_BIAS, OUT_BIAS, GATE_WEIGHT, GATE_BIAS, RESIDUAL};
    PyObject *given[ARRAYS];
    PyArrayObject *arrays[ARRAYS] = {NULL};
    args->activation = ATTN_RELU;
    if (pyattn_check_out(values[OUT]) < 0) return -1;
    if (values[ACTIVATION] && pyattn_activation(values[ACTIVATION], &args->activation) < 0) return -1;
    if ((args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0) return -1;
    for (int n = 0; n < ARRAYS; n++) given[n] = values[places[n]];
    const int failed = pyattn_as_reals(given, names, ARRAYS, 3, arrays);
    for (int n = 0; n < ARRAYS; n++) o->arrays[places[n]] = arrays[n];
    if (failed || pyattn_make_rows_contiguous(&o->arrays[RESIDUAL], 1) < 0) return -1;
    for (int n = IN_BIAS; n <= GATE_BIAS; n += 2)
        if (pyattn_make_rows_contiguous(&o->arrays[n], 1) < 0) return -1;
    return 0;
}

static void fill_tensors(const owned *o, attn_feed_forward_args *args)
{
    attn_tensor *const tensors[ARRAYS] = {&args->x,        &args->in_weight,   &args->in_bias,   &args->out_weight,
                                          &args->out_bias, &args->gate_weight, &args->gate_bias, &args->residual};
    for (int n = 0; n < ARRAYS; n++) pyattn_fill(tensors[n], o->arrays[n]);
}

/* Sets y to a new array, or to `out` if the core can write to it. */
static int make_result(PyObject *const *values, const attn_feed_forward_args *args, owned *o)
{
    ptrdiff_t shape[ATTN_MAX_AXES];
    const int axes = args->x.ndim;
    for (int n = 0; n < axes; n++) shape[n] = n < axes - 1 ? args->x.shape[n] : args->out_weight.shape[0];
    o->y = pyattn_result(values[OUT], axes, shape, pyattn_widest(o->arrays, ARRAYS), o->arrays, ARRAYS);
    return o->y == NULL ? -1 : 0;
}

/* Runs Python code only to raise an exception. */
static PyObject *compute(PyObject *const *values, feed_forward_call *c)
{
    attn_error error;
    fill_tensors(&c->owned, &c->args);
    if (PyErr_Occurred()) return NULL;
    attn_status status = attn_check_feed_forward(&c->args, &error);
    if (status != ATTN_OK) return pyattn_raise(status, &error);
    if (make_result(values, &c->args, &c->owned) < 0) return NULL;
    const attn_tensor y = pyattn_tensor(c->owned.y);
    const size_t work = attn_feed_forward_work(&c->args);
    PYATTN_RUN(status, work >= PYATTN_WORTH_THE_GIL, attn_feed_forward(&c->args, y, &error));
    return status == ATTN_OK ? pyattn_filled(values[OUT], c->owned.y) : pyattn_raise(status, &error);
}

static PyObject *feed_forward(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS];
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    const int exceeds = pyattn_exceeds(values[X], ATTN_MAX_AXES);
    if (exceeds != 0) return exceeds < 0 ? NULL : pyattn_merge_axes("feed_forward", positional, nargs, kwnames);
    feed_forward_call *c = PyMem_Malloc(sizeof *c);
    if (c == NULL) return PyErr_NoMemory();
    c->owned = (owned){.y = NULL};
    c->args = (attn_feed_forward_args){.num_threads = 0};

    PyObject *result = convert(values, &c->owned, &c->args) < 0 ? NULL : compute(values, c);
    release(&c->owned);
    PyMem_Free(c);
    return result;
}

PyMethodDef pyattn_feed_forward_methods[] = {
    {"feed_forward", (PyCFunction)(void (*)(void))feed_forward, METH_FASTCALL | METH_KEYWORDS, DOC_FEED_FORWARD},
    {NULL, NULL, 0, NULL},
};
