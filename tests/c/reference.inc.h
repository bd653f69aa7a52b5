/* One batch entry and head of the reference. Included with
 *
 *     WIDE          the type to compute in
 *     REAL          the type of the inputs and results
 *     UNIT, LEAST   its unit roundoff, and its smallest normal number
 *     RECORD        a name for the struct below
 *     NAME(x)       x with a suffix for these types
 */

typedef struct {
    ptrdiff_t at[ROLES]; /* OUTER, BATCH, HEAD, ROW: whose row this is */
    ptrdiff_t key_length, query_length;
    WIDE *query, *key, *value;  /* (head_dim), (kv_len, head_dim), (kv_len, v_dim) */
    WIDE *weight, *output;      /* (kv_len), (v_dim) */
    double *size, *output_unit; /* a_j (kv_len), and the error bounds of an output (v_dim) */
    unsigned char *visible;     /* (kv_len) */
    WIDE lse;
    double largest; /* A */
} RECORD;

/* Row `row` of an input, each of whose heads is shared by neighbouring query heads. */
static void NAME(read_row)(const test_case *c, const tensor *t, const ptrdiff_t *whose, ptrdiff_t row, WIDE *out)
{
    const ptrdiff_t at[ROLES] = {whose[OUTER], whose[BATCH], whose[HEAD] * t->size[HEAD] / c->heads, row, 0};
    const char *p = tensor_at(t, at);
    for (ptrdiff_t d = 0; d < t->size[COLUMN]; d++) out[d] = *(const REAL *)(const void *)(p + d * t->step[COLUMN]);
}

/* A score without its scale, as in attn.h, and its size, which bounds the rounding error. */
static WIDE NAME(score)(const test_case *c, const RECORD *r, ptrdiff_t j, double scale, double *size)
{
    const REAL *weight = (const REAL *)(const void *)c->score_weight.data;
    WIDE sum = 0, query_squares = 0, key_squares = 0;
    double both = 0;
    *size = 0;
    for (ptrdiff_t d = 0; d < c->head_dim; d++) {
        const WIDE q = r->query[d], k = r->key[j * c->head_dim + d];
        query_squares += q * q;
        key_squares += k * k;
        switch (c->args.score) {
        case ATTN_SCORE_DISTANCE:
            sum -= (q - k) * (q - k);
            *size += 3 * (double)((q - k) * (q - k));
            both += (double)((fabs(q) + fabs(k)) * (fabs(q) + fabs(k)));
            break;
        case ATTN_SCORE_ADDITIVE:
            sum += weight[d] * tanh(q + k);
            *size += (double)fabs(weight[d]);
            break;
        default: sum += q * k; *size += (double)fabs(q * k);
        }
    }
    if (c->args.score == ATTN_SCORE_DISTANCE) *size += fmin(both, 2 * PRODUCT_LIMIT / fabs(scale));
    if (c->args.score != ATTN_SCORE_COSINE) return sum;
    const WIDE norms = sqrt(query_squares) * sqrt(key_squares);
    *size = norms == 0 ? 0 : *size / (double)norms;
    return norms == 0 ? 0 : sum / norms;
}

static double NAME(scale)(const test_case *c)
{
    const double root = sqrt((double)(c->head_dim > 0 ? c->head_dim : 1));
    if (c->args.has_scale) return c->args.scale;
    return c->args.score == ATTN_SCORE_DOT ? 1 / root : c->args.score == ATTN_SCORE_DISTANCE ? 1 / (2 * root) : 1;
}

static void NAME(attend)(const test_case *c, RECORD *r)
{
    const double scale = NAME(scale)(c);
    WIDE top = -(WIDE)INFINITY, sum = 0;
    r->largest = 0;

    /* 1. scores of the visible keys */
    for (ptrdiff_t j = 0; j < c->kv_len; j++) {
        double bias = 0;
        r->weight[j] = r->size[j] = 0;
        if (!(r->visible[j] = (unsigned char)sees(c, r->at, r->key_length, r->query_length, j, &bias))) continue;
        r->weight[j] = NAME(score)(c, r, j, scale, &r->size[j]) * (WIDE)scale + (WIDE)bias;
        r->size[j] = r->size[j] * fabs(scale) + fabs(bias);
        if (!(r->weight[j] <= top)) top = r->weight[j];
        if (r->size[j] > r->largest) r->largest = r->size[j];
    }

    /* 2. their softmax */
    for (ptrdiff_t j = 0; j < c->kv_len; j++)
        if (r->visible[j]) sum += r->weight[j] = exp(r->weight[j] - top);
    r->lse = sum == 0 ? -(WIDE)INFINITY : top + log(sum);
    for (ptrdiff_t j = 0; j < c->kv_len; j++)
        if (r->visible[j]) r->weight[j] /= sum;

    /* 3. values; then the output's error bound */
    for (ptrdiff_t d = 0; d < c->v_dim; d++) {
        double unit = 0;
        r->output[d] = sum == 0 ? (WIDE)c->args.empty : 0;
        for (ptrdiff_t j = 0; j < c->kv_len; j++)
            if (r->visible[j]) r->output[d] += r->weight[j] * r->value[j * c->v_dim + d];
        for (ptrdiff_t j = 0; j < c->kv_len; j++)
            if (r->visible[j])
                unit += (double)r->weight[j] * (1 + r->size[j]) *
                        (double)(fabs(r->value[j * c->v_dim + d]) + fabs(r->output[d]));
        r->output_unit[d] = unit * UNIT + (double)(c->kv_len + c->head_dim + 1) * LEAST;
    }
}

/* The number at the same indices of a result. */
static REAL NAME(result)(const tensor *t, const ptrdiff_t *whose, ptrdiff_t column)
{
    const ptrdiff_t at[ROLES] = {whose[OUTER], whose[BATCH], whose[HEAD], whose[ROW], column};
    return *(const REAL *)(const void *)tensor_at(t, at);
}

static void NAME(raise)(double *worst, REAL actual, WIDE expected, double unit)
{
    const int same = isnan(expected) ? isnan(actual) : (WIDE)actual == expected;
    double error = same ? 0 : (double)INFINITY;
    if (!same && isfinite(expected) && isfinite(actual)) error = (double)fabs((WIDE)actual - expected) / unit;
    if (!(error <= *worst)) *worst = error;
}

static void NAME(judge)(const test_case *c, const RECORD *r, worst_errors *worst)
{
    const double lse_unit = 4 * UNIT * (1 + (double)fabs(r->lse)) + 4 * UNIT * r->largest;
    for (ptrdiff_t d = 0; d < c->v_dim; d++)
        NAME(raise)(&worst->output, NAME(result)(&c->output, r->at, d), r->output[d], r->output_unit[d]);
    if (c->lse.data) NAME(raise)(&worst->lse, NAME(result)(&c->lse, r->at, 0), r->lse, lse_unit);
    if (!c->weights.data || isnan(r->lse)) return; /* if one weight is NaN, the others are unspecified */

    WIDE sum = 0;
    for (ptrdiff_t j = 0; j < c->kv_len; j++) {
        const REAL w = NAME(result)(&c->weights, r->at, j);
        const double unit = r->visible[j] ? (8 * UNIT + 16 * UNIT * r->largest) * (double)r->weight[j] + LEAST : 0;
        NAME(raise)(&worst->weights, w, r->weight[j], unit);
        sum += w;
    }
    if (r->lse > -(WIDE)INFINITY) NAME(raise)(&worst->sums, 1, sum, 8 * UNIT * sqrt((double)c->kv_len));
}

/* All rows of one batch entry and head. */
static void NAME(compare)(const test_case *same, int count, const ptrdiff_t whose[ROLES], worst_errors *worst)
{
    const test_case *c = &same[0];
    const size_t keys = (size_t)c->kv_len, features = (size_t)c->head_dim, columns = (size_t)c->v_dim;
    RECORD r = {.at = {whose[OUTER], whose[BATCH], whose[HEAD], 0, 0},
                .key_length = length_of(&c->key_lengths, whose, c->kv_len - c->args.extra_keys),
                .query_length = length_of(&c->query_lengths, whose, c->q_len)};
    WIDE *numbers = take((features + keys * features + keys * columns + keys + columns) * sizeof *numbers);
    r.query = numbers;
    r.key = r.query + features;
    r.value = r.key + keys * features;
    r.weight = r.value + keys * columns;
    r.output = r.weight + keys;
    r.size = take((keys + columns) * sizeof *r.size);
    r.output_unit = r.size + keys;
    r.visible = take(keys);

    for (ptrdiff_t j = 0; j < c->kv_len; j++) {
        NAME(read_row)(c, &c->key, whose, j, r.key + j * c->head_dim);
        NAME(read_row)(c, &c->value, whose, j, r.value + j * c->v_dim);
    }
    for (r.at[ROW] = 0; r.at[ROW] < c->q_len; r.at[ROW]++) {
        NAME(read_row)(c, &c->query, whose, r.at[ROW], r.query);
        NAME(attend)(c, &r);
        for (int n = 0; n < count; n++) NAME(judge)(&same[n], &r, &worst[n]);
    }
    free(numbers);
    free(r.size);
    free(r.visible);
}
