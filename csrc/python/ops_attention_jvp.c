/* pyattn._core.attention_jvp, which pyattn.functional.attention_jvp wraps. */
#include "options.h"

#include "jvp.h"

enum { QUERY, KEY, VALUE, OUTPUT, TANGENT_QUERY, TANGENT_KEY, TANGENT_VALUE, SCORE_WEIGHT, LSE, TANGENT_MASK, OPTIONS };
enum { ARGUMENTS = OPTIONS + PYATTN_OPTIONS };
_Static_assert((int)TANGENT_MASK + 1 == (int)PYATTN_FORWARD_ARRAYS, "see options.h");
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
static const pyattn_signature signature = {"attention_jvp", ARGUMENTS,      OPTIONS,
                                           OPTIONS,         argument_names, interned_names};
static const pyattn_forward_places places = {argument_names, .query = QUERY, .required = TANGENT_QUERY, .lse = LSE,
                                             .options = OPTIONS};

static int fill(const pyattn_forward_pass *forward, attn_jvp_args *args)
{
    pyattn_fill_forward(&places, forward, &args->attention, &args->output, &args->lse);
    pyattn_fill(&args->query, forward->arrays[TANGENT_QUERY]);
    pyattn_fill(&args->key, forward->arrays[TANGENT_KEY]);
    pyattn_fill(&args->value, forward->arrays[TANGENT_VALUE]);
    pyattn_fill(&args->mask, forward->arrays[TANGENT_MASK]);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *attention_jvp(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    PyArrayObject *tangent = NULL;
    pyattn_forward_pass forward;
    attn_jvp_args args;
    attn_jvp_problem problem;
    attn_error error;
    attn_status status;
    (void)self;
    pyattn_clear(&forward, sizeof forward);
    pyattn_clear(&args, sizeof args);

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (pyattn_convert_forward(&places, values, &args.attention, &forward) < 0 || fill(&forward, &args) < 0) goto done;
    status = attn_check_tangents(&args, &problem, &error); /* sizes, before anything is allocated */
    if (status == ATTN_OK) {
        tangent = pyattn_new_array(args.output.ndim, args.output.shape, forward.dtype);
        if (tangent == NULL) goto done;
        const attn_tensor output = pyattn_tensor(tangent);
        status = attn_check_tangent_output(&args, &output, &problem, &error);
    }
    if (status == ATTN_OK)
        PYATTN_RUN(status, attn_work(&problem.forward) >= PYATTN_WORTH_THE_GIL / 2,
                   attn_attend_jvp(&problem, args.attention.num_threads, &error));
    result = status == ATTN_OK ? Py_NewRef((PyObject *)tangent) : pyattn_raise(status, &error);

done:
    Py_XDECREF(tangent);
    pyattn_release_forward(&forward);
    return result;
}

PyMethodDef pyattn_attention_jvp_methods[] = {
    {"attention_jvp", (PyCFunction)(void (*)(void))attention_jvp, METH_FASTCALL | METH_KEYWORDS,
     "attention_jvp($module, query, key, value, output, tangent_query, tangent_key, tangent_value, score_weight, lse, "
     "tangent_attn_mask, **options)\n--\n\n"
     "The tangent of attention's output. See pyattn.functional.attention_jvp."},
    {NULL, NULL, 0, NULL},
};
