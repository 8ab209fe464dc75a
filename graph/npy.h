/* Reads and writes dense tensors as NumPy's .npy files (format 1.0 and 2.0, C order, little endian).
 *
 * bf16 has no NumPy name: it is written as <u2, and <u2 is read for it. raw types are read and written by their width.
 */
#ifndef OPAQUE_GRAPH_NPY_H
#define OPAQUE_GRAPH_NPY_H

#include "opaque/opaque.h"

/* Reads `path`, which must hold exactly a value of `type`. Gives a malloc'd buffer. OPQ_INVALID names the file. */
opq_status opq_npy_read(const char *path, const opq_type *type, void **out_data) OPQ_MUST_CHECK;
opq_status opq_npy_write(const char *path, const opq_type *type, const void *data) OPQ_MUST_CHECK;

#endif
