/* Runs launches of kernels on another target, and compares: compiled for that, and linked with the kernels and a table of them.
 *
 *   runner FILE     see target_case.h; prints a line for each launch that differs
 */
#include "target_case.h"

#include "opaque/opaque.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void kernel_function(void *const *buffers, const int64_t *dims, const opq_number *scalars, int64_t begin,
                             int64_t end, void *scratch, int64_t *error);
extern kernel_function *const kernels[];

enum { GUARD = 1024, GUARDS = 0x5a };

static FILE *file;

static void read_bytes(void *to, size_t bytes)
{
    if (fread(to, 1, bytes, file) != bytes) {
        fprintf(stderr, "the file of launches is cut short\n");
        exit(2);
    }
}

static int64_t read_word(void)
{
    int64_t word;
    read_bytes(&word, sizeof word);
    return word;
}

static void *read_words(int64_t count)
{
    int64_t *words = malloc(((size_t)count + 1) * sizeof *words);
    read_bytes(words, (size_t)count * sizeof *words);
    return words;
}

typedef struct memory {
    int64_t bytes;
    char *room, *now, *expected;
} memory;

/* Between guards, `place` bytes behind a multiple of TARGET_ALIGN. */
static memory memory_make(int64_t bytes, int64_t place)
{
    size_t room = ((size_t)bytes + 2 * GUARD + 2 * TARGET_ALIGN) / TARGET_ALIGN * TARGET_ALIGN;
    memory m = {.bytes = bytes, .room = aligned_alloc(TARGET_ALIGN, room)};
    memset(m.room, GUARDS, room);
    m.now = m.room + GUARD + place;
    return m;
}

static memory memory_read(void)
{
    int64_t count = read_word();
    memory m = memory_make(count, read_word());
    size_t padded = ((size_t)m.bytes + 7) / 8 * 8;
    m.expected = malloc(padded + 1);
    char *bytes = malloc(padded + 1);
    read_bytes(bytes, padded);
    memcpy(m.now, bytes, (size_t)m.bytes);
    free(bytes);
    read_bytes(m.expected, padded);
    return m;
}

static bool guards_hold(const memory *m)
{
    bool hold = true;
    for (const char *at = m->room; at < m->now; at++)
        hold = hold && *at == GUARDS;
    for (int i = 0; i < GUARD; i++)
        hold = hold && m->now[m->bytes + i] == GUARDS;
    return hold;
}

static bool is_nan(opq_dtype dtype, const char *at)
{
    uint16_t half;
    float single;
    double wide;
    memcpy(&half, at, sizeof half);
    memcpy(&single, at, dtype == OPQ_f32 ? sizeof single : 2);
    memcpy(&wide, at, dtype == OPQ_f64 ? sizeof wide : 2);
    switch ((int)dtype) {
    case OPQ_f16: return (half & 0x7fff) > 0x7c00;
    case OPQ_bf16: return (half & 0x7fff) > 0x7f80;
    case OPQ_f32: return single != single;
    case OPQ_f64: return wide != wide;
    }
    return false;
}

static uint64_t bits_at(const char *at, int64_t bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, at, (size_t)(bytes < 8 ? bytes : 8));
    return bits;
}

/* One NaN is as good as another. */
static bool buffer_differs(int64_t launch, int64_t kernel, int number, const target_buffer *b, const memory *m)
{
    for (int64_t at = b->first; at < b->first + b->bytes; at += b->element_bytes) {
        const char *got = m->now + at, *want = m->expected + at;
        if (memcmp(got, want, (size_t)b->element_bytes) == 0 ||
            (is_nan((opq_dtype)b->dtype, got) && is_nan((opq_dtype)b->dtype, want)))
            continue;
        printf("launch %lld: kernel %lld, buffer %d, element %lld: %llx, not %llx\n", (long long)launch,
               (long long)kernel, number, (long long)((at - b->first) / b->element_bytes),
               (unsigned long long)bits_at(got, b->element_bytes), (unsigned long long)bits_at(want, b->element_bytes));
        return true;
    }
    return false;
}

/* Each phase in two pieces, the second one first: how units are split changes nothing. */
static void launch_kernel(int64_t kernel, void *const *buffers, const int64_t *dims, const opq_number *scalars,
                          const int64_t *units, int64_t phases, void *scratch, int64_t *error)
{
    int64_t first = 0;
    for (int64_t p = 0; p < phases; first += units[p], p++) {
        int64_t middle = first + units[p] / 2;
        kernels[kernel](buffers, dims, scalars, middle, first + units[p], scratch, error);
        if (middle > first)
            kernels[kernel](buffers, dims, scalars, first, middle, scratch, error);
    }
}

static bool differs(int64_t launch, int64_t kernel, const memory *memories, int64_t memory_count,
                    const target_buffer *buffers, int64_t buffer_count)
{
    bool different = false;
    for (int64_t i = 0; i < memory_count && !different; i++) {
        bool written = false;
        for (int64_t b = 0; b < buffer_count; b++)
            written = written || (buffers[b].memory == i && buffers[b].use != TARGET_READ);
        different = !guards_hold(&memories[i]) ||
                    (!written && memcmp(memories[i].now, memories[i].expected, (size_t)memories[i].bytes) != 0);
        if (different)
            printf("launch %lld: kernel %lld writes where it may not, memory %lld\n", (long long)launch,
                   (long long)kernel, (long long)i);
    }
    for (int64_t b = 0; b < buffer_count && !different; b++)
        different = buffers[b].use == TARGET_WRITTEN &&
                    buffer_differs(launch, kernel, (int)b, &buffers[b], &memories[buffers[b].memory]);
    return different;
}

/* False: that was the last. */
static bool run_launch(int64_t launch, int *different)
{
    int64_t kernel = read_word();
    if (kernel < 0)
        return false;
    int64_t *head = read_words(TARGET_HEAD - 1), memory_count = head[0], buffer_count = head[1];
    memory *memories = calloc((size_t)memory_count + 1, sizeof *memories);
    for (int64_t i = 0; i < memory_count; i++)
        memories[i] = memory_read();
    target_buffer *buffers = read_words(buffer_count * (int64_t)(sizeof *buffers / 8));
    int64_t *dims = read_words(head[2]), *scalars = read_words(head[3]), *units = read_words(head[4]), error[2] = {0};
    void **at = calloc((size_t)buffer_count + 1, sizeof *at);
    for (int64_t b = 0; b < buffer_count; b++)
        at[b] = memories[buffers[b].memory].now + buffers[b].first;
    memory scratch = memory_make(head[5], 0);
    launch_kernel(kernel, at, dims, (const opq_number *)scalars, units, head[4], scratch.now, error);
    if (error[0] != 0)
        printf("launch %lld: kernel %lld fails at statement %lld\n", (long long)launch, (long long)kernel,
               (long long)error[0] - 1);
    if (!guards_hold(&scratch))
        printf("launch %lld: kernel %lld writes behind its scratch memory of %lld bytes\n", (long long)launch,
               (long long)kernel, (long long)head[5]);
    *different += error[0] != 0 || !guards_hold(&scratch) ||
                  differs(launch, kernel, memories, memory_count, buffers, buffer_count);
    for (int64_t i = 0; i < memory_count; i++) {
        free(memories[i].room);
        free(memories[i].expected);
    }
    free(scratch.room);
    free(at);
    free(units);
    free(scalars);
    free(dims);
    free(buffers);
    free(memories);
    free(head);
    return true;
}

int main(int count, char **arguments)
{
    int64_t launches = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int different = 0;
    file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    if (file == NULL)
        return 2;
    while (run_launch(launches, &different))
        launches++;
    fclose(file);
    printf("%lld launches, %d different\n", (long long)launches, different);
    return different != 0;
}
