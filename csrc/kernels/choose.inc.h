/* The k largest of a row, with their places, in the order of a stable sort: the largest first, NaN before all numbers, and
 * of equals the one of the lower index.
 *
 * They are held in a heap whose root is the last of them. A row is walked in the order of its indices, so an element takes
 * the root's place only where it is larger, and groups of vectors without such an element are passed over: of a row in any
 * order but an ascending one, nearly all.
 */

/* Larger as numbers are, with NaN above them. */
static inline int K(is_larger)(real a, real b) { return a > b || (a != a && b == b); }

static inline int K(goes_first)(real a, int64_t i, real b, int64_t j)
{
    return K(is_larger)(a, b) || (i < j && !K(is_larger)(b, a));
}

/* Puts x at a node of a heap of k, or further down, where none of its children goes behind it. */
static void K(sink)(ptrdiff_t node, ptrdiff_t k, real x, int64_t index, real *values, int64_t *indices)
{
    for (ptrdiff_t child; (child = 2 * node + 1) < k; node = child) {
        if (child + 1 < k && K(goes_first)(values[child], indices[child], values[child + 1], indices[child + 1]))
            child++; /* the one further behind */
        if (!K(goes_first)(x, index, values[child], indices[child])) break;
        values[node] = values[child];
        indices[node] = indices[child];
    }
    values[node] = x;
    indices[node] = index;
}

enum { K(choose_group) = 4 };

/* Whether one of a group is larger than `least`. */
static inline int K(has_larger)(const real *x, real least)
{
    const vec bar = V(splat)(least), hit = V(splat)((real)NAN);
    vec seen = V(splat)(0);
    if (least != least) return 0;
    ATTN_UNROLL for (int c = 0; c < K(choose_group); c++) {
        const vec top = V(max)(bar, V(load)(x + c * LANES)); /* NaN where x is */
        seen = V(select)(V(eq)(top, bar), seen, hit);
    }
    return V(has_nan)(seen);
}

/* Elements [from, to) of a row, after those before them: values and indices (k) are a heap once k were seen. */
static void K(choose)(ptrdiff_t from, ptrdiff_t to, const void *row, ptrdiff_t k, void *heap, int64_t *indices)
{
    const ptrdiff_t group = K(choose_group) * LANES;
    const real *x = row;
    real *values = heap;

    /* Pass 1: the first k, as they come */
    for (; from < to && from < k; from++) {
        values[from] = x[from];
        indices[from] = from;
        if (from == k - 1)
            for (ptrdiff_t node = k / 2 - 1; node >= 0; node--)
                K(sink)(node, k, values[node], indices[node], values, indices);
    }

    /* Pass 2: what is larger than the last of k */
    for (ptrdiff_t end; k > 0 && from < to; from = end) {
        end = to - from < group ? to : from + group;
        if (end - from == group && !K(has_larger)(x + from, values[0])) continue;
        for (ptrdiff_t i = from; i < end; i++)
            if (K(is_larger)(x[i], values[0])) K(sink)(0, k, x[i], i, values, indices);
    }
}

/* A heap of `from` elements becomes one of the first `to` and, behind it, the others in order. */
static void K(order_chosen)(ptrdiff_t from, ptrdiff_t to, void *heap, int64_t *indices)
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
