/* See export_steps.h. */
#include "opaque/export_steps.h"
#include "runtime/step_numbers.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "export: out of memory"); }

/* ---- what a step is but for its numbers */

typedef struct zeroing {
    opq_step_visitor visitor;
    opq_arena arena;
    opq_text *counts;
    bool failed;
} zeroing;

static void *zero_own(opq_step_visitor *visitor, const void *data, int64_t bytes)
{
    zeroing *z = (zeroing *)visitor;
    void *copy = opq_arena_copy(&z->arena, data, (size_t)bytes);
    z->failed |= copy == NULL;
    return copy;
}

static void zero_sizes(opq_step_visitor *visitor, int64_t *first, int64_t count)
{
    opq_text_add(((zeroing *)visitor)->counts, "%lld,", (long long)count);
    memset(first, 0, (size_t)count * sizeof *first);
}

static void zero_places(opq_step_visitor *visitor, int32_t *first, int64_t count)
{
    opq_text_add(((zeroing *)visitor)->counts, "%lld,", (long long)count);
    memset(first, 0, (size_t)count * sizeof *first);
}

static opq_status write_key(const opq_step *step, const opq_code_list *codes, opq_text *out_key)
{
    zeroing z = {.visitor = {.sizes = zero_sizes, .places = zero_places, .own = zero_own}, .counts = out_key};
    opq_step zeroed = *step;
    out_key->length = 0;
    opq_step_visit(&z.visitor, &zeroed);
    if (!z.failed)
        opq_write_step(out_key, &zeroed, codes);
    opq_arena_drop(&z.arena);
    return z.failed || out_key->failed ? out_of_memory() : OPQ_OK;
}

/* ---- its numbers */

typedef struct numbers {
    opq_step_visitor visitor;
    int64_t *value; /* NULL: they are counted */
    int count;
} numbers;

static void add_sizes(opq_step_visitor *visitor, int64_t *first, int64_t count)
{
    numbers *n = (numbers *)visitor;
    for (int64_t i = 0; i < count && n->value; i++)
        n->value[n->count + i] = first[i];
    n->count += (int)count;
}

static void add_places(opq_step_visitor *visitor, int32_t *first, int64_t count)
{
    numbers *n = (numbers *)visitor;
    for (int64_t i = 0; i < count && n->value; i++)
        n->value[n->count + i] = first[i];
    n->count += (int)count;
}

/* value: room for them, or NULL. How many they are. */
static int read_numbers(const opq_step *step, int64_t *value)
{
    numbers n = {.visitor = {.sizes = add_sizes, .places = add_places}, .value = value};
    opq_step_visit(&n.visitor, (opq_step *)step); /* who owns nothing writes nothing */
    return n.count;
}

/* ---- kinds */

static int find_kind(const opq_step_kinds *kinds, const opq_text *key)
{
    uint64_t hash = XXH3_64bits(key->data, key->length);
    for (int i = 0; i < kinds->count; i++) {
        const opq_step_kind *kind = &kinds->items[i];
        if (kind->hash == hash && kind->key.length == key->length && memcmp(kind->key.data, key->data, key->length) == 0)
            return i;
    }
    return -1;
}

static opq_status add_kind(opq_step_kinds *kinds, const opq_step *step, const opq_text *key)
{
    OPQ_TRY(opq_export_grow((void **)&kinds->items, kinds->count, sizeof *kinds->items));
    opq_step_kind kind = {.hash = XXH3_64bits(key->data, key->length), .like = step, .count = read_numbers(step, NULL)};
    opq_text_bytes(&kind.key, key->data, key->length);
    kind.value = malloc(((size_t)kind.count + 1) * sizeof *kind.value);
    kind.varies = calloc((size_t)kind.count + 1, sizeof *kind.varies);
    if (kind.value)
        read_numbers(step, kind.value);
    kinds->items[kinds->count++] = kind;
    return kind.key.failed || kind.value == NULL || kind.varies == NULL ? out_of_memory() : OPQ_OK;
}

/* One more step of a kind. */
static opq_status compare(opq_step_kind *kind, const opq_step *step)
{
    int64_t *value = malloc(((size_t)kind->count + 1) * sizeof *value);
    if (value == NULL)
        return out_of_memory();
    read_numbers(step, value);
    for (int i = 0; i < kind->count; i++)
        kind->varies[i] |= value[i] != kind->value[i];
    free(value);
    return OPQ_OK;
}

static opq_status add_step(opq_step_kinds *kinds, const opq_step *step, const opq_code_list *codes, opq_text *key)
{
    OPQ_TRY(write_key(step, codes, key));
    int at = find_kind(kinds, key);
    OPQ_TRY(at >= 0 ? compare(&kinds->items[at], step) : add_kind(kinds, step, key));
    OPQ_TRY(opq_export_grow((void **)&kinds->of_step, kinds->step_count, sizeof *kinds->of_step));
    kinds->of_step[kinds->step_count++] = at >= 0 ? at : kinds->count - 1;
    return OPQ_OK;
}

opq_status opq_step_kinds_add(opq_step_kinds *kinds, const opq_plan *plan, const opq_code_list *codes)
{
    opq_text key = {0};
    opq_status status = OPQ_OK;
    for (int32_t i = 0; i < plan->step_count && status == OPQ_OK; i++)
        status = add_step(kinds, &plan->steps[i], codes, &key);
    opq_text_drop(&key);
    return status;
}

void opq_step_kinds_write(const opq_step_kinds *kinds, const opq_code_list *codes, opq_text *t)
{
    opq_text_add(t, "static const opq_step like[] = {\n");
    for (int i = 0; i < kinds->count; i++)
        opq_write_step(t, kinds->items[i].like, codes);
    opq_text_add(t, "  {0}};\nstatic const opq_exported_step steps[] = {\n");
    for (int i = 0; i < kinds->count; i++) {
        const opq_step_kind *kind = &kinds->items[i];
        opq_text_add(t, "  {&like[%d], (const int32_t[]){", i);
        for (int32_t n = 0; n < kind->count; n++)
            if (kind->varies[n])
                opq_text_add(t, "%d,", n);
        opq_text_add(t, "-1}},\n");
    }
    opq_text_add(t, "  {0}};\n");
}

void opq_step_kinds_drop(opq_step_kinds *kinds)
{
    for (int i = 0; i < kinds->count; i++) {
        opq_text_drop(&kinds->items[i].key);
        free(kinds->items[i].value);
        free(kinds->items[i].varies);
    }
    free(kinds->items);
    free(kinds->of_step);
}

/* ---- plans */

static void put_word(opq_stream *s, int32_t word)
{
    s->failed = s->failed || opq_export_grow((void **)&s->data, s->count, sizeof *s->data) != OPQ_OK;
    if (!s->failed)
        s->data[s->count++] = word;
}

static void put(opq_stream *s, int64_t value)
{
    if (value > OPQ_NUMBER_WIDE && value <= INT32_MAX) {
        put_word(s, (int32_t)value);
        return;
    }
    put_word(s, OPQ_NUMBER_WIDE);
    put_word(s, (int32_t)(uint32_t)value);
    put_word(s, (int32_t)(uint32_t)((uint64_t)value >> 32));
}

static void put_int32s(opq_stream *s, const int32_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        put(s, values[i]);
}

static opq_status put_step(const opq_step_kinds *kinds, int32_t at, const opq_step *step, opq_stream *s)
{
    const opq_step_kind *kind = &kinds->items[at];
    int64_t *value = malloc(((size_t)kind->count + 1) * sizeof *value);
    if (value == NULL)
        return out_of_memory();
    read_numbers(step, value);
    put(s, at);
    for (int n = 0; n < kind->count; n++)
        if (kind->varies[n])
            put(s, value[n]);
    free(value);
    return OPQ_OK;
}

static void put_waves(const opq_plan *p, opq_stream *s)
{
    for (int32_t i = 0; i < p->wave_count; i++) {
        const opq_wave *w = &p->waves[i];
        put(s, w->count);
        if (w->count == 1)
            continue;
        put(s, w->phases);
        put(s, w->work);
        for (int64_t k = 0; k < (int64_t)w->phases * w->count; k++)
            put(s, w->ends[k]);
    }
}

static void put_storage(const opq_plan *p, opq_stream *s)
{
    for (int32_t i = 0; i < p->storage_count; i++) {
        const opq_storage *one = &p->storage[i];
        put(s, one->home);
        put(s, one->index);
        put(s, one->offset);
        put(s, one->bytes);
        put(s, one->first);
        put(s, one->last);
    }
    put_int32s(s, p->output_storage, p->output_count);
    for (int32_t i = 0; i < p->buffer_count; i++)
        put(s, p->buffer_bytes[i]);
    put_int32s(s, p->first_replacement, p->buffer_count);
    for (int32_t i = 0; i < p->replacement_count; i++) {
        put(s, p->replacements[i].input);
        put(s, p->replacements[i].next);
        put(s, p->replacements[i].remembers);
    }
}

opq_status opq_step_kinds_put(const opq_step_kinds *kinds, int64_t first, const opq_plan *p, opq_stream *s)
{
    const int32_t counts[] = {p->step_count,   p->wave_count,   p->row_max,           p->storage_count, p->input_count,
                              p->output_count, p->buffer_count, p->replacement_count, p->sure_wave,     p->slot_count};
    put_int32s(s, counts, sizeof counts / sizeof *counts);
    put(s, p->arena_bytes);
    put(s, p->input_bytes);
    for (int32_t i = 0; i < p->step_count; i++)
        OPQ_TRY(put_step(kinds, kinds->of_step[first + i], &p->steps[i], s));
    put_waves(p, s);
    put_storage(p, s);
    put_int32s(s, p->slot_source, p->slot_count);
    for (int32_t i = 0; i < p->slot_count; i++)
        put(s, p->slot_value[i].i);
    return s->failed ? out_of_memory() : OPQ_OK;
}
