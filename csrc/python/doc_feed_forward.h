/* The docstring of pyattn.functional.feed_forward; its first line is the signature that help() and inspect show. */
#define DOC_FEED_FORWARD \
    "feed_forward($module, x, in_weight, in_bias, out_weight, out_bias, *, activation='relu', gate_weight=None, " \
    "gate_bias=None, residual=None, num_threads=None, out=None)\n" \
    "--\n" \
    "\n" \
    "Compute a Transformer's feed-forward part.\n" \
    "\n" \
    "Returns ``activation(x @ in_weight.T + in_bias) @ out_weight.T + out_bias + residual``: the position-wise network of\n" \
    "Vaswani et al. 2017, section 3.3, with weights in torch's layout (linear1 and linear2 of its layers). With a gate, the\n" \
    "hidden rows are ``activation(x @ gate_weight.T + gate_bias) * (x @ in_weight.T + in_bias)``: SwiGLU with 'silu', GEGLU\n" \
    "with 'gelu' (Shazeer 2020).\n" \
    "\n" \
    "Parameters\n" \
    "----------\n" \
    "x : array_like, (..., features)\n" \
    "    Real numbers, any strides. Bools, integers and lists of Python's numbers become float64; dtypes that differ are\n" \
    "    promoted. float16 and bfloat16 are computed in float32, and the result is rounded to them.\n" \
    "in_weight : array_like, (hidden, features)\n" \
    "    Read in place, like all weights.\n" \
    "in_bias : array_like, (hidden,), or None\n" \
    "    Added to ``x @ in_weight.T``.\n" \
    "out_weight : array_like, (out_features, hidden)\n" \
    "    Maps the hidden rows to the output.\n" \
    "out_bias : array_like, (out_features,), or None\n" \
    "    Added to the output.\n" \
    "activation : {'relu', 'gelu', 'gelu_tanh', 'silu', 'tanh'} or None\n" \
    "    Default: 'relu'. See `gelu` and `silu`.\n" \
    "gate_weight : array_like, (hidden, features), optional\n" \
    "    Weight of the gate, whose activation multiplies the hidden rows. Default: no gate.\n" \
    "gate_bias : array_like, (hidden,), optional\n" \
    "    Added to ``x @ gate_weight.T``; requires `gate_weight`.\n" \
    "residual : array_like, (..., out_features), optional\n" \
    "    Added last.\n" \
    "num_threads : int, optional\n" \
    "    Default: `get_num_threads`; at most 1024 are used. The result is bit-identical for any number.\n" \
    "out : ndarray, (..., out_features), optional\n" \
    "    Array for the result, of its dtype. It may overlap an input, but its elements must not overlap.\n" \
    "\n" \
    "Returns\n" \
    "-------\n" \
    "ndarray, (..., out_features)\n" \
    "\n" \
    "Raises\n" \
    "------\n" \
    "ValueError\n" \
    "    Shapes that disagree; an unknown `activation`; an `out` of another shape or dtype.\n" \
    "TypeError\n" \
    "    Inputs that `pyattn.attention` refuses: complex, object and string dtypes, masked arrays, tensors not on the CPU.\n" \
    "\n" \
    "Examples\n" \
    "--------\n" \
    ">>> import numpy as np, pyattn\n" \
    ">>> pyattn.functional.feed_forward([[1.0, -2.0]], np.eye(2), None, [[3.0, 4.0]], [0.5])\n" \
    "array([[3.5]])"
