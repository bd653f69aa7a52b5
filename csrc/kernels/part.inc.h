/* The rest of a row, after whole vectors, is read and written by the same text. */

/* LANES reals, or the first `count` when not whole. */
ATTN_TEMPLATE vec K(load_part)(const int whole, int count, const real *x)
{
    return whole ? V(load)(x) : V(load_first)(x, count);
}
ATTN_TEMPLATE void K(store_part)(const int whole, int count, real *y, vec a)
{
    if (whole)
        V(store)(y, a);
    else
        V(store_first)(y, count, a);
}
