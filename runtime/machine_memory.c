/* How much memory there is: the machine's, or what the control group of this process may have of it. */
#define _GNU_SOURCE
#include "runtime/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The number after `name` in a file of the system; -1 if there is none ("max"). */
static int64_t number_in(const char *path, const char *name)
{
    int64_t number = -1;
    char line[256];
    size_t length = strlen(name);
    FILE *file = fopen(path, "r");
    while (file && number < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%" SCNd64, &number) != 1)
            break;
    if (file)
        fclose(file);
    return number;
}

static int64_t group_limit(void) { return number_in("/sys/fs/cgroup/memory.max", ""); }

int64_t opq_machine_bytes(void)
{
    int64_t total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), limit = group_limit();
    return limit > 0 && limit < total ? limit : total;
}

void opq_machine_memory(int64_t *out_available, int64_t *out_total)
{
    int64_t kibibytes = number_in("/proc/meminfo", "MemAvailable:"), limit = group_limit();
    int64_t available = kibibytes >= 0 ? kibibytes * 1024 : (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (limit > 0) {
        /* Pages that files of the group fill are given back when they are needed. */
        int64_t used = number_in("/sys/fs/cgroup/memory.current", ""),
                files = number_in("/sys/fs/cgroup/memory.stat", "inactive_file ");
        int64_t left = limit - (used > 0 ? used : 0) + (files > 0 ? files : 0);
        available = left < available ? left : available;
    }
    *out_available = available > 0 ? available : 0;
    *out_total = opq_machine_bytes();
}
