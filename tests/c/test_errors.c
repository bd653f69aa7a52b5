/* Every rule of core/check.c and core/results.c has its message. */
#include <math.h>
#include <string.h>

#include "harness.h"

/* A valid call: (2, 4, 3, 8) queries, keys and values, of which only element 0 exists. */
typedef struct {
    attn_args args;
    attn_tensor output, weights, lse;
} call;

static double element;
static int64_t lengths[] = {1, 2, 3};

#define VIEW(dtype, ...) strided(&element, dtype, sizeof LIST(__VA_ARGS__) / sizeof(ptrdiff_t), LIST(__VA_ARGS__), NULL)
#define LENGTHS(...)     strided(lengths, ATTN_I64, sizeof LIST(__VA_ARGS__) / sizeof(ptrdiff_t), LIST(__VA_ARGS__), NULL)

static const ptrdiff_t whole[] = {2, 4, 3, 8}, packed[] = {384, 96, 32, 4};

static call a_call(void)
{
    const attn_tensor view = strided(&element, ATTN_F32, 4, whole, NULL);
    attn_args args = {.query = view, .key = view, .value = view};
    args.window_left = args.window_right = ATTN_UNBOUNDED;
    return (call){.args = args, .output = strided(&element, ATTN_F32, 4, whole, packed)};
}

static void claim_refused(const call *c, const char *sentence, int line)
{
    attn_error error = {""};
    const attn_status status = attn_attention(&c->args, c->output, c->weights, c->lse, &error);
    CLAIM(status == ATTN_INVALID, "line %d: status %d", line, (int)status);
    CLAIM(strcmp(error.message, sentence) == 0, "line %d: \"%s\"", line, error.message);
}

/* Claims that the valid call, after some changes to `args` and `c`, is refused with this message. */
#define REFUSED(sentence, ...)                                                                                         \
    do {                                                                                                               \
        call c = a_call();                                                                                             \
        attn_args *args = &c.args;                                                                                     \
        (void)args;                                                                                                    \
        __VA_ARGS__;                                                                                                   \
        claim_refused(&c, sentence, __LINE__);                                                                         \
    } while (0)

static void test_ranks_and_dtypes(void)
{
    REFUSED("query has shape (8,), expected at least 2 axes: (..., length, dim); for a single query, pass "
            "numpy.atleast_2d(query)",
            args->query = VIEW(ATTN_F32, 8));
    REFUSED("query has shape (-1, 8), expected sizes of 0 or more", args->query = VIEW(ATTN_F32, -1, 8));
    REFUSED("key has shape (), expected at least 2 axes: (..., length, dim)", args->key.ndim = 0);
    REFUSED("value has 9 axes, expected at most 8", args->value.ndim = ATTN_MAX_AXES + 1);
    REFUSED("key has another dtype than query", args->key.dtype = ATTN_F64);
    REFUSED("value has another dtype than query", args->query.dtype = args->key.dtype = ATTN_BF16;
            args->value.dtype = ATTN_F16);
    REFUSED("query must be float16, bfloat16, float32 or float64", args->query.dtype = ATTN_BOOL);
    REFUSED("layout='bshd' needs 4 axes, (batch, length, heads, dim). For (length, heads, dim), pass query[None], "
            "key[None] and value[None], or enable_gqa=True. Given: query (4, 3, 8), key (4, 3, 8), value (3, 8)",
            args->query = args->key = VIEW(ATTN_F32, 4, 3, 8);
            args->value = VIEW(ATTN_F32, 3, 8); args->layout = ATTN_LAYOUT_BSHD);
    REFUSED("key has shape (3, 8), expected at least 3 axes: (..., length, heads, dim)",
            args->key = VIEW(ATTN_F32, 3, 8);
            args->layout = ATTN_LAYOUT_BSHD);
    REFUSED("value has shape (3, 8), expected at least 3 axes: (..., heads, length, dim)",
            args->value = VIEW(ATTN_F32, 3, 8);
            args->enable_gqa = 1);
}

static void test_sizes(void)
{
    REFUSED("key has head_dim 5 but query has 8; both are (..., heads, length, dim). "
            "Given: query (2, 4, 3, 8), key (2, 4, 3, 5)",
            args->key = VIEW(ATTN_F32, 2, 4, 3, 5));
    REFUSED("key has head_dim 5 but query has 8; both are (..., length, dim). Given: query (3, 8), key (3, 5)",
            args->query = args->value = VIEW(ATTN_F32, 3, 8);
            args->key = VIEW(ATTN_F32, 3, 5));
    REFUSED("value has length 6 but key has 3; both are (..., length, heads, dim). "
            "Given: key (2, 3, 4, 8), value (2, 6, 4, 8)",
            args->query = args->key = VIEW(ATTN_F32, 2, 3, 4, 8);
            args->value = VIEW(ATTN_F32, 2, 6, 4, 8); args->layout = ATTN_LAYOUT_BSHD);
    REFUSED("query has 4 heads, key 3 and value 4; query heads must be a multiple of key and value heads (axis -3, "
            "(..., heads, length, dim)). Given: query (2, 4, 3, 8), key (2, 3, 3, 8), value (2, 4, 3, 8)",
            args->key = VIEW(ATTN_F32, 2, 3, 3, 8));
    REFUSED("query has 4 heads, key 2 and value 0; query heads must be a multiple of key and value heads (axis -2, "
            "(..., length, heads, dim)). Given: query (2, 3, 4, 8), key (2, 3, 2, 8), value (2, 3, 0, 8)",
            args->query = VIEW(ATTN_F32, 2, 3, 4, 8);
            args->key = VIEW(ATTN_F32, 2, 3, 2, 8); args->value = VIEW(ATTN_F32, 2, 3, 0, 8);
            args->layout = ATTN_LAYOUT_BSHD);
    REFUSED("query has 1 heads, key 2 and value 3; query heads must be a multiple of key and value heads (axis -3, "
            "(..., heads, length, dim)). Given: query (2, 1, 3, 8), key (2, 2, 3, 8), value (2, 3, 3, 8)",
            args->query = VIEW(ATTN_F32, 2, 1, 3, 8);
            args->key = VIEW(ATTN_F32, 2, 2, 3, 8); args->value = VIEW(ATTN_F32, 2, 3, 3, 8));
    REFUSED(
        "query (2, 4, 3, 8), key (3, 4, 3, 8) and value (2, 4, 3, 8) do not broadcast: axis -4 has sizes 2, 3 and 2",
        args->key = VIEW(ATTN_F32, 3, 4, 3, 8));
    REFUSED("query (4, 3, 8), key (2, 3, 8) and value (2, 3, 8) do not broadcast: axis -3 has sizes 4, 2 and 2; "
            "if it holds heads that share keys, pass enable_gqa=True",
            args->query = VIEW(ATTN_F32, 4, 3, 8);
            args->key = args->value = VIEW(ATTN_F32, 2, 3, 8));
}

static void test_sizes_that_overflow(void)
{
    const ptrdiff_t huge = (ptrdiff_t)(INT64_C(1) << 61);
    REFUSED("the result is too large for memory: query (2305843009213693952, 8), key (3, 8), value (3, 8)",
            args->query = VIEW(ATTN_F32, huge, 8);
            args->key = args->value = VIEW(ATTN_F32, 3, 8));
    REFUSED("the result is too large for memory: query (3, 8), key (3, 8), value (3, 2305843009213693952)",
            args->query = args->key = VIEW(ATTN_F32, 3, 8);
            args->value = VIEW(ATTN_F32, 3, huge));
    REFUSED("the result is too large for memory: query (3, 8), key (2305843009213693952, 8), value "
            "(2305843009213693952, 8)",
            args->query = VIEW(ATTN_F32, 3, 8);
            args->key = args->value = VIEW(ATTN_F32, huge, 8));
    REFUSED(
        "the result is too large for memory: query (1, 2305843009213693952, 3, 8), key (1, 1, 3, 8), value (1, 1, 3, "
        "8)",
        args->query = VIEW(ATTN_F32, 1, huge, 3, 8);
        args->key = args->value = VIEW(ATTN_F32, 1, 1, 3, 8));
    call c = a_call();
    attn_error error = {""};
    const attn_tensor batches = VIEW(ATTN_F32, huge, huge, 3, 8);
    c.args.query = c.args.key = c.args.value = batches;
    CLAIM(attn_attention(&c.args, c.output, c.weights, c.lse, &error) == ATTN_INVALID, "2^122 slices");
    CLAIM(strncmp(error.message, "the result is too large for memory: ", 36) == 0, "%s", error.message);
}

/* Starts, windows and sizes at the end of their range are refused or harmless; UBSan would report an overflow. */
static void test_ends_of_ranges(void)
{
    const ptrdiff_t most = PTRDIFF_MAX, least = PTRDIFF_MIN;
    const ptrdiff_t starts[][2] = {{most, 0}, {0, most - 63}, {most, most - 63}, {0, least}, {least, most}};
    const ptrdiff_t windows[][2] = {{-1, -1}, {most, most}, {0, most}, {most, 0}};
    float results[24];
    attn_error error;
    for (int n = 0; n < 5; n++)
        for (int w = 0; w < 4; w++) {
            call c = a_call();
            c.args.query = c.args.key = c.args.value = VIEW(ATTN_F32, 3, 8);
            c.output = strided(results, ATTN_F32, 2, LIST(3, 8), packed + 2);
            c.args.query_start = starts[n][0], c.args.key_start = starts[n][1];
            c.args.window_left = windows[w][0], c.args.window_right = windows[w][1];
            const attn_status status = attn_attention(&c.args, c.output, c.weights, c.lse, &error);
            CLAIM(status == ATTN_OK || status == ATTN_INVALID, "starts %d, window %d: status %d", n, w, (int)status);
        }
    call c = a_call(); /* no queries: nothing to compute, however large the rest */
    c.args.query = VIEW(ATTN_F32, 0, most);
    c.args.key = VIEW(ATTN_F32, most, most);
    c.args.value = VIEW(ATTN_F32, most, most);
    c.output = VIEW(ATTN_F32, 0, most);
    CLAIM(attn_attention(&c.args, c.output, c.weights, c.lse, &error) == ATTN_OK, "no queries: %s", error.message);
}

static void test_masks_and_lengths(void)
{
    REFUSED("attn_mask has shape (3, 4), which does not broadcast to (2, 4, 3, 3): (..., heads, q_len, kv_len)",
            args->mask = VIEW(ATTN_BOOL, 3, 4));
    REFUSED("attn_mask has shape (2,), which does not broadcast to (3, 3): (..., q_len, kv_len)",
            args->query = args->key = args->value = VIEW(ATTN_F32, 3, 8);
            args->mask = VIEW(ATTN_F32, 2));
    REFUSED(
        "attn_mask has shape (1, 2, 4, 3, 3), which does not broadcast to (2, 4, 3, 3): (..., heads, q_len, kv_len); "
        "pass attn_mask.squeeze(-5)",
        args->mask = VIEW(ATTN_BOOL, 1, 2, 4, 3, 3));
    REFUSED("attn_mask has shape (2, 3, 3), which does not broadcast to (2, 4, 3, 3): (..., heads, q_len, kv_len); for "
            "(batch, q_len, kv_len), pass attn_mask[:, None]",
            args->mask = VIEW(ATTN_BOOL, 2, 3, 3));
    REFUSED("attn_mask has shape (2, 3, 4, 3), which does not broadcast to (2, 4, 3, 3): (..., heads, q_len, kv_len); "
            "masks have heads before q_len in every layout: pass attn_mask.swapaxes(-3, -2)",
            args->mask = VIEW(ATTN_BOOL, 2, 3, 4, 3));
    REFUSED("attn_mask has shape (4, 4), which does not broadcast to (2, 4, 3, 3): (..., heads, q_len, kv_len); if the "
            "axes are (..., length, heads, dim), pass layout='bshd'",
            args->mask = VIEW(ATTN_BOOL, 4, 4));
    REFUSED("attn_mask must be bool or float (added to the scores)", args->mask = VIEW(ATTN_I64, 3, 3));
    REFUSED("keep_mask must be bool (True = kept)", args->keep_mask = VIEW(ATTN_F32, 3, 3));
    REFUSED("key_padding_mask has shape (2, 3), which does not broadcast to (3, 3): (..., q_len, kv_len)",
            args->query = args->key = args->value = VIEW(ATTN_F32, 3, 8);
            args->padding_mask = VIEW(ATTN_BOOL, 2, 3));
    REFUSED("dropout_p is 1.5, expected 0 <= dropout_p <= 1", args->dropout_p = 1.5);
    REFUSED("dropout with 8 heads in all, 4294967299 queries and 3 keys, expected at most 2**32 of each (keys: 2**34); "
            "pass keep_mask instead",
            args->dropout_p = 0.5;
            args->query_start = (ptrdiff_t)(INT64_C(1) << 32));
    REFUSED("key_limits has shape (3, 3), which does not broadcast to (2, 4, 3, 2): two numbers for each query",
            args->key_limits = VIEW(ATTN_I64, 3, 3));
    REFUSED("key_limits has shape (3, 1), which does not broadcast to (2, 4, 3, 2): two numbers for each query",
            args->key_limits = VIEW(ATTN_I64, 3, 1));
    REFUSED("key_limits has shape (4, 2), which does not broadcast to (2, 4, 3, 2): two numbers for each query",
            args->key_limits = VIEW(ATTN_I64, 4, 2));
    REFUSED("key_limits must be int64", args->key_limits = VIEW(ATTN_F64, 3, 2));
    REFUSED("key_lengths has shape (3,), which does not broadcast to the batch axes (2,)",
            args->key_lengths = LENGTHS(3));
    REFUSED("query_lengths has shape (2, 1), which does not broadcast to the batch axes (2,)",
            args->query_lengths = LENGTHS(2, 1));
    REFUSED("key_lengths has shape (2,), which does not broadcast to the batch axes (2,)",
            args->key_lengths = VIEW(ATTN_F64, 2));
    REFUSED("key_lengths holds 4, expected 0 <= n <= 3 (the length of key)", lengths[0] = 4;
            args->key_lengths = LENGTHS(2));
    REFUSED("query_lengths holds -1, expected 0 <= n <= 3 (the length of query)", lengths[0] = -1;
            args->query_lengths = LENGTHS(1));
    lengths[0] = 1;
}

static void test_visibility(void)
{
    REFUSED("is_causal=True with 3 queries and 5 keys needs align='upper_left' (torch, JAX) or align='lower_right' "
            "(FlashAttention; decoding with a cache). For 2 queries and 4 keys, x = up to the query's own position:\n"
            "  upper_left   lower_right\n"
            "    x . . .       x x x .\n"
            "    x x . .       x x x x",
            args->key = args->value = VIEW(ATTN_F32, 2, 4, 5, 8);
            args->is_causal = 1);
    REFUSED("window with 3 queries and 1 keys needs align='upper_left' (torch, JAX) or align='lower_right' "
            "(FlashAttention; decoding with a cache). For 4 queries and 2 keys, x = up to the query's own position:\n"
            "  upper_left   lower_right\n"
            "    x .           . .\n"
            "    x x           . .\n"
            "    x x           x .\n"
            "    x x           x x",
            args->key = args->value = VIEW(ATTN_F32, 2, 4, 1, 8);
            args->window_left = 2);
    REFUSED("window is (-2, -1), expected two sizes of 0 or more, or None for unbounded", args->window_left = -2);
    REFUSED("window is (0, -9), expected two sizes of 0 or more, or None for unbounded", args->window_left = 0;
            args->window_right = -9);
    REFUSED("query_start is -1 and key_start 0, expected positions from 0 to 1152921504606846975",
            args->query_start = -1);
    REFUSED("query_start is 0 and key_start -64, expected positions from 0 to 1152921504606846975",
            args->query_start = 0;
            args->key_start = -64);
    REFUSED("key_start is 100, expected a multiple of 64", args->key_start = 100);
    REFUSED("a part of the keys ends at 3, expected a multiple of 512: only the last part may end elsewhere",
            args->unfinished = 1);
    REFUSED("key_start is 64, expected a multiple of 512 with a state", args->state = VIEW(ATTN_F32, 2, 3, 10);
            args->key_start = 64);
    REFUSED("units has shape (1, 2), which does not broadcast to (2, 4): an int64 for each batch entry and head",
            args->units = VIEW(ATTN_I64, 1, 2));
}

static void test_results(void)
{
    REFUSED("output must be given, in a dtype that goes with query's", c.output.data = NULL);
    REFUSED("output has another dtype than query", c.output.dtype = ATTN_F64);
    REFUSED("output has shape (2, 4, 3, 7), expected (2, 4, 3, 8)", c.output = VIEW(ATTN_F32, 2, 4, 3, 7));
    REFUSED("output's last axis must be contiguous", c.output.strides[3] = 8);
    REFUSED("weights has shape (2, 4, 3, 8), expected (2, 4, 3, 3)", c.weights = c.output);
    REFUSED("weights has another dtype than query", c.weights = VIEW(ATTN_F64, 2, 4, 3, 3));
    REFUSED("the last axis of weights must be contiguous", c.weights = VIEW(ATTN_F32, 2, 4, 3, 3);
            c.weights.strides[3] = 8);
    REFUSED("lse has shape (2, 4), expected (2, 4, 3)", c.lse = VIEW(ATTN_F32, 2, 4));
}

/* A shape that is too long for a message is cut, and the message is complete otherwise. */
static void test_long_shapes(void)
{
    call c = a_call();
    attn_error error;
    memset(&error, 'x', sizeof error);
    c.args.key.ndim = ATTN_MAX_AXES;
    for (int n = 0; n < ATTN_MAX_AXES; n++) c.args.key.shape[n] = PTRDIFF_MAX - 1;
    c.args.key.shape[ATTN_MAX_AXES - 1] = 5;
    CLAIM(attn_attention(&c.args, c.output, c.weights, c.lse, &error) == ATTN_INVALID, "8 axes");
    CLAIM(memchr(error.message, 0, sizeof error.message) != NULL, "a message without an end");
    CLAIM(strstr(error.message, ", ...)") != NULL, "%s", error.message);
    CLAIM(attn_attention(&c.args, c.output, c.weights, c.lse, NULL) == ATTN_INVALID, "nobody asks for the message");
}

static void test_training(void)
{
    attn_error error = {""};
    float x[2] = {1, 2}, gradient[2] = {7, 7}, state[2] = {0, 0};
    int64_t ids[1] = {2};
    double loss = 7;
    attn_tensor logits = {x, ATTN_F32, 2, {1, 2}, {8, 4}}, result = logits, classes = {ids, ATTN_I64, 1, {1}, {8}};
    const attn_tensor none = {.data = NULL}; /* no losses of rows */
    attn_cross_entropy_args args = {.x = logits, .ids = classes, .ignore_index = -100};
    const attn_adam_args adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .step = 0};
    const attn_sgd_args sgd = {.lr = 0.5};
    result.data = gradient;
    CLAIM(attn_cross_entropy(&args, none, result, &loss, &error) == ATTN_INVALID, "a class too many");
    CLAIM(strncmp(error.message, "target holds 2 in row 0", 23) == 0, "%s", error.message);
    CLAIM(loss == 7 && gradient[0] == 7, "something was written");
    ids[0] = 1;
    CLAIM(attn_cross_entropy(&args, none, result, &loss, &error) == ATTN_OK, "%s", error.message);
    CLAIM(fabs(loss - log1p(exp(-1.0))) < 1e-6, "the loss is %g", loss);
    CLAIM(fabsf(gradient[0] + gradient[1]) < 1e-6f && gradient[1] < 0, "gradients %g", (double)gradient[0]);
    args.ids.dtype = ATTN_F64;
    CLAIM(attn_cross_entropy(&args, none, result, &loss, &error) == ATTN_INVALID, "ids of doubles");
    args.target = logits;
    CLAIM(attn_cross_entropy(&args, none, result, &loss, &error) == ATTN_INVALID, "two targets");
    CLAIM(attn_adam(&adam, ATTN_F32, 2, x, gradient, state, state, NULL, &error) == ATTN_INVALID, "step 0");
    CLAIM(attn_adam(&adam, ATTN_BOOL, 2, x, gradient, state, state, NULL, &error) == ATTN_INVALID, "bools");
    CLAIM(attn_sgd(&sgd, ATTN_F32, -1, x, gradient, NULL, &error) == ATTN_INVALID, "-1 elements");
    CLAIM(attn_sum_squares(ATTN_F16, 2, x, &loss, 1, &error) == ATTN_INVALID, "squares of halves");
    CLAIM(x[0] == 1 && x[1] == 2, "a parameter was written");
    CLAIM(attn_sgd(&sgd, ATTN_F32, 1, x, x + 1, NULL, &error) == ATTN_OK && x[0] == 0, "x is %g", (double)x[0]);
}

static void test_other_functions(void)
{
    attn_error error = {""};
    const void *parts[] = {&element};
    CLAIM(attn_softmax(ATTN_BOOL, 1, 1, &element, &element, 0, 1, &error) == ATTN_INVALID, "softmax of bools");
    CLAIM(strcmp(error.message, "x must be float16, bfloat16, float32 or float64") == 0, "%s", error.message);
    CLAIM(attn_merge_states(ATTN_BOOL, 1, 1, 1, parts, parts, &element, &element, &error) == ATTN_INVALID,
          "bool parts");
    CLAIM(strcmp(error.message, "outputs must be float16, bfloat16, float32 or float64") == 0, "%s", error.message);
    test_training();
    CLAIM(attn_set_isa("pentium", &error) == ATTN_INVALID, "a level that is none");
    CLAIM(strcmp(error.message, "pentium is not an instruction-set level of this machine") == 0, "%s", error.message);
    CLAIM(attn_isa_name(-1) == NULL && attn_isa_name(99) == NULL, "levels begin at 0 and end");
    CLAIM(attn_isa_compiled(-1) == NULL && attn_isa_compiled(99) == NULL, "so do compiled ones");
}

int main(void)
{
    test_ranks_and_dtypes();
    test_sizes();
    test_sizes_that_overflow();
    test_ends_of_ranges();
    test_masks_and_lengths();
    test_visibility();
    test_results();
    test_long_shapes();
    test_other_functions();
    return report("test_errors");
}
