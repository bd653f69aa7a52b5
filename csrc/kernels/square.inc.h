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
