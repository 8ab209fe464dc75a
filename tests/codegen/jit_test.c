/* The JIT's refusals: what LLVM or the object check objects to is a status with a message. */
#define _GNU_SOURCE
#include "codegen_llvm/emit.h"
#include "codegen_llvm/jit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static LLVMValueRef start(opq_emitter *e, const char *name)
{
    LLVMTypeRef f32 = LLVMFloatTypeInContext(e->context), parameters[2] = {f32, f32};
    e->function = LLVMAddFunction(e->module, name, LLVMFunctionType(f32, parameters, 2, false));
    LLVMPositionBuilderAtEnd(e->builder, LLVMAppendBasicBlockInContext(e->context, e->function, "entry"));
    return e->function;
}

static opq_status build_add(opq_emitter *e, void *data)
{
    LLVMValueRef f = start(e, data ? data : "add");
    LLVMBuildRet(e->builder, LLVMBuildFAdd(e->builder, LLVMGetParam(f, 0), LLVMGetParam(f, 1), ""));
    return OPQ_OK;
}

/* x86 has no instruction for it: LLVM calls fmodf. */
static opq_status build_call(opq_emitter *e, void *data)
{
    (void)data;
    LLVMValueRef f = start(e, "call");
    LLVMBuildRet(e->builder, LLVMBuildFRem(e->builder, LLVMGetParam(f, 0), LLVMGetParam(f, 1), ""));
    return OPQ_OK;
}

static opq_status build_broken(opq_emitter *e, void *data)
{
    (void)data;
    start(e, "broken"); /* no terminator */
    return OPQ_OK;
}

static opq_status build_assembly(opq_emitter *e, void *data)
{
    (void)data;
    LLVMValueRef f = start(e, "assembly");
    LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(e->context), NULL, 0, false);
    LLVMValueRef code = LLVMGetInlineAsm(type, "nonsense %eax", 13, "", 0, true, false, LLVMInlineAsmDialectATT, false);
    LLVMBuildCall2(e->builder, type, code, NULL, 0, "");
    LLVMBuildRet(e->builder, LLVMGetParam(f, 0));
    return OPQ_OK;
}

static opq_status build_refuse(opq_emitter *e, void *data)
{
    (void)e, (void)data;
    return opq_fail(OPQ_UNSUPPORTED, "not today");
}

static void test_functions(void **state)
{
    opq_jit *jit = *state;
    void *first, *second;
    float (*function)(float, float);
    assert_int_equal(opq_jit_function(jit, "add", "add", build_add, NULL, NULL, NULL, &first), OPQ_OK);
    assert_int_equal(opq_jit_function(jit, "add", "add", build_add, NULL, NULL, NULL, &second), OPQ_OK);
    assert_ptr_not_equal(first, second);
    memcpy(&function, &first, sizeof first);
    assert_true(function(1, 2) == 3);
    memcpy(&function, &second, sizeof second);
    assert_true(function(3, 4) == 7);
}

static void test_removed(void **state)
{
    opq_jit *jit = *state;
    opq_jit_module first, second;
    void *address;
    float (*function)(float, float);
    assert_int_equal(opq_jit_function(jit, "add", "add", build_add, NULL, NULL, &first, &address), OPQ_OK);
    assert_int_equal(opq_jit_function(jit, "add", "add", build_add, NULL, NULL, &second, &address), OPQ_OK);
    assert_int_equal(first.bytes, 4096);
    opq_jit_remove(jit, &first);
    memcpy(&function, &address, sizeof address);
    assert_true(function(1, 2) == 3);
    opq_jit_remove(jit, &second);
}

/* Of code. */
static int mappings(void)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, " r-xp ") != NULL;
    fclose(file);
    return count;
}

/* Code for good beside any number of functions that come and go, at some of which LLVM's map of them grows: all of it is given back. */
static void test_kept_beside_removed(void **state)
{
    (void)state;
    int before = 0;
    for (int count = 40; count < 56; count++) {
        opq_jit *jit;
        opq_jit_module module[56];
        void *address;
        float (*function)(float, float);
        assert_int_equal(opq_jit_create(&jit), OPQ_OK);
        for (int i = 0; i < count; i++)
            assert_int_equal(opq_jit_function(jit, "add", "add", build_add, NULL, NULL, &module[i], &address), OPQ_OK);
        assert_int_equal(opq_jit_function(jit, "add", "add", build_add, NULL, NULL, NULL, &address), OPQ_OK);
        for (int i = 0; i < count; i++)
            opq_jit_remove(jit, &module[i]);
        memcpy(&function, &address, sizeof address);
        assert_true(function(1, 2) == 3);
        opq_jit_destroy(jit);
        before = before ? before : mappings();
        assert_int_equal(mappings(), before);
    }
}

/* What GDB reads: a list of object files. Their number, and whether one of them names the function. */
extern struct {
    uint32_t version, action;
    struct entry {
        struct entry *next, *previous;
        const char *object;
        uint64_t size;
    } *relevant, *first;
} __jit_debug_descriptor;

static int objects_shown(const char *symbol, bool *out_named)
{
    int count = 0;
    *out_named = false;
    for (const struct entry *e = __jit_debug_descriptor.first; e; e = e->next, count++)
        *out_named = *out_named || memmem(e->object, e->size, symbol, strlen(symbol)) != NULL;
    return count;
}

static void test_debuggers(void **state)
{
    opq_jit *jit = *state;
    opq_jit_module first, second;
    void *address;
    bool named;
    assert_int_equal(opq_jit_function(jit, "add", "sum_7", build_add, NULL, NULL, &first, &address), OPQ_OK);
    assert_int_equal(objects_shown("sum_7_", &named), 0); /* nobody asked */
    setenv("OPAQUE_GDB_JIT", "1", 1);
    assert_int_equal(opq_jit_function(jit, "add", "sum_7", build_add, NULL, NULL, &second, &address), OPQ_OK);
    unsetenv("OPAQUE_GDB_JIT");
    assert_int_equal(objects_shown("sum_7_", &named), 1);
    assert_true(named);
    opq_jit_remove(jit, &first);
    assert_int_equal(objects_shown("", &named), 1);
    opq_jit_remove(jit, &second);
    assert_int_equal(objects_shown("", &named), 0);
}

static void test_refusals(void **state)
{
    opq_jit *jit = *state;
    void *address;
    assert_int_equal(opq_jit_function(jit, "call", "call", build_call, NULL, NULL, NULL, &address), OPQ_CODEGEN);
    assert_non_null(strstr(opq_error(), "fmodf"));
    assert_int_equal(opq_jit_function(jit, "broken", "broken", build_broken, NULL, NULL, NULL, &address), OPQ_CODEGEN);
    assert_int_equal(opq_jit_function(jit, "assembly", "assembly", build_assembly, NULL, NULL, NULL, &address),
                     OPQ_CODEGEN);
    assert_int_equal(opq_jit_function(jit, "refuse", "refuse", build_refuse, NULL, NULL, NULL, &address),
                     OPQ_UNSUPPORTED);
    assert_string_equal(opq_error(), "not today");
    assert_int_equal(opq_jit_function(jit, "sub", "sub", build_add, "add", NULL, NULL, &address), OPQ_INTERNAL);
    assert_int_equal(opq_jit_function(jit, "add", "add", build_add, NULL, NULL, NULL, &address),
                     OPQ_OK); /* and goes on working */
}

static void test_text(void **state)
{
    opq_jit *jit = *state;
    char *text;
    assert_int_equal(opq_jit_text(jit, "add", build_add, NULL, "llvm", &text), OPQ_OK);
    assert_non_null(strstr(text, "define float @add("));
    free(text);
    assert_int_equal(opq_jit_text(jit, "add", build_add, NULL, "asm", &text), OPQ_OK);
    assert_non_null(strstr(text, "vaddss"));
    free(text);
    assert_int_equal(opq_jit_text(jit, "add", build_add, NULL, "object", &text), OPQ_INVALID);
}

static void test_cpu(void **state)
{
    (void)state;
    opq_cpu cpu;
    setenv("OPAQUE_CPU", "avx2", 1);
    assert_int_equal(opq_cpu_detect(&cpu), OPQ_OK);
    assert_ptr_equal(cpu.target, &opq_target_avx2);
    assert_false(opq_cpu_has(&cpu, OPQ_LEAF_pairs));
    assert_string_equal(cpu.features, opq_target_avx2.features);
    setenv("OPAQUE_CPU", "pentium", 1);
    assert_int_equal(opq_cpu_detect(&cpu), OPQ_INVALID);
    unsetenv("OPAQUE_CPU");
    assert_int_equal(opq_cpu_detect(&cpu), OPQ_OK);
}

static int create(void **state)
{
    opq_jit *jit;
    if (opq_jit_create(&jit) != OPQ_OK)
        return 1;
    *state = jit;
    return 0;
}

static int destroy(void **state)
{
    opq_jit_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_removed),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_debuggers),
        cmocka_unit_test(test_kept_beside_removed),
    };
    return cmocka_run_group_tests(tests, create, destroy);
}
