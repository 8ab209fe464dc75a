/* See store.h. */
#define _GNU_SOURCE /* dl_iterate_phdr */
#define XXH_INLINE_ALL
#include "codegen_llvm/store.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { DIGEST = 32, NAME = 40, KEPT_BETWEEN_SWEEPS = 256 };

struct opq_store {
    int folder, shipped;          /* -1: none. shipped: beside the library, read alone */
    uid_t owner;                  /* of the library */
    unsigned char digest[DIGEST]; /* of this library */
    atomic_llong found, missing, refused, written, failed;
};

/* A file: this, then the key, then the object. */
typedef struct header {
    char magic[8];
    unsigned char digest[DIGEST];
    char processor[OPQ_STORE_PROCESSOR_MAX]; /* ends with 0 */
    char symbol[OPQ_STORE_SYMBOL_MAX];
    uint64_t key_bytes, object_bytes;
    uint64_t checksum[2]; /* of all but itself */
} header;

static const char MAGIC[8] = "opqobj1";

/* ---- which library this is: its build id, which the linker makes of all that is in it */

typedef struct search {
    const void *inside; /* an address of ours */
    unsigned char *digest;
    bool found;
    char path[4096]; /* of the library; empty: the program itself */
} search;

static bool read_note(const char *at, size_t bytes, unsigned char *digest)
{
    while (bytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        size_t name = (note.n_namesz + 3u) & ~(size_t)3, text = (note.n_descsz + 3u) & ~(size_t)3;
        if (sizeof note + name + text > bytes)
            return false;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at + sizeof note, "GNU", 4) == 0) {
            memcpy(digest, at + sizeof note + name, note.n_descsz < DIGEST ? note.n_descsz : DIGEST);
            return true;
        }
        at += sizeof note + name + text;
        bytes -= sizeof note + name + text;
    }
    return false;
}

static int look_at_library(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    search *s = data;
    bool ours = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr, address = (uintptr_t)s->inside;
        ours = ours || (part->p_type == PT_LOAD && address >= begin && address < begin + part->p_memsz);
    }
    if (ours)
        snprintf(s->path, sizeof s->path, "%s", info->dlpi_name ? info->dlpi_name : "");
    for (int i = 0; i < info->dlpi_phnum && ours && !s->found; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_NOTE)
            s->found = read_note((const char *)info->dlpi_addr + part->p_vaddr, part->p_memsz, s->digest);
    }
    return ours;
}

/* The folder `kernels` beside the library, whose owner is trusted as the library is. */
static void find_shipped(opq_store *store, char *library, size_t size)
{
    struct stat info;
    char *slash = strrchr(library, '/');
    if (slash == NULL || stat(library, &info) != 0 || (size_t)(slash - library) + sizeof "/kernels" > size)
        return;
    store->owner = info.st_uid;
    strcpy(slash, "/kernels");
    store->shipped = open(library, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static bool find_library(opq_store *store)
{
    search s = {MAGIC, store->digest, false, ""};
    memset(store->digest, 0, DIGEST);
    dl_iterate_phdr(look_at_library, &s);
    if (s.found)
        find_shipped(store, s.path, sizeof s.path);
    return s.found;
}

/* ---- the folder */

static bool is_private(int folder)
{
    struct stat info;
    return fstat(folder, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 077) == 0;
}

/* Opens it, made if it is not there. */
static int open_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0 && !is_private(folder)) {
        close(folder);
        folder = -1;
    }
    return folder;
}

static int open_default(void)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[4096];
    int length;
    if (base && base[0] == '/')
        length = snprintf(path, sizeof path, "%s", base);
    else if (home && home[0] == '/')
        length = snprintf(path, sizeof path, "%s/.cache", home);
    else
        return -1;
    if (length < 0 || (size_t)length + sizeof "/torch_opaque" > sizeof path)
        return -1;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    strcat(path, "/torch_opaque");
    return open_folder(path);
}

opq_store *opq_store_open(void)
{
    const char *asked = getenv("OPAQUE_CACHE");
    opq_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return NULL;
    bool usual = asked == NULL || !*asked || strcmp(asked, "on") == 0, off = !usual && strcmp(asked, "off") == 0;
    store->folder = store->shipped = -1;
    if (!off && find_library(store))
        store->folder = usual ? open_default() : open_folder(asked);
    if (store->folder >= 0 || store->shipped >= 0)
        return store;
    free(store);
    return NULL;
}

static void close_folder(int folder)
{
    if (folder >= 0)
        close(folder);
}

void opq_store_close(opq_store *store)
{
    if (store == NULL)
        return;
    close_folder(store->folder);
    close_folder(store->shipped);
    free(store);
}

/* ---- files */

static void name_of(const opq_store *store, const opq_store_key *key, char *name)
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, store->digest, DIGEST);
    XXH3_128bits_update(&state, key->processor, strlen(key->processor) + 1);
    XXH3_128bits_update(&state, key->bytes, key->count);
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    snprintf(name, NAME, "%016llx%016llx.o", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

static void set_checksum(const header *head, const void *rest, size_t bytes, uint64_t *out_sum)
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, head, offsetof(header, checksum));
    XXH3_128bits_update(&state, rest, bytes);
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    out_sum[0] = hash.high64;
    out_sum[1] = hash.low64;
}

static bool read_all(int file, char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t done = read(file, data, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        data += done;
        bytes -= (size_t)done;
    }
    return true;
}

static bool write_all(int file, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t done = write(file, at, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

/* A file of this owner that nobody else may write, of a size that one may have. */
static bool is_sound(int file, uid_t owner, size_t *out_bytes)
{
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != owner || (info.st_mode & 022) != 0 ||
        info.st_size < (off_t)sizeof(header) || info.st_size > OPQ_STORE_FILE_MAX)
        return false;
    *out_bytes = (size_t)info.st_size;
    return true;
}

static bool is_object_of(const opq_store *store, const opq_store_key *key, const char *data, size_t bytes)
{
    header head;
    uint64_t sum[2];
    memcpy(&head, data, sizeof head);
    const char *rest = data + sizeof head;
    size_t left = bytes - sizeof head;
    set_checksum(&head, rest, left, sum);
    return memcmp(head.magic, MAGIC, sizeof MAGIC) == 0 && memcmp(head.digest, store->digest, DIGEST) == 0 &&
           memcmp(sum, head.checksum, sizeof sum) == 0 && head.key_bytes == key->count && head.key_bytes < left &&
           head.object_bytes == left - head.key_bytes &&
           strncmp(head.processor, key->processor, sizeof head.processor) == 0 &&
           memcmp(rest, key->bytes, key->count) == 0 && memchr(head.symbol, 0, sizeof head.symbol) != NULL;
}

static char *read_file(const opq_store *store, const opq_store_key *key, int file, uid_t owner, size_t *out_bytes)
{
    char *data = is_sound(file, owner, out_bytes) ? malloc(*out_bytes) : NULL;
    if (data && read_all(file, data, *out_bytes) && is_object_of(store, key, data, *out_bytes))
        return data;
    free(data);
    return NULL;
}

/* out_there: there is a file, which is not the one if NULL is returned. */
static char *look_in(const opq_store *store, const opq_store_key *key, const char *name, bool shipped, bool *out_there)
{
    size_t bytes;
    int folder = shipped ? store->shipped : store->folder;
    *out_there = false;
    if (folder < 0 || (!shipped && !is_private(folder)))
        return NULL;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return NULL;
    *out_there = true;
    char *data = read_file(store, key, file, shipped ? store->owner : geteuid(), &bytes);
    if (data && !shipped)
        (void)futimens(file, NULL); /* used now */
    close(file);
    return data;
}

bool opq_store_find(opq_store *store, const opq_store_key *key, opq_store_object *out_object)
{
    header head;
    char name[NAME];
    bool there, there_too = false;
    name_of(store, key, name);
    char *data = look_in(store, key, name, false, &there);
    bool own = data != NULL;
    if (!own)
        data = look_in(store, key, name, true, &there_too);
    atomic_fetch_add(data ? &store->found : there || there_too ? &store->refused : &store->missing, 1);
    if (data == NULL)
        return false;
    memcpy(&head, data, sizeof head);
    *out_object = (opq_store_object){
        .data = data + sizeof head + head.key_bytes, .bytes = head.object_bytes, .memory = data, .packaged = !own};
    memcpy(out_object->symbol, head.symbol, sizeof head.symbol);
    return true;
}

/* ---- what goes */

typedef struct known {
    char name[NAME];
    struct timespec used;
    off_t bytes;
} known;

static int by_use(const void *a, const void *b)
{
    const struct timespec *x = &((const known *)a)->used, *y = &((const known *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static DIR *list_folder(const opq_store *store)
{
    int copy = openat(store->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    if (list == NULL && copy >= 0)
        close(copy);
    return list;
}

/* The least recently used ones go until a quarter is free. What a process left half written goes when it is a day old. */
static void sweep(const opq_store *store)
{
    known *files = NULL;
    size_t count = 0, capacity = 0;
    long long total = 0;
    DIR *list = list_folder(store);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        struct stat info;
        if (strlen(entry->d_name) >= NAME || fstatat(store->folder, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(info.st_mode))
            continue;
        if (count == capacity) {
            known *grown = realloc(files, (capacity = capacity * 2 + 256) * sizeof *files);
            if (grown == NULL)
                break;
            files = grown;
        }
        files[count] = (known){.used = info.st_mtim, .bytes = info.st_size};
        strcpy(files[count++].name, entry->d_name);
        total += info.st_size;
    }
    if (list)
        closedir(list);
    if (total > OPQ_STORE_BYTES_MAX && count > 0) {
        qsort(files, count, sizeof *files, by_use);
        for (size_t i = 0; i < count && total > OPQ_STORE_BYTES_MAX / 4 * 3; i++)
            if (unlinkat(store->folder, files[i].name, 0) == 0)
                total -= files[i].bytes;
    }
    free(files);
}

static bool write_file(const opq_store *store, const char *name, const header *head, const opq_store_key *key,
                       const opq_store_object *object)
{
    static atomic_uint next;
    char draft[NAME];
    snprintf(draft, sizeof draft, "new-%ld-%u", (long)getpid(), atomic_fetch_add(&next, 1));
    int file = openat(store->folder, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return false;
    bool whole = write_all(file, head, sizeof *head) && write_all(file, key->bytes, key->count) &&
                 write_all(file, object->data, object->bytes);
    whole = close(file) == 0 && whole && renameat(store->folder, draft, store->folder, name) == 0;
    if (!whole)
        unlinkat(store->folder, draft, 0);
    return whole;
}

void opq_store_keep(opq_store *store, const opq_store_key *key, const opq_store_object *object)
{
    char name[NAME];
    header head = {.key_bytes = key->count, .object_bytes = object->bytes};
    size_t bytes = key->count + object->bytes;
    char *rest = strlen(key->processor) < sizeof head.processor ? malloc(bytes) : NULL;
    bool written = false;
    if (rest && store->folder >= 0 && is_private(store->folder)) {
        memcpy(head.magic, MAGIC, sizeof MAGIC);
        memcpy(head.digest, store->digest, DIGEST);
        strcpy(head.processor, key->processor);
        memcpy(head.symbol, object->symbol, sizeof head.symbol);
        memcpy(rest, key->bytes, key->count);
        memcpy(rest + key->count, object->data, object->bytes);
        set_checksum(&head, rest, bytes, head.checksum);
        name_of(store, key, name);
        written = write_file(store, name, &head, key, object);
    }
    free(rest);
    long long count = atomic_fetch_add(written ? &store->written : &store->failed, 1);
    if (written && count % KEPT_BETWEEN_SWEEPS == KEPT_BETWEEN_SWEEPS - 1)
        sweep(store);
}

void opq_store_refuse(opq_store *store, const opq_store_key *key)
{
    char name[NAME];
    name_of(store, key, name);
    if (store->folder >= 0)
        unlinkat(store->folder, name, 0);
    atomic_fetch_sub(&store->found, 1);
    atomic_fetch_add(&store->refused, 1);
}

opq_store_counts opq_store_counted(const opq_store *store)
{
    if (store == NULL)
        return (opq_store_counts){0};
    return (opq_store_counts){atomic_load(&store->found), atomic_load(&store->missing), atomic_load(&store->refused),
                              atomic_load(&store->written), atomic_load(&store->failed)};
}
