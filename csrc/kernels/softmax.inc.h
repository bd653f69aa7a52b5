/* The online softmax of one block of scores (keys, vectors * LANES), a query in each lane. */

/* The sum over a block's keys is four interleaved partial sums, (0 + 1) + (2 + 3), in the same order at every level. */
static void K(softmax_block)(int vectors, int keys, void *scores, const void *maximum, attn_state *state,
                             void *correction)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;

    for (int j = 0; j < vectors; j++) {
        real *s = (real *)scores + j * LANES;
        real *state_max = (real *)state->maximum + j * LANES, *state_sum = (real *)state->sum + j * LANES;
        const vec top = V(load)((const real *)maximum + j * LANES), shift = K(finite_maximum)(top);
        vec part[4] = {V(splat)(0), V(splat)(0), V(splat)(0), V(splat)(0)};
        int n = 0;

        for (; n + 4 <= keys; n += 4)
            ATTN_UNROLL for (int c = 0; c < 4; c++) {
                vec p = K(exp2)(V(sub)(V(load)(s + (n + c) * width), shift));
                V(store)(s + (n + c) * width, p);
                part[c] = V(add)(part[c], p);
            }
        ATTN_UNROLL for (int c = 0; c < 3; c++) {
            if (n + c >= keys) break;
            vec p = K(exp2)(V(sub)(V(load)(s + (n + c) * width), shift));
            V(store)(s + (n + c) * width, p);
            part[c] = V(add)(part[c], p);
        }

        vec sum = V(add)(V(add)(part[0], part[1]), V(add)(part[2], part[3]));
        vec scale = K(exp2)(V(sub)(V(load)(state_max), shift));
        V(store)((real *)correction + j * LANES, scale);
        V(store)(state_sum, V(fma)(V(load)(state_sum), scale, sum));
        V(store)(state_max, top);
    }
}
