/* The docstring of pyattn.functional.embedding; its first line is the signature that help() and inspect show. */
#define DOC_EMBEDDING \
    "embedding($module, input, weight, padding_idx=None, *, scale=1.0, residual=None, num_threads=None, out=None)\n" \
    "--\n" \
    "\n" \
    "Look up rows of a table, ``scale * weight[input] + residual``, in one pass.\n" \
    "\n" \
    "Parameters\n" \
    "----------\n" \
    "input : array_like of int, (...)\n" \
    "    Ids, each the index of a row of weight. Any integer dtype.\n" \
    "weight : array_like, (num_embeddings, embedding_dim)\n" \
    "    Any strides; it is read in place. Bools and integers become float64; dtypes that differ are promoted, but float16\n" \
    "    with bfloat16 is refused. Both are computed in float32, and the result is rounded to them.\n" \
    "padding_idx : int, optional\n" \
    "    The id of padding, as in torch; a negative one counts from the end. It has no effect on the result.\n" \
    "scale : float\n" \
    "    Factor of the rows, such as sqrt(d_model) in the Transformer. Default: 1.0.\n" \
    "residual : array_like, optional\n" \
    "    Added to the rows, such as positional encodings; broadcasts to (..., embedding_dim).\n" \
    "num_threads : int, optional\n" \
    "    Default: `get_num_threads`; at most 1024 are used. The result is bit-identical for any number.\n" \
    "out : ndarray, (..., embedding_dim), optional\n" \
    "    Array for the result, of its dtype. It may overlap an input, but its elements must not overlap.\n" \
    "\n" \
    "Returns\n" \
    "-------\n" \
    "ndarray, (..., embedding_dim)\n" \
    "    Has the dtype of weight and residual. With scale 1 and without residual, rows are copied exactly.\n" \
    "\n" \
    "Raises\n" \
    "------\n" \
    "ValueError\n" \
    "    An id outside 0 <= id < num_embeddings; shapes that disagree; an `out` of another shape or dtype.\n" \
    "TypeError\n" \
    "    Ids that are not integers; a weight or residual that `pyattn.attention` would refuse.\n" \
    "\n" \
    "Examples\n" \
    "--------\n" \
    ">>> import numpy as np, pyattn\n" \
    ">>> weight = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])\n" \
    ">>> pyattn.functional.embedding([2, 1, 0], weight, scale=10.0, residual=[0.5, 0.25])\n" \
    "array([[30.5 , 40.25],\n" \
    "       [10.5 , 20.25],\n" \
    "       [ 0.5 ,  0.25]])"
