/* float16 and bfloat16 at every instruction-set level: all 65,536 patterns are read exactly, and floats are rounded to
 * nearest, ties to even.
 *
 *   test_halves           one float32 in 4,099
 *   test_halves --every   every float32: a minute
 *
 * What is expected comes from the definition: a half is sign * significand * 2^exponent.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "harness.h"
#include "kernels.h"

enum { MANY = 1 << 16, STEP = 4099 };

typedef struct {
    const char *name;
    attn_element element;
    int fraction, bias; /* bits of the fraction; exponent of 1 as it is stored */
} format;

static const format formats[] = {{"float16", ATTN_ELEMENT_F16, 10, 15}, {"bfloat16", ATTN_ELEMENT_BF16, 7, 127}};

/* The number of a pattern without its sign; the highest exponent continues the others, so infinity has a number. */
static double size_of(const format *f, int pattern)
{
    const int exponent = pattern >> f->fraction, rest = pattern & ((1 << f->fraction) - 1);
    const int significand = exponent > 0 ? rest | 1 << f->fraction : rest;
    return ldexp(significand, (exponent > 0 ? exponent : 1) - f->bias - f->fraction);
}

static int infinity_of(const format *f) { return (0x7fff >> f->fraction) << f->fraction; }

static int is_expected(const format *f, int pattern, float found)
{
    const int size = pattern & 0x7fff;
    if (size > infinity_of(f)) return isnan(found);
    const double x = size == infinity_of(f) ? (double)INFINITY : size_of(f, size);
    return (double)fabsf(found) == x && !signbit(found) == !(pattern >> 15);
}

static uint16_t patterns[MANY];
static float floats[MANY];

static void test_reading(const attn_kernels *k, const format *f)
{
    int wrong = 0;
    for (int n = 0; n < MANY; n++) patterns[n] = (uint16_t)n;
    k->load_block(f->element, 1, MANY, (const char *)patterns, 0, 2, MANY, floats);
    for (int n = 0; n < MANY; n++) wrong += !is_expected(f, n, floats[n]);
    CLAIM(wrong == 0, "%s: %d of %d patterns of %s are read as other numbers", attn_isa(), wrong, (int)MANY, f->name);
}

static double power_of_two(int n)
{
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The nearest pattern without a sign. rint rounds to nearest, ties to even. */
static int nearest(const format *f, double size)
{
    uint64_t bits;
    memcpy(&bits, &size, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    if (exponent < 1 - f->bias) exponent = 1 - f->bias; /* as have all denormals */
    if (exponent > f->bias) return infinity_of(f);
    const int steps = (int)rint(size * power_of_two(f->fraction - exponent));
    const int pattern =
        steps + ((exponent + f->bias - 1) << f->fraction); /* of 2^fraction steps or more: the next one */
    return pattern < infinity_of(f) ? pattern : infinity_of(f);
}

static int is_rounded(const format *f, float x, uint16_t found)
{
    if (isnan(x)) return (found & 0x7fff) > infinity_of(f);
    const int expected = isinf(x) ? infinity_of(f) : nearest(f, (double)fabsf(x));
    return found == (expected | (signbit(x) ? 0x8000 : 0));
}

static void test_rounding(const attn_kernels *k, const format *f, uint64_t step)
{
    uint64_t wrong = 0, tried = 0;
    uint32_t first = 0;
    for (uint64_t pattern = 0, count; pattern < (uint64_t)1 << 32; pattern += count * step) {
        count = 0;
        for (; count < MANY && pattern + count * step < (uint64_t)1 << 32; count++) {
            const uint32_t bits = (uint32_t)(pattern + count * step);
            memcpy(&floats[count], &bits, sizeof bits);
        }
        k->store_row(f->element, (ptrdiff_t)count, floats, patterns);
        for (uint64_t n = 0; n < count; n++, tried++)
            if (!is_rounded(f, floats[n], patterns[n]) && wrong++ == 0) memcpy(&first, &floats[n], sizeof first);
    }
    CLAIM(wrong == 0, "%s: %llu of %llu floats are rounded to another %s, such as 0x%08x", attn_isa(),
          (unsigned long long)wrong, (unsigned long long)tried, f->name, first);
}

/* Numbers half-way between two halves, and their neighbours. */
static void test_ties(const attn_kernels *k, const format *f)
{
    int wrong = 0;
    for (int half = 0; half < infinity_of(f); half++) {
        const float middle = (float)((size_of(f, half) + size_of(f, half + 1)) / 2);
        const float three[] = {nextafterf(middle, 0), middle, nextafterf(middle, INFINITY)};
        uint16_t found[3];
        k->store_row(f->element, 3, three, found);
        for (int n = 0; n < 3; n++) wrong += !is_rounded(f, three[n], found[n]);
    }
    CLAIM(wrong == 0, "%s: %d numbers between two of %s are rounded the other way", attn_isa(), wrong, f->name);
}

/* Blocks of any strides are the single numbers, and zeros behind `columns`. Arrays end with the block, so that a
 * sanitizer sees what is read past them. */
static void test_blocks(const attn_kernels *k, const format *f)
{
    static const int sizes[] = {1, 3, 16, 35};
    int wrong = 0;
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++)
            for (int form = 0; form < 4; form++) { /* rows, columns, every second column, rows backwards */
                const int rows = sizes[r], columns = sizes[c], apart = form == 2 ? 2 : 1;
                const ptrdiff_t column = form == 1 ? rows * 2 : apart * 2, row = form == 1 ? 2 : columns * apart * 2;
                const size_t bytes = (size_t)(((rows * columns - 1) * apart + 1) * 2);
                unsigned char *const from = malloc(bytes);
                float *const to = malloc((size_t)(rows * (columns + 3)) * sizeof *to);
                if (from == NULL || to == NULL) abort();
                for (size_t n = 0; n < bytes; n++) from[n] = (unsigned char)(n * 37);
                const char *const first = (const char *)from + (form == 3 ? (rows - 1) * row : 0);
                const ptrdiff_t step = form == 3 ? -row : row;
                k->load_block(f->element, rows, columns, first, step, column, columns + 3, to);
                for (int i = 0; i < rows; i++)
                    for (int d = 0; d < columns + 3; d++) {
                        uint16_t pattern = 0;
                        if (d < columns) memcpy(&pattern, first + i * step + d * column, sizeof pattern);
                        wrong += !is_expected(f, pattern, to[i * (columns + 3) + d]);
                    }
                free(from);
                free(to);
            }
    CLAIM(wrong == 0, "%s: %d numbers of blocks of %s are read as others", attn_isa(), wrong, f->name);
}

int main(int count, char **arguments)
{
    const uint64_t step = count > 1 && strcmp(arguments[1], "--every") == 0 ? 1 : STEP;
    for (int level = 0; level < level_count(); level++) {
        use_level(level);
        const attn_kernels *k = attn_kernels_for(ATTN_F32);
        for (int n = 0; n < 2; n++) {
            test_reading(k, &formats[n]);
            test_blocks(k, &formats[n]);
            test_ties(k, &formats[n]);
            test_rounding(k, &formats[n], step);
        }
    }
    return report("test_halves");
}
