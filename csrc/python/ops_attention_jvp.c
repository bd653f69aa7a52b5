/* pyattn._core.attention_jvp, which pyattn.functional.attention_jvp wraps. */
#include "options.h"

#include "jvp.h"

enum { QUERY, KEY, VALUE, OUTPUT, TANGENT_QUERY, TANGENT_KEY, TANGENT_VALUE, SCORE_WEIGHT, ARRAYS };
enum { LSE = ARRAYS, TANGENT_MASK, POSITIONAL, OPTIONS = POSITIONAL, ARGUMENTS = OPTIONS + PYATTN_OPTIONS };
static const char *const argument_names[ARGUMENTS] = {"query",
                                                      "key",
                                                      "value",
                                                      "output",
                                                      "tangent_query",
                                                      "tangent_key",
                                                      "tangent_value",
                                                      "score_weight",
                                                      "lse",
                                                      "tangent_attn_mask",
                                                      PYATTN_OPTION_NAMES};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"attention_jvp", ARGUMENTS,      POSITIONAL,
                                           POSITIONAL,      argument_names, interned_names};

typedef struct {
    PyArrayObject *inputs[ARRAYS], *lse, *tangent_mask, *tangent_output;
    PyArrayObject *vector; /* score_weight in the dtype of the arithmetic, contiguous */
    pyattn_option_arrays options;
    PyObject *lowered;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->inputs[n]);
    Py_XDECREF(o->lse);
    Py_XDECREF(o->tangent_mask);
    Py_XDECREF(o->tangent_output);
    Py_XDECREF(o->vector);
    Py_XDECREF(o->lowered);
    pyattn_release_options(&o->options);
}

static attn_dtype computed(const owned *o)
{
    return PyArray_TYPE(pyattn_widest(o->inputs, ARRAYS)) == NPY_DOUBLE ? ATTN_F64 : ATTN_F32;
}

/* An array that keeps its strides, in the dtype of the arithmetic. */
static int convert_real(PyObject *object, const char *name, attn_dtype dtype, PyArrayObject **real)
{
    if (!pyattn_given(object)) return 0;
    PyArrayObject *array = pyattn_as_array(object, name);
    const int fails = array == NULL || pyattn_check_axes(array, name) < 0 || pyattn_real_type(array, object, name) < 0;
    *real = fails ? NULL : pyattn_well_behaved(array, dtype == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT);
    Py_XDECREF(array);
    return *real == NULL ? -1 : 0;
}

static int convert_weight(owned *o)
{
    PyArrayObject *const weight = o->inputs[SCORE_WEIGHT];
    if (weight == NULL) return 0;
    o->vector = pyattn_well_behaved(weight, computed(o) == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT);
    return o->vector == NULL ? -1 : pyattn_make_rows_contiguous(&o->vector, 1);
}

static int convert(PyObject **values, owned *o, attn_jvp_args *args)
{
    if (pyattn_as_reals(values, argument_names, ARRAYS, TANGENT_QUERY, o->inputs) < 0 || convert_weight(o) < 0)
        return -1;
    if (convert_real(values[LSE], "lse", computed(o), &o->lse) < 0) return -1;
    if (convert_real(values[TANGENT_MASK], "tangent_attn_mask", computed(o), &o->tangent_mask) < 0) return -1;
    if (pyattn_lower_mask(values + OPTIONS, o->inputs, &o->lowered, &o->options) < 0) return -1;
    if (pyattn_convert_options(values + OPTIONS, &args->attention, &o->options) < 0) return -1;
    if (o->options.keep_mask != NULL) return 0;
    /* A draw runs Python code; the tensors are taken after it. */
    return pyattn_draw_seed(values + OPTIONS, &args->attention, &args->attention.dropout_seed) < 0 ? -1 : 0;
}

static int fill(owned *o, attn_jvp_args *args)
{
    pyattn_fill(&args->attention.query, o->inputs[QUERY]);
    pyattn_fill(&args->attention.key, o->inputs[KEY]);
    pyattn_fill(&args->attention.value, o->inputs[VALUE]);
    pyattn_fill(&args->attention.score_weight, o->vector);
    pyattn_fill(&args->output, o->inputs[OUTPUT]);
    pyattn_fill(&args->lse, o->lse);
    pyattn_fill(&args->query, o->inputs[TANGENT_QUERY]);
    pyattn_fill(&args->key, o->inputs[TANGENT_KEY]);
    pyattn_fill(&args->value, o->inputs[TANGENT_VALUE]);
    pyattn_fill(&args->mask, o->tangent_mask);
    pyattn_fill_options(&o->options, &args->attention);
    return PyErr_Occurred() ? -1 : 0;
}

/* Creates the tangent of output. */
static int make_result(owned *o, const attn_jvp_args *args, attn_tensor *tangent_output)
{
    o->tangent_output = pyattn_new_array(args->output.ndim, args->output.shape, computed(o));
    if (o->tangent_output == NULL) return -1;
    pyattn_fill(tangent_output, o->tangent_output);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *attention_jvp(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o;
    attn_jvp_args args;
    attn_jvp_problem problem;
    attn_tensor tangent_output;
    attn_error error;
    attn_status status;
    (void)self;
    pyattn_clear(&o, sizeof o);
    pyattn_clear(&args, sizeof args);

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert(values, &o, &args) < 0 || fill(&o, &args) < 0) goto done;
    status = attn_check_tangents(&args, &problem, &error); /* sizes, before anything is allocated */
    if (status == ATTN_OK && make_result(&o, &args, &tangent_output) < 0) goto done;
    if (status == ATTN_OK) status = attn_check_tangent_output(&args, &tangent_output, &problem, &error);
    if (status == ATTN_OK)
        PYATTN_RUN(status, attn_work(&problem.forward) >= PYATTN_WORTH_THE_GIL / 2,
                   attn_attend_jvp(&problem, args.attention.num_threads, &error));
    result = status == ATTN_OK ? Py_NewRef((PyObject *)o.tangent_output) : pyattn_raise(status, &error);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_attention_jvp_methods[] = {
    {"attention_jvp", (PyCFunction)(void (*)(void))attention_jvp, METH_FASTCALL | METH_KEYWORDS,
     "attention_jvp($module, query, key, value, output, tangent_query, tangent_key, tangent_value, score_weight, lse, "
     "tangent_attn_mask, **options)\n--\n\n"
     "The tangent of attention's output. See pyattn.functional.attention_jvp."},
    {NULL, NULL, 0, NULL},
};
