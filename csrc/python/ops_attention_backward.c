/* pyattn._core.attention_backward, which pyattn.functional.attention_backward wraps. */
#include "options.h"

#include "backward.h"

enum { GRAD_OUTPUT, QUERY, KEY, VALUE, OUTPUT, SCORE_WEIGHT, ARRAYS, LSE = ARRAYS, GRAD_LSE, NEED, POSITIONAL };
enum { OPTIONS = POSITIONAL, ARGUMENTS = OPTIONS + PYATTN_OPTIONS };
static const char *const argument_names[ARGUMENTS] = {
    "grad_output", "query", "key", "value", "output", "score_weight", "lse", "grad_lse", "need", PYATTN_OPTION_NAMES};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"attention_backward", ARGUMENTS,      POSITIONAL,
                                           POSITIONAL,           argument_names, interned_names};

/* Bits of `need`, and the places of the result. */
enum { NEED_QUERY, NEED_KEY, NEED_VALUE, NEED_MASK, NEED_SCORE_WEIGHT, NEED_SCALE, GRADIENTS };

typedef struct {
    PyArrayObject *inputs[ARRAYS], *lse, *grad_lse, *gradients[NEED_SCALE];
    PyArrayObject *vector; /* score_weight in the dtype of the arithmetic, contiguous */
    pyattn_option_arrays options;
    PyObject *lowered;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < ARRAYS; n++) Py_XDECREF(o->inputs[n]);
    for (int n = 0; n < NEED_SCALE; n++) Py_XDECREF(o->gradients[n]);
    Py_XDECREF(o->lse);
    Py_XDECREF(o->grad_lse);
    Py_XDECREF(o->vector);
    Py_XDECREF(o->lowered);
    pyattn_release_options(&o->options);
}

static attn_dtype computed(const owned *o)
{
    return PyArray_TYPE(pyattn_widest(o->inputs, ARRAYS)) == NPY_DOUBLE ? ATTN_F64 : ATTN_F32;
}

/* lse or its gradient, in the dtype of the arithmetic. */
static int convert_lse(PyObject *object, const char *name, attn_dtype dtype, PyArrayObject **lse)
{
    if (!pyattn_given(object)) return 0;
    PyArrayObject *array = pyattn_as_array(object, name);
    const int fails = array == NULL || pyattn_check_axes(array, name) < 0 || pyattn_real_type(array, object, name) < 0;
    *lse = fails ? NULL : pyattn_well_behaved(array, dtype == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT);
    Py_XDECREF(array);
    return *lse == NULL ? -1 : 0;
}

static int convert_weight(owned *o)
{
    PyArrayObject *const weight = o->inputs[SCORE_WEIGHT];
    if (weight == NULL) return 0;
    o->vector = pyattn_well_behaved(weight, computed(o) == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT);
    return o->vector == NULL ? -1 : pyattn_make_rows_contiguous(&o->vector, 1);
}

static int convert(PyObject **values, owned *o, attn_backward_args *args, Py_ssize_t *need)
{
    if (pyattn_as_reals(values, argument_names, ARRAYS, SCORE_WEIGHT, o->inputs) < 0 || convert_weight(o) < 0)
        return -1;
    if (convert_lse(values[LSE], "lse", computed(o), &o->lse) < 0) return -1;
    if (convert_lse(values[GRAD_LSE], "grad_lse", computed(o), &o->grad_lse) < 0) return -1;
    if (pyattn_integer(values[NEED], "need", "an int", need) < 0) return -1;
    if (pyattn_lower_mask(values + OPTIONS, o->inputs + QUERY, &o->lowered, &o->options) < 0) return -1;
    if (pyattn_convert_options(values + OPTIONS, &args->attention, &o->options) < 0) return -1;
    if (o->options.keep_mask != NULL) return 0;
    /* A draw runs Python code; the tensors are taken after it. */
    return pyattn_draw_seed(values + OPTIONS, &args->attention, &args->attention.dropout_seed) < 0 ? -1 : 0;
}

static int fill(owned *o, attn_backward_args *args)
{
    pyattn_fill(&args->grad_output, o->inputs[GRAD_OUTPUT]);
    pyattn_fill(&args->attention.query, o->inputs[QUERY]);
    pyattn_fill(&args->attention.key, o->inputs[KEY]);
    pyattn_fill(&args->attention.value, o->inputs[VALUE]);
    pyattn_fill(&args->output, o->inputs[OUTPUT]);
    pyattn_fill(&args->attention.score_weight, o->vector);
    pyattn_fill(&args->lse, o->lse);
    pyattn_fill(&args->grad_lse, o->grad_lse);
    pyattn_fill_options(&o->options, &args->attention);
    return PyErr_Occurred() ? -1 : 0;
}

/* Creates the arrays of the gradients that are wanted. */
static int make_results(Py_ssize_t need, owned *o, const attn_backward_args *args, attn_gradients *gradients)
{
    const attn_args *a = &args->attention;
    const attn_tensor *const of[] = {&a->query, &a->key, &a->value, &a->mask, &a->score_weight};
    attn_tensor *const to[] = {&gradients->query, &gradients->key, &gradients->value, &gradients->mask,
                               &gradients->score_weight};
    for (int n = 0; n < NEED_SCALE; n++) {
        if (!(need >> n & 1) || of[n]->data == NULL) continue;
        o->gradients[n] = pyattn_new_array(of[n]->ndim, of[n]->shape, computed(o));
        if (o->gradients[n] == NULL) return -1;
        pyattn_fill(to[n], o->gradients[n]);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* A tuple: the gradients of query, key, value, attn_mask, score_weight and scale, or None. */
static PyObject *wrap(const owned *o, Py_ssize_t need, double scale)
{
    PyObject *result = PyTuple_New(GRADIENTS);
    PyObject *number = need >> NEED_SCALE & 1 ? PyFloat_FromDouble(scale) : Py_NewRef(Py_None);
    if (result == NULL || number == NULL) {
        Py_XDECREF(number);
        Py_XDECREF(result);
        return NULL;
    }
    for (int n = 0; n < NEED_SCALE; n++)
        PyTuple_SET_ITEM(result, n, Py_NewRef(o->gradients[n] ? (PyObject *)o->gradients[n] : Py_None));
    PyTuple_SET_ITEM(result, NEED_SCALE, number);
    return result;
}

static PyObject *attention_backward(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o;
    attn_backward_args args;
    attn_gradients gradients;
    attn_backward_problem problem;
    attn_error error;
    attn_status status;
    Py_ssize_t need;
    double scale = 0;
    (void)self;
    pyattn_clear(&o, sizeof o);
    pyattn_clear(&args, sizeof args);
    pyattn_clear(&gradients, sizeof gradients);

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (convert(values, &o, &args, &need) < 0 || fill(&o, &args) < 0) goto done;
    status = attn_check_gradients(&args, &gradients, &problem, &error); /* sizes, before anything is allocated */
    if (status == ATTN_OK && make_results(need, &o, &args, &gradients) < 0) goto done;
    if (need >> NEED_SCALE & 1) gradients.scale = &scale;
    if (status == ATTN_OK) status = attn_check_gradients(&args, &gradients, &problem, &error);
    if (status == ATTN_OK)
        PYATTN_RUN(status, attn_work(&problem.forward) >= PYATTN_WORTH_THE_GIL / 2,
                   attn_attend_backward(&problem, &gradients, args.attention.num_threads, &error));
    result = status == ATTN_OK ? wrap(&o, need, scale) : pyattn_raise(status, &error);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_attention_backward_methods[] = {
    {"attention_backward", (PyCFunction)(void (*)(void))attention_backward, METH_FASTCALL | METH_KEYWORDS,
     "attention_backward($module, grad_output, query, key, value, output, score_weight, lse, grad_lse, need, "
     "**options)\n--\n\n"
     "Gradients of attention. See pyattn.functional.attention_backward."},
    {NULL, NULL, 0, NULL},
};
