/* Which thread Ctrl-C is for. Python delivers signals to its main thread alone, and only the GIL's owner can ask for it. */
#include <unistd.h>

#include "convert.h"

/* Of this thread: whether it is the main one, and in which process that was found out. After a fork, the thread that
 * forked is the main one. */
static _Thread_local int is_main;
static _Thread_local pid_t process;

void pyattn_note_thread(void)
{
    if (process == getpid()) return;
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *main_thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = main_thread ? PyObject_GetAttrString(main_thread, "ident") : NULL;
    is_main = ident != NULL && PyLong_AsUnsignedLong(ident) == PyThread_get_thread_ident();
    if (PyErr_Occurred())
        PyErr_Clear(); /* this call is not interruptible; the next one asks again */
    else
        process = getpid();
    Py_XDECREF(ident);
    Py_XDECREF(main_thread);
    Py_XDECREF(threading);
}

int pyattn_is_main_thread(void) { return is_main; }
