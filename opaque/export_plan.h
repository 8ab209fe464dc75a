/* A step as an initialiser of C. Internal to opaque/. */
#ifndef OPAQUE_OPAQUE_EXPORT_PLAN_H
#define OPAQUE_OPAQUE_EXPORT_PLAN_H

#include "runtime/plan.h"

/* Room for one more behind `count` items, which were all made room for in this way. */
opq_status opq_export_grow(void **items, int64_t count, size_t size) OPQ_MUST_CHECK;

/* Codes by first use: number k is called kernel_k. */
typedef struct opq_code_list {
    const opq_code **items;
    int count, capacity;
} opq_code_list;
int opq_code_list_find(const opq_code_list *list, const opq_code *code); /* -1 */

void opq_write_ints(opq_text *text, const int64_t *values, int64_t count); /* (int64_t[]){...}, or NULL */
void opq_write_string(opq_text *text, const char *string);                 /* in quotes, or NULL */
/* {...}, and a comma. Its code is in the list. */
void opq_write_step(opq_text *text, const opq_step *step, const opq_code_list *codes);

#endif
