/* Which thread Ctrl-C is for. Python delivers signals to its main thread alone, and only the GIL's owner can ask for it. */
#include <pthread.h>

#include "convert.h"

static _Thread_local int known; /* of this thread: 1 the main thread, -1 another, 0 not asked yet */

static void forget(void) { known = 0; } /* after a fork the thread that forked is the main one */

static void forget_at_fork(void) { pthread_atfork(NULL, NULL, forget); }

void pyattn_note_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (known != 0) return;
    pthread_once(&once, forget_at_fork);

    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *main_thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = main_thread ? PyObject_GetAttrString(main_thread, "ident") : NULL;
    if (ident != NULL) known = PyLong_AsUnsignedLong(ident) == PyThread_get_thread_ident() ? 1 : -1;
    if (PyErr_Occurred()) PyErr_Clear(), known = 0; /* this call is not interruptible; the next one asks again */
    Py_XDECREF(ident);
    Py_XDECREF(main_thread);
    Py_XDECREF(threading);
}

int pyattn_is_main_thread(void) { return known > 0; }
