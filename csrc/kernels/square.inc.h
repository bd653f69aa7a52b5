/* Transposes of LANES x LANES squares in registers. */

enum { K(part) = 16 / sizeof(real), K(parts) = LANES / K(part) }; /* lanes in 16 bytes; such parts in a vector */

/* r[i] lane j <-> r[j] lane i: across the parts, then inside each. */
ATTN_TEMPLATE void K(transpose)(vec *r)
{
    vec transposed[LANES];
    ATTN_UNROLL for (int i = 0; i < K(part); i++)
    {
        vec rows[K(parts)];
        ATTN_UNROLL for (int n = 0; n < K(parts); n++) rows[n] = r[i + n * K(part)];
        V(transpose_across)(rows);
        ATTN_UNROLL for (int n = 0; n < K(parts); n++) transposed[n * K(part) + i] = rows[n];
    }
    ATTN_UNROLL for (int n = 0; n < LANES; n += K(part)) V(transpose_inside)(transposed + n);
    ATTN_UNROLL for (int n = 0; n < LANES; n++) r[n] = transposed[n];
}

/* Number of features before the first cache-line boundary if it is the same for all rows, else 0. A vector inside one
 * line is read in half the time. */
static inline ptrdiff_t K(before_line)(const real *row, ptrdiff_t stride, ptrdiff_t features)
{
    const ptrdiff_t head = -((ptrdiff_t)row / (ptrdiff_t)sizeof(real)) & (LANES - 1);
    return stride % LANES != 0 || head > features ? 0 : head;
}

/* Loads a square and transposes it part by part, as a whole square does not fit in the registers. The asm hides how row
 * addresses are related, so that the compiler does not keep all of them in registers. Returns the next square's
 * address. */
ATTN_TEMPLATE const real *K(load_transposed)(const real *at, ptrdiff_t stride, vec *r)
{
    const real *group[K(parts)];
    ATTN_UNROLL for (int n = 0; n < K(parts); n++)
    {
        group[n] = at;
        at += K(part) * stride;
        __asm__("" : "+r"(at));
    }
    ATTN_UNROLL for (int i = 0; i < K(part); i++)
    {
        vec rows[K(parts)];
        V(load_across)(group, i * stride, rows);
        ATTN_UNROLL for (int n = 0; n < K(parts); n++) r[n * K(part) + i] = rows[n];
    }
    ATTN_UNROLL for (int n = 0; n < LANES; n += K(part)) V(transpose_inside)(r + n);
    return at;
}

/* Transposes a square of a panel whose rows run along lanes: lane c of r[l] = lane l of vector c. The `count` vectors
 * are `width` apart; missing ones are zero. */
ATTN_TEMPLATE void K(transpose_square)(const int whole, int count, const real *panel, ptrdiff_t width, vec *r)
{
    if (whole) {
        ATTN_UNROLL for (int c = 0; c < LANES; c++) r[c] = V(load)(panel + c * width);
    } else {
        for (int c = 0; c < LANES; c++) r[c] = c < count ? V(load)(panel + c * width) : V(splat)(0);
    }
    K(transpose)(r);
}
