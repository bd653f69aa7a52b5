/* pyattn.feed_forward: parse, convert, drop the GIL, call, wrap. */
#include "frozen.h"

#include "arena.h"
#include "layer.h"

#include "doc_feed_forward.h"

/* Arrays first, but for the ones by keyword alone that follow the activation. */
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

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    Py_XDECREF(o->y);
}

/* x and the weights must be there; a bias that is None is not. */
static int convert(PyObject *const *values, owned *o, attn_feed_forward_args *args)
{
    static const char *const names[] = {"x",        "in_weight",   "out_weight", "in_bias",
                                        "out_bias", "gate_weight", "gate_bias",  "residual"};
    static const int places[ARRAYS] = {X, IN_WEIGHT, OUT_WEIGHT, IN_BIAS, OUT_BIAS, GATE_WEIGHT, GATE_BIAS, RESIDUAL};
    PyObject *given[ARRAYS];
    PyArrayObject *arrays[ARRAYS] = {NULL};
    args->activation = ATTN_RELU;
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

static void view_arrays(const owned *o, attn_feed_forward_args *args, pyattn_frozen *own)
{
    attn_view *const views[ARRAYS] = {&args->x,        &args->in_weight,   &args->in_bias,   &args->out_weight,
                                      &args->out_bias, &args->gate_weight, &args->gate_bias, &args->residual};
    for (int n = 0; n < ARRAYS; n++) {
        if (o->arrays[n]) *views[n] = pyattn_view(o->arrays[n]);
        pyattn_freeze(views[n], &own[n]);
    }
}

/* y: new, or out where the core may write into it. */
static int make_result(PyObject *const *values, const attn_feed_forward_args *args, owned *o)
{
    ptrdiff_t shape[ATTN_MAX_AXES];
    const int axes = args->x.axes;
    for (int n = 0; n < axes; n++) shape[n] = n < axes - 1 ? args->x.shape[n] : args->out_weight.shape[0];
    o->y = pyattn_result(values[OUT], axes, shape, o->arrays, ARRAYS);
    return o->y == NULL ? -1 : 0;
}

static attn_status compute(const attn_feed_forward_args *args, owned *o, attn_error *error)
{
    pyattn_frozen own;
    attn_view y = pyattn_view(o->y);
    attn_status status;
    pyattn_freeze(&y, &own);
    if (attn_feed_forward_work(args) < PYATTN_WORTH_THE_GIL) return attn_feed_forward(args, y, error);
    PYATTN_BEGIN_ALLOW_THREADS status = attn_feed_forward(args, y, error);
    Py_END_ALLOW_THREADS return status;
}

static PyObject *feed_forward(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.y = NULL};
    attn_feed_forward_args args = {.num_threads = 0};
    pyattn_frozen own[ARRAYS];
    attn_error error;
    attn_status status;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert(values, &o, &args) < 0) goto done;
    view_arrays(&o, &args, own);
    if ((status = attn_check_feed_forward(&args, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    if (make_result(values, &args, &o) < 0) goto done;
    if ((status = compute(&args, &o, &error)) != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = pyattn_filled(values[OUT], o.y);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_feed_forward_methods[] = {
    {"feed_forward", (PyCFunction)(void (*)(void))feed_forward, METH_FASTCALL | METH_KEYWORDS, DOC_FEED_FORWARD},
    {NULL, NULL, 0, NULL},
};
