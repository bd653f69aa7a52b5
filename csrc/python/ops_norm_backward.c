/* pyattn._core.normalize_backward, which layer_norm_backward and rms_norm_backward wrap. */
#include "options.h"

#include "norm.h"

enum { GRAD_OUTPUT, X, WEIGHT, ARRAYS, RMS = ARRAYS, EPS, NEED_WEIGHT, NEED_BIAS, NUM_THREADS, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"grad_output", "x",           "weight",    "rms",
                                                      "eps",         "need_weight", "need_bias", "num_threads"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"normalize_backward", ARGUMENTS, ARRAYS, 2, argument_names, interned_names};

enum { GRAD_X, GRAD_WEIGHT, GRAD_BIAS, GRADIENTS };
typedef struct {
    PyArrayObject *arrays[ARRAYS], *gradients[GRADIENTS];
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    for (int n = 0; n < GRADIENTS; n++) Py_XDECREF(o->gradients[n]);
}

/* A flag that is True where it is left out. */
static int flag_or_true(PyObject *object, const char *name) { return object == NULL ? 1 : pyattn_flag(object, name); }

static int convert(PyObject *const *values, owned *o, attn_norm_backward_args *args, int *needs)
{
    int rms;
    if ((args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0) return -1;
    if ((rms = pyattn_flag(values[RMS], "rms")) < 0) return -1;
    if ((needs[GRAD_WEIGHT] = flag_or_true(values[NEED_WEIGHT], "need_weight")) < 0) return -1;
    if ((needs[GRAD_BIAS] = flag_or_true(values[NEED_BIAS], "need_bias")) < 0) return -1;
    if (values[EPS] && pyattn_number(values[EPS], "eps", &args->epsilon) < 0) return -1;
    args->kind = rms ? ATTN_NORM_RMS : ATTN_NORM_LAYER;
    if (pyattn_as_reals(values, argument_names, ARRAYS, WEIGHT, o->arrays) < 0) return -1;
    return pyattn_make_rows_contiguous(o->arrays, ARRAYS);
}

/* Allocates the gradients: of x, in its shape and dtype; of weight and bias, in the dtype of the arithmetic. */
static int make_results(const attn_tensor *x, const int *needs, owned *o, attn_norm_gradients *gradients)
{
    attn_tensor *const to[GRADIENTS] = {&gradients->x, &gradients->weight, &gradients->bias};
    for (int n = 0; n < GRADIENTS; n++) {
        if (!needs[n]) continue;
        o->gradients[n] = n == GRAD_X ? pyattn_new_like(x->ndim, x->shape, o->arrays[X])
                                      : pyattn_new_array(1, x->shape + x->ndim - 1, x->dtype);
        if (o->gradients[n] == NULL) return -1;
        pyattn_fill(to[n], o->gradients[n]);
    }
    return 0;
}

static attn_status compute(const attn_norm_backward_args *args, const attn_norm_gradients *gradients, npy_intp size,
                           attn_error *error)
{
    attn_norm_differentials norm;
    attn_status status = attn_layout_norm_backward(args, gradients, &norm, error);
    if (status != ATTN_OK) return status;
    PYATTN_RUN(status, size >= PYATTN_WORTH_THE_GIL / 8, attn_normalize_rows_backward(&norm, args->num_threads, error));
    return status;
}

/* (grad_x, grad_weight, grad_bias), the last two None where they are not needed. */
static PyObject *normalize_backward(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.arrays = {NULL}};
    attn_norm_backward_args args = {.epsilon = 1e-5};
    attn_norm_gradients gradients = {.x = {.data = NULL}};
    attn_error error;
    attn_status status;
    int needs[GRADIENTS] = {[GRAD_X] = 1};
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert(values, &o, &args, needs) < 0) goto done;
    pyattn_fill(&args.grad_output, o.arrays[GRAD_OUTPUT]);
    pyattn_fill(&args.x, o.arrays[X]);
    pyattn_fill(&args.weight, o.arrays[WEIGHT]);
    if (PyErr_Occurred()) goto done;
    if ((status = attn_check_norm_backward(&args, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    if (make_results(&args.x, needs, &o, &gradients) < 0) goto done;
    if ((status = compute(&args, &gradients, PyArray_SIZE(o.gradients[GRAD_X]), &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    PyObject *wrapped[GRADIENTS];
    for (int n = 0; n < GRADIENTS; n++) wrapped[n] = o.gradients[n] ? (PyObject *)o.gradients[n] : Py_None;
    result = PyTuple_Pack(GRADIENTS, wrapped[GRAD_X], wrapped[GRAD_WEIGHT], wrapped[GRAD_BIAS]);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_norm_backward_methods[] = {
    {"normalize_backward", (PyCFunction)(void (*)(void))normalize_backward, METH_FASTCALL | METH_KEYWORDS,
     "normalize_backward($module, grad_output, x, weight=None, *, rms=False, eps=1e-5, need_weight=True, "
     "need_bias=True, num_threads=None)\n--\n\n"
     "Gradients of x, weight and bias of layer or RMS normalisation. See pyattn.functional.layer_norm_backward."},
    {NULL, NULL, 0, NULL},
};
