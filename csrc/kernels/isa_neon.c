/* The kernels for NEON. */
#if defined(__aarch64__)
#include <float.h>
#include <math.h>
#include <string.h>
#include <arm_neon.h>

#include "kernels.h"
#include "target.h"

#include "vec_neon.h"

#include "bind_f32.h"
#include "algorithms.inc.h"
#include "unbind.h"

#include "bind_f64.h"
#include "algorithms.inc.h"
#include "unbind.h"

const attn_kernel_table attn_table_neon = {.name = "neon", .f32 = &kernels_f32, .f64 = &kernels_f64};
#endif
