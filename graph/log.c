/* The log: levels of topics, and one file. */
#include "opaque/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

unsigned char opq_log_levels[OPQ_LOG_TOPIC_COUNT];
static atomic_int file = STDERR_FILENO;

static const char *const topics[] = {
#define X(name) #name,
    OPQ_LOG_TOPICS(X)
#undef X
};
static const char *const levels[] = {"off", "info", "debug"};

const char *opq_log_topic_name(opq_log_topic topic) { return topics[topic]; }
const char *opq_log_level_name(opq_log_level level) { return levels[level]; }

static int find(const char *const *names, int count, const char *name)
{
    int i = 0;
    while (i < count && strcmp(names[i], name) != 0)
        i++;
    return i;
}

opq_status opq_log_set(const char *topic, const char *level)
{
    int t = find(topics, OPQ_LOG_TOPIC_COUNT, topic), l = find(levels, OPQ_LOG_DEBUG + 1, level);
    if (t == OPQ_LOG_TOPIC_COUNT)
        return opq_fail(OPQ_INVALID, "the log has no topic \"%s\"", topic);
    if (l > OPQ_LOG_DEBUG)
        return opq_fail(OPQ_INVALID, "the log has no level \"%s\"; there are off, info, debug", level);
    __atomic_store_n(&opq_log_levels[t], (unsigned char)l, __ATOMIC_RELAXED);
    return OPQ_OK;
}

opq_status opq_log_open(const char *path)
{
    int opened = *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : STDERR_FILENO;
    if (opened < 0)
        return opq_fail(OPQ_INVALID, "cannot write the log to %s: %s", path, strerror(errno));
    atomic_store(&file, opened); /* the one before stays open: another thread may be writing to it */
    return OPQ_OK;
}

void opq_log(const char *format, ...)
{
    enum { SIZE = 1024 };
    char line[SIZE] = "[opaque] ";
    size_t lead = strlen(line);
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line + lead, SIZE - lead, format, list); /* what is too long is cut */
    va_end(list);
    size_t end = length < 0 ? lead : (size_t)length < SIZE - lead ? lead + (size_t)length : SIZE - 1;
    line[end++] = '\n';
    for (size_t at = 0; at < end;) {
        ssize_t written = write(atomic_load(&file), line + at, end - at);
        if (written < 0 && errno != EINTR)
            return; /* there is nobody to tell */
        at += written > 0 ? (size_t)written : 0;
    }
}
