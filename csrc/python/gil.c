/* Which thread Ctrl-C is for. Python delivers signals to its main thread alone, and only the GIL's owner can ask for it. */
#include <unistd.h>

#include "convert.h"

/* Of this thread: whether it is the main one, and in which process that was found out. After a fork, the thread that
 * forked is the main one. */
static _Thread_local int is_main;
static _Thread_local pid_t process;

/* Of the process: its main thread, asked for at import, for what is asked in a call may run a handler of signals, whose
 * exception would be lost. */
static unsigned long main_ident;
static pid_t main_process;

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
    main_process = getpid();
    return 0;
}

void pyattn_note_thread(void)
{
    const pid_t self = getpid();
    if (process == self) return;
    if (main_process != self && pyattn_find_main_thread() < 0) {
        PyErr_Clear(); /* this call is not interruptible; the next one asks again */
        is_main = 0;
        return;
    }
    is_main = main_ident == PyThread_get_thread_ident();
    process = self;
}

int pyattn_is_main_thread(void) { return is_main; }
