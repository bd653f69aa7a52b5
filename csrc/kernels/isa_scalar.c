/* The kernels for any CPU. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "target.h"

#include "vec_scalar.h"

#include "bind_f32.h"
#include "algorithms.inc.h"
#include "unbind.h"

#include "bind_f64.h"
#include "algorithms.inc.h"
#include "unbind.h"

const attn_kernel_table attn_table_scalar = {.name = "scalar", .f32 = &kernels_f32, .f64 = &kernels_f64};
