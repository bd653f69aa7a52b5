/* pyattn._core.rotary: RoPE with given frequencies. */
#include "options.h"

#include "rotary.h"

enum { X, INV_FREQ, SCALE, OFFSET, POSITION_IDS, INTERLEAVED, LAYOUT, NUM_THREADS, OUT, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {
    "x", "inv_freq", "scale", "offset", "position_ids", "interleaved", "layout", "num_threads", "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"rotary", ARGUMENTS, 2, 2, argument_names, interned_names};

/* All objects that a call owns. */
typedef struct {
    PyArrayObject *x, *y;
    pyattn_rope_arrays rope;
} owned;

static void release(owned *o)
{
    Py_XDECREF(o->x);
    Py_XDECREF(o->y);
    pyattn_release_rope(&o->rope);
}

void pyattn_release_rope(pyattn_rope_arrays *arrays)
{
    Py_XDECREF(arrays->inv_freq);
    Py_XDECREF(arrays->position_ids);
}

/* Copies both arrays: `out` may overlap one, and another thread may change it. */
static int convert_angles(PyObject *inv_freq, PyObject *position_ids, pyattn_rope_arrays *arrays)
{
    arrays->inv_freq = (PyArrayObject *)PyArray_FROM_OTF(
        inv_freq, NPY_DOUBLE, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_ENSURECOPY | NPY_ARRAY_ENSUREARRAY);
    if (arrays->inv_freq == NULL || !pyattn_given(position_ids)) return arrays->inv_freq == NULL ? -1 : 0;
    return pyattn_as_integers(position_ids, "position_ids", &arrays->position_ids);
}

void pyattn_fill_rope(const pyattn_rope_arrays *arrays, attn_rotary_args *args)
{
    pyattn_fill(&args->inv_freq, arrays->inv_freq);
    pyattn_fill(&args->position_ids, arrays->position_ids);
}

int pyattn_convert_rope(PyObject *given, attn_rotary_args *args, pyattn_rope_arrays *arrays)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 5) {
        PyErr_SetString(PyExc_TypeError, "rotary must be a tuple (inv_freq, scale, offset, position_ids, interleaved)");
        return -1;
    }
    if (pyattn_number(PyTuple_GET_ITEM(given, 1), "scale", &args->scale) < 0) return -1;
    if (pyattn_integer(PyTuple_GET_ITEM(given, 2), "offset", "an int", &args->offset) < 0) return -1;
    if ((args->interleaved = pyattn_flag(PyTuple_GET_ITEM(given, 4), "interleaved")) < 0) return -1;
    return convert_angles(PyTuple_GET_ITEM(given, 0), PyTuple_GET_ITEM(given, 3), arrays);
}

static int convert_options(PyObject *const *values, attn_rotary_args *args)
{
    int layout;
    args->scale = 1;
    if (values[SCALE] && pyattn_number(values[SCALE], "scale", &args->scale) < 0) return -1;
    if (values[OFFSET] && pyattn_integer(values[OFFSET], "offset", "an int", &args->offset) < 0) return -1;
    if (args->offset != 0 && pyattn_given(values[POSITION_IDS])) {
        PyErr_Format(
            PyExc_ValueError,
            "offset is %zd, but position_ids already give every position; pass offset + position_ids as position_ids",
            args->offset);
        return -1;
    }
    if ((args->interleaved = pyattn_flag(values[INTERLEAVED], "interleaved")) < 0) return -1;
    if ((layout = pyattn_choice(values[LAYOUT], "layout", "bhsd", "bshd")) < 0) return -1;
    args->layout = layout ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD;
    return (args->num_threads = pyattn_num_threads(values[NUM_THREADS])) < 0 ? -1 : 0;
}

/* Whether `out` is x, element for element, and the core can write to it. */
static int is_in_place(PyObject *out, PyArrayObject *x)
{
    if (!pyattn_given(out) || !PyArray_Check(out)) return 0;
    PyArrayObject *y = (PyArrayObject *)out;
    if (PyArray_DATA(y) != PyArray_DATA(x) || PyArray_NDIM(y) != PyArray_NDIM(x)) return 0;
    for (int n = 0; n < PyArray_NDIM(x); n++)
        if (PyArray_DIM(y, n) != PyArray_DIM(x, n) ||
            (PyArray_DIM(x, n) > 1 && PyArray_STRIDE(y, n) != PyArray_STRIDE(x, n)))
            return 0;
    return pyattn_has_contiguous_rows(y);
}

static attn_status compute(const attn_rotary_args *args, const owned *o, int in_place, attn_error *error)
{
    attn_rope rope;
    attn_status status = attn_layout_rotary(args, pyattn_tensor(o->y), &rope, error);
    if (status != ATTN_OK) return status;
    pyattn_ask_for_signals(!in_place);
    PYATTN_RUN(status, PyArray_SIZE(o->y) >= PYATTN_WORTH_THE_GIL, attn_apply_rope(&rope, args->num_threads, error));
    pyattn_ask_for_signals(1);
    return status;
}

static PyObject *rotary(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.x = NULL};
    attn_rotary_args args = {.offset = 0};
    attn_error error;
    attn_status status;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    const int exceeds = pyattn_exceeds(values[X], ATTN_MAX_AXES);
    if (exceeds != 0) return exceeds < 0 ? NULL : pyattn_merge_axes("rotary", positional, nargs, kwnames);
    if (convert_options(values, &args) < 0 || pyattn_check_out(values[OUT]) < 0) goto done;
    if (pyattn_as_reals(values, argument_names, 1, 1, &o.x) < 0) goto done;
    if (pyattn_make_rows_contiguous(&o.x, 1) < 0) goto done;
    if (convert_angles(values[INV_FREQ], values[POSITION_IDS], &o.rope) < 0) goto done;
    pyattn_fill(&args.x, o.x);
    pyattn_fill_rope(&o.rope, &args);
    if (PyErr_Occurred()) goto done;

    if ((status = attn_check_rotary(&args, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    const int in_place = is_in_place(values[OUT], o.x);
    o.y = pyattn_result(values[OUT], args.x.ndim, args.x.shape, o.x, &o.x, in_place ? 0 : 1);
    if (o.y == NULL) goto done;
    if ((status = compute(&args, &o, in_place, &error)) != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = pyattn_filled(values[OUT], o.y);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_rotary_methods[] = {
    {"rotary", (PyCFunction)(void (*)(void))rotary, METH_FASTCALL | METH_KEYWORDS,
     "rotary($module, x, inv_freq, *, scale=1.0, offset=0, position_ids=None, interleaved=False, layout='bhsd', "
     "num_threads=None, out=None)\n--\n\nRotate pairs of features. See pyattn.rotary_embedding."},
    {NULL, NULL, 0, NULL},
};
