/* perf's map and GDB's JIT interface.
 *
 * perf: "START SIZE name" in hexadecimal, a line per function (tools/perf/Documentation/jit-interface.txt of Linux).
 * GDB: a list of object files in memory behind a symbol that it knows, and an empty function at which it has a breakpoint (the chapter
 * "JIT Compilation Interface" of its manual). The object is the one that was loaded, with the address of its code in the section header.
 */
#define _GNU_SOURCE
#include "codegen_llvm/debug.h"

#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- names and layout are GDB's */

struct jit_code_entry {
    struct jit_code_entry *next_entry, *prev_entry;
    const char *symfile_addr;
    uint64_t symfile_size;
};
struct jit_descriptor {
    uint32_t version, action_flag;
    struct jit_code_entry *relevant_entry, *first_entry;
};
enum { JIT_NOACTION, JIT_REGISTER, JIT_UNREGISTER };

void __jit_debug_register_code(void);
extern struct jit_descriptor __jit_debug_descriptor;
__attribute__((noinline, used)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((used)) struct jit_descriptor __jit_debug_descriptor = {.version = 1};

struct opq_debug_entry {
    struct jit_code_entry code;
    char object[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list, which is the process's */

static void tell(struct jit_code_entry *entry, uint32_t action)
{
    __jit_debug_descriptor.relevant_entry = entry;
    __jit_debug_descriptor.action_flag = action;
    __jit_debug_register_code();
    __jit_debug_descriptor.action_flag = JIT_NOACTION;
}

/* ---- objects */

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

static bool map_wanted(void) { return is_set("OPAQUE_PERF_MAP"); }
static bool gdb_wanted(void) { return is_set("OPAQUE_GDB_JIT"); }
bool opq_debug_wanted(void) { return map_wanted() || gdb_wanted(); }

static Elf64_Shdr section_of(const char *object, unsigned index)
{
    Elf64_Ehdr header;
    Elf64_Shdr section;
    memcpy(&header, object, sizeof header);
    memcpy(&section, object + header.e_shoff + index * sizeof section, sizeof section);
    return section;
}

static bool find_symbol(const char *object, const char *name, Elf64_Sym *out_symbol)
{
    Elf64_Ehdr header;
    memcpy(&header, object, sizeof header);
    for (unsigned s = 0; s < header.e_shnum; s++) {
        Elf64_Shdr table = section_of(object, s);
        if (table.sh_type != SHT_SYMTAB)
            continue;
        Elf64_Shdr strings = section_of(object, table.sh_link);
        for (size_t at = 0; at + sizeof *out_symbol <= table.sh_size; at += sizeof *out_symbol) {
            memcpy(out_symbol, object + table.sh_offset + at, sizeof *out_symbol);
            if (strcmp(object + strings.sh_offset + out_symbol->st_name, name) == 0)
                return true;
        }
    }
    return false;
}

/* Code is where it was loaded; of other sections GDB need not know. */
static void place(char *object, const Elf64_Sym *symbol, const void *address)
{
    Elf64_Ehdr header;
    memcpy(&header, object, sizeof header);
    for (unsigned s = 0; s < header.e_shnum; s++) {
        Elf64_Shdr section = section_of(object, s);
        if (s == symbol->st_shndx)
            section.sh_addr = (uintptr_t)address - symbol->st_value;
        else
            section.sh_flags &= ~(Elf64_Xword)SHF_ALLOC;
        memcpy(object + header.e_shoff + s * sizeof section, &section, sizeof section);
    }
}

static opq_debug_entry *add_to_gdb(const char *object, size_t size, const Elf64_Sym *symbol, const void *address)
{
    opq_debug_entry *entry = malloc(sizeof *entry + size);
    if (entry == NULL)
        return NULL;
    memcpy(entry->object, object, size);
    place(entry->object, symbol, address);
    pthread_mutex_lock(&lock);
    entry->code = (struct jit_code_entry){
        .next_entry = __jit_debug_descriptor.first_entry, .symfile_addr = entry->object, .symfile_size = size};
    if (entry->code.next_entry)
        entry->code.next_entry->prev_entry = &entry->code;
    __jit_debug_descriptor.first_entry = &entry->code;
    tell(&entry->code, JIT_REGISTER);
    pthread_mutex_unlock(&lock);
    return entry;
}

/* Nobody else's file: the name is known to everybody. */
static void add_to_map(const char *name, const void *address, uint64_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file < 0)
        return;
    dprintf(file, "%" PRIxPTR " %" PRIx64 " %s\n", (uintptr_t)address, bytes, name);
    close(file);
}

opq_debug_entry *opq_debug_add(const char *object, size_t size, const char *symbol, const void *address)
{
    Elf64_Sym found;
    if (!find_symbol(object, symbol, &found))
        return NULL;
    if (map_wanted())
        add_to_map(symbol, address, found.st_size);
    return gdb_wanted() ? add_to_gdb(object, size, &found, address) : NULL;
}

void opq_debug_remove(opq_debug_entry *entry)
{
    if (entry == NULL)
        return;
    pthread_mutex_lock(&lock);
    struct jit_code_entry *code = &entry->code;
    *(code->prev_entry ? &code->prev_entry->next_entry : &__jit_debug_descriptor.first_entry) = code->next_entry;
    if (code->next_entry)
        code->next_entry->prev_entry = code->prev_entry;
    tell(code, JIT_UNREGISTER);
    pthread_mutex_unlock(&lock);
    free(entry);
}
