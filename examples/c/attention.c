// Attention in C, without Python. Computes causal attention with 8 heads and compares each number with the formula.
//
//     cc -std=gnu11 -O3 -ffp-contract=off -fno-trapping-math -Icsrc/include -Icsrc/core -Icsrc/kernels -Icsrc/system
//         examples/c/attention.c csrc/core/*.c csrc/kernels/*.c csrc/system/*.c -lm -pthread -o attention

#include <math.h>
#include <stdio.h>

#include "attn.h"

enum { HEADS = 8, LENGTH = 100, DIM = 16 };

static float query[HEADS][LENGTH][DIM], key[HEADS][LENGTH][DIM], value[HEADS][LENGTH][DIM], output[HEADS][LENGTH][DIM];

/* Describes an array of shape (1, heads, length, dim). Strides are in bytes. */
static attn_tensor tensor(float *data)
{
    return (attn_tensor){.data = data,
                         .dtype = ATTN_F32,
                         .ndim = 4,
                         .shape = {1, HEADS, LENGTH, DIM},
                         .strides = {HEADS * LENGTH * DIM * 4, LENGTH * DIM * 4, DIM * 4, 4}};
}

/* Returns one element of softmax(query . key / sqrt(DIM)) . value, over the keys up to the query's own position. */
static double expected(int head, int row, int column)
{
    double sum = 0, weighted = 0;
    for (int j = 0; j <= row; j++) {
        double score = 0;
        for (int d = 0; d < DIM; d++) score += (double)query[head][row][d] * key[head][j][d];
        const double weight = exp(score / sqrt(DIM));
        sum += weight;
        weighted += weight * value[head][j][column];
    }
    return weighted / sum;
}

int main(void)
{
    for (int n = 0; n < HEADS * LENGTH * DIM; n++) {
        ((float *)query)[n] = (float)sin(n);
        ((float *)key)[n] = (float)cos(2.0 * n);
        ((float *)value)[n] = (float)sin(3.0 * n);
    }
    const attn_tensor none = {.data = NULL};
    const attn_args args = {.query = tensor(**query),
                            .key = tensor(**key),
                            .value = tensor(**value),
                            .is_causal = 1,
                            .window_left = ATTN_UNBOUNDED,
                            .window_right = ATTN_UNBOUNDED};
    attn_error error;
    if (attn_attention(&args, tensor(**output), none, none, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;

    double worst = 0;
    for (int n = 0; n < HEADS * LENGTH * DIM; n++) {
        const int head = n / (LENGTH * DIM), row = n / DIM % LENGTH, column = n % DIM;
        worst = fmax(worst, fabs(output[head][row][column] - expected(head, row, column)));
    }
    printf("causal attention with %s: off by at most %.1e\n", attn_isa(), worst);
    return worst < 1e-6 ? 0 : 1;
}
