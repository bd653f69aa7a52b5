/* The GIL, and the thread that handles Ctrl-C: Python delivers signals to its main thread only, which needs the GIL to
 * check. */
#include "convert.h"
#include "system.h"

/* Per thread: whether it is the main thread, and the process in which that was determined; whether its calls ignore
 * signals. After a fork, the forking thread is the main one. */
static _Thread_local int is_main, is_quiet;
static _Thread_local int64_t process;

/* Per process: its main thread, looked up at import. A lookup during a call might run a signal handler, whose exception
 * would be lost. */
static unsigned long main_ident;
static int64_t main_process;

int pyattn_find_main_thread(void)
{
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *main_thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = main_thread ? PyObject_GetAttrString(main_thread, "ident") : NULL;
    const unsigned long found = ident ? PyLong_AsUnsignedLong(ident) : 0;
    Py_XDECREF(ident);
    Py_XDECREF(main_thread);
    Py_XDECREF(threading);
    if (PyErr_Occurred()) return -1;
    main_ident = found;
    main_process = attn_process();
    return 0;
}

/* Notes whether this is the main thread, which costs a system call, so only for calls that take longer. */
static void note_thread(void)
{
    const int64_t self = attn_process();
    if (process == self) return;
    if (main_process != self && pyattn_find_main_thread() < 0) {
        PyErr_Clear(); /* this call is not interruptible; the next one tries again */
        is_main = 0;
        return;
    }
    is_main = main_ident == PyThread_get_thread_ident();
    process = self;
}

PyThreadState *pyattn_release_gil(int releases)
{
    if (!releases) return NULL;
    note_thread();
    return PyEval_SaveThread();
}

void pyattn_acquire_gil(PyThreadState *released)
{
    if (released != NULL) PyEval_RestoreThread(released);
}

void pyattn_ask_for_signals(int asks) { is_quiet = !asks; }

/* The core polls for Ctrl-C without the GIL. Only the main thread may: at interpreter exit, Python ends a daemon thread
 * that requests the GIL, and the thread's workers would go on with the stack of a dead thread. */
int pyattn_interrupted(void)
{
    if (!is_main || is_quiet) return 0;
    const PyGILState_STATE state = PyGILState_Ensure();
    const int raised = PyErr_CheckSignals() < 0;
    PyGILState_Release(state);
    return raised;
}
