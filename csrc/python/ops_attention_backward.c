/* pyattn._core.attention_backward, which pyattn.functional.attention_backward wraps. */
#include "options.h"

#include "backward.h"

enum { GRAD_OUTPUT, QUERY, KEY, VALUE, OUTPUT, SCORE_WEIGHT, LSE, GRAD_LSE, NEED, OPTIONS };
enum { ARGUMENTS = OPTIONS + PYATTN_OPTIONS };
static const char *const argument_names[ARGUMENTS] = {
    "grad_output", "query", "key", "value", "output", "score_weight", "lse", "grad_lse", "need", PYATTN_OPTION_NAMES};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"attention_backward", ARGUMENTS,     OPTIONS, OPTIONS,
                                           argument_names,       interned_names};
static const pyattn_forward_places places = {argument_names, .query = QUERY, .required = SCORE_WEIGHT, .lse = LSE,
                                             .options = OPTIONS};

/* Bits of `need`, and the places of the result. */
enum { NEED_QUERY, NEED_KEY, NEED_VALUE, NEED_MASK, NEED_SCORE_WEIGHT, NEED_SCALE, GRADIENTS };

typedef struct {
    pyattn_forward_pass forward;
    PyArrayObject *gradients[NEED_SCALE];
} owned;

static void release(owned *o)
{
    for (int n = 0; n < NEED_SCALE; n++) Py_XDECREF(o->gradients[n]);
    pyattn_release_forward(&o->forward);
}

static int fill(const pyattn_forward_pass *forward, attn_backward_args *args)
{
    pyattn_fill_forward(&places, forward, &args->attention, &args->output, &args->lse);
    pyattn_fill(&args->grad_output, forward->arrays[GRAD_OUTPUT]);
    pyattn_fill(&args->grad_lse, forward->arrays[GRAD_LSE]);
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
        o->gradients[n] = pyattn_new_array(of[n]->ndim, of[n]->shape, o->forward.dtype);
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
    if (pyattn_integer(values[NEED], "need", "an int", &need) < 0) return NULL;
    if (pyattn_convert_forward(&places, values, &args.attention, &o.forward) < 0 || fill(&o.forward, &args) < 0)
        goto done;
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
