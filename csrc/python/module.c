/* The extension module pyattn._core: method table and multi-phase initialisation. */
#define PYATTN_IMPORTS_NUMPY
#include "convert.h"

static int execute(PyObject *module)
{
    static const attn_hooks hooks = {PyMem_RawMalloc, PyMem_RawFree, pyattn_interrupted};
    PyMethodDef *const tables[] = {
        pyattn_activation_methods,         /* element-wise activations */
        pyattn_attention_methods,          /* attention */
        pyattn_attention_backward_methods, /* gradients of attention */
        pyattn_attention_jvp_methods,      /* tangents of attention */
        pyattn_cache_methods,              /* KV cache pages */
        pyattn_topk_methods,               /* argmax and top-k */
        pyattn_dropout_methods,            /* dropout masks and rows */
        pyattn_embedding_methods,          /* embedding lookup, and its gradient */
        pyattn_feed_forward_methods,       /* feed-forward part */
        pyattn_layer_methods,              /* Transformer layer */
        pyattn_linear_methods,             /* linear layer */
        pyattn_loss_methods,               /* cross entropy */
        pyattn_multihead_methods,          /* multi-head attention */
        pyattn_norm_methods,               /* layer and RMS normalisation */
        pyattn_optimizer_methods,          /* steps of optimisers */
        pyattn_norm_backward_methods,      /* gradients of normalisation */
        pyattn_rotary_methods,             /* rotary position embedding */
        pyattn_rows_methods,               /* softmax, its gradient, merge_states, conversions */
        pyattn_runtime_methods,            /* threads and instruction sets */
    };

    if (PyArray_ImportNumPyAPI() < 0) return -1;
    if (pyattn_find_main_thread() < 0) return -1;
    attn_set_hooks(&hooks);
    for (size_t n = 0; n < sizeof tables / sizeof *tables; n++)
        if (PyModule_AddFunctions(module, tables[n]) < 0) return -1;
    if (PyModule_AddStringConstant(module, "__version__", PYATTN_VERSION) < 0) return -1;
    if (PyModule_AddStringConstant(module, "_compiler", __VERSION__) < 0) return -1;

    const char *const complaints[] = {attn_isa_complaint(), attn_threads_complaint()};
    for (size_t n = 0; n < sizeof complaints / sizeof *complaints; n++) /* %s replaces what is not UTF-8 */
        if (complaints[n] != NULL && PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "%s", complaints[n]) < 0) return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "pyattn._core",
                                        .m_doc = "The C core of pyattn.", .m_size = 0, .m_slots = slots};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
