#include "frozen.h"

int pyattn_unpack(attn_view *q, attn_view *k, attn_view *v, const char *name, pyattn_frozen *own)
{
    const ptrdiff_t rows = q->axes > 0 ? q->shape[0] / 3 : 0;
    if (q->axes == 0 || q->shape[0] % 3 != 0 || k->data != NULL || v->data != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "%s stacks the rows of query, key and value: it must have a multiple of 3 rows, and has %zd", name,
                     q->axes > 0 ? q->shape[0] : 0);
        return -1;
    }
    for (int n = 1; n < 3; n++) {
        attn_view *const part = n == 1 ? k : v;
        *part = *q;
        part->data = (char *)q->data + n * rows * q->strides[0];
        pyattn_freeze(part, &own[n]);
        own[n].shape[0] = rows;
    }
    own[0].shape[0] = rows;
    return 0;
}
