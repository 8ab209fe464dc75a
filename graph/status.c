/* The message of a thread's last failure. A buffer per thread, so that reporting needs no lock and no memory. */
#include "opaque/opaque.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[1024];

const char *opq_error(void) { return message; }

opq_status opq_fail(opq_status status, const char *format, ...)
{
    char text[sizeof message]; /* an argument may be the old message itself */
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    memcpy(message, text, strlen(text) + 1);
    return status;
}
