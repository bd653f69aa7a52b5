/* The kernels for AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__)
#include <float.h>
#include <math.h>
#include <string.h>
#include <immintrin.h>

#include "kernels.h"
#include "target.h"

ATTN_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "vec_avx512.h"

#include "bind_f32.h"
#include "algorithms.inc.h"
#include "unbind.h"

#include "bind_f64.h"
#include "algorithms.inc.h"
#include "unbind.h"
ATTN_TARGET_END

const attn_kernel_table attn_table_avx512 = {.name = "avx512", .f32 = &kernels_f32, .f64 = &kernels_f64};
#endif
