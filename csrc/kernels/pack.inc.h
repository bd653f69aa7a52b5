/* Packs tiles of a weight that lies as (inner, features) into panels.
 *
 * In place, a tile's rows are far apart: strides that are a multiple of 4096 bytes put them into one set of the L1
 * cache, and neither prefetcher foresees them. A packed tile is a few panels one after another, each (inner, panel),
 * which a register tile reads as they lie. While one tile is multiplied the next one is packed, a vector for each step
 * of the sum: that costs no time, as arithmetic is the limit (Zen 5: 260 to 275 GFLOP/s from 96 rows on, for every
 * stride, where a weight that is read in place gives 200 to 270). A tile is wider than a panel, as longer rows come
 * faster from memory: 32 rows times 4096 x 4096 take 4.8 ms with tiles of 128 features, 5.3 with 64.
 */

enum {
    K(panel_vectors) = VEC_ACCUMULATORS >= 24 ? 4 : 2, /* vectors of a register tile of value.inc.h */
    K(panel_rows) = VEC_ACCUMULATORS / K(panel_vectors),
    K(panel) = K(panel_vectors) * LANES,
    K(pack_ahead) = 24 /* rows: more would fall out of the sets that they share in the L2 cache */
};

/* A cursor over the vectors of a whole tile, in memory's order. */
typedef struct {
    const char *from;
    real *to;
    ptrdiff_t step, panel_step, left; /* step: in bytes; left: vectors */
    int column, features;
} K(packer);

static inline K(packer) K(begin_packing)(const attn_tile *tile)
{
    K(packer) p = {.left = 0};
    if (tile == NULL || tile->features % K(panel) != 0) return p;
    return (K(packer)){.from = tile->weight,
                       .to = tile->packed,
                       .step = tile->stride * K(element_size)(tile->element),
                       .panel_step = (ptrdiff_t)tile->inner * K(panel),
                       .features = tile->features,
                       .left = tile->inner * (tile->features / LANES)};
}

ATTN_TEMPLATE void K(pack_vectors)(const attn_element element, const int count, K(packer) * p)
{
    const ptrdiff_t size = K(element_size)(element);
    ATTN_UNROLL for (int n = 0; n < count; n++)
    {
        V(store)(p->to, K(load_elements)(element, p->from));
        __builtin_prefetch(p->from + K(pack_ahead) * p->step);
        p->from += LANES * size;
        p->to += LANES;
        p->column += LANES;
        if (p->column % K(panel) == 0) p->to += p->panel_step - K(panel);
        if (p->column == p->features) {
            p->column = 0;
            p->from += p->step - p->features * size;
            __builtin_prefetch(p->from + (K(pack_ahead) - 1) * p->step + (p->features - 1) * size);
            p->to += K(panel) - p->features / K(panel) * p->panel_step;
        }
    }
    p->left -= count;
}

/* A tile of fewer features: its last panel ends with zeros. */
static void K(pack_edge)(const attn_tile *tile)
{
    const ptrdiff_t size = K(element_size)(tile->element);
    for (int n = 0; n < tile->inner; n++)
        for (int c = 0; c < tile->features; c += K(panel)) {
            const int left = tile->features - c, count = left < K(panel) ? left : K(panel);
            real *to = (real *)tile->packed + (ptrdiff_t)c * tile->inner + n * K(panel);
            const char *from = (const char *)tile->weight + (n * tile->stride + c) * size;
            K(load_rows)(tile->element, 1, count, from, 0, size, K(panel), to);
        }
}

/* Packs what is left of a tile. */
ATTN_TEMPLATE void K(finish_packing)(const attn_element element, const attn_tile *tile, K(packer) * p)
{
    while (p->left > 0) K(pack_vectors)(element, 1, p);
    if (tile != NULL && tile->features % K(panel) != 0) K(pack_edge)(tile);
}

static void K(pack_tile)(const attn_tile *tile)
{
    K(packer) p = K(begin_packing)(tile);
    switch (tile->element) {
#define PACK(NAME, ELEMENT)                                                                                            \
    case ELEMENT: K(finish_packing)(ELEMENT, tile, &p); break;
        EACH_STORED(PACK)
#undef PACK
    default: break;
    }
}
