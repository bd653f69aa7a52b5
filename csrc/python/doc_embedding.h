/* The docstring of pyattn.functional.embedding; its first line is the signature that help() and inspect show. */
#define DOC_EMBEDDING \
    "embedding($module, input, weight, padding_idx=None, *, scale=1.0, residual=None, num_threads=None, out=None)\n" \
    "--\n" \
    "\n" \
    "Rows of a table by number, ``scale * weight[input] + residual``, in one pass.\n" \
    "\n" \
    "Parameters\n" \
    "----------\n" \
    "input : array_like of int, (...)\n" \
    "    Ids: each a row of weight, counted from 0. Any integer dtype.\n" \
    "weight : array_like, (num_embeddings, embedding_dim)\n" \
    "    float32 or float64, any strides; it is read in place. Bools and integers become float64; dtypes that differ are\n" \
    "    promoted.\n" \
    "padding_idx : int, optional\n" \
    "    The id of padding, as torch takes it; a negative one counts from the end. It has no effect on the result.\n" \
    "scale : float\n" \
    "    What rows are multiplied with, as sqrt(d_model) in the Transformer. Default: 1.0.\n" \
    "residual : array_like, optional\n" \
    "    Broadcasts to (..., embedding_dim), and is added without being expanded: positions, for one.\n" \
    "num_threads : int, optional\n" \
    "    Default: `get_num_threads`; above 1024 it is 1024. The result does not depend on it, to the last bit.\n" \
    "out : ndarray, (..., embedding_dim), optional\n" \
    "    Array for the result, of its dtype. It may overlap an input, but not itself.\n" \
    "\n" \
    "Returns\n" \
    "-------\n" \
    "ndarray, (..., embedding_dim)\n" \
    "    Of the dtype of weight and residual. With a scale of 1 and no residual, the rows' own bits.\n" \
    "\n" \
    "Raises\n" \
    "------\n" \
    "ValueError\n" \
    "    An id that is no row: negative ones are none. Shapes that do not go together; an `out` that does not fit.\n" \
    "TypeError\n" \
    "    Ids that are no integers; for weight and residual, what `pyattn.attention` refuses, too.\n" \
    "\n" \
    "Examples\n" \
    "--------\n" \
    ">>> import numpy as np, pyattn\n" \
    ">>> weight = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])\n" \
    ">>> pyattn.functional.embedding([2, 1, 0], weight, scale=10.0, residual=[0.5, 0.25])\n" \
    "array([[30.5 , 40.25],\n" \
    "       [10.5 , 20.25],\n" \
    "       [ 0.5 ,  0.25]])"
