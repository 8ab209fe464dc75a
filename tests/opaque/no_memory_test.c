/* Each allocation of recording, planning and running fails once, and then each with all that follow it.
 *
 * Whatever fails: the answer is OPQ_NO_MEMORY or the right result (some allocations only keep something for later), nothing is lost, and
 * the next try works. The linker puts the functions below in front of malloc and its kin, see CMakeLists.txt. Kernels are compiled
 * before, because LLVM ends the process when it has no memory.
 */
#include "support.h"

#include "opaque/context.h"

#include <errno.h>

/* ---- allocations that fail */

static long long until_failure = -1; /* allocations that still work; negative: all work */
static bool stays_short, has_failed;

static bool fails(void)
{
    if (until_failure < 0 || until_failure-- > 0)
        return false;
    until_failure = stays_short ? 0 : -1;
    has_failed = true;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
int __real_posix_memalign(void **data, size_t align, size_t size);
char *__real_strdup(const char *text);

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *data, size_t size) { return fails() ? NULL : __real_realloc(data, size); }
void *__wrap_aligned_alloc(size_t align, size_t size) { return fails() ? NULL : __real_aligned_alloc(align, size); }
int __wrap_posix_memalign(void **data, size_t align, size_t size)
{
    return fails() ? ENOMEM : __real_posix_memalign(data, align, size);
}
char *__wrap_strdup(const char *text) { return fails() ? NULL : __real_strdup(text); }

/* ---- programs: each line makes a value of those before it */

enum { ROWS = 6, COLUMNS = 20, PARTS = 17, VALUES_MAX = 48 };

typedef enum kind { END, LEAF, OP, REDUCE, JOIN, WRITE, CALL } kind;

typedef struct line {
    kind kind;
    int op, a, b; /* numbers of earlier lines; LEAF: op is the number of rows, JOIN: how many copies of a, b in turn */
} line;

typedef struct program {
    const char *name;
    line lines[VALUES_MAX];
} program;

typedef struct values {
    opq_value *of[VALUES_MAX];
    opq_cell *cells[VALUES_MAX]; /* what WRITE made */
    int count;
} values;

static const program programs[] = {
    {"elementwise",
     {{LEAF, ROWS, -1, -1}, {LEAF, ROWS, -1, -1}, {OP, OPQ_OP_add, 0, 1}, {OP, OPQ_OP_exp, 2, -1}, {OP, OPQ_OP_mul, 3, 0}}},
    {"softmax",
     {{LEAF, ROWS, -1, -1}, {REDUCE, OPQ_OP_softmax, 0, -1}, {OP, OPQ_OP_neg, 1, -1}, {REDUCE, OPQ_OP_sum, 2, -1}}},
    {"two_layers",
     {{LEAF, ROWS, -1, -1},
      {LEAF, COLUMNS, -1, -1},
      {OP, OPQ_OP_matmul, 0, 1},
      {OP, OPQ_OP_tanh, 2, -1},
      {OP, OPQ_OP_add, 3, 0},
      {OP, OPQ_OP_matmul, 4, 1},
      {OP, OPQ_OP_add, 5, 0}}},
    {"joined", {{LEAF, ROWS, -1, -1}, {OP, OPQ_OP_neg, 0, -1}, {JOIN, PARTS, 0, 1}, {REDUCE, OPQ_OP_sum, 2, -1}}},
    {"long", /* its lists do not fit the stack's room of a run */
     {{LEAF, ROWS, -1, -1},
      {OP, OPQ_OP_neg, 0, -1},
      {JOIN, PARTS, 0, 1},
      {JOIN, PARTS, 1, 0},
      {JOIN, PARTS, 0, 0},
      {JOIN, PARTS, 1, 1},
      {JOIN, PARTS, 0, 1},
      {JOIN, PARTS, 1, 0},
      {OP, OPQ_OP_add, 2, 3},
      {OP, OPQ_OP_add, 4, 5},
      {OP, OPQ_OP_add, 6, 7},
      {OP, OPQ_OP_add, 8, 9},
      {OP, OPQ_OP_add, 10, 11},
      {REDUCE, OPQ_OP_sum, 12, -1}}},
    {"writes",
     {{LEAF, ROWS, -1, -1},
      {LEAF, ROWS, -1, -1},
      {OP, OPQ_OP_neg, 0, -1},
      {WRITE, 0, 1, 2},
      {WRITE, 0, 3, 1},
      {OP, OPQ_OP_add, 3, 4}}},
    {"calls",
     {{LEAF, ROWS, -1, -1},
      {OP, OPQ_OP_neg, 0, -1},
      {CALL, 0, 1, -1},
      {OP, OPQ_OP_abs, 2, -1},
      {CALL, 0, 3, -1},
      {OP, OPQ_OP_add, 4, 2}}},
};

static opq_type matrix_type(int rows)
{
    const int64_t size[] = {rows, COLUMNS};
    return opq_type_make(OPQ_f32, 2, size);
}

static opq_status make_leaf(opq_ctx *ctx, int rows, opq_value **out)
{
    opq_type type = matrix_type(rows);
    opq_buffer *buffer = NULL;
    OPQ_TRY(opq_buffer_create(ctx, (size_t)opq_type_bytes(&type), &buffer));
    for (int64_t i = 0; i < opq_type_count(&type); i++)
        ((float *)opq_buffer_data(buffer))[i] = (float)(i % 13 - 6) / 8;
    opq_status status = opq_value_leaf(ctx, &type, buffer, out);
    opq_buffer_release(buffer);
    return status;
}

/* A cell with the contents of `old`, its first row written over: the whole of it as a value. */
static opq_status write_row(opq_ctx *ctx, values *v, opq_value *old, opq_value *from, opq_value **out)
{
    window row = {.rank = 2, .size = {1, COLUMNS}, .stride = {COLUMNS, 1}};
    window all = {.rank = 2, .size = {ROWS, COLUMNS}, .stride = {COLUMNS, 1}};
    opq_geometry row_geometry = geometry_of(&row), all_geometry = geometry_of(&all);
    opq_cell **cell = &v->cells[v->count], *source = NULL;
    opq_value *part = NULL;
    OPQ_TRY(opq_cell_from_value(ctx, old, cell));
    OPQ_TRY(opq_cell_from_value(ctx, from, &source));
    opq_status status = opq_cell_read(ctx, source, &row_geometry, &part);
    opq_cell_release(source);
    OPQ_TRY(status);
    status = opq_cell_write(ctx, *cell, &row_geometry, part);
    opq_value_release(part);
    OPQ_TRY(status);
    return opq_cell_read(ctx, *cell, &all_geometry, out);
}

static call copies = {.add = 1};

/* Copies the first N numbers of its operand. */
static opq_status call_copy(opq_ctx *ctx, opq_value *x, opq_value **out)
{
    opq_type type = matrix_type(ROWS);
    retain_payload(NULL, &copies); /* a thread in the background may let go of one meanwhile */
    return opq_record_extern(ctx, "test.copy", &copies, &x, 1, &type, 1, out);
}

/* More operands than recording has room for without an allocation. */
static opq_status join(opq_ctx *ctx, int parts, opq_value *a, opq_value *b, opq_value **out)
{
    opq_value *operands[PARTS];
    opq_attr axis = {.key = OPQ_ATTR_axis, .i = 0};
    for (int i = 0; i < parts; i++)
        operands[i] = i % 2 ? b : a;
    return opq_record(ctx, OPQ_OP_concat, operands, parts, &axis, 1, out);
}

static opq_status run_line(opq_ctx *ctx, const line *l, values *v)
{
    opq_value *operands[] = {l->a >= 0 ? v->of[l->a] : NULL, l->b >= 0 ? v->of[l->b] : NULL};
    opq_value **out = &v->of[v->count];
    switch (l->kind) {
    case LEAF: return make_leaf(ctx, l->op, out);
    case OP: return opq_record(ctx, (opq_op)l->op, operands, l->b < 0 ? 1 : 2, NULL, 0, out);
    case REDUCE: return opq_record_reduce(ctx, (opq_op)l->op, operands, 1, (const int64_t[]){1}, 1, true, out);
    case JOIN: return join(ctx, l->op, operands[0], operands[1], out);
    case WRITE: return write_row(ctx, v, operands[0], operands[1], out);
    case CALL: return call_copy(ctx, operands[0], out);
    case END: break;
    }
    return OPQ_OK;
}

static opq_status run_program(opq_ctx *ctx, const program *p, values *v)
{
    *v = (values){.count = 0};
    for (; p->lines[v->count].kind != END; v->count++)
        OPQ_TRY(run_line(ctx, &p->lines[v->count], v));
    return opq_materialize(ctx, &v->of[v->count - 1], 1, OPQ_REASON_item);
}

static void drop_values(values *v)
{
    for (int i = 0; i < VALUES_MAX; i++) {
        opq_value_release(v->of[i]);
        opq_cell_release(v->cells[i]);
    }
}

static void expect_result(const values *v, const float *expected, const char *name, long long number)
{
    opq_value *last = v->of[v->count - 1];
    opq_type type = opq_value_type(last);
    const float *got = opq_buffer_data(opq_value_buffer(last));
    if (memcmp(got, expected, (size_t)opq_type_bytes(&type)) != 0)
        fail_msg("%s: wrong result around allocation %lld", name, number);
}

/* ---- the tests */

static opq_status call_whole(void *self, void *payload, const void *const *operands, void *const *results)
{
    (void)self;
    (void)payload;
    memcpy(results[0], operands[0], sizeof(float) * ROWS * COLUMNS);
    return OPQ_OK;
}

static int make_host(void **state)
{
    opq_host host = test_host;
    host.call_extern = call_whole;
    if (opq_ctx_create(&host, (opq_ctx **)state) != OPQ_OK)
        return 1;
    ((opq_ctx *)*state)->values.apart = true;
    return 0;
}

typedef struct attempt {
    opq_ctx *ctx;
    const program *p;
    values *v;
    opq_status status;
} attempt;

static void *attempt_it(void *data)
{
    attempt *a = data;
    a->status = run_program(a->ctx, a->p, a->v);
    return NULL;
}

/* On a new thread, which has no scratch memory yet. */
static opq_status run_on_new_thread(opq_ctx *ctx, const program *p, values *v)
{
    attempt a = {ctx, p, v, OPQ_INTERNAL};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, attempt_it, &a), 0);
    pthread_join(thread, NULL);
    return a.status;
}

/* With a report as well, as explain() has it. */
static opq_status run_short(opq_ctx *ctx, const program *p, long long number, bool reported, values *v)
{
    opq_plan_cache_clear(ctx->plans);
    opq_cache_empty(ctx);
    has_failed = false;
    until_failure = number;
    if (reported)
        opq_report_begin(ctx);
    opq_status status = run_on_new_thread(ctx, p, v);
    until_failure = -1;
    if (reported) {
        opq_report *report = NULL;
        if (opq_report_end(ctx, &report) == OPQ_OK)
            opq_report_drop(report);
    }
    return status;
}

static void fail_each_allocation(opq_ctx *ctx, const program *p, bool reported)
{
    values v;
    static float expected[ROWS * COLUMNS];
    until_failure = -1;
    expect_ok(run_program(ctx, p, &v));
    opq_type type = opq_value_type(v.of[v.count - 1]);
    memcpy(expected, opq_buffer_data(opq_value_buffer(v.of[v.count - 1])), (size_t)opq_type_bytes(&type));
    drop_values(&v);
    long long failed = 0;
    for (long long number = 0;; number++) {
        opq_status status = run_short(ctx, p, number, reported, &v);
        if (status == OPQ_OK)
            expect_result(&v, expected, p->name, number);
        else if (status != OPQ_NO_MEMORY)
            fail_msg("%s, allocation %lld: status %d, %s", p->name, number, status, opq_error());
        failed += status != OPQ_OK;
        drop_values(&v);
        if (!has_failed)
            break;
        if (stats_of(ctx).bytes_allocated != 0)
            fail_msg("%s, allocation %lld: %lld bytes stay allocated", p->name, number,
                     (long long)stats_of(ctx).bytes_allocated);
        assert_int_equal(ctx->pending, 0);
        expect_ok(run_program(ctx, p, &v));
        expect_result(&v, expected, p->name, number);
        drop_values(&v);
    }
    assert_true(failed > 10);
    opq_plans_wait(ctx); /* slow machines plan in the background too */
    opq_plan_cache_clear(ctx->plans);
    assert_int_equal(copies.retained, 0);
}

static void test_one_allocation_fails(void **state)
{
    stays_short = false;
    for (size_t i = 0; i < COUNT(programs); i++)
        fail_each_allocation(*state, &programs[i], false);
}

static void test_one_allocation_fails_in_a_report(void **state)
{
    stays_short = false;
    for (size_t i = 0; i < COUNT(programs); i++)
        fail_each_allocation(*state, &programs[i], true);
}

static void test_memory_stays_short(void **state)
{
    stays_short = true;
    for (size_t i = 0; i < COUNT(programs); i++)
        fail_each_allocation(*state, &programs[i], false);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_host, drop_context)

int main(void)
{
    until_failure = -1;
    const struct CMUnitTest tests[] = {
        TEST(test_one_allocation_fails),
        TEST(test_one_allocation_fails_in_a_report),
        TEST(test_memory_stays_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
