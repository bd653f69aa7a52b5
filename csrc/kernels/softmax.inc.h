/* Masking and the online softmax of one block of scores (keys, vectors * LANES), a query in each lane. */

static void K(mask_block)(int vectors, int keys, const int32_t *first, const int32_t *last, void *scores,
                          void *maximum)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    const vec masked = V(splat)(-INFINITY);

    for (int j = 0; j < vectors; j++) {
        real *s = (real *)scores + j * LANES, *best = (real *)maximum + j * LANES;
        real low[LANES], high[LANES];
        for (int i = 0; i < LANES; i++) {
            low[i] = (real)first[j * LANES + i];
            high[i] = (real)last[j * LANES + i];
        }
        const vec from = V(load)(low), to = V(load)(high);
        vec top = V(load)(best);

        for (int n = 0; n < keys; n++) {
            const vec at = V(splat)((real)n);
            vec x = V(load)(s + n * width);
            x = V(select)(V(lt)(at, from), masked, V(select)(V(lt)(at, to), x, masked));
            V(store)(s + n * width, x);
            top = V(max)(x, top);
        }
        V(store)(best, top);
    }
}

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
