/* The core and its host: settings, failing allocations, interruption, and the floating-point state. */
#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"

/* Allocations that fail ----------------------------------------------------------------------------------------- */

static int allowed, asked; /* allocations that succeed; allocations requested */
static int alive;          /* pieces not released */

/* Refuses more memory than any case needs, as a sanitizer would report such an allocation. */
static void *allocate(size_t bytes)
{
    if (asked++ >= allowed || (uint64_t)bytes > UINT64_C(1) << 32) return NULL;
    alive++;
    return malloc(bytes);
}

static void release(void *memory)
{
    alive--;
    free(memory);
}

static const attn_hooks defaults, failing = {allocate, release, NULL};

/* Resets the hooks, so that the core frees its arenas and the next call starts without any. */
static void allow(int allocations)
{
    attn_set_hooks(&failing);
    CLAIM(alive == 0, "%d pieces of memory were not released", alive);
    asked = 0;
    allowed = allocations;
}

typedef attn_status (*attempt)(void *context, attn_error *error);

/* Lets the n-th allocation fail, n = 0, 1, 2 ... until none does; after each failure the next call works. Returns how
 * many failed. */
static int sweep(const char *what, attempt try, void *context)
{
    attn_error error = {""};
    int n = 0;
    for (;; n++) {
        allow(n);
        const attn_status status = try(context, &error);
        if (asked <= n) {
            CLAIM(status == ATTN_OK, "%s with %d allocations: %s", what, n, error.message);
            break;
        }
        CLAIM(status == ATTN_NO_MEMORY, "%s: allocation %d fails, status %d", what, n, (int)status);
        CLAIM(strstr(error.message, "bytes of scratch memory") != NULL, "%s: \"%s\"", what, error.message);
        allowed = 1000;
        CLAIM(try(context, &error) == ATTN_OK, "%s after a failure: %s", what, error.message);
    }
    attn_set_hooks(&defaults);
    CLAIM(alive == 0, "%s: %d pieces of memory were not released", what, alive);
    return n;
}

/* After a failed allocation, nothing was written. */
static attn_status try_case(void *context, attn_error *error)
{
    test_case *c = context;
    const attn_status status = case_compute(c, error);
    int written = 0;
    for (size_t n = 0; n < c->output.bytes; n++) written |= (unsigned char)c->output.memory[n] != 0xff;
    CLAIM(status == ATTN_OK || !written, "%s: a call that failed wrote to the output", c->text);
    return status;
}

static attn_status try_merge(void *context, attn_error *error)
{
    float outputs[2][3] = {{0}}, lses[2][1] = {{0}}, output[3], lse[1];
    const void *output_list[] = {outputs[0], outputs[1]}, *lse_list[] = {lses[0], lses[1]};
    (void)context;
    return attn_merge_states(ATTN_F32, 2, 1, 3, output_list, lse_list, output, lse, error);
}

static attn_status try_softmax(void *context, attn_error *error)
{
    float x[6] = {1, 2, 3, 4, 5, 6};
    (void)context;
    return attn_softmax(ATTN_F32, 2, 3, x, x, 0, 1, error);
}

enum { ROWS = 20, WIDTH = 16 };
static float rows_x[ROWS][WIDTH], weight_x[WIDTH][WIDTH], rows_y[ROWS][WIDTH];

static attn_tensor contiguous(void *data, const ptrdiff_t *shape)
{
    static const ptrdiff_t strides[] = {WIDTH * sizeof(float), sizeof(float)};
    return strided(data, ATTN_F32, 2, shape, strides);
}

static attn_status try_linear(void *context, attn_error *error)
{
    const ptrdiff_t rows[] = {*(const ptrdiff_t *)context, WIDTH}, square[] = {WIDTH, WIDTH};
    const attn_linear_args args = {.x = contiguous(rows_x, rows), .weight = contiguous(weight_x, square)};
    return attn_linear(&args, contiguous(rows_y, rows), error);
}

static attn_status try_multihead(void *context, attn_error *error)
{
    const ptrdiff_t rows[] = {*(const ptrdiff_t *)context, WIDTH}, square[] = {WIDTH, WIDTH};
    const attn_tensor x = contiguous(rows_x, rows), weight = contiguous(weight_x, square);
    attn_multihead_args args = {.query = x, .key = x, .value = x, .heads = 2, .kv_heads = 2};
    args.q_weight = args.k_weight = args.v_weight = args.out_weight = weight;
    args.attention.window_left = args.attention.window_right = ATTN_UNBOUNDED;
    args.attention.dropout_p = 0.5;
    return attn_multihead(&args, contiguous(rows_y, rows), (attn_tensor){0}, error);
}

static void test_allocation_failures(void)
{
    static test_case c;
    int failed = 0;
    for (int number = 0; number < CASES; number += 7) {
        case_make(&c, number);
        failed += sweep(c.text, try_case, &c);
        case_free(&c);
    }
    CLAIM(failed >= CASES / 7 * 3 / 4, "only %d allocations failed: this shows little", failed); /* some are empty */
    CLAIM(sweep("merge_states", try_merge, NULL) > 0, "merge_states asks for no memory: this shows nothing");
    sweep("softmax", try_softmax, NULL);
    for (ptrdiff_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
        sweep("linear", try_linear, &rows);
        CLAIM(sweep("multi-head", try_multihead, &rows) >= 2, "multi-head attention of %td rows asks for memory", rows);
    }
}

/* One query against `keys` keys of `dim` features, all of them the same number. */
static attn_status attend_one(ptrdiff_t keys, ptrdiff_t dim, int with_weights)
{
    static double element, output[8];
    static const ptrdiff_t size[] = {0, sizeof(float)};
    const attn_args args = {
        .query = strided(&element, ATTN_F32, 2, LIST(1, dim), NULL),
        .key = strided(&element, ATTN_F32, 2, LIST(keys, dim), NULL),
        .value = strided(&element, ATTN_F32, 2, LIST(keys, 8), NULL),
        .window_left = ATTN_UNBOUNDED,
        .window_right = ATTN_UNBOUNDED,
    };
    const attn_tensor outputs = strided(output, ATTN_F32, 2, LIST(1, 8), size), none = {0};
    const attn_tensor weights = strided(&element, ATTN_F32, 2, LIST(1, keys), size);
    return attn_attention(&args, outputs, with_weights ? weights : none, none, NULL);
}

/* Valid sizes whose scratch memory is impossible to allocate, or too large for the free list. */
static void test_large_scratch(void)
{
    static const ptrdiff_t huge[] = {(ptrdiff_t)(INT64_C(1) << 40), (ptrdiff_t)(INT64_C(1) << 50), PTRDIFF_MAX};
    allow(1000);
    for (int n = 0; n < 3; n++) {
        CLAIM(attend_one(3, huge[n], 0) == ATTN_NO_MEMORY, "dim %td", huge[n]);
        CLAIM(attend_one(huge[n] / 64, 8, 1) == ATTN_NO_MEMORY, "weights of %td keys", huge[n] / 64);
    }
    CLAIM(attend_one(3, 1 << 18, 0) == ATTN_OK, "a query of a megabyte");
    CLAIM(asked > 0 && alive == 0, "%d large pieces of memory were kept", alive);
    attn_set_hooks(&defaults);
}

/* Interruption -------------------------------------------------------------------------------------------------- */

static int stop_after, polls, strange_polls; /* polls: how often the host was asked; strange: by another thread */
static pthread_t caller;

static int interrupted(void)
{
    if (!pthread_equal(pthread_self(), caller)) strange_polls++;
    return ++polls > stop_after;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* More work than any machine does before the third poll, at which the host stops the call. */
static void claim_interrupted(int level, int num_threads, ptrdiff_t rows, ptrdiff_t keys, ptrdiff_t dim)
{
    enum { MOST_DIM = 512, MOST_ROWS = 1 << 16 };
    static float numbers[MOST_DIM], results[MOST_ROWS];
    const ptrdiff_t stay[] = {0, sizeof(float)}, one[] = {sizeof(float), sizeof(float)};
    const attn_args args = {
        .query = strided(numbers, ATTN_F32, 2, LIST(rows, dim), stay),
        .key = strided(numbers, ATTN_F32, 2, LIST(keys, dim), stay),
        .value = strided(numbers, ATTN_F32, 2, LIST(keys, 1), stay),
        .window_left = ATTN_UNBOUNDED,
        .window_right = ATTN_UNBOUNDED,
        .num_threads = num_threads,
    };
    const attn_tensor output = strided(results, ATTN_F32, 2, LIST(rows, 1), one), none = {0};
    attn_error error = {""};
    use_level(level);
    polls = 0;
    const double before = seconds_now();
    const attn_status status = attn_attention(&args, output, none, none, &error);
    const double took = seconds_now() - before;
    CLAIM(status == ATTN_INTERRUPTED, "%s, %td rows, %d threads: status %d", attn_isa(), rows, num_threads,
          (int)status);
    CLAIM(polls == stop_after + 1, "the host was asked %d times", polls);
    CLAIM(took < 2, "%s, %td rows, %d threads: stopped after %g s", attn_isa(), rows, num_threads, took);
}

static void test_interruption(void)
{
    caller = pthread_self();
    stop_after = 2;
    attn_set_hooks(&(attn_hooks){NULL, NULL, interrupted});
    for (int level = 0; level < level_count(); level++)
        for (int num_threads = 1; num_threads <= 2; num_threads++) {
            claim_interrupted(level, num_threads, 1 << 16, 1 << 20, 64); /* many tasks */
            claim_interrupted(level, num_threads, 1, 1 << 26, 512);      /* one row and a very long cache */
        }
    CLAIM(strange_polls == 0, "another thread asked the host, %d times", strange_polls);

    static test_case c; /* the next call works, also with a host that never stops it */
    attn_error error = {""};
    stop_after = 1 << 30;
    case_make(&c, CASES - 1);
    CLAIM(case_compute(&c, &error) == ATTN_OK, "after an interruption: %s", error.message);
    case_free(&c);
    attn_set_hooks(&defaults);
}

/* The caller's floating-point state ----------------------------------------------------------------------------- */

#if defined(FE_UPWARD) /* WebAssembly rounds to nearest alone */
/* The core neither changes nor uses the caller's rounding mode, flags and flushing of denormals. */
static void test_float_state(void)
{
    static test_case c;
    attn_error error = {""};
    int longs = 0; /* masks of long double, which raise flags of the x87 */
    for (int number = 71; number < CASES; number += 37) {
        case_make(&c, number);
        longs += c.mask_kind == MASK_LONG;
        CLAIM(case_compute(&c, &error) == ATTN_OK, "%s", error.message);
        const uint64_t expected = tensor_hash(&c.output);
        fenv_t before;
        fegetenv(&before);
        fesetround(FE_UPWARD);
        feclearexcept(FE_ALL_EXCEPT);
        const attn_status status = case_compute(&c, &error);
        const int rounding = fegetround(), raised = fetestexcept(FE_ALL_EXCEPT);
        volatile double least = 0x1p-1022;
        const double denormal = least / 2;
        fesetenv(&before);
        CLAIM(status == ATTN_OK && rounding == FE_UPWARD, "%s: the rounding mode has changed", c.text);
        CLAIM(raised == 0, "%s: flags %x were raised", c.text, (unsigned)raised);
        CLAIM(denormal > 0, "%s: denormals are flushed now", c.text);
        CLAIM(tensor_hash(&c.output) == expected, "%s: other bits when the caller rounds upward", c.text);
        case_free(&c);
    }
    CLAIM(longs > 0, "no case has a mask of long double");
}
#else
static void test_float_state(void) {}
#endif

#if defined(_WIN32)
static void setenv(const char *name, const char *value, int overwrites)
{
    (void)overwrites;
    _putenv_s(name, value);
}
#endif

/* Settings ------------------------------------------------------------------------------------------------------ */

/* Must be first, as the environment is read at first use. */
static void test_settings(void)
{
    attn_error error = {""};
    setenv("PYATTN_ISA", "pentium", 1);
    setenv("OMP_NUM_THREADS", "7,2", 1);
    setenv("PYATTN_NUM_THREADS", "none", 1); /* says nothing */
    CLAIM(strcmp(attn_isa(), attn_isa_name(0)) == 0, "%s is not the best level", attn_isa());
    CLAIM(attn_isa_complaint() && strstr(attn_isa_complaint(), "PYATTN_ISA=pentium is not a level of this machine"),
          "PYATTN_ISA=pentium is not complained about");
    for (int level = 0; level < level_count(); level++) {
        use_level(level);
        CLAIM(strcmp(attn_isa(), attn_isa_name(level)) == 0, "%s was set, %s is used", attn_isa_name(level),
              attn_isa());
        CLAIM(attn_measure_fma(0.001) > 1e6, "%s: a machine that does not compute", attn_isa());
    }
    CLAIM(attn_set_isa(attn_isa_name(0), &error) == ATTN_OK, "%s", error.message);

    CLAIM(attn_get_num_threads() == 7, "%d threads, OMP_NUM_THREADS says 7", attn_get_num_threads());
    attn_suggest_threads((attn_suggestion){.num_threads = 5});
    CLAIM(attn_get_num_threads() == 5, "%d threads, 5 are suggested", attn_get_num_threads());
    attn_set_num_threads(3);
    CLAIM(attn_get_num_threads() == 3, "%d threads, set to 3", attn_get_num_threads());
    attn_set_num_threads(0);
    const attn_suggestion before = attn_suggest_threads((attn_suggestion){0});
    CLAIM(before.num_threads == 5, "%d was suggested, not 5", before.num_threads);
    CLAIM(attn_get_num_threads() == 7, "%d threads, 0 asks for the default", attn_get_num_threads());
    static const float numbers[100000];
    CLAIM(attn_measure_read(numbers, sizeof numbers / sizeof *numbers, 2) > 1e6, "memory that cannot be read");
}

int main(void)
{
    test_settings();
    test_allocation_failures();
    test_large_scratch();
    test_interruption();
    test_float_state();
    return report("test_host");
}
