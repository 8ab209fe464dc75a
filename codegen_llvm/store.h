/* Objects on disk, for processes that come: OPAQUE_CACHE is a folder, or "on" for $XDG_CACHE_HOME/torch_opaque or ~/.cache/torch_opaque.
 *
 * Kernels that programs commonly need are made when the library is built, and lie in the folder `kernels` beside it, which is only read.
 *
 * A file holds one kernel's object under its whole key, the processor it is for and a digest of the library that made it. What is not exactly
 * that, torn, of another library or of another user, is as if it were not there: the kernel is compiled, and the file written anew. The folder
 * is this user's alone (mode 0700), no link is followed, a file appears under its name when it is whole. Least recently used files go when
 * there are more than OPQ_STORE_BYTES_MAX bytes of them.
 */
#ifndef OPAQUE_CODEGEN_STORE_H
#define OPAQUE_CODEGEN_STORE_H

#include "opaque/opaque.h"

enum {
    OPQ_STORE_BYTES_MAX = 1 << 30,
    OPQ_STORE_FILE_MAX = 64 << 20,
    OPQ_STORE_SYMBOL_MAX = 96,
    OPQ_STORE_PROCESSOR_MAX = 384
};

typedef struct opq_store opq_store;

/* What an object is for and of. */
typedef struct opq_store_key {
    const char *processor; /* instruction sets */
    const void *bytes;
    size_t count;
} opq_store_key;

typedef struct opq_store_object {
    char symbol[OPQ_STORE_SYMBOL_MAX]; /* of its function */
    const void *data;
    size_t bytes;
    void *memory;  /* free() it */
    bool packaged; /* it came with the package: who can write it can write our library as well */
} opq_store_object;

typedef struct opq_store_counts {
    long long found, missing, refused, written,
        failed; /* refused: a file that is not what it should be; failed: not written */
} opq_store_counts;

/* NULL: there is none, because it is off or the folder is not to be used. */
opq_store *opq_store_open(void);
void opq_store_close(opq_store *store);
/* True: *out_object is the one under this key. Thread-safe, as all that follows. */
bool opq_store_find(opq_store *store, const opq_store_key *key, opq_store_object *out_object);
/* Writes it, or not. */
void opq_store_keep(opq_store *store, const opq_store_key *key, const opq_store_object *object);
/* What was found is not what it should be: the file goes. */
void opq_store_refuse(opq_store *store, const opq_store_key *key);
opq_store_counts opq_store_counted(const opq_store *store);

#endif
