/* The options that attention and multi-head attention share, in the order of their arguments. */
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

/* The options that are arrays. */
typedef struct {
    PyArrayObject *mask, *keep_mask, *key_limits, *key_lengths, *query_lengths;
} pyattn_option_arrays;

/* Fills args except its tensors; values (PYATTN_OPTIONS) are NULL if not given. need_weights and need_lse, which
 * concern results, are ignored; key_limits come from mask objects alone, elsewhere. Returns -1 with an exception; the
 * caller must release `arrays` in any case. */
int pyattn_convert_options(PyObject *const *values, attn_args *args, pyattn_option_arrays *arrays);
/* Fills the tensors. Call it after all conversions. */
void pyattn_fill_options(const pyattn_option_arrays *arrays, attn_args *args);
/* Draws a 64-bit seed for random dropout. Call it after all checks, so that a failing call draws nothing. Returns 0
 * if no seed is needed, 1 after a draw, -1 with an exception. A draw runs the caller's code, which may change any
 * array. */
int pyattn_draw_seed(PyObject *const *values, const attn_args *args, uint64_t *seed);
void pyattn_release_options(pyattn_option_arrays *arrays);

/* mask_objects.c: replaces a mask object, in `values`, by limits, an array or both; an array stays. `inputs` are query,
 * key and value. `lowered`, which owns what replaces it, must be released by the caller in any case. Returns -1 with an
 * exception. */
int pyattn_lower_mask(PyObject **values, PyArrayObject *const *inputs, PyObject **lowered,
                      pyattn_option_arrays *arrays);

/* forward_pass.c: the arguments that the derivatives of attention take of the forward pass, at these places among their
 * values: query, key, value and output from `query` on, score_weight before lse, and an array like lse after it. All
 * before lse are reals of one call, the first `required` of which must be given. */
typedef struct {
    const char *const *names;
    int query, required, lse, options;
} pyattn_forward_places;
enum { PYATTN_FORWARD_ARRAYS = 10 }; /* of attention_jvp, which has the most */
typedef struct {
    PyArrayObject *arrays[PYATTN_FORWARD_ARRAYS]; /* at the places of their values */
    pyattn_option_arrays options;
    PyObject *lowered;
    attn_dtype dtype; /* of the arithmetic, and of lse and the array like it */
} pyattn_forward_pass;
/* Converts them, and draws a seed. Returns -1 with an exception; the caller must release `forward` in any case. */
int pyattn_convert_forward(const pyattn_forward_places *at, PyObject **values, attn_args *args,
                           pyattn_forward_pass *forward);
void pyattn_fill_forward(const pyattn_forward_places *at, const pyattn_forward_pass *forward, attn_args *args,
                         attn_tensor *output, attn_tensor *lse);
void pyattn_release_forward(pyattn_forward_pass *forward);
/* score_weight, of pyattn_as_reals, as additive scores read it: in the dtype of the arithmetic, contiguous. New
 * reference. */
PyArrayObject *pyattn_weight_vector(PyArrayObject *weight);

/* Converts a mask for the core; `meaning` is that of True, for messages. NULL if not given; -1 with an exception. */
int pyattn_convert_mask(PyObject *object, const char *name, const char *meaning, PyArrayObject **mask);

/* Issue one of pyattn's warnings, at the caller's line. They return -1 if the warning became an exception. */
int pyattn_warn(const char *class_name, const char *format, ...);
int pyattn_warn_of_ones(const char *mask); /* for a float mask that was probably meant as bool */

/* Converts one of two words to 0 or 1; 0 if not given, -1 with an exception. */
int pyattn_choice(PyObject *object, const char *name, const char *zero, const char *one);

/* ops_rotary.c: converts RoPE's arguments for queries and keys, a tuple (inv_freq, scale, offset, position_ids or None,
 * interleaved). Its arrays go to `arrays`, which the caller must release in any case. Returns -1 with an exception. */
typedef struct {
    PyArrayObject *inv_freq, *position_ids;
} pyattn_rope_arrays;
int pyattn_convert_rope(PyObject *given, attn_rotary_args *args, pyattn_rope_arrays *arrays);
void pyattn_fill_rope(const pyattn_rope_arrays *arrays, attn_rotary_args *args);
void pyattn_release_rope(pyattn_rope_arrays *arrays);

/* Value of an optional flag; -1 with an exception. */
int pyattn_flag(PyObject *object, const char *name);

#endif
