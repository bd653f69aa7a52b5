#include "cases.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes --------------------------------------------------------------------------------------------------------- */

static void draw_lengths(test_case *c, lcg *g)
{
    switch (c->regime) {
    case SMALL:
        c->q_len = PICK(g, 0, 1, 2, 3, 5, 9, 17, 24);
        c->kv_len = PICK(g, 0, 1, 2, 3, 7, 31, 33, 65);
        c->head_dim = PICK(g, 0, 1, 2, 3, 5, 8, 17, 64);
        c->v_dim = PICK(g, 0, 1, 2, 3, 8, 20, 33);
        break;
    case DECODE:
        c->q_len = PICK(g, 1, 1, 1, 2, 3, 4);
        c->kv_len = PICK(g, 40, 64, 100, 511, 513, 700, 1100, 1600);
        c->head_dim = PICK(g, 16, 40, 64, 80, 129, 200, 256);
        c->v_dim = PICK(g, 16, 24, 64, 100, 128);
        break;
    case PREFILL:
        c->q_len = PICK(g, 33, 48, 49, 77, 100, 128, 130);
        c->kv_len = PICK(g, 64, 77, 128, 130, 203, 300);
        c->head_dim = PICK(g, 3, 16, 40, 64, 80, 130);
        c->v_dim = PICK(g, 5, 16, 40, 64, 96);
        break;
    default:
        c->q_len = PICK(g, 20, 50, 101, 150);
        c->kv_len = PICK(g, 512, 577, 600, 1030, 1300);
        c->head_dim = PICK(g, 8, 16, 32, 64);
        c->v_dim = PICK(g, 8, 16, 32, 48);
        break;
    }
    if (draw_one_in(g, 5)) c->kv_len = c->q_len;
}

static double work_of(const test_case *c)
{
    return (double)(c->outer * c->batch * c->heads * c->q_len * c->kv_len * (c->head_dim + c->v_dim));
}

/* Reduces a case to what the reference, and an emulator, compute in about a second. */
static void limit_work(test_case *c, double most)
{
    if (work_of(c) > most) c->outer = c->batch = 1;
    while (work_of(c) > most && c->q_len > 1) c->q_len = (c->q_len + 1) / 2;
}

/* Draws 2 to 5 axes, with or without heads. One digit each gives the heads of query, key and value. */
static int draw_axes(test_case *c, lcg *g)
{
    const ptrdiff_t few = PICK(g, 111, 111, 111, 222, 211, 221),
                    many = PICK(g, 111, 222, 333, 422, 441, 621, 632, 811, 122);
    const int heads = (int)(c->regime >= PREFILL ? few : many);
    c->has_heads = heads != 111 || draw_one_in(g, 2);
    c->args.enable_gqa = c->has_heads && draw_one_in(g, 3);
    c->rank = c->has_heads ? (int)PICK(g, 4, 4, 5) : (int)PICK(g, 2, 3);
    if (c->args.enable_gqa && draw_one_in(g, 2)) c->rank = 3;
    c->args.layout = draw_one_in(g, 3) && c->has_heads ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD;

    const int batch_axes = c->rank - 2 - c->has_heads;
    c->batch = batch_axes >= 1 ? PICK(g, 1, 2, 3) : 1;
    c->outer = batch_axes >= 2 ? 2 : 1;
    c->heads = heads == 122 ? 2 : heads / 100;
    if (c->regime == SMALL && batch_axes >= 1 && draw_one_in(g, 20)) c->batch = 0;
    return heads;
}

/* Arrays -------------------------------------------------------------------------------------------------------- */

/* Draws an array. Axes may be broadcast (size 1) or repeated (stride 0) where allowed, and leading axes of size 1 may
 * be left out, down to least_axes. */
typedef struct {
    attn_dtype dtype;
    const int *roles;
    int count, most_axes, least_axes;
    unsigned may_broadcast, may_repeat;
    int is_result;
} wish;

enum { ANY_ROLE = (1 << ROLES) - 1, BATCHES = 1 << OUTER | 1 << BATCH };

static storage draw_storage(lcg *g, const wish *w)
{
    static const int orders[][ROLES] = {
        {OUTER, BATCH, HEAD, ROW, COLUMN},
        {OUTER, BATCH, ROW, HEAD, COLUMN},
        {OUTER, BATCH, HEAD, COLUMN, ROW},
        {COLUMN, ROW, HEAD, BATCH, OUTER},
    };
    const ptrdiff_t order = w->is_result ? draw_below(g, 2) : PICK(g, 0, 0, 0, 1, 1, 2, 3);
    storage s = {.stretch = 1, .padding = PICK(g, 0, 0, 1, 3)};
    memcpy(s.order, orders[order], sizeof s.order);
    if (draw_one_in(g, 3)) s.reversed = (unsigned)draw_below(g, 1 << ROLES);
    if (w->is_result) {
        s.reversed &= ~(1u << COLUMN);
        s.lead = s.tail = 16;
        return s;
    }
    s.lead = draw_below(g, 4);
    if (draw_one_in(g, 8)) s.repeated = 1u << draw_below(g, ROLES) & w->may_repeat;
    if (draw_one_in(g, 8)) s.stretch = 2;
    if (draw_one_in(g, 8) && order < 2) s.row_multiple = 2048;
    return s;
}

static void draw_tensor(tensor *t, lcg *g, const wish *w, const ptrdiff_t *full)
{
    const storage s = draw_storage(g, w);
    ptrdiff_t size[ROLES];
    for (int role = 0; role < ROLES; role++)
        size[role] = (w->may_broadcast >> role & 1) && draw_one_in(g, 3) ? 1 : full[role];
    int axes = w->most_axes;
    while (axes > w->least_axes && size[w->roles[w->count - axes]] == 1 && draw_one_in(g, 2)) axes--;
    tensor_make(t, w->dtype, size, w->roles, w->count, axes, &s);
}

/* heads: of query, key and value, one digit each. */
static void draw_qkv_and_output(test_case *c, lcg *g, int heads)
{
    static const int bhsd[] = {OUTER, BATCH, HEAD, ROW, COLUMN}, bshd[] = {OUTER, BATCH, ROW, HEAD, COLUMN};
    static const int no_heads[] = {OUTER, BATCH, ROW, COLUMN};
    const int length_first = c->args.layout == ATTN_LAYOUT_BSHD, count = c->has_heads ? 5 : 4;
    const int *roles = !c->has_heads ? no_heads : length_first ? bshd : bhsd;
    const int least = c->has_heads && (length_first || c->args.enable_gqa) ? 3 : 2;

    /* If query and key both had one number for all features, every step of their sum would round the same way, which
     * the bounds of reference.h exclude. So the query's features differ. */
    const wish query = {c->dtype, roles, count, c->rank, c->rank, 0, ANY_ROLE & ~(1u << COLUMN), 0};
    const wish other = {c->dtype, roles, count, c->rank, least, BATCHES, ANY_ROLE, 0};
    const wish result = {c->dtype, roles, count, c->rank, c->rank, 0, 0, 1};
    draw_tensor(&c->query, g, &query, LIST(c->outer, c->batch, heads / 100, c->q_len, c->head_dim));
    draw_tensor(&c->key, g, &other, LIST(c->outer, c->batch, heads / 10 % 10, c->kv_len, c->head_dim));
    draw_tensor(&c->value, g, &other, LIST(c->outer, c->batch, heads % 10, c->kv_len, c->v_dim));
    draw_tensor(&c->output, g, &result, LIST(c->outer, c->batch, c->heads, c->q_len, c->v_dim));
}

static void draw_mask_weights_and_lse(test_case *c, lcg *g)
{
    static const int with_heads[] = {OUTER, BATCH, HEAD, ROW, COLUMN}, no_heads[] = {OUTER, BATCH, ROW, COLUMN};
    static const attn_dtype kinds[] = {ATTN_BOOL, ATTN_BOOL, ATTN_F16, ATTN_F32, ATTN_F64, ATTN_LONG_DOUBLE};
    const int *roles = c->has_heads ? with_heads : no_heads, count = c->has_heads ? 5 : 4, rank = c->rank;
    const attn_dtype mask_dtype = c->mask_kind == MASK_LEAST ? c->dtype : kinds[c->mask_kind];
    const ptrdiff_t *pairs = LIST(c->outer, c->batch, c->heads, c->q_len, c->kv_len);
    const ptrdiff_t *hidden = LIST(c->outer, c->batch, c->heads, c->q_len, c->kv_len - c->args.extra_keys);

    const wish mask = {mask_dtype, roles, count, rank, 1, ANY_ROLE, ANY_ROLE, 0};
    const wish padding = {draw_one_in(g, 3) ? c->dtype : ATTN_BOOL, roles, count, rank, 1, ANY_ROLE, ANY_ROLE, 0};
    const wish weights = {c->dtype, roles, count, rank, rank, 0, 0, 1};
    const wish lse = {c->dtype, roles, count - 1, rank - 1, rank - 1, 0, 0, 1};
    if (c->mask_kind != MASK_NONE) draw_tensor(&c->mask, g, &mask, hidden);
    if (draw_one_in(g, 4)) draw_tensor(&c->padding, g, &padding, hidden);
    if (c->wants_weights) draw_tensor(&c->weights, g, &weights, pairs);
    if (c->wants_lse) draw_tensor(&c->lse, g, &lse, LIST(c->outer, c->batch, c->heads, c->q_len, 1));
}

static void draw_lengths_of_batches(test_case *c, lcg *g, tensor *t, ptrdiff_t most)
{
    static const int roles[] = {OUTER, BATCH};
    const wish lengths = {ATTN_I64, roles, 2, c->rank - 2 - c->has_heads, 0, BATCHES, ANY_ROLE, 0};
    draw_tensor(t, g, &lengths, LIST(c->outer, c->batch, 1, 1, 1));
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(t); left > 0; left--, tensor_next(t, at)) {
        const ptrdiff_t a = draw_below(g, most + 1), b = draw_below(g, most + 1);
        tensor_set(t, at, (double)(a > b ? a : b)); /* long ones test more than short ones */
    }
}

/* Limits that leave a query many keys, few or none; some lie outside the keys. */
static void draw_limits_of_queries(test_case *c, lcg *g)
{
    static const int with_heads[] = {OUTER, BATCH, HEAD, ROW, COLUMN}, no_heads[] = {OUTER, BATCH, ROW, COLUMN};
    static const double far_or_near[] = {-0x1p60, -1, 0, 63, 64, 65, 200, 0x1p60};
    const unsigned each = ANY_ROLE & ~(1u << COLUMN);
    const wish pairs = {ATTN_I64, c->has_heads ? with_heads : no_heads, c->has_heads ? 5 : 4, c->rank, 1, each, each,
                        0};
    draw_tensor(&c->key_limits, g, &pairs, LIST(c->outer, c->batch, c->heads, c->q_len, 2));
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(&c->key_limits); left > 0; left--) {
        const ptrdiff_t in_order = draw_below(g, c->kv_len / 2 + 1) + (at[COLUMN] ? c->kv_len / 2 : 0);
        const double any = far_or_near[PICK(g, 0, 1, 2, 3, 4, 5, 6, 7)];
        tensor_set(&c->key_limits, at, draw_one_in(g, 4) ? any : (double)in_order);
        tensor_next(&c->key_limits, at);
    }
    c->args.key_limits = tensor_view(&c->key_limits);
}

/* Numbers ------------------------------------------------------------------------------------------------------- */

static void fill(tensor *t, lcg *g, double factor, double offset)
{
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(t); left > 0; left--, tensor_next(t, at))
        tensor_set(t, at, offset + factor * draw_real(g, t->dtype));
}

/* Masks of every kind forbid either scattered pairs or whole blocks. Float masks hold multiples of 1/8 in [-8, 8],
 * exact in float16. `least` is the lowest finite number of the call's dtype. */
static void fill_mask(test_case *c, lcg *g, tensor *t, int kind, int blocked)
{
    const int blocky = draw_one_in(g, 2), rarity = (int)PICK(g, 2, 4, 10);
    const double least = c->dtype == ATTN_F32 ? -(double)FLT_MAX : -DBL_MAX;
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(t); left > 0; left--, tensor_next(t, at)) {
        const int forbidden = blocky ? (at[COLUMN] / 64 + at[ROW] / 16 + at[HEAD]) % 3 == 0 : draw_one_in(g, rarity);
        const double eighths = (double)(draw_below(g, 129) - 64) / 8;
        switch (kind) {
        case MASK_BOOL: tensor_set(t, at, forbidden != blocked ? 0 : draw_one_in(g, 50) ? 128 : 1); break;
        case MASK_LEAST: tensor_set(t, at, forbidden ? least : 0); break;
        default: tensor_set(t, at, forbidden ? -(double)INFINITY : eighths); break;
        }
    }
}

/* Sets one key or value of every head to NaN, or some elements, which must not affect rows that do not see them. */
static void poison(test_case *c, lcg *g)
{
    tensor *t = draw_one_in(g, 2) ? &c->key : &c->value;
    const ptrdiff_t poisoned = draw_below(g, c->kv_len > 0 ? c->kv_len : 1);
    const int scattered = draw_one_in(g, 2);
    for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(t); left > 0; left--, tensor_next(t, at))
        if (scattered ? draw_one_in(g, 200) : at[ROW] == poisoned) tensor_set(t, at, (double)NAN);
}

/* Draws numbers of a size that gives scores near 1. */
static void draw_score_weight(test_case *c, lcg *g)
{
    static const int roles[] = {COLUMN};
    const storage contiguous = {.order = {OUTER, BATCH, HEAD, ROW, COLUMN}, .stretch = 1};
    tensor_make(&c->score_weight, c->dtype, LIST(1, 1, 1, 1, c->head_dim), roles, 1, 1, &contiguous);
    fill(&c->score_weight, g, 1 / sqrt((double)(c->head_dim > 0 ? c->head_dim : 1)), 0);
    c->args.score_weight = tensor_view(&c->score_weight);
}

static void draw_form(test_case *c, lcg *g)
{
    attn_args *a = &c->args;
    const int lower = c->form == CAUSAL_LOWER || c->form == WINDOW_LOWER, windowed = c->form >= WINDOW_UPPER;
    a->window_left = a->window_right = ATTN_UNBOUNDED;
    if (c->form == SEES_ALL) return;

    a->align = lower ? ATTN_ALIGN_LOWER_RIGHT : ATTN_ALIGN_UPPER_LEFT;
    if (!lower && c->q_len == c->kv_len && draw_one_in(g, 2)) a->align = ATTN_ALIGN_UNSAID;
    a->is_causal = !windowed || draw_one_in(g, 3);
    if (windowed) {
        a->window_left = PICK(g, ATTN_UNBOUNDED, 0, 3, 20, 100, 600);
        a->window_right = PICK(g, ATTN_UNBOUNDED, 0, 3, 20, 100);
    }
    if (draw_one_in(g, 2)) {
        a->key_start = PICK(g, 0, 64, 128, 448, 512);
        a->query_start = PICK(g, 0, 1, 50, 200) + (draw_one_in(g, 2) ? a->key_start : 0);
    }
}

/* A case -------------------------------------------------------------------------------------------------------- */

static void describe(test_case *c)
{
    static const char *const masks[] = {"none", "bool", "float16", "float32", "float64", "long double", "finfo.min"};
    static const char *const scores[] = {"dot", "cosine", "distance", "additive"};
    static const char *const forms[] = {"sees all", "causal", "causal lower", "window", "window lower"};
    const attn_args *a = &c->args;
    snprintf(
        c->text, sizeof c->text,
        "case %d: %s, %s, %td x %td batches, %td heads, %td queries, %td keys, dims %td %td, mask %s, %s (%td, %td), "
        "starts %td %td, %td extra keys%s%s%s%s%s, offset %g, %d threads",
        c->number, c->dtype == ATTN_F32 ? "float32" : "float64", scores[a->score], c->outer, c->batch, c->heads,
        c->q_len, c->kv_len, c->head_dim, c->v_dim, masks[c->mask_kind], forms[c->form], a->window_left,
        a->window_right, a->query_start, a->key_start, a->extra_keys, c->padding.data ? ", padding" : "",
        a->key_limits.data ? ", key_limits" : "", a->key_lengths.data ? ", key_lengths" : "",
        a->query_lengths.data ? ", query_lengths" : "", c->wants_weights ? ", weights" : "", c->offset, a->num_threads);
}

void case_make(test_case *c, int number)
{
    lcg g = lcg_from((uint64_t)number + 1);
    int n = number % DOT_CASES;
    *c = (test_case){.number = number};
    if (number >= DOT_CASES) { /* 13 and the number of combinations are coprime */
        n = 13 * n % DOT_CASES;
        c->args.score = (attn_score)(1 + number % OTHER_SCORES);
    }
    c->dtype = n % DTYPES == 0 ? ATTN_F32 : ATTN_F64, n /= DTYPES;
    c->mask_kind = n % MASK_KINDS, n /= MASK_KINDS;
    c->form = n % FORMS, n /= FORMS;
    c->regime = n;
    c->wants_weights = draw_one_in(&g, 3);
    c->wants_lse = draw_one_in(&g, 2);

    draw_lengths(c, &g);
    const int heads = draw_axes(c, &g);
    limit_work(c, (c->dtype == ATTN_F32 ? 8e6 : 3e6) / (c->args.score == ATTN_SCORE_ADDITIVE ? 10 : 1));
    draw_form(c, &g);
    const int with_query_lengths = draw_one_in(&g, 4);
    if (!with_query_lengths && draw_one_in(&g, 3)) {
        const ptrdiff_t extra = PICK(&g, 1, 1, 2, 2, 70, 600);
        c->args.extra_keys = extra < c->kv_len ? extra : c->kv_len;
        if (c->args.align == ATTN_ALIGN_UNSAID) c->args.align = ATTN_ALIGN_UPPER_LEFT;
    }
    draw_qkv_and_output(c, &g, heads);
    draw_mask_weights_and_lse(c, &g);
    if (draw_one_in(&g, 4)) draw_lengths_of_batches(c, &g, &c->key_lengths, c->kv_len - c->args.extra_keys);
    if (with_query_lengths) draw_lengths_of_batches(c, &g, &c->query_lengths, c->q_len);

    /* From nearly uniform weights to rows with one strong key and denormal others. A common offset of queries and keys
     * does not change distances. */
    c->offset = c->args.score == ATTN_SCORE_DISTANCE ? (double)PICK(&g, 0, 0, 1, 100, 10000, 1000000) : 0;
    fill(&c->query, &g, c->regime == SMALL ? 1 : (double)PICK(&g, 1, 1, 1, 4, 12), c->offset);
    fill(&c->key, &g, 1, c->offset);
    fill(&c->value, &g, 1, 0);
    attn_args *a = &c->args;
    a->mask_blocked = draw_one_in(&g, 2);
    a->padding_blocked = draw_one_in(&g, 2);
    if (c->mask.data) fill_mask(c, &g, &c->mask, c->mask_kind, a->mask_blocked);
    if (c->padding.data)
        fill_mask(c, &g, &c->padding, c->padding.dtype == ATTN_BOOL ? MASK_BOOL : MASK_F32, a->padding_blocked);
    if ((c->form != SEES_ALL || c->mask_kind == MASK_BOOL) && draw_one_in(&g, 4)) poison(c, &g);

    a->query = tensor_view(&c->query);
    a->key = tensor_view(&c->key);
    a->value = tensor_view(&c->value);
    a->mask = tensor_view(&c->mask);
    a->padding_mask = tensor_view(&c->padding);
    a->key_lengths = tensor_view(&c->key_lengths);
    a->query_lengths = tensor_view(&c->query_lengths);
    a->has_scale = draw_one_in(&g, 4);
    a->scale = (double)PICK(&g, -4, 0, 1, 2, 8) / 8;
    if (a->score == ATTN_SCORE_COSINE) a->scale *= 20;
    if (a->score == ATTN_SCORE_ADDITIVE) draw_score_weight(c, &g);
    a->empty = draw_one_in(&g, 8) ? (double)NAN : 0;
    a->num_threads = 1 + number % 3;
    if (draw_one_in(&g, 4)) draw_limits_of_queries(c, &g);
    describe(c);
}

void case_free(test_case *c)
{
    tensor *inputs[] = {&c->query,      &c->key,         &c->value,         &c->mask,        &c->padding,
                        &c->key_limits, &c->key_lengths, &c->query_lengths, &c->score_weight};
    tensor *results[] = {&c->output, &c->weights, &c->lse};
    for (int n = 0; n < 9; n++) tensor_free(inputs[n]);
    for (int n = 0; n < 3; n++) tensor_free(results[n]);
}

attn_status case_compute(test_case *c, attn_error *error)
{
    tensor *results[] = {&c->output, &c->weights, &c->lse};
    for (int n = 0; n < 3; n++)
        if (results[n]->data) tensor_wipe(results[n]);
    return attn_attention(&c->args, tensor_view(&c->output), tensor_view(&c->weights), tensor_view(&c->lse), error);
}

void case_run(test_case *c)
{
    attn_error error = {""};
    const attn_status status = case_compute(c, &error);
    CLAIM(status == ATTN_OK, "%s at %s: %s", c->text, attn_isa(), error.message);
    CLAIM(tensor_kept_gaps(&c->output), "%s at %s: wrote beside the output", c->text, attn_isa());
    CLAIM(!c->weights.data || tensor_kept_gaps(&c->weights), "%s at %s: wrote beside the weights", c->text, attn_isa());
    CLAIM(!c->lse.data || tensor_kept_gaps(&c->lse), "%s at %s: wrote beside lse", c->text, attn_isa());
}

static int same_shape(const tensor *t, int axes, const ptrdiff_t *shape)
{
    return t->data == NULL || (t->ndim == axes && memcmp(t->shape, shape, (size_t)axes * sizeof *shape) == 0);
}

void case_claim_shapes(const test_case *c)
{
    attn_error error = {""};
    attn_shapes s;
    const attn_status status = attn_attention_shapes(&c->args, &s, &error);
    CLAIM(status == ATTN_OK, "%s: %s", c->text, error.message);
    CLAIM(same_shape(&c->output, s.ndim, s.output), "%s: shape of the output", c->text);
    CLAIM(same_shape(&c->weights, s.weights_ndim, s.weights), "%s: shape of the weights", c->text);
    CLAIM(same_shape(&c->lse, s.lse_ndim, s.lse), "%s: shape of lse", c->text);
}
