/* The tables make sense: what a row says is complete and agrees with itself. */
#include "tests/support.h"

#include "graph/graph.h"

static void every_name_is_found_once(void **state)
{
    (void)state;
    for (int i = 0; i < OPQ_OP_COUNT; i++) {
        const char *name = opq_op_info_of((opq_op)i)->name;
        opq_op found = OPQ_OP_COUNT;
        assert_non_null(name);
        assert_true(opq_op_find(name, strlen(name), &found));
        assert_int_equal(found, i); /* the first of a name: a second row of that name would find another number */
    }
    opq_op op;
    assert_false(opq_op_find("", 0, &op));
    assert_false(opq_op_find("ad", 2, &op));
    assert_false(opq_op_find("addd", 4, &op));
    assert_true(opq_op_find("addd", 3, &op));
    assert_int_equal(op, OPQ_OP_add);
}

static void every_row_is_complete(void **state)
{
    (void)state;
    for (int i = 0; i < OPQ_OP_COUNT; i++) {
        const opq_op_info *info = opq_op_info_of((opq_op)i);
        const opq_lowering *lowering = opq_op_lowering((opq_op)i);
        assert_in_range(info->arity + 1, 0, 9);
        assert_in_range(info->class_, 0, OPQ_CLASS_COUNT - 1);
        assert_in_range(info->rule, 0, OPQ_RULE_GIVEN);
        assert_non_null(info->aten);
        assert_non_null(info->signature);
        assert_true(*info->aten || !strcmp(info->signature, "NONE"));
        assert_int_equal(lowering->kind == OPQ_LOWER_EXPAND, info->expand != NULL);
        switch (lowering->kind) {
        case OPQ_LOWER_ARITH:
        case OPQ_LOWER_CMP: assert_true(lowering->for_float || (lowering->for_signed && lowering->for_unsigned)); break;
        case OPQ_LOWER_CALL:
        case OPQ_LOWER_EXPAND: assert_true(*lowering->text); break;
        case OPQ_LOWER_FOLD:
            assert_int_equal(info->class_, OPQ_CLASS_REDUCE);
            assert_int_equal(info->arity, 1);
            break;
        case OPQ_LOWER_SCAN:
            assert_int_equal(info->class_, OPQ_CLASS_SCAN);
            assert_int_equal(info->arity, 1);
            assert_int_equal(opq_op_info_of(lowering->combine)->class_, OPQ_CLASS_EWISE);
            assert_int_equal(opq_op_info_of(lowering->combine)->arity, 2);
            assert_null(opq_op_info_of(lowering->combine)->expand); /* it stands in loops as it is */
            break;
        case OPQ_LOWER_NATIVE: assert_int_not_equal(info->class_, OPQ_CLASS_EWISE); break;
        }
    }
}

static void what_commutes_has_two_operands(void **state)
{
    (void)state;
    for (int i = 0; i < OPQ_OP_COUNT; i++) {
        const opq_op_info *info = opq_op_info_of((opq_op)i);
        if (info->flags & OPQ_FLAG_COMM)
            assert_int_equal(info->arity, 2);
        assert_int_not_equal(info->flags & (OPQ_FLAG_NOINT | OPQ_FLAG_NOFLOAT), OPQ_FLAG_NOINT | OPQ_FLAG_NOFLOAT);
    }
}

/* An expression uses the last operand of its row, and no letter beyond it unless as the name of a part. */
static void expressions_fit_the_arity(void **state)
{
    (void)state;
    for (int i = 0; i < OPQ_OP_COUNT; i++) {
        const opq_op_info *info = opq_op_info_of((opq_op)i);
        unsigned used = 0;
        for (const char *c = info->expand; c && *c;) {
            size_t length = strspn(c, "abcdefghijklmnopqrstuvwxyz_0123456789.");
            if (length == 1 && *c >= 'a' && *c <= 'z')
                used |= 1u << (*c - 'a');
            c += length ? length : 1;
        }
        if (!info->expand)
            continue;
        for (int k = 0; k < info->arity; k++)
            if (!(used >> k & 1))
                fail_msg("%s does not use operand %c", info->name, 'a' + k);
        for (int k = info->arity; k < 26; k++) {
            char part[] = {' ', (char)('a' + k), ' ', '=', ' ', 0};
            if ((used >> k & 1) && !strstr(info->expand, part))
                fail_msg("%s has no operand %c", info->name, 'a' + k);
        }
    }
}

/* The shape of every composite row can be read off its expression. */
static void composites_have_shapes(void **state)
{
    (void)state;
    int64_t zero_axis = 0;
    opq_attr axes = {.key = OPQ_ATTR_axes, .count = 1, .ints = &zero_axis};
    for (int i = 0; i < OPQ_OP_COUNT; i++) {
        const opq_op_info *info = opq_op_info_of((opq_op)i);
        opq_type operands[8], type;
        opq_dtype compute;
        for (int k = 0; k < 8; k++)
            operands[k] = opq_type_make(OPQ_f32, 2, (int64_t[]){3, 3});
        if (info->class_ != OPQ_CLASS_COMPOSITE || !info->expand)
            continue;
        expect_ok(opq_infer((opq_op)i, operands, info->arity, &axes, 1, NULL, &type, &compute));
        assert_int_equal(type.rank, 2);
    }
}

static void dtypes_are_found_by_name(void **state)
{
    (void)state;
    for (int d = 0; d < OPQ_DTYPE_COUNT; d++) {
        const char *name = opq_dtype_name((opq_dtype)d);
        opq_dtype found = OPQ_DTYPE_COUNT;
        assert_true(opq_dtype_find(name, strlen(name), &found));
        assert_int_equal(found, d);
        assert_true(opq_dtype_bytes((opq_dtype)d) >= 1);
    }
    opq_dtype dtype;
    assert_false(opq_dtype_find("f", 1, &dtype));
    assert_false(opq_dtype_find("f320", 4, &dtype));
    assert_int_equal(opq_dtype_bytes(OPQ_bf16), 2);
    assert_int_equal(opq_dtype_bytes(OPQ_raw128), 16);
    assert_int_equal(opq_dtype_kind_of(OPQ_u8), OPQ_KIND_UINT);
}

/* Keys are in the order of their names, so that text is sorted by both. */
static void attribute_names_ascend(void **state)
{
    (void)state;
    for (int k = 0; k < OPQ_ATTR_COUNT; k++) {
        opq_attr_key found = OPQ_ATTR_COUNT;
        const char *name = opq_attr_name((opq_attr_key)k);
        assert_true(opq_attr_key_find(name, strlen(name), &found));
        assert_int_equal(found, k);
        if (k > 0)
            assert_true(strcmp(opq_attr_name((opq_attr_key)(k - 1)), name) < 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_is_found_once),       cmocka_unit_test(every_row_is_complete),
        cmocka_unit_test(what_commutes_has_two_operands), cmocka_unit_test(expressions_fit_the_arity),
        cmocka_unit_test(composites_have_shapes),         cmocka_unit_test(dtypes_are_found_by_name),
        cmocka_unit_test(attribute_names_ascend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
