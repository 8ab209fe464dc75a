/* A folder of its own for each test, among the temporary files. */
#ifndef OPAQUE_TESTS_FOLDER_H
#define OPAQUE_TESTS_FOLDER_H

#include "tests/support.h"

#include <stdio.h>
#include <unistd.h>

static char folder[64];

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/opq_test_XXXXXX");
    return mkdtemp(folder) == NULL;
}

static inline int drop_folder(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

#endif
