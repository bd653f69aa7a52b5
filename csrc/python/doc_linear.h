/* The docstring of pyattn.functional.linear; its first line is the signature that help() and inspect show. */
#define DOC_LINEAR \
    "linear($module, x, weight, bias=None, *, activation=None, gate=None, residual=None, num_threads=None, out=None)\n" \
    "--\n" \
    "\n" \
    "Compute a linear layer, ``activation(x @ weight.T + bias) * gate + residual``.\n" \
    "\n" \
    "Parameters\n" \
    "----------\n" \
    "x : array_like, (..., inner)\n" \
    "    Real numbers, any strides. Bools, integers and lists of Python's numbers become float64; dtypes that differ are\n" \
    "    promoted. float16 and bfloat16 are computed in float32, and the result is rounded to them.\n" \
    "weight : array_like, (features, inner)\n" \
    "    In torch.nn.Linear's layout: for a product ``x @ w``, pass ``w.T``. Read in place; no packed copy is kept.\n" \
    "bias : array_like, (features,), optional\n" \
    "    Added to the product. Default: none.\n" \
    "activation : {'relu', 'gelu', 'gelu_tanh', 'silu', 'tanh'}, optional\n" \
    "    See `gelu` and `silu`.\n" \
    "gate : array_like, (..., features), optional\n" \
    "    Factor of the activation, as in SwiGLU: ``gate=linear(x, gate_weight, activation='silu')``.\n" \
    "residual : array_like, (..., features), optional\n" \
    "    Added last, as in a Transformer's residual connections.\n" \
    "num_threads : int, optional\n" \
    "    Default: `get_num_threads`; at most 1024 are used. The result is bit-identical for any number.\n" \
    "out : ndarray, (..., features), optional\n" \
    "    Array for the result, of its dtype. It may overlap an input, but its elements must not overlap.\n" \
    "\n" \
    "Returns\n" \
    "-------\n" \
    "ndarray, (..., features)\n" \
    "\n" \
    "Raises\n" \
    "------\n" \
    "ValueError\n" \
    "    Shapes that disagree; an unknown `activation`; an `out` of another shape or dtype.\n" \
    "TypeError\n" \
    "    Inputs that `pyattn.attention` refuses: complex, object and string dtypes, masked arrays, tensors not on the CPU.\n" \
    "\n" \
    "Notes\n" \
    "-----\n" \
    "Sums are over 128 features at a time, and then over those, in the same order for any number of rows: a row's result\n" \
    "does not depend on the other rows.\n" \
    "\n" \
    "Examples\n" \
    "--------\n" \
    ">>> import numpy as np, pyattn\n" \
    ">>> pyattn.functional.linear([[1.0, 2.0]], [[3.0, 4.0], [-5.0, 0.0], [0.0, 6.0]], activation=\"relu\")\n" \
    "array([[11.,  0., 12.]])"
