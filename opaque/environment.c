/* What a report of a fault says of its inputs without showing them, and of where it happened. */
#include "graph/eval.h"
#include "opaque/context.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* ---- statistics of a value */

typedef struct statistics {
    bool any; /* finite element */
    int64_t zeros, nans, infinities, negative_infinities;
    int64_t least, most; /* of integers */
    double low, high, sum;
} statistics;

static void add_real(statistics *s, double x)
{
    if (!isfinite(x)) {
        *(isnan(x) ? &s->nans : x > 0 ? &s->infinities : &s->negative_infinities) += 1;
        return;
    }
    s->zeros += x == 0;
    s->low = !s->any || x < s->low ? x : s->low;
    s->high = !s->any || x > s->high ? x : s->high;
    s->sum += x;
    s->any = true;
}

static void add_integer(statistics *s, int64_t x)
{
    s->zeros += x == 0;
    s->least = !s->any || x < s->least ? x : s->least;
    s->most = !s->any || x > s->most ? x : s->most;
    s->sum += (double)x;
    s->any = true;
}

static void add_element(statistics *s, opq_dtype dtype, const void *data, int64_t i)
{
    opq_number x = opq_eval_load(dtype, data, i);
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_FLOAT: add_real(s, x.f); break;
    case OPQ_KIND_BOOL:
    case OPQ_KIND_UINT:
    case OPQ_KIND_INT: add_integer(s, x.i); break;
    case OPQ_KIND_RAW: break;
    }
}

static void add_number(opq_text *text, const char *key, double value)
{
    opq_text_add(text, ", \"%s\": ", key);
    opq_json_float(text, value);
}

void opq_statistics_add(opq_text *text, const opq_type *type, const void *data)
{
    statistics s = {0};
    opq_dtype dtype = (opq_dtype)type->dtype;
    int64_t count = opq_type_count(type);
    opq_dtype_kind kind = opq_dtype_kind_of(dtype);
    opq_text_add(text, "\"dtype\": \"%s\", \"shape\": ", opq_dtype_name(dtype));
    opq_text_shape(text, type);
    if (data == NULL)
        return;
    for (int64_t i = 0; i < count && kind != OPQ_KIND_RAW; i++)
        add_element(&s, dtype, data, i);
    if (s.any && kind == OPQ_KIND_FLOAT) {
        add_number(text, "min", s.low);
        add_number(text, "max", s.high);
    } else if (s.any)
        opq_text_add(text, ", \"min\": %" PRId64 ", \"max\": %" PRId64, s.least, s.most);
    if (s.any)
        add_number(text, "mean", s.sum / (double)(count - s.nans - s.infinities - s.negative_infinities));
    if (kind != OPQ_KIND_RAW)
        opq_text_add(text, ", \"zeros\": %" PRId64, s.zeros);
    if (kind == OPQ_KIND_FLOAT)
        opq_text_add(text, ", \"nan\": %" PRId64 ", \"inf\": %" PRId64 ", \"-inf\": %" PRId64, s.nans, s.infinities,
                     s.negative_infinities);
}

/* ---- the process and its machine */

static void add_string(opq_text *text, const char *key, const char *value)
{
    opq_text_add(text, ",\n\"%s\": ", key);
    opq_json_string(text, value);
}

/* All of a file of /proc, up to `size` - 1 bytes, ended by a 0; their number. */
static size_t read_proc(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(out, 1, size - 1, file) : 0;
    if (file)
        fclose(file);
    out[length] = 0;
    return length;
}

static void add_processor(opq_text *text)
{
    char info[4096];
    read_proc("/proc/cpuinfo", info, sizeof info);
    char *name = strstr(info, "model name");
    name = name ? strchr(name, ':') : NULL;
    if (name) {
        name += strspn(name, ": \t");
        name[strcspn(name, "\n")] = 0;
    }
    add_string(text, "processor", name ? name : "");
}

static void add_command(opq_text *text)
{
    char line[16384];
    size_t length = read_proc("/proc/self/cmdline", line, sizeof line);
    opq_text_add(text, ",\n\"command\": [");
    for (size_t at = 0; at < length; at += strlen(line + at) + 1) {
        opq_text_add(text, "%s", at ? ", " : "");
        opq_json_string(text, line + at);
    }
    opq_text_bytes(text, "]", 1);
}

static void add_variables(opq_text *text)
{
    const char *before = "";
    opq_text_add(text, ",\n\"variables\": {");
    for (char **entry = environ; *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        char name[128];
        if (strncmp(*entry, "OPAQUE_", 7) != 0 || length >= sizeof name || (*entry)[length] == 0)
            continue;
        memcpy(name, *entry, length);
        name[length] = 0;
        opq_text_add(text, "%s", before);
        opq_json_string(text, name);
        opq_text_add(text, ": ");
        opq_json_string(text, *entry + length + 1);
        before = ", ";
    }
    opq_text_bytes(text, "}", 1);
}

void opq_environment_add(opq_text *text, opq_ctx *ctx)
{
    int64_t available = 0, total = 0;
    const opq_host *host = &ctx->host;
    opq_memory_info(&available, &total);
    opq_text_add(text, "{\"schema\": \"opaque.environment\", \"version\": 1");
    add_string(text, "opaque", OPAQUE_VERSION);
    add_string(text, "host", host->versions ? host->versions : "");
    opq_codegen_describe(ctx->runtime.jit, text);
    add_processor(text);
    opq_text_add(text, ",\n\"threads\": %d,\n\"memory\": %" PRId64,
                 host->thread_count ? host->thread_count(host->self) : 1, total);
    add_variables(text);
    add_command(text);
}

opq_status opq_environment(opq_ctx *ctx, char **out_text)
{
    opq_text text = {0};
    opq_environment_add(&text, ctx);
    opq_text_add(&text, "}\n");
    return opq_text_take(&text, out_text);
}
