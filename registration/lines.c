/* Which line of the user's program records an op.
 *
 * Operators run without the interpreter lock, but a thread's own frames cannot change while it is inside one, so the frames can
 * be read as they are: the innermost frame whose file is neither in a package to skip nor in an installed one gives (code object,
 * instruction), an installed package below it gives another. They are interned into a small id; the text of an id is made only when
 * somebody looks.
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
#include <stdbool.h>
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

/* Of a frame: the user's, one never shown, one of an installed package. */
enum { KIND_user, KIND_hidden, KIND_library };
typedef struct code_slot {
    _Atomic(void *) code;
    atomic_int kind;
} code_slot;
typedef struct line {
    void *code, *library; /* code of the user's frame; of the innermost one, if that is an installed package's, or NULL */
    int instruction, library_instruction, scope;
} line;

static code_slot codes[CODE_SLOTS];
static atomic_int code_count;
static line lines[LINE_COUNT]; /* by id; 0 unused */
static atomic_int numbers[LINE_COUNT][2]; /* in the files of a line's code and library; 0: not looked for yet, which takes long functions long */
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

static const char *installed_in(const char *path)
{
    const char *found = strstr(path, "/site-packages/");
    return found ? found : strstr(path, "/dist-packages/");
}

/* With the interpreter lock. Files without a path ("<frozen importlib>", "<string>") are shown, unless they are the interpreter's. Installed
 * packages may lie in the folder of the standard library, which is hidden, and are shown. */
static int kind_of_file(PyCodeObject *code)
{
    const char *name = code->co_filename ? PyUnicode_AsUTF8(code->co_filename) : NULL;
    if (!name) {
        PyErr_Clear();
        return KIND_hidden;
    }
    if (strncmp(name, "<frozen", 7) == 0 || strncmp(name, "<eval_with_key>", 15) == 0)
        return KIND_hidden;
    for (int i = 0; i < prefix_count; ++i) {
        const size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length) == 0 && !installed_in(name + length - 1))
            return KIND_hidden;
    }
    return installed_in(name) ? KIND_library : KIND_user;
}

/* -1: not in the table */
static int code_find(void *code)
{
    for (uint64_t i = mix((uint64_t)(uintptr_t)code), n = 0; n < CODE_SLOTS; ++i, ++n) {
        code_slot *slot = &codes[i % CODE_SLOTS];
        void *found = atomic_load_explicit(&slot->code, memory_order_acquire);
        if (!found)
            return -1;
        if (found == code)
            return atomic_load_explicit(&slot->kind, memory_order_relaxed);
    }
    return -1;
}

/* Called with the interpreter lock, which orders the writers. */
static int code_add(PyCodeObject *code)
{
    int kind = code_find(code);
    if (kind >= 0)
        return kind;
    kind = kind_of_file(code);
    if (atomic_load(&code_count) >= CODE_LIMIT)
        return -1;
    atomic_fetch_add(&code_count, 1);
    Py_INCREF(code);
    for (uint64_t i = mix((uint64_t)(uintptr_t)code);; ++i) {
        code_slot *slot = &codes[i % CODE_SLOTS];
        if (atomic_load_explicit(&slot->code, memory_order_relaxed))
            continue;
        atomic_store_explicit(&slot->kind, kind, memory_order_relaxed);
        atomic_store_explicit(&slot->code, code, memory_order_release);
        return kind;
    }
}

static uint32_t line_find(line sought, uint64_t hash, uint64_t *out_slot)
{
    for (uint64_t i = hash;; ++i) {
        const uint32_t id = atomic_load_explicit(&slots[i % LINE_SLOTS], memory_order_acquire);
        *out_slot = i % LINE_SLOTS;
        if (id == 0 || (lines[id].code == sought.code && lines[id].instruction == sought.instruction &&
                        lines[id].library == sought.library &&
                        lines[id].library_instruction == sought.library_instruction && lines[id].scope == sought.scope))
            return id;
    }
}

static uint32_t line_intern(line here)
{
    here.scope = scope;
    uint64_t hash = mix((uint64_t)(uintptr_t)here.code * 31 + (uint64_t)here.instruction + ((uint64_t)here.scope << 40));
    if (here.library)
        hash = mix(hash + (uint64_t)(uintptr_t)here.library * 31 + (uint64_t)here.library_instruction);
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

/* Frames from the innermost outwards: true when the user's is found. `here` keeps the innermost frame of an installed package; where
 * there is no frame of the user, that is the line. */
static bool line_is_at(line *here, int kind, void *code, int instruction)
{
    if (kind == KIND_library && here->library == NULL) {
        here->library = code;
        here->library_instruction = instruction;
    }
    if (kind != KIND_user)
        return false;
    here->code = code;
    here->instruction = instruction;
    return true;
}

static uint32_t line_made(line here)
{
    if (here.code == NULL) {
        here.code = here.library;
        here.instruction = here.library_instruction;
        here.library = NULL;
        here.library_instruction = 0;
    }
    return here.code ? line_intern(here) : 0;
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
    line here = {0};
    for (_PyInterpreterFrame *frame = thread->cframe->current_frame; frame; frame = frame->previous) {
        PyCodeObject *code = frame->f_code;
        int kind = code_find(code);
        if (kind < 0) {
            const PyGILState_STATE state = PyGILState_Ensure();
            kind = code_add(code);
            PyGILState_Release(state);
        }
        if (kind < 0)
            return 0;
        if (kind != KIND_hidden && line_is_at(&here, kind, code, _PyInterpreterFrame_LASTI(frame)))
            break;
    }
    return line_made(here);
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
    line here = {0};
    const PyGILState_STATE state = PyGILState_Ensure();
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    for (bool found = false; frame && !found;) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        const int kind = code_add(code);
        found = kind < 0 || line_is_at(&here, kind, code, PyFrame_GetLasti(frame));
        Py_DECREF(code);
        PyFrameObject *back = found ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    PyGILState_Release(state);
    return line_made(here);
}

static int line_number(PyCodeObject *code, int instruction) { return PyCode_Addr2Line(code, instruction); }

#endif

/* "train.py:41"; `whole` with its folder. With the interpreter lock. */
static void add_place(char *out, size_t size, void *code, int instruction, atomic_int *number, bool whole)
{
    PyCodeObject *const object = code;
    const char *name = PyUnicode_AsUTF8(object->co_filename);
    if (name == NULL) {
        PyErr_Clear();
        return;
    }
    const char *slash = whole ? NULL : strrchr(name, '/');
    if (*number == 0)
        *number = line_number(object, instruction);
    snprintf(out, size, "%s:%d", slash ? slash + 1 : name, *number);
}

size_t opq_line_text(uint32_t id, opq_line_part part, char *out, size_t size)
{
    if (id == 0 || id >= LINE_COUNT || size == 0 || !Py_IsInitialized())
        return 0;
    pthread_mutex_lock(&line_mutex);
    const line found = id < line_count ? lines[id] : (line){0};
    const char *module = scopes[found.scope];
    pthread_mutex_unlock(&line_mutex);
    if (!found.code)
        return 0;
    out[0] = 0;
    if (part == OPQ_LINE_module) {
        snprintf(out, size, "%s", module ? module : "");
        return strlen(out);
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    if (part != OPQ_LINE_library)
        add_place(out, size, found.code, found.instruction, &numbers[id][0], part == OPQ_LINE_source);
    else if (found.library)
        add_place(out, size, found.library, found.library_instruction, &numbers[id][1], false);
    PyGILState_Release(state);
    return strlen(out);
}
