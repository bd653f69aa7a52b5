/* The docstring of pyattn.functional.linear; its first line is the signature that help() and inspect show. */
#define DOC_LINEAR \
    "linear($module, x, weight, bias=None, *, activation=None, gate=None, residual=None, num_threads=None, out=None)\n" \
    "--\n" \
    "\n" \
    "A linear layer, ``activation(x @ weight.T + bias) * gate + residual``, in one pass.\n" \
    "\n" \
    "Parameters\n" \
    "----------\n" \
    "x : array_like, (..., inner)\n" \
    "    float32 or float64, any strides. Bools, integers and lists of Python's numbers become float64; dtypes that differ\n" \
    "    are promoted.\n" \
    "weight : array_like, (features, inner)\n" \
    "    As torch.nn.Linear keeps it. It is read in place, and nothing packed is kept of it.\n" \
    "bias : array_like, (features,), optional\n" \
    "activation : {'relu', 'gelu', 'gelu_tanh', 'silu', 'tanh'}, optional\n" \
    "    See `gelu` and `silu`.\n" \
    "gate : array_like, (..., features), optional\n" \
    "    Multiplied with the activation, as in SwiGLU: ``gate=linear(x, gate_weight, activation='silu')``.\n" \
    "residual : array_like, (..., features), optional\n" \
    "    Added last, as around a Transformer's sublayer.\n" \
    "num_threads : int, optional\n" \
    "    Default: `get_num_threads`; above 1024 it is 1024. The result does not depend on it, to the last bit.\n" \
    "out : ndarray, (..., features), optional\n" \
    "    Array for the result, of its dtype. It may overlap an input, but not itself.\n" \
    "\n" \
    "Returns\n" \
    "-------\n" \
    "ndarray, (..., features)\n" \
    "\n" \
    "Raises\n" \
    "------\n" \
    "ValueError\n" \
    "    Shapes that do not go together; an unknown `activation`; an `out` that does not fit.\n" \
    "TypeError\n" \
    "    What `pyattn.attention` refuses, too: complex, object and string dtypes, masked arrays, tensors elsewhere.\n" \
    "\n" \
    "Notes\n" \
    "-----\n" \
    "Sums are taken over 128 features at a time and then together, in the same order for any number of rows: a row's result\n" \
    "does not depend on the rows beside it.\n" \
    "\n" \
    "Examples\n" \
    "--------\n" \
    ">>> import numpy as np, pyattn\n" \
    ">>> pyattn.functional.linear([[1.0, 2.0]], [[3.0, 4.0], [-5.0, 0.0], [0.0, 6.0]], activation=\"relu\")\n" \
    "array([[11.,  0., 12.]])"
