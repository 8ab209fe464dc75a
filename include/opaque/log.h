/* The log: lines about what the library does, by topic, on stderr or in a file. C and C++. Thread-safe.
 *
 * A topic that is off costs one load where something could be said. Lines are written whole, by one write each, so that threads and
 * forked processes do not mix theirs.
 */
#ifndef OPAQUE_LOG_H
#define OPAQUE_LOG_H

#include "opaque/opaque.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPQ_LOG_TOPICS(X)                                                                                              \
    X(flush)    /* runs: why, where, how long; debug: each launch */                                                   \
    X(plan)     /* graphs that became plans; debug: plans that were reused */                                          \
    X(compile)  /* kernels that LLVM made code of; debug: code that was there */                                       \
    X(fusion)   /* what a plan's kernels are, and how many edges are none; debug: each of these edges and why */       \
    X(fallback) /* calls of PyTorch's CPU kernels where there is no native one */                                      \
    X(memory)   /* memory taken from the system and given back; debug: each buffer */
typedef enum opq_log_topic {
#define X(name) OPQ_LOG_##name,
    OPQ_LOG_TOPICS(X)
#undef X
        OPQ_LOG_TOPIC_COUNT
} opq_log_topic;
typedef enum opq_log_level { OPQ_LOG_OFF, OPQ_LOG_INFO, OPQ_LOG_DEBUG } opq_log_level;

extern unsigned char opq_log_levels[OPQ_LOG_TOPIC_COUNT];
static inline bool opq_logs(opq_log_topic topic, opq_log_level level)
{
    return __builtin_expect(__atomic_load_n(&opq_log_levels[topic], __ATOMIC_RELAXED) >= level, 0);
}

const char *opq_log_topic_name(opq_log_topic topic);
const char *opq_log_level_name(opq_log_level level);
/* By name: "off", "info" or "debug". OPQ_INVALID for another topic or level. */
opq_status opq_log_set(const char *topic, const char *level) OPQ_MUST_CHECK;
/* Lines are appended to the file from now on; "": to stderr. OPQ_INVALID, and nothing changes, if it cannot be opened. */
opq_status opq_log_open(const char *path) OPQ_MUST_CHECK;
/* "[opaque] ..."; the message is one line, without its end. Ask opq_logs() first. */
void opq_log(const char *format, ...) OPQ_PRINTF(1, 2);

#ifdef __cplusplus
}
#endif
#endif
