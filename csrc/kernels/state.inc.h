/* Running softmax states: folding one into another, and computing the final rows. */

static void K(fold_state)(int rows, ptrdiff_t columns, const attn_state *part, const attn_state *total)
{
    for (int i = 0; i < rows; i++) {
        real *best = (real *)total->maximum + i, *sum = (real *)total->sum + i;
        const real *from = (const real *)part->out + i * columns;
        real *into = (real *)total->out + i * columns;
        real weight[LANES]; /* vector exp2 and fma, of which lane 0 is used: bit-identical at every level */

        vec old = V(splat)(*best), new = V(splat)(((const real *)part->maximum)[i]);
        vec top = V(max)(old, new), shift = K(finite_maximum)(top);
        vec a = K(exp2)(V(sub)(old, shift)), b = K(exp2)(V(sub)(new, shift));
        V(store)(weight, V(fma)(V(splat)(*sum), a, V(mul)(V(splat)(((const real *)part->sum)[i]), b)));
        *sum = weight[0];
        V(store)(weight, top);
        *best = weight[0];
        for (ptrdiff_t d = 0; d < columns; d += LANES)
            V(store)(into + d, V(fma)(V(load)(into + d), a, V(mul)(V(load)(from + d), b)));
    }
}

/* Writes v_dim reals of one row, times `by`. Returns whether any is NaN or infinite: 0 times those is NaN. */
ATTN_TEMPLATE int K(finish_row)(ptrdiff_t v_dim, const real *from, vec by, real *into)
{
    const vec none = V(splat)(0);
    vec check = none;
    ptrdiff_t d = 0;
    for (; d + LANES <= v_dim; d += LANES) {
        vec y = V(add)(V(mul)(V(load)(from + d), by), none); /* avoids -0, whose sign would depend on flushing */
        V(store)(into + d, y);
        check = V(fma)(y, none, check);
    }
    if (d < v_dim) { /* `from` is padded */
        vec y = V(add)(V(mul)(V(load)(from + d), by), none);
        V(store_first)(into + d, (int)(v_dim - d), y);
        check = V(fma)(y, none, check);
    }
    return V(has_nan)(check);
}

/* Replaces infinite outputs of finite sums by the largest real. Returns whether NaN or infinities are left. */
ATTN_TEMPLATE int K(bound_row)(ptrdiff_t v_dim, const real *from, real *into)
{
    int nonfinite = 0;
    for (ptrdiff_t d = 0; d < v_dim; d++) {
        if (isinf(into[d]) && isfinite(from[d])) into[d] = from[d] > 0 ? REAL_MAX : -REAL_MAX;
        nonfinite |= !isfinite(into[d]);
    }
    return nonfinite;
}

static uint64_t K(finish_rows)(int rows, ptrdiff_t v_dim, const attn_state *state, ptrdiff_t out_stride, double factor,
                               int is_mean, double empty, void *const *output)
{
    const vec by = V(splat)((real)(1 / factor));
    real inverse[ATTN_MAX_WIDTH];
    uint64_t nonfinite = 0;
    for (int i = 0; i < rows; i += LANES) {
        int lanes = rows - i < LANES ? rows - i : LANES;
        vec sum = V(load_first)((const real *)state->sum + i, lanes);
        V(store_first)(inverse + i, lanes, V(div)(by, sum));
    }
    for (int i = 0; i < rows; i++) {
        if (output[i] == NULL) continue;
        if (((const real *)state->sum)[i] == 0)
            for (ptrdiff_t d = 0; d < v_dim; d++) ((real *)output[i])[d] = (real)empty;
        else {
            const real *from = (const real *)state->out + i * out_stride;
            int is_nonfinite = K(finish_row)(v_dim, from, V(splat)(inverse[i]), output[i]);
            if (is_nonfinite && is_mean) is_nonfinite = K(bound_row)(v_dim, from, output[i]);
            nonfinite |= (uint64_t)is_nonfinite << i;
        }
    }
    return nonfinite;
}
