/* pyattn._core.normalize, which layer_norm and rms_norm wrap. */
#include "options.h"

#include "norm.h"

enum { X, WEIGHT, BIAS, RESIDUAL, ARRAYS, RMS = ARRAYS, EPS, NEED_SUM, NUM_THREADS, ARGUMENTS }; /* arrays first */
static const char *const argument_names[ARGUMENTS] = {"x",   "weight", "bias",     "residual",
                                                      "rms", "eps",    "need_sum", "num_threads"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"normalize", ARGUMENTS, ARRAYS, 1, argument_names, interned_names};

typedef struct {
    PyArrayObject *arrays[ARRAYS], *y, *sum;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->arrays[n]);
    Py_XDECREF(o->y);
    Py_XDECREF(o->sum);
}

static int convert(PyObject *const *values, owned *o, attn_norm_args *args, int *need_sum)
{
    int rms;
    if ((args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0) return -1;
    if ((rms = pyattn_flag(values[RMS], "rms")) < 0) return -1;
    if ((*need_sum = pyattn_flag(values[NEED_SUM], "need_sum")) < 0) return -1;
    if (values[EPS] && pyattn_number(values[EPS], "eps", &args->epsilon) < 0) return -1;
    args->kind = rms ? ATTN_NORM_RMS : ATTN_NORM_LAYER;
    if (pyattn_as_reals(values, argument_names, ARRAYS, WEIGHT, o->arrays) < 0) return -1;
    return pyattn_make_rows_contiguous(o->arrays, ARRAYS);
}

/* Allocates y and sum, arrays of x's shape. */
static int make_results(const attn_tensor *x, int need_sum, owned *o)
{
    PyArrayObject *const like = pyattn_widest(o->arrays, ARRAYS);
    o->y = pyattn_new_like(x->ndim, x->shape, like);
    if (o->y == NULL || !need_sum) return o->y == NULL ? -1 : 0;
    o->sum = pyattn_new_like(x->ndim, x->shape, like);
    return o->sum == NULL ? -1 : 0;
}

static attn_status compute(const attn_norm_args *args, const owned *o, attn_error *error)
{
    attn_normalization norm;
    attn_status status = attn_layout_norm(args, pyattn_tensor(o->sum), pyattn_tensor(o->y), &norm, error);
    if (status != ATTN_OK) return status;
    const int is_long = PyArray_SIZE(o->y) >= PYATTN_WORTH_THE_GIL / 4;
    PYATTN_RUN(status, is_long, attn_normalize_rows(&norm, args->num_threads, error));
    return status;
}

/* y, or (y, x + residual). */
static PyObject *normalize(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.y = NULL};
    attn_norm_args args = {.epsilon = 1e-5};
    attn_error error;
    attn_status status;
    int need_sum;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert(values, &o, &args, &need_sum) < 0) goto done;
    pyattn_fill(&args.x, o.arrays[X]);
    pyattn_fill(&args.weight, o.arrays[WEIGHT]);
    pyattn_fill(&args.bias, o.arrays[BIAS]);
    pyattn_fill(&args.residual, o.arrays[RESIDUAL]);
    if (PyErr_Occurred()) goto done;
    if ((status = attn_check_norm(&args, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    if (need_sum && args.residual.data == NULL) {
        PyErr_SetString(PyExc_ValueError, "need_sum=True returns x + residual: pass residual");
        goto done;
    }
    if (make_results(&args.x, need_sum, &o) < 0) goto done;
    if ((status = compute(&args, &o, &error)) != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = need_sum ? PyTuple_Pack(2, (PyObject *)o.y, (PyObject *)o.sum) : Py_NewRef((PyObject *)o.y);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_norm_methods[] = {
    {"normalize", (PyCFunction)(void (*)(void))normalize, METH_FASTCALL | METH_KEYWORDS,
     "normalize($module, x, weight=None, bias=None, residual=None, *, rms=False, eps=1e-5, need_sum=False, "
     "num_threads=None)\n--\n\n"
     "Layer or RMS normalisation over the last axis. See pyattn.layer_norm and pyattn.rms_norm."},
    {NULL, NULL, 0, NULL},
};
