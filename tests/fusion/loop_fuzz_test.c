/* Mutations of the trees of the golden files' kernels. Whatever the text is, it is refused with a place or a statement, or it is a tree:
 * then it prints and parses back, arguments are refused or keep every access in its buffer, evaluator and code generation answer with
 * a status, and what both of them take has the same bits. Deterministic; made for the build with AddressSanitizer.
 */
#include "arrays.h"
#include "mutation.h"

#include "codegen_llvm/codegen.h"
#include "graph/eval.h"

#include <glob.h>
#include <stdio.h>

enum {
    MUTATIONS = 60,
    FULL_MUTATIONS = 4000,
    COMPILED_OF = 8, /* one of so many that are right is compiled */
    BUFFER_BYTES = 1 << 14,
    KERNEL_ROOM = OPQ_BUFFER_MAX * BUFFER_BYTES,
    DIMS_ROOM = OPQ_LOOP_MAX + OPQ_ACCESS_MAX * (OPQ_LOOP_MAX + 3)
};

static const char *const words[] = {"add",
                                    "where",
                                    "sum",
                                    "matmul",
                                    "amax",
                                    "argmax",
                                    "scan_add",
                                    "cast",
                                    "const",
                                    "scalar",
                                    "load",
                                    "load_at",
                                    "store",
                                    "store_add_at",
                                    "check",
                                    "number",
                                    "inside",
                                    "nonzero",
                                    "parallel",
                                    "each",
                                    "vector",
                                    "serial",
                                    "lanes",
                                    "column",
                                    "chain",
                                    "pairs",
                                    "pairs16",
                                    "bf16",
                                    "local",
                                    "bitwise_and",
                                    "f32",
                                    "f64",
                                    "bool",
                                    "i64",
                                    "raw128",
                                    "in j",
                                    "in f64",
                                    "to f16",
                                    "own f32",
                                    "out f32",
                                    "%2, %2",
                                    "%2",
                                    "b0[d2]",
                                    "e3[j]",
                                    "e1[i, j]",
                                    "i*d3",
                                    "j*2",
                                    "- j",
                                    "+ j",
                                    "}",
                                    "\n",
                                    "  }\n",
                                    "parallel i < d0 {\n",
                                    "chain k < d2 {\n",
                                    "pairs k < d2 {\n",
                                    "vector j < d1 in i {\n"};

/* Words of one kind, which may stand for each other. */
static const char *const kinds[][8] = {
    {"parallel", "each", "vector", "serial", "lanes", "column", "chain", "unroll"},
    {"add", "mul", "maximum", "sub", "div", "bitwise_and", "eq", "lt"},
    {"sum", "prod", "amax", "amin", "argmax", "argmin", "any", "all"},
    {"f32", "f64", "i64", "bool", "i32", "u8", "f16", "raw64"},
    {"load", "store", "inside", "number", "check", "load_at", "store_add_at", "nonzero"},
    {"scan_add", "scan_mul", "scan_max", "scan_min", "cumsum", "sum", "exp", "sqrt"},
    {"in i", "in j", "in k", "in l", "in f64", "in f32", "in i", "in j"},
};

static bool is_word(char c) { return c == '_' || (c >= 'a' && c <= 'z') || is_number(c); }

/* A word becomes one of its kind, a letter another variable, a value an earlier one. */
static void change_alike(text *t)
{
    size_t at = below(t->length), end;
    while (at < t->length && !(is_word(t->data[at]) && (at == 0 || !is_word(t->data[at - 1]))))
        at++;
    for (end = at; end < t->length && is_word(t->data[end]);)
        end++;
    char with[16];
    if (end - at == 1 && t->data[at] >= 'i') {
        snprintf(with, sizeof with, "%c", (char)('i' + below(4)));
        splice(t, at, end - at, with, strlen(with));
    } else if (at > 0 && t->data[at - 1] == '%') {
        snprintf(with, sizeof with, "%d", (int)below((uint64_t)atoi(t->data + at) + 1));
        splice(t, at, end - at, with, strlen(with));
    }
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (size_t i = 0; i < COUNT(kinds[k]); i++)
            if (strlen(kinds[k][i]) == end - at && memcmp(kinds[k][i], t->data + at, end - at) == 0) {
                const char *other = kinds[k][below(COUNT(kinds[k]))];
                splice(t, at, end - at, other, strlen(other));
                return;
            }
}

/* A loop of one letter in the block that another counts, or not any more. */
static void change_block(text *t)
{
    char *brace = memchr(t->data + below(t->length), '{', 1);
    for (size_t at = below(t->length); at + 2 < t->length && brace == NULL; at++)
        if (t->data[at] == ' ' && t->data[at + 1] == '{')
            brace = t->data + at;
    const char *with = kinds[6][below(4)];
    if (brace == NULL)
        return;
    splice(t, (size_t)(brace - t->data), 0, with, strlen(with));
    splice(t, (size_t)(brace - t->data), 0, " ", 1);
}

static opq_jit *jit;
static int accepted, refused, run, compiled;

/* Extents and strides as kernels have them, some of them too large for the buffers. */
static void make_dims(const opq_loops *k, int64_t *dims)
{
    static const int64_t extents[] = {1, 2, 3, 5, 17, 20};
    static const int64_t numbers[] = {0, 0, 1, 1, 2, 5, 17, 20, -1, -3, INT64_MAX, INT64_MIN};
    int width = k->rank + 3;
    for (int l = 0; l < k->rank; l++)
        dims[l] = extents[below(COUNT(extents))];
    if (below(20) == 0)
        dims[below((uint64_t)k->rank)] = 0;
    for (int a = 0; a < k->access_count; a++) {
        int64_t *of = dims + opq_dims_of(k->rank, a);
        for (int i = 0; i < width; i++)
            of[i] = numbers[below(COUNT(numbers) - (below(20) ? 4 : 0))];
        of[width - 1] = (int64_t)below(18); /* the extent of an index */
    }
}

static void expect_round_trip(const opq_loops *loops)
{
    opq_arena arena = {0};
    opq_text one = {0}, other = {0};
    opq_loops again;
    opq_loops_print(loops, &one);
    expect_ok(opq_loops_parse(one.data, one.length, &arena, &again));
    opq_loops_print(&again, &other);
    if (one.length != other.length || memcmp(one.data, other.data, one.length) != 0)
        fail_msg("%.*s\nis read back as\n%.*s", (int)one.length, one.data, (int)other.length, other.data);
    opq_text_drop(&one);
    opq_text_drop(&other);
    opq_arena_drop(&arena);
}

/* Small numbers in the dtype that each buffer has. */
static void fill(const opq_loops *k, char *memory)
{
    memset(memory, 0, KERNEL_ROOM);
    for (int b = 0; b < k->buffer_count; b++) {
        opq_dtype dtype = opq_loops_buffer_dtype(k, b);
        int64_t count = BUFFER_BYTES / opq_dtype_bytes(dtype);
        for (int64_t i = 0; i < count && opq_dtype_kind_of(dtype) != OPQ_KIND_RAW; i++) {
            int64_t number = (i * 7 + b * 3) % (dtype == OPQ_bool ? 2 : 6);
            bool real = opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT;
            opq_eval_store(dtype, memory + b * BUFFER_BYTES, i,
                           real ? (opq_number){.f = (double)number * 0.75} : (opq_number){.i = number});
        }
    }
}

static void run_code(const opq_loops *loops, const opq_code *code, char *memory, const int64_t *dims,
                     const opq_number *scalars, int64_t *error)
{
    void *buffers[OPQ_BUFFER_MAX];
    size_t bytes = ((size_t)opq_loops_scratch(loops, dims) + 127) & -(size_t)64;
    void *scratch = aligned_alloc(64, bytes);
    assert_non_null(scratch);
    for (int b = 0; b < OPQ_BUFFER_MAX; b++)
        buffers[b] = memory + b * BUFFER_BYTES;
    code->fn(buffers, dims, scalars, 0, opq_loops_units(loops, dims), scratch, error);
    free(scratch);
}

/* An index that loops without turns do not use is looked at in code alone. */
static bool has_turns(const opq_loops *k, const int64_t *dims)
{
    bool some = true;
    for (int l = 0; l < k->rank; l++)
        some = some && dims[l] > 0;
    return some;
}

/* Does a turn perhaps read what another one writes? Then their order counts, which is for nobody to say. */
static bool reads_its_result(const opq_loops *k)
{
    for (int i = 0; i < k->stmt_count; i++)
        for (int j = 0; j < k->stmt_count; j++) {
            const opq_stmt *load = &k->stmts[i], *store = &k->stmts[j];
            bool loads = load->op == OPQ_STMT_load || load->op == OPQ_STMT_load_at;
            if (loads && store->op == OPQ_STMT_store && load->access != store->access &&
                k->accesses[load->access].buffer == k->accesses[store->access].buffer)
                return true;
        }
    return false;
}

/* One NaN is as good as another. */
static bool differ(const opq_loops *k, const char *a, const char *b)
{
    for (int i = 0; i < OPQ_BUFFER_MAX; i++, a += BUFFER_BYTES, b += BUFFER_BYTES) {
        opq_dtype dtype = i < k->buffer_count ? opq_loops_buffer_dtype(k, i) : OPQ_u8;
        opq_type type = opq_type_make(dtype, 1, (const int64_t[]){BUFFER_BYTES / opq_dtype_bytes(dtype)});
        if (array_difference(&type, a, b) >= 0)
            return true;
    }
    return false;
}

static void evaluate(const opq_loops *loops, const int64_t *dims)
{
    static char evaluated[KERNEL_ROOM], computed[KERNEL_ROOM];
    opq_number scalars[OPQ_SCALAR_MAX];
    for (int i = 0; i < OPQ_SCALAR_MAX; i++)
        scalars[i] = (opq_number){.i = 0};
    void *buffers[OPQ_BUFFER_MAX];
    int64_t error[2] = {0}, told[2] = {0};
    fill(loops, evaluated);
    fill(loops, computed);
    for (int b = 0; b < OPQ_BUFFER_MAX; b++)
        buffers[b] = evaluated + b * BUFFER_BYTES;
    opq_status status = opq_loops_eval(loops, buffers, dims, scalars, error);
    run++;
    if (below(COMPILED_OF) != 0 || reads_its_result(loops))
        return;
    const opq_code *code = NULL;
    bool fresh;
    opq_loops compiling = *loops; /* with columns row by row or in strips */
    compiling.by_rows = below(2);
    if (opq_codegen(jit, &compiling, &code, &fresh) != OPQ_OK)
        return;
    compiled++;
    run_code(loops, code, computed, dims, scalars, told);
    opq_code_release(jit, code);
    opq_text text = {0};
    opq_loops_print(loops, &text);
    for (int i = 0; i < opq_loops_dims_count(loops); i++)
        opq_text_add(&text, "d%d=%lld ", i, (long long)dims[i]);
    if (status == OPQ_OK && has_turns(loops, dims) &&
        ((error[0] != 0) != (told[0] != 0) || (error[0] == 0 && differ(loops, evaluated, computed))))
        fail_msg("code and evaluator differ:\n%.*s", (int)text.length, text.data);
    opq_text_drop(&text);
}

static void check(const text *t)
{
    static int64_t dims[DIMS_ROOM];
    int64_t bytes[OPQ_BUFFER_MAX];
    char *exact = malloc(t->length ? t->length : 1); /* no byte more: reading past the end is an error that is seen */
    assert_non_null(exact);
    memcpy(exact, t->data, t->length);
    opq_arena arena = {0};
    opq_loops loops;
    const char *last = getenv("OPAQUE_FUZZ_LAST"); /* a file for the text that is being looked at, to find a crash's */
    FILE *file = last ? fopen(last, "w") : NULL;
    if (file) {
        fwrite(t->data, 1, t->length, file);
        fclose(file);
    }
    opq_status status = opq_loops_parse(exact, t->length, &arena, &loops);
    free(exact);
    if (status != OPQ_OK) {
        refused++;
        if (strncmp(opq_error(), "line ", 5) != 0 && strncmp(opq_error(), "kernel ", 7) != 0)
            fail_msg("no place in \"%s\" for\n%.*s", opq_error(), (int)t->length, t->data);
    } else {
        accepted++;
        expect_round_trip(&loops);
        for (int b = 0; b < OPQ_BUFFER_MAX; b++)
            bytes[b] = BUFFER_BYTES;
        make_dims(&loops, dims);
        if (opq_loops_verify_bounds(&loops, dims, bytes) == OPQ_OK)
            evaluate(&loops, dims);
    }
    opq_arena_drop(&arena);
}

/* The kernels of a graph, as text. */
static char *kernels_of(opq_ctx *ctx, const char *path, opq_fusion fusion)
{
    static char data[TEXT_ROOM];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(data, 1, sizeof data - 1, file);
    fclose(file);
    data[length] = 0;
    char *end = strstr(data, "# expect:"), *kernels = NULL;
    opq_graph *graph = NULL;
    opq_program *program = NULL;
    expect_ok(opq_graph_parse(data, end ? (size_t)(end - data) : length, &graph));
    expect_ok(opq_program_plan(ctx, graph, fusion, &program));
    expect_ok(opq_program_print(program, "kernels", &kernels));
    opq_program_release(program);
    opq_graph_destroy(graph);
    return kernels;
}

static void mutate_kernels(const char *kernels, int count)
{
    static text original, mutated;
    for (const char *at = kernels, *next; at && *at; at = next) {
        next = strstr(at + 1, "kernel @");
        original.length = next ? (size_t)(next - at) : strlen(at);
        assert_true(original.length < TEXT_ROOM / 2);
        memcpy(original.data, at, original.length);
        check(&original);
        for (int n = 0; n < count; n++) {
            mutated = original;
            switch (below(8)) {
            case 0: mutate(&mutated, words, COUNT(words)); break;
            case 1: change_block(&mutated); break;
            case 2: change_alike(&mutated); /* fall through */
            case 3: change_alike(&mutated); /* fall through */
            default: change_alike(&mutated);
            }
            check(&mutated);
        }
    }
}

static void test_mutations(void **state)
{
    (void)state;
    glob_t files;
    opq_ctx *ctx;
    const char *more = getenv("OPAQUE_FUZZ_ROUNDS");
    int rounds = more ? atoi(more) : 1;
    int count = getenv("OPAQUE_TEST_FULL") ? FULL_MUTATIONS : MUTATIONS;
    expect_ok(opq_ctx_create(NULL, &ctx));
    expect_ok(opq_jit_create(&jit));
    assert_int_equal(glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files), 0);
    for (int round = 0; round < rounds; round++)
        for (size_t i = 0; i < files.gl_pathc; i++)
            for (int fusion = OPQ_FUSED; fusion <= OPQ_UNFUSED; fusion++) {
                char *kernels = kernels_of(ctx, files.gl_pathv[i], (opq_fusion)fusion);
                random_state = 2 * i + (uint64_t)fusion + 1 + ((uint64_t)round << 32);
                mutate_kernels(kernels, count);
                free(kernels);
            }
    globfree(&files);
    opq_jit_destroy(jit);
    opq_ctx_destroy(ctx);
    print_message("%d refused, %d accepted, %d run, %d compiled\n", refused, accepted, run, compiled);
    assert_true(accepted > refused / 20);
    assert_true(run > accepted / 20);
    assert_true(compiled > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
