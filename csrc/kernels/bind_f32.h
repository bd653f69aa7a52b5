/* The algorithms' names, bound to float. Undone by unbind.h; no include guard on purpose. */
#define real float
#define vec vf32
#define vec_mask vf32_mask
#define LANES ((int)VF32_LANES)
#define V(op) vf32_##op
#define K(name) name##_f32
#define REAL_MAX FLT_MAX
#define REAL_MIN FLT_MIN
#define REAL_F32 1
#define OWN ATTN_ELEMENT_F32
#define EACH_STORED(X) X(own, OWN) X(f16, ATTN_ELEMENT_F16) X(bf16, ATTN_ELEMENT_BF16)
