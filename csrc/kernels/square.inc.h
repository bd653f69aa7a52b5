/* Squares of LANES x LANES, turned in registers. */

enum { K(part) = 16 / sizeof(real), K(parts) = LANES / K(part) }; /* lanes in 16 bytes; of those in a vector */

/* r[i] lane j <-> r[j] lane i: across the parts, then inside each. */
ATTN_TEMPLATE void K(transpose)(vec *r)
{
    vec turned[LANES];
    ATTN_UNROLL for (int i = 0; i < K(part); i++)
    {
        vec rows[K(parts)];
        ATTN_UNROLL for (int n = 0; n < K(parts); n++) rows[n] = r[i + n * K(part)];
        V(turn_across)(rows);
        ATTN_UNROLL for (int n = 0; n < K(parts); n++) turned[n * K(part) + i] = rows[n];
    }
    ATTN_UNROLL for (int n = 0; n < LANES; n += K(part)) V(turn_inside)(turned + n);
    ATTN_UNROLL for (int n = 0; n < LANES; n++) r[n] = turned[n];
}

/* A square out of memory, turned as it comes: all of it at once has no room in the registers. Nor have the addresses of
 * its rows, which the compiler would keep if it knew what they have in common. Returns where the next square begins. */
ATTN_TEMPLATE const real *K(load_turned)(const real *at, ptrdiff_t stride, vec *r)
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
    ATTN_UNROLL for (int n = 0; n < LANES; n += K(part)) V(turn_inside)(r + n);
    return at;
}

/* How a panel with rows along its lanes leaves for memory: r[l], lane c = lane l of vector c, the vectors `width` apart,
 * `count` of them, the rest zero. */
ATTN_TEMPLATE void K(turn_square)(const int whole, int count, const real *panel, ptrdiff_t width, vec *r)
{
    if (whole) {
        ATTN_UNROLL for (int c = 0; c < LANES; c++) r[c] = V(load)(panel + c * width);
    } else {
        for (int c = 0; c < LANES; c++) r[c] = c < count ? V(load)(panel + c * width) : V(splat)(0);
    }
    K(transpose)(r);
}
