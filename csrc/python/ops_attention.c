/* pyattn.attention: parse, convert, drop the GIL, call, wrap. */
#include "options.h"
#include "problem.h"

#include "doc_attention.h"

enum { QUERY, KEY, VALUE, OPTIONS, OUT = OPTIONS + PYATTN_OPTIONS, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"query", "key", "value", PYATTN_OPTION_NAMES, "out"};
static PyObject *interned_names[ARGUMENTS];
static const pyattn_signature signature = {"attention", ARGUMENTS, 3, 3, argument_names, interned_names};

/* What one call owns: all released in one place. */
typedef struct {
    PyArrayObject *inputs[3], *output, *weights, *lse;
    pyattn_option_arrays options;
} owned;

static void release(owned *o)
{
    for (int n = 0; n < 3; n++) Py_XDECREF(o->inputs[n]);
    Py_XDECREF(o->output);
    Py_XDECREF(o->weights);
    Py_XDECREF(o->lse);
    pyattn_release_options(&o->options);
}

static int warn_of_likely_mistakes(const attn_shapes *shapes, attn_layout layout)
{
    if (shapes->mask_looks_like_ones && pyattn_warn_of_ones("attn_mask", 0) < 0) return -1;
    if (!shapes->heads_look_like_length) return 0;
    const char *const axes[] = {"(batch, length, heads, dim)", "(batch, heads, length, dim)"};
    const int other = layout == ATTN_LAYOUT_BSHD;
    return pyattn_warn(
        "ShapeWarning",
        "the heads axis has size %zd and the length axis %zd; if query's axes are %s, call attention(..., "
        "layout='%s')",
        shapes->heads, shapes->q_len, axes[other], other ? "bhsd" : "bshd");
}

static int make_results(PyObject *const *values, const attn_shapes *shapes, attn_dtype dtype, owned *o)
{
    const int need_weights = pyattn_flag(values[OPTIONS + PYATTN_NEED_WEIGHTS], "need_weights");
    const int need_lse = pyattn_flag(values[OPTIONS + PYATTN_NEED_LSE], "need_lse");
    if (need_weights < 0 || need_lse < 0) return -1;
    PyArrayObject *const inputs[] = {o->inputs[0],
                                     o->inputs[1],
                                     o->inputs[2],
                                     o->options.mask,
                                     o->options.keep_mask,
                                     o->options.key_lengths,
                                     o->options.query_lengths};
    o->output = pyattn_result(values[OUT], shapes->axes, shapes->output, inputs, sizeof inputs / sizeof *inputs);
    if (o->output == NULL) return -1;
    if (need_weights && (o->weights = pyattn_new_array(shapes->weights_axes, shapes->weights, dtype)) == NULL)
        return -1;
    if (need_lse && (o->lse = pyattn_new_array(shapes->lse_axes, shapes->lse, dtype)) == NULL) return -1;
    return 0;
}

static attn_status compute(const attn_args *args, attn_problem *problem, const owned *o, attn_error *error)
{
    const attn_view none = {.data = NULL}, output = pyattn_view(o->output);
    const attn_view weights = o->weights ? pyattn_view(o->weights) : none, lse = o->lse ? pyattn_view(o->lse) : none;
    attn_status status = attn_check_outputs(args, output, weights, lse, problem, error);

    if (status != ATTN_OK) return status;
    if (attn_work(problem) < PYATTN_WORTH_THE_GIL) return attn_attend(problem, args->num_threads, error);
    PYATTN_BEGIN_ALLOW_THREADS status = attn_attend(problem, args->num_threads, error);
    Py_END_ALLOW_THREADS return status;
}

/* The output alone, or AttentionResult(output, weights, lse). */
static PyObject *wrap(PyObject *const *values, const owned *o)
{
    PyObject *output = pyattn_filled(values[OUT], o->output);
    if (output == NULL || (o->weights == NULL && o->lse == NULL)) return output;

    PyObject *module = PyImport_ImportModule("pyattn.functional");
    PyObject *class = module ? PyObject_GetAttrString(module, "AttentionResult") : NULL;
    PyObject *result =
        class ? PyObject_CallFunctionObjArgs(class, output, o->weights ? (PyObject *)o->weights : Py_None,
                                             o->lse ? (PyObject *)o->lse : Py_None, NULL)
              : NULL;
    Py_XDECREF(class);
    Py_XDECREF(module);
    Py_DECREF(output);
    return result;
}

static PyObject *attention(PyObject *self, PyObject *const *positional, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[ARGUMENTS], *result = NULL;
    owned o = {.output = NULL};
    attn_args args = {.scale = 0};
    attn_problem problem;
    attn_shapes shapes;
    attn_error error;
    attn_status status;
    (void)self;

    if (pyattn_parse(&signature, positional, nargs, kwnames, values) < 0) return NULL;
    if (pyattn_as_reals(values + QUERY, argument_names + QUERY, 3, 3, o.inputs) < 0) goto done;
    if (pyattn_convert_options(values + OPTIONS, &args, &o.options) < 0) goto done;
    args.query = pyattn_view(o.inputs[0]);
    args.key = pyattn_view(o.inputs[1]);
    args.value = pyattn_view(o.inputs[2]);
    pyattn_view_options(&o.options, &args);

    if ((status = attn_check_inputs(&args, &problem, &error)) != ATTN_OK) {
        pyattn_raise(status, &error);
        goto done;
    }
    attn_describe(&args, &problem, &shapes);
    if (warn_of_likely_mistakes(&shapes, args.layout) < 0) goto done;
    if (make_results(values, &shapes, args.query.dtype, &o) < 0) goto done;
    if (pyattn_draw_seed(values + OPTIONS, &args, &problem.dropout_seed) < 0) goto done;
    if ((status = compute(&args, &problem, &o, &error)) != ATTN_OK)
        pyattn_raise(status, &error);
    else
        result = wrap(values, &o);

done:
    release(&o);
    return result;
}

PyMethodDef pyattn_attention_methods[] = {
    {"attention", (PyCFunction)(void (*)(void))attention, METH_FASTCALL | METH_KEYWORDS, DOC_ATTENTION},
    {NULL, NULL, 0, NULL},
};
