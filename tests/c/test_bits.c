/* A row is bit-identical at every level (except `scalar`, which lacks fused multiply-add), for any number of threads,
 * and with or without weights and lse.
 *
 *   test_bits                  this machine's levels among each other
 *   test_bits --write FILE     the bits of the best level, and of `scalar`
 *   test_bits --compare FILE   this machine's levels with what another one wrote
 */
#include "cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* lse uses libm's logarithm, which may differ between machines by 1 ULP, so it is stored in full instead of hashed. */
typedef struct {
    uint64_t output, weights;
    int64_t lse_count;
    double *lse;
} bits;

/* WebAssembly cannot flush denormals to 0, and some of the weights are so small. */
#if defined(__wasm__)
enum { FLUSHES = 0 };
#else
enum { FLUSHES = 1 };
#endif

static bits bits_of(const test_case *c)
{
    bits b = {.output = tensor_hash(&c->output)};
    if (c->weights.data) b.weights = tensor_hash(&c->weights);
    if (c->lse.data) b.lse_count = tensor_count(&c->lse);
    b.lse = take((size_t)b.lse_count * sizeof *b.lse);
    for (ptrdiff_t at[ROLES] = {0}, n = 0; n < b.lse_count; n++, tensor_next(&c->lse, at))
        b.lse[n] = tensor_get(&c->lse, at);
    return b;
}

static int within_one_ulp(attn_dtype dtype, double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) return 1;
    return dtype == ATTN_F32 ? nextafterf((float)a, (float)b) == (float)b : nextafter(a, b) == b;
}

static int same_lse(attn_dtype dtype, const bits *a, const bits *b, int same_machine)
{
    if (a->lse_count != b->lse_count) return 0;
    for (int64_t n = 0; n < a->lse_count; n++)
        if (!(same_machine ? a->lse[n] == b->lse[n] || (isnan(a->lse[n]) && isnan(b->lse[n]))
                           : within_one_ulp(dtype, a->lse[n], b->lse[n])))
            return 0;
    return 1;
}

static void claim_same(const test_case *c, const bits *a, const bits *b, int same_machine, const char *what)
{
    CLAIM(a->output == b->output, "%s at %s: other bits %s", c->text, attn_isa(), what);
    if (same_machine || FLUSHES)
        CLAIM(a->weights == b->weights, "%s at %s: weights have other bits %s", c->text, attn_isa(), what);
    CLAIM(same_lse(c->dtype, a, b, same_machine), "%s at %s: lse has other bits %s", c->text, attn_isa(), what);
}

/* Some cases with dropout, which the reference does not cover: dropout masks are integer arithmetic, and dropout
 * changes no order of sums. */
static void make_case(test_case *c, int number)
{
    case_make(c, number);
    if (number % 3 != 0) return;
    c->args.dropout_p = 0.25;
    c->args.dropout_seed = (uint64_t)number << 32 | 5;
}

/* Neither the number of threads nor leaving out weights and lse changes the other results. */
static void claim_alone(test_case *c, const bits *expected)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        c->args.num_threads = threads;
        case_run(c);
        bits b = bits_of(c);
        claim_same(c, &b, expected, 1, "with another number of threads");
        free(b.lse);
    }
    const tensor weights = c->weights, lse = c->lse;
    c->weights.data = c->lse.data = NULL;
    case_run(c);
    c->weights = weights;
    c->lse = lse;
    CLAIM(tensor_hash(&c->output) == expected->output, "%s at %s: other bits without weights and lse", c->text,
          attn_isa());
}

static void claim_levels_agree(void)
{
    static test_case c;
    for (int number = 0; number < CASES; number++) {
        make_case(&c, number);
        bits best = {0};
        for (int level = 0; level < level_count(); level++) {
            c.args.num_threads = 2;
            use_level(level);
            case_run(&c);
            bits b = bits_of(&c);
            if (level > 0 && strcmp(attn_isa(), "scalar") != 0) claim_same(&c, &b, &best, 1, "than at the best level");
            claim_alone(&c, &b);
            if (level > 0)
                free(b.lse);
            else
                best = b;
        }
        free(best.lse);
        case_free(&c);
    }
}

/* Files: for each case the bits of the best level and of `scalar`: the number of LSEs, two hashes, the LSEs. A best
 * level that is `scalar` itself has a number of -1 and nothing more. Both machines are little-endian. */

static int is_scalar(int level) { return strcmp(attn_isa_name(level), "scalar") == 0; }

static void write_one(FILE *file, test_case *c, int level)
{
    use_level(level);
    case_run(c);
    bits b = bits_of(c);
    fwrite(&b.lse_count, sizeof b.lse_count, 1, file);
    fwrite(&b.output, sizeof b.output, 1, file);
    fwrite(&b.weights, sizeof b.weights, 1, file);
    fwrite(b.lse, sizeof *b.lse, (size_t)b.lse_count, file);
    free(b.lse);
}

static void write_bits(FILE *file)
{
    static test_case c;
    const int64_t none = -1;
    for (int number = 0; number < CASES; number++) {
        make_case(&c, number);
        if (is_scalar(0))
            fwrite(&none, sizeof none, 1, file);
        else
            write_one(file, &c, 0);
        write_one(file, &c, level_count() - 1);
        case_free(&c);
    }
}

/* Returns whether the file holds it. */
static int read_one(FILE *file, bits *b)
{
    *b = (bits){.lse = NULL};
    if (fread(&b->lse_count, sizeof b->lse_count, 1, file) != 1) return 0;
    if (b->lse_count < 0) return 1;
    if (fread(&b->output, sizeof b->output, 1, file) != 1 || fread(&b->weights, sizeof b->weights, 1, file) != 1)
        return 0;
    b->lse = take((size_t)b->lse_count * sizeof *b->lse);
    return fread(b->lse, sizeof *b->lse, (size_t)b->lse_count, file) == (size_t)b->lse_count;
}

static void compare_bits(FILE *file)
{
    static test_case c;
    for (int number = 0; number < CASES; number++) {
        bits theirs[2]; /* of the best level; of `scalar` */
        const int complete = read_one(file, &theirs[0]) && read_one(file, &theirs[1]);
        CLAIM(complete, "the file ends in case %d", number);
        if (!complete) return;
        make_case(&c, number);
        for (int level = 0; level < level_count(); level++) {
            const bits *same = &theirs[is_scalar(level)];
            if (same->lse_count < 0) continue;
            use_level(level);
            case_run(&c);
            bits ours = bits_of(&c);
            claim_same(&c, &ours, same, 0, "than on the other machine");
            free(ours.lse);
        }
        free(theirs[0].lse);
        free(theirs[1].lse);
        case_free(&c);
    }
}

int main(int count, char **arguments)
{
    if (count == 1) {
        claim_levels_agree();
        return report("test_bits");
    }
    const int writes = strcmp(arguments[1], "--write") == 0;
    FILE *file = count == 3 ? fopen(arguments[2], writes ? "wb" : "rb") : NULL;
    if (file == NULL) {
        fprintf(stderr, "usage: test_bits [--write FILE | --compare FILE]\n");
        return 2;
    }
    if (writes)
        write_bits(file);
    else
        compare_bits(file);
    CLAIM(fclose(file) == 0, "%s cannot be written", arguments[2]);
    return report(writes ? "test_bits wrote" : "test_bits across");
}
