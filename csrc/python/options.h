/* What attention and multi-head attention have in common: the options, in the order in which both take them. */
#ifndef PYATTN_OPTIONS_H
#define PYATTN_OPTIONS_H

#include "convert.h"

enum {
    PYATTN_ATTN_MASK,
    PYATTN_IS_CAUSAL,
    PYATTN_ALIGN,
    PYATTN_SCALE,
    PYATTN_SCORE,
    PYATTN_WINDOW,
    PYATTN_KEY_LENGTHS,
    PYATTN_QUERY_LENGTHS,
    PYATTN_DROPOUT_P,
    PYATTN_RNG,
    PYATTN_KEEP_MASK,
    PYATTN_ENABLE_GQA,
    PYATTN_NEED_WEIGHTS,
    PYATTN_NEED_LSE,
    PYATTN_EMPTY_ROWS,
    PYATTN_LAYOUT,
    PYATTN_NUM_THREADS,
    PYATTN_OPTIONS
};
#define PYATTN_OPTION_NAMES                                                                                            \
    "attn_mask", "is_causal", "align", "scale", "score", "window", "key_lengths", "query_lengths", "dropout_p", "rng", \
        "keep_mask", "enable_gqa", "need_weights", "need_lse", "empty_rows", "layout", "num_threads"

/* Arrays among them. */
typedef struct {
    PyArrayObject *mask, *keep_mask, *key_lengths, *query_lengths;
} pyattn_option_arrays;

/* Fills args but for its views; values (PYATTN_OPTIONS) are NULL where not given. Returns -1 with an exception; what is in
 * arrays then is the caller's, too. need_weights and need_lse are not looked at: they ask for results. */
int pyattn_convert_options(PyObject *const *values, attn_args *args, pyattn_option_arrays *arrays);
/* Its views. To be taken when nothing is left to be converted: a conversion may let other threads run, which may give an
 * array another shape. */
void pyattn_view_options(const pyattn_option_arrays *arrays, attn_args *args);
/* 64 bits for a dropout by chance, when all else is checked: a call that fails draws nothing. Returns 0 when nothing is to
 * be drawn, -1 with an exception, and else 1: the caller's code has run, and may have changed any array. */
int pyattn_draw_seed(PyObject *const *values, const attn_args *args, uint64_t *seed);
void pyattn_release_options(pyattn_option_arrays *arrays);

/* A mask as the core reads it; `meaning` is what True means. Not given: stays NULL. Returns -1 with an exception. */
int pyattn_convert_mask(PyObject *object, const char *name, const char *meaning, PyArrayObject **mask);

/* A warning of one of pyattn's own classes, at the caller's line. Return -1 when warnings are errors. */
int pyattn_warn(const char *class_name, const char *format, ...);
int pyattn_warn_of_ones(const char *mask, int blocked); /* of a float mask that was probably meant as flags */

/* One of two words, as 0 or 1, and 0 where not given; -1 with an exception. */
int pyattn_choice(PyObject *object, const char *name, const char *zero, const char *one);

/* ops_rotary.c: how queries and keys turn, a tuple (inv_freq, scale, offset, position_ids or None, interleaved). What it
 * needs of arrays goes to `arrays`. Returns -1 with an exception; what is in arrays then is the caller's, too. */
typedef struct {
    PyArrayObject *inv_freq, *position_ids;
} pyattn_turning_arrays;
int pyattn_convert_turning(PyObject *given, attn_rotary_args *args, pyattn_turning_arrays *arrays);
void pyattn_release_turning(pyattn_turning_arrays *arrays);

/* Truth of an optional flag; -1 with an exception. */
int pyattn_flag(PyObject *object, const char *name);

#endif
