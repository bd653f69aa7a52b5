/* Top-k: the k largest elements of a row and their indices, in the order of a stable sort: largest first, NaN before
 * all numbers, equal elements by index.
 *
 * A heap holds the best k so far, with the worst at its root. A row is read in the order of its indices, so an element
 * replaces the root only if it is larger. Groups of vectors without such an element are skipped: nearly all of them,
 * unless the row is ascending.
 */

/* a > b, with NaN above all numbers. */
static inline int K(is_larger)(real a, real b) { return a > b || (a != a && b == b); }

static inline int K(goes_first)(real a, int64_t i, real b, int64_t j)
{
    return K(is_larger)(a, b) || (i < j && !K(is_larger)(b, a));
}

/* Puts x at a node of a heap of k, or moves it down until no child sorts after it. */
static void K(sink)(ptrdiff_t node, ptrdiff_t k, real x, int64_t index, real *values, int64_t *indices)
{
    for (ptrdiff_t child; (child = 2 * node + 1) < k; node = child) {
        if (child + 1 < k && K(goes_first)(values[child], indices[child], values[child + 1], indices[child + 1]))
            child++; /* the child that sorts last */
        if (!K(goes_first)(x, index, values[child], indices[child])) break;
        values[node] = values[child];
        indices[node] = indices[child];
    }
    values[node] = x;
    indices[node] = index;
}

enum { K(topk_unroll) = 4 };

/* Whether any element of a group is larger than `least`. */
static inline int K(has_larger)(const real *x, real least)
{
    const vec bar = V(splat)(least), hit = V(splat)((real)NAN);
    vec seen = V(splat)(0);
    if (least != least) return 0;
    ATTN_UNROLL for (int c = 0; c < K(topk_unroll); c++) {
        const vec top = V(max)(bar, V(load)(x + c * LANES)); /* keeps NaN of x */
        seen = V(select)(V(eq)(top, bar), seen, hit);
    }
    return V(has_nan)(seen);
}

/* Adds elements [from, to) of a row, after the earlier ones. The first k fill the arrays, which are then a heap. */
static void K(topk)(ptrdiff_t from, ptrdiff_t to, const void *row, ptrdiff_t k, void *heap, int64_t *indices)
{
    const ptrdiff_t group = K(topk_unroll) * LANES;
    const real *x = row;
    real *values = heap;

    /* Pass 1: the first k elements, then a heap of them */
    for (; from < to && from < k; from++) {
        values[from] = x[from];
        indices[from] = from;
        if (from == k - 1)
            for (ptrdiff_t node = k / 2 - 1; node >= 0; node--)
                K(sink)(node, k, values[node], indices[node], values, indices);
    }

    /* Pass 2: elements larger than the worst of the k */
    for (ptrdiff_t end; k > 0 && from < to; from = end) {
        end = to - from < group ? to : from + group;
        if (end - from == group && !K(has_larger)(x + from, values[0])) continue;
        for (ptrdiff_t i = from; i < end; i++)
            if (K(is_larger)(x[i], values[0])) K(sink)(0, k, x[i], i, values, indices);
    }
}

/* Reduces a heap of `from` elements to one of the best `to`; the others follow it in order. */
static void K(topk_order)(ptrdiff_t from, ptrdiff_t to, void *heap, int64_t *indices)
{
    real *values = heap;
    for (ptrdiff_t last = from - 1; last > 0 && last >= to; last--) {
        const real x = values[last];
        const int64_t index = indices[last];
        values[last] = values[0];
        indices[last] = indices[0];
        K(sink)(0, last, x, index, values, indices);
    }
}
