/* Squares of LANES x LANES, turned in registers: how a panel with rows along its lanes leaves for memory. */

/* r[l], lane c = lane l of vector c, the vectors `width` apart: `count` of them, the rest zero. */
ATTN_TEMPLATE void K(turn_square)(const int whole, int count, const real *panel, ptrdiff_t width, vec *r)
{
    if (whole) {
        ATTN_UNROLL for (int c = 0; c < LANES; c++) r[c] = V(load)(panel + c * width);
    } else {
        for (int c = 0; c < LANES; c++) r[c] = c < count ? V(load)(panel + c * width) : V(splat)(0);
    }
    V(transpose)(r);
}
