/* Attention at every level against the plain reference, within the bounds of reference.h. */
#include "reference.h"

static void claim_accuracy(const test_case *c, const char *level, const worst_errors *worst)
{
    const int bar = c->value.step[ROW] == 0 ? FLAT_OUTPUT_BAR : OUTPUT_BAR;
    CLAIM(worst->output <= bar, "%s at %s: output is off by %g units", c->text, level, worst->output);
    CLAIM(worst->weights <= 1, "%s at %s: a weight is off by %g units", c->text, level, worst->weights);
    CLAIM(worst->sums <= 1, "%s at %s: a sum of weights is off by %g units", c->text, level, worst->sums);
    CLAIM(worst->lse <= 1, "%s at %s: lse is off by %g units", c->text, level, worst->lse);
}

int main(void)
{
    const int levels = level_count();
    static test_case same[MOST_LEVELS];
    worst_errors worst[MOST_LEVELS];

    for (int number = 0; number < CASES; number++) {
        for (int n = 0; n < levels; n++) {
            case_make(&same[n], number);
            use_level(n);
            case_run(&same[n]);
        }
        case_claim_shapes(&same[0]);
        reference_compare(same, levels, worst);
        for (int n = 0; n < levels; n++) {
            claim_accuracy(&same[n], attn_isa_name(n), &worst[n]);
            case_free(&same[n]);
        }
    }
    return report("test_attention");
}
