/* The algorithms' names, bound to double. Undone by unbind.h; no include guard on purpose. */
#define real double
#define vec vf64
#define vec_mask vf64_mask
#define LANES ((int)VF64_LANES)
#define V(op) vf64_##op
#define K(name) name##_f64
#define REAL_MAX DBL_MAX
#define REAL_MIN DBL_MIN
#define REAL_F32 0
#define OWN ATTN_ELEMENT_F64
#define EACH_STORED(X) X(own, OWN)
