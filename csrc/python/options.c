/* Converts the options of attention (masks, lengths, alignment ...) to the core's arguments. */
#include "options.h"

/* Value of an optional flag; -1 with an exception. Truthy non-bools such as 'False' are refused. */
int pyattn_flag(PyObject *object, const char *name)
{
    if (object == NULL || object == Py_False) return 0;
    if (object == Py_True) return 1;
    if (PyLong_Check(object) || PyArray_IsScalar(object, Bool)) return PyObject_IsTrue(object);
    PyErr_Format(PyExc_TypeError, "%s is of type %s, expected True or False", name, Py_TYPE(object)->tp_name);
    return -1;
}

int pyattn_convert_mask(PyObject *object, const char *name, const char *meaning, PyArrayObject **mask)
{
    if (!pyattn_given(object)) return 0;
    if (PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError,
                     "%s is %.100R, expected an array or a mask object, such as pyattn.masks.causal(L)", name, object);
        return -1;
    }
    if ((*mask = pyattn_as_array(object, name)) == NULL || pyattn_check_axes(*mask, name) < 0) return -1;
    const int type = PyArray_TYPE(*mask);
    if (PyTypeNum_ISINTEGER(type)) {
        PyObject *flags = pyattn_cast(object, name, "", "bool");
        PyObject *numbers = flags ? pyattn_cast(object, name, "", "numpy.float32") : NULL;
        const int of_lengths = PyArray_NDIM(*mask) == 1 && strcmp(meaning, "attend") == 0;
        if (numbers != NULL)
            PyErr_Format(PyExc_TypeError,
                         "%s has dtype %S; pass %U if nonzero means %s, or %U if it is to be added to the scores%s",
                         name, PyArray_DESCR(*mask), flags, meaning, numbers,
                         of_lengths ? "; key_lengths takes the lengths of padding" : "");
        Py_XDECREF(flags);
        Py_XDECREF(numbers);
        return -1;
    }
    if (pyattn_dtype(*mask) < 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s has dtype %S, expected bool (True = %s) or a float type (added to the scores); pass "
                     "numpy.asarray(%s, bool) or numpy.asarray(%s, numpy.float32)",
                     name, PyArray_DESCR(*mask), meaning, name, name);
        return -1;
    }
    PyArrayObject *array = pyattn_well_behaved(*mask, type);
    Py_SETREF(*mask, array);
    return array == NULL ? -1 : 0;
}

int pyattn_warn(const char *class_name, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *message = PyUnicode_FromFormatV(format, values);
    va_end(values);
    PyObject *module = message ? PyImport_ImportModule("pyattn._util.warnings") : NULL;
    PyObject *class = module ? PyObject_GetAttrString(module, class_name) : NULL;
    PyObject *none = class ? PyObject_CallMethod(module, "warn", "(OO)", class, message) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(class);
    Py_XDECREF(module);
    Py_XDECREF(message);
    return none == NULL ? -1 : 0;
}

int pyattn_warn_of_ones(const char *mask)
{
    return pyattn_warn("MaskWarning",
                       "%s is a float mask whose first and last rows hold only zeros and ones: it is added to the "
                       "scores, and masks nothing. If 1 means attend, pass %s=pyattn.masks.from_array(%s); if it means "
                       "blocked, pass %s=pyattn.masks.from_blocked(%s)",
                       mask, mask, mask, mask, mask);
}

int pyattn_choice(PyObject *object, const char *name, const char *zero, const char *one)
{
    if (object == NULL) return 0;
    if (PyUnicode_Check(object)) {
        if (PyUnicode_CompareWithASCIIString(object, zero) == 0) return 0;
        if (PyUnicode_CompareWithASCIIString(object, one) == 0) return 1;
    }
    PyErr_Format(PyExc_ValueError, "%s is %.100R, expected '%s' or '%s'", name, object, zero, one);
    return -1;
}

/* Converts one side of a window: None, or a number of keys. */
static int window_side(PyObject *object, const char *expected, ptrdiff_t *side)
{
    if (object == Py_None) {
        *side = ATTN_UNBOUNDED;
        return 0;
    }
    if (pyattn_integer(object, "window", expected, side) < 0) return -1;
    if (*side < 0) {
        PyErr_Format(PyExc_ValueError, "window is %zd, expected 0 or more keys on a side, or None for unbounded",
                     *side);
        return -1;
    }
    return 0;
}

static int convert_window(PyObject *object, attn_args *args)
{
    args->window_left = args->window_right = ATTN_UNBOUNDED;
    if (!pyattn_given(object)) return 0;
    /* Text, and buffers such as bytes, would be sequences of integers. */
    if (PyUnicode_Check(object) ||
        (PyObject_CheckBuffer(object) && PySequence_Check(object) && !PyArray_Check(object))) {
        PyErr_Format(PyExc_TypeError, "window is of type %s, expected an int or (left, right)",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    if (PyLong_Check(object) || !PySequence_Check(object) ||
        (PyArray_Check(object) && PyArray_NDIM((PyArrayObject *)object) == 0)) {
        if (window_side(object, "an int or (left, right)", &args->window_left) < 0) return -1;
        args->window_right = args->window_left;
        return 0;
    }
    if (PySequence_Size(object) != 2) {
        PyErr_Format(PyExc_ValueError, "window is %.100R, expected an int or (left, right)", object);
        return -1;
    }
    for (int n = 0; n < 2; n++) {
        PyObject *side = PySequence_GetItem(object, n);
        ptrdiff_t *const to = n == 0 ? &args->window_left : &args->window_right;
        const int failed = side == NULL || window_side(side, "an int or None for a side", to) < 0;
        Py_XDECREF(side);
        if (failed) return -1;
    }
    return 0;
}

static int convert_scale(PyObject *object, attn_args *args)
{
    if (!pyattn_given(object)) return 0;
    args->has_scale = 1;
    if (pyattn_is_bool(object)) {
        PyErr_SetString(PyExc_TypeError, "scale is of type bool, expected a number; pass 1 not to scale, or leave "
                                         "it out for the default");
        return -1;
    }
    return pyattn_finite(object, "scale", &args->scale);
}

int pyattn_draw_seed(PyObject *const *values, const attn_args *args, uint64_t *seed)
{
    PyObject *rng = values[PYATTN_RNG] ? values[PYATTN_RNG] : Py_None;
    if (args->dropout_p == 0 || args->keep_mask.data) return 0; /* no random dropout, so no seed */
    PyObject *module = PyImport_ImportModule("pyattn._util.random");
    PyObject *drawn = module ? PyObject_CallMethod(module, "draw_seed", "(O)", rng) : NULL;
    *seed = drawn ? PyLong_AsUnsignedLongLong(drawn) : 0;
    Py_XDECREF(drawn);
    Py_XDECREF(module);
    return PyErr_Occurred() ? -1 : 1;
}

static int convert_probability(PyObject *object, const char *name, double *probability)
{
    *probability = 0;
    if (object == NULL) return 0;
    if (PyBool_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is of type bool, expected a number", name);
        return -1;
    }
    if (pyattn_number(object, name, probability) < 0) return -1;
    if (*probability >= 0 && *probability <= 1) return 0;
    PyErr_Format(PyExc_ValueError, "%s is %.100R, expected a probability from 0 to 1", name, object);
    return -1;
}

static int convert_dropout(PyObject *const *values, attn_args *args, pyattn_option_arrays *arrays)
{
    PyObject *keep_mask = values[PYATTN_KEEP_MASK];
    if (convert_probability(values[PYATTN_DROPOUT_P], "dropout_p", &args->dropout_p) < 0) return -1;
    if (!pyattn_given(keep_mask)) return 0;
    if ((arrays->keep_mask = pyattn_as_array(keep_mask, "keep_mask")) == NULL) return -1;
    if (pyattn_check_axes(arrays->keep_mask, "keep_mask") < 0) return -1;
    if (PyArray_TYPE(arrays->keep_mask) != NPY_BOOL) {
        PyObject *flags = pyattn_cast(keep_mask, "keep_mask", "", "bool");
        if (flags != NULL)
            PyErr_Format(PyExc_TypeError, "keep_mask has dtype %S, expected bool (True = kept); pass %U",
                         PyArray_DESCR(arrays->keep_mask), flags);
        Py_XDECREF(flags);
        return -1;
    }
    return 0;
}

static int convert_score(PyObject *object, attn_args *args)
{
    static const struct {
        const char *name;
        attn_score score;
    } scores[] = {{"dot", ATTN_SCORE_DOT},
                  {"cosine", ATTN_SCORE_COSINE},
                  {"distance", ATTN_SCORE_DISTANCE},
                  {"additive", ATTN_SCORE_ADDITIVE}};
    if (object == NULL) return 0;
    for (size_t n = 0; PyUnicode_Check(object) && n < sizeof scores / sizeof *scores; n++)
        if (PyUnicode_CompareWithASCIIString(object, scores[n].name) == 0) {
            args->score = scores[n].score;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "score is %.100R, expected 'dot', 'cosine', 'distance', 'bilinear' or 'additive'",
                 object);
    return -1;
}

static int convert_align(PyObject *object, attn_args *args)
{
    if (!pyattn_given(object)) return 0;
    if (!PyUnicode_Check(object)) {
        args->align = ATTN_ALIGN_OFFSET;
        return pyattn_integer(object, "align", "'upper_left', 'lower_right' or an int", &args->align_offset);
    }
    const int n = pyattn_choice(object, "align", "upper_left", "lower_right");
    args->align = n > 0 ? ATTN_ALIGN_LOWER_RIGHT : ATTN_ALIGN_UPPER_LEFT;
    return n < 0 ? -1 : 0;
}

static int convert_words(PyObject *const *values, attn_args *args)
{
    int n;
    if (convert_align(values[PYATTN_ALIGN], args) < 0) return -1;
    if ((n = pyattn_choice(values[PYATTN_EMPTY_ROWS], "empty_rows", "zero", "nan")) < 0) return -1;
    args->empty = n ? Py_NAN : 0;
    PyObject *const layout = values[PYATTN_LAYOUT];
    if (layout != NULL && PyUnicode_Check(layout) && PyUnicode_GET_LENGTH(layout) == 3) {
        PyErr_Format(PyExc_ValueError,
                     "layout is %R, expected 'bhsd' or 'bshd', of 4 axes; for (length, heads, dim) leave it out, and "
                     "pass query.swapaxes(0, 1) and so on",
                     layout);
        return -1;
    }
    if ((n = pyattn_choice(layout, "layout", "bhsd", "bshd")) < 0) return -1;
    args->layout = n ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD;
    return 0;
}

int pyattn_convert_options(PyObject *const *values, attn_args *args, pyattn_option_arrays *arrays)
{
    if ((args->is_causal = pyattn_flag(values[PYATTN_IS_CAUSAL], "is_causal")) < 0) return -1;
    if ((args->enable_gqa = pyattn_flag(values[PYATTN_ENABLE_GQA], "enable_gqa")) < 0) return -1;
    if (convert_words(values, args) < 0 || convert_scale(values[PYATTN_SCALE], args) < 0) return -1;
    if (convert_score(values[PYATTN_SCORE], args) < 0) return -1;
    if (convert_window(values[PYATTN_WINDOW], args) < 0 || convert_dropout(values, args, arrays) < 0) return -1;
    if ((args->num_threads = pyattn_num_threads(values[PYATTN_NUM_THREADS])) < 0) return -1;

    if (pyattn_convert_mask(values[PYATTN_ATTN_MASK], "attn_mask", args->mask_blocked ? "blocked" : "attend",
                            &arrays->mask) < 0)
        return -1;
    if (pyattn_given(values[PYATTN_KEY_LENGTHS]) &&
        pyattn_as_integers(values[PYATTN_KEY_LENGTHS], "key_lengths", &arrays->key_lengths) < 0)
        return -1;
    if (pyattn_given(values[PYATTN_QUERY_LENGTHS]) &&
        pyattn_as_integers(values[PYATTN_QUERY_LENGTHS], "query_lengths", &arrays->query_lengths) < 0)
        return -1;
    return 0;
}

void pyattn_fill_options(const pyattn_option_arrays *arrays, attn_args *args)
{
    pyattn_fill(&args->mask, arrays->mask);
    pyattn_fill(&args->keep_mask, arrays->keep_mask);
    pyattn_fill(&args->key_limits, arrays->key_limits);
    pyattn_fill(&args->key_lengths, arrays->key_lengths);
    pyattn_fill(&args->query_lengths, arrays->query_lengths);
}

void pyattn_release_options(pyattn_option_arrays *arrays)
{
    Py_XDECREF(arrays->mask);
    Py_XDECREF(arrays->keep_mask);
    Py_XDECREF(arrays->key_limits);
    Py_XDECREF(arrays->key_lengths);
    Py_XDECREF(arrays->query_lengths);
}
