/* What the derivatives of attention take of the forward pass. */
#include "options.h"

#include "problem.h"

PyArrayObject *pyattn_weight_vector(PyArrayObject *weight)
{
    PyArrayObject *vector = pyattn_well_behaved(weight, PyArray_TYPE(weight) == NPY_DOUBLE ? NPY_DOUBLE : NPY_FLOAT);
    (void)pyattn_make_rows_contiguous(&vector, 1); /* NULL if that fails */
    return vector;
}

/* An array that keeps its strides, in the dtype of the arithmetic; NULL if not given. */
static int convert_real(PyObject *object, const char *name, attn_dtype dtype, PyArrayObject **real)
{
    if (!pyattn_given(object)) return 0;
    PyArrayObject *array = pyattn_as_array(object, name);
    const int fails = array == NULL || pyattn_check_axes(array, name) < 0 || pyattn_real_type(array, object, name) < 0;
    *real = fails ? NULL : pyattn_well_behaved(array, dtype == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT);
    Py_XDECREF(array);
    return *real == NULL ? -1 : 0;
}

int pyattn_convert_forward(const pyattn_forward_places *at, PyObject **values, attn_args *args, pyattn_forward_pass *f)
{
    PyArrayObject **const weight = &f->arrays[at->lse - 1];
    PyObject **const options = values + at->options;
    if (pyattn_as_reals(values, at->names, at->lse, at->required, f->arrays) < 0) return -1;
    f->dtype = attn_computed((attn_dtype)pyattn_dtype(pyattn_widest(f->arrays, at->lse)));
    if (*weight != NULL) {
        Py_SETREF(*weight, pyattn_weight_vector(*weight));
        if (*weight == NULL) return -1;
    }
    for (int n = at->lse; n < at->lse + 2; n++)
        if (convert_real(values[n], at->names[n], f->dtype, &f->arrays[n]) < 0) return -1;
    if (pyattn_lower_mask(options, f->arrays + at->query, &f->lowered, &f->options) < 0) return -1;
    if (pyattn_convert_options(options, args, &f->options) < 0) return -1;
    if (f->options.keep_mask != NULL) return 0;
    /* A draw runs Python code; the tensors are taken after it. */
    return pyattn_draw_seed(options, args, &args->dropout_seed) < 0 ? -1 : 0;
}

void pyattn_fill_forward(const pyattn_forward_places *at, const pyattn_forward_pass *f, attn_args *args,
                         attn_tensor *output, attn_tensor *lse)
{
    PyArrayObject *const *const inputs = f->arrays + at->query;
    pyattn_fill(&args->query, inputs[0]);
    pyattn_fill(&args->key, inputs[1]);
    pyattn_fill(&args->value, inputs[2]);
    pyattn_fill(output, inputs[3]);
    pyattn_fill(&args->score_weight, f->arrays[at->lse - 1]);
    pyattn_fill(lse, f->arrays[at->lse]);
    pyattn_fill_options(&f->options, args);
}

void pyattn_release_forward(pyattn_forward_pass *f)
{
    for (int n = 0; n < PYATTN_FORWARD_ARRAYS; n++) Py_XDECREF(f->arrays[n]);
    Py_XDECREF(f->lowered);
    pyattn_release_options(&f->options);
}
