/* Which line of the user's program records an op.
 *
 * Operators run without the interpreter lock, but a thread's own frames cannot change while it is inside one, so the frames can
 * be read as they are: the innermost frame whose file lies outside the packages to skip gives (code object, instruction). That
 * pair is interned into a small id; the text of an id is made only when somebody looks.
 *
 * A code object is seen for the first time once: then the lock is taken, its file name is looked at, and a strong reference is
 * kept, so that its address stays its identity. Both tables are fixed in size and lock-free to read; when one is full, new
 * lines get id 0.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define OPQ_FRAMES_RAW 1
#define Py_BUILD_CORE 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop
#else
#define OPQ_FRAMES_RAW 0
#endif

#include "lines.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum {
    LINE_COUNT = 65536,
    LINE_SLOTS = 131072,
    SCOPE_COUNT = 65536,
    CODE_SLOTS = 32768,
    CODE_LIMIT = 24576,
    PREFIX_COUNT = 8,
    PREFIX_BYTES = 1024
};

typedef struct code_slot {
    _Atomic(void *) code;
    atomic_int skip;
} code_slot;
typedef struct line {
    void *code;
    int instruction, scope;
} line;

static code_slot codes[CODE_SLOTS];
static atomic_int code_count;
static line lines[LINE_COUNT];        /* by id; 0 unused */
static atomic_uint slots[LINE_SLOTS]; /* hash table of ids */
static uint32_t line_count = 1;
static char *scopes[SCOPE_COUNT]; /* by id; 0 unused */
static int scope_count = 1;
static _Thread_local int scope;
static pthread_mutex_t line_mutex = PTHREAD_MUTEX_INITIALIZER;
static char prefixes[PREFIX_COUNT][PREFIX_BYTES];
static int prefix_count;
static atomic_int enabled = 1;

/* The forking thread has the lock over the fork, so that the child does not inherit it from a thread it does not have. */
static void lines_lock(void) { pthread_mutex_lock(&line_mutex); }
static void lines_unlock(void) { pthread_mutex_unlock(&line_mutex); }

__attribute__((constructor)) static void guard_fork(void) { pthread_atfork(lines_lock, lines_unlock, lines_unlock); }

void *opq_python_unlock(void) { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : NULL; }

void opq_python_lock(void *state)
{
    if (state)
        PyEval_RestoreThread(state);
}

void opq_line_skip(const char *prefix)
{
    if (prefix_count < PREFIX_COUNT && strlen(prefix) < PREFIX_BYTES)
        strcpy(prefixes[prefix_count++], prefix);
}

void opq_line_enable(int on) { atomic_store(&enabled, on); }

int opq_scope_add(const char *name)
{
    pthread_mutex_lock(&line_mutex);
    char *copy = scope_count < SCOPE_COUNT ? strdup(name) : NULL;
    const int id = copy ? scope_count++ : 0;
    scopes[id] = copy;
    pthread_mutex_unlock(&line_mutex);
    return id;
}

void opq_scope_set(int id) { scope = id; }

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9E3779B97F4A7C15u;
    return x ^ (x >> 29);
}

/* With the interpreter lock. Files without a path ("<frozen importlib>", "<string>") are shown, unless they are the interpreter's. Installed
 * packages may lie in the folder of the standard library, which is skipped, and are shown. */
static int skipped_file(PyCodeObject *code)
{
    const char *name = code->co_filename ? PyUnicode_AsUTF8(code->co_filename) : NULL;
    if (!name) {
        PyErr_Clear();
        return 1;
    }
    if (strncmp(name, "<frozen", 7) == 0 || strncmp(name, "<eval_with_key>", 15) == 0)
        return 1;
    for (int i = 0; i < prefix_count; ++i)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0 && !strstr(name + strlen(prefixes[i]), "-packages/"))
            return 1;
    return 0;
}

/* 1: not shown, 0: shown, -1: not in the table */
static int code_find(void *code)
{
    for (uint64_t i = mix((uint64_t)(uintptr_t)code), n = 0; n < CODE_SLOTS; ++i, ++n) {
        code_slot *slot = &codes[i % CODE_SLOTS];
        void *found = atomic_load_explicit(&slot->code, memory_order_acquire);
        if (!found)
            return -1;
        if (found == code)
            return atomic_load_explicit(&slot->skip, memory_order_relaxed);
    }
    return -1;
}

/* Called with the interpreter lock, which orders the writers. */
static int code_add(PyCodeObject *code)
{
    int skip = code_find(code);
    if (skip >= 0)
        return skip;
    skip = skipped_file(code);
    if (atomic_load(&code_count) >= CODE_LIMIT)
        return -1;
    atomic_fetch_add(&code_count, 1);
    Py_INCREF(code);
    for (uint64_t i = mix((uint64_t)(uintptr_t)code);; ++i) {
        code_slot *slot = &codes[i % CODE_SLOTS];
        if (atomic_load_explicit(&slot->code, memory_order_relaxed))
            continue;
        atomic_store_explicit(&slot->skip, skip, memory_order_relaxed);
        atomic_store_explicit(&slot->code, code, memory_order_release);
        return skip;
    }
}

static uint32_t line_find(line sought, uint64_t hash, uint64_t *out_slot)
{
    for (uint64_t i = hash;; ++i) {
        const uint32_t id = atomic_load_explicit(&slots[i % LINE_SLOTS], memory_order_acquire);
        *out_slot = i % LINE_SLOTS;
        if (id == 0 || (lines[id].code == sought.code && lines[id].instruction == sought.instruction &&
                        lines[id].scope == sought.scope))
            return id;
    }
}

static uint32_t line_intern(void *code, int instruction)
{
    const line here = {code, instruction, scope};
    const uint64_t hash = mix((uint64_t)(uintptr_t)code * 31 + (uint64_t)instruction + ((uint64_t)here.scope << 40));
    uint64_t slot;
    uint32_t id = line_find(here, hash, &slot);
    if (id)
        return id;
    pthread_mutex_lock(&line_mutex);
    id = line_find(here, hash, &slot);
    if (!id && line_count < LINE_COUNT) {
        id = line_count++;
        lines[id] = here;
        atomic_store_explicit(&slots[slot], id, memory_order_release);
    }
    pthread_mutex_unlock(&line_mutex);
    return id;
}

int opq_line_has_python(void) { return Py_IsInitialized() && PyGILState_GetThisThreadState() != NULL; }

#if OPQ_FRAMES_RAW

uint32_t opq_line_here(void)
{
    if (!atomic_load_explicit(&enabled, memory_order_relaxed) || !Py_IsInitialized())
        return 0;
    PyThreadState *thread = PyGILState_GetThisThreadState();
    if (!thread || !thread->cframe)
        return 0;
    for (_PyInterpreterFrame *frame = thread->cframe->current_frame; frame; frame = frame->previous) {
        PyCodeObject *code = frame->f_code;
        int skip = code_find(code);
        if (skip < 0) {
            const PyGILState_STATE state = PyGILState_Ensure();
            skip = code_add(code);
            PyGILState_Release(state);
        }
        if (skip < 0)
            return 0;
        if (!skip)
            return line_intern(code, _PyInterpreterFrame_LASTI(frame));
    }
    return 0;
}

static int line_number(PyCodeObject *code, int instruction)
{
    return PyCode_Addr2Line(code, instruction * (int)sizeof(_Py_CODEUNIT));
}

#else

uint32_t opq_line_here(void)
{
    if (!atomic_load_explicit(&enabled, memory_order_relaxed) || !opq_line_has_python())
        return 0;
    uint32_t id = 0;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame && !id) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        const int skip = code_add(code);
        if (skip == 0)
            id = line_intern(code, PyFrame_GetLasti(frame));
        Py_DECREF(code);
        PyFrameObject *back = skip < 0 ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    PyGILState_Release(state);
    return id;
}

static int line_number(PyCodeObject *code, int instruction) { return PyCode_Addr2Line(code, instruction); }

#endif

size_t opq_line_text(uint32_t id, char *out, size_t size)
{
    if (id == 0 || id >= LINE_COUNT || size == 0 || !Py_IsInitialized())
        return 0;
    pthread_mutex_lock(&line_mutex);
    const line found = id < line_count ? lines[id] : (line){NULL, 0, 0};
    const char *module = scopes[found.scope];
    pthread_mutex_unlock(&line_mutex);
    if (!found.code)
        return 0;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyCodeObject *code = found.code;
    const char *name = PyUnicode_AsUTF8(code->co_filename);
    int length = 0;
    if (name) {
        const char *slash = strrchr(name, '/');
        length = snprintf(out, size, "%s:%d%s%s", slash ? slash + 1 : name, line_number(code, found.instruction),
                          module ? " in " : "", module ? module : "");
    } else {
        PyErr_Clear();
    }
    PyGILState_Release(state);
    return length < 0 ? 0 : (size_t)length < size ? (size_t)length : size - 1;
}
