/* Index maps: splitting a linear index into dims, and going through views, against walking every element. */
#include "tests/support.h"

#include "fusion/affine.h"

#define TYPE(...)                                                                                                      \
    opq_type_make(OPQ_f32, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                            \
                  (const int64_t[]){__VA_ARGS__})

/* Loops with these extents, and the row-major index over them. */
static opq_space space_of(const int64_t *extent, int rank)
{
    opq_space space = {.rank = rank};
    for (int l = 0; l < rank; l++)
        space.extent[l] = extent[l];
    return space;
}

static int64_t value_at(const opq_affine *affine, const int64_t *index, int rank)
{
    int64_t value = affine->offset;
    for (int l = 0; l < rank; l++)
        value += affine->coef[l] * index[l];
    return value;
}

/* Calls nothing for an empty space. False after the last index. */
static bool next_index(const opq_space *space, int64_t *index)
{
    for (int l = space->rank - 1; l >= 0; l--) {
        if (++index[l] < space->extent[l])
            return true;
        index[l] = 0;
    }
    return false;
}

/* ---- split */

static const struct split_case {
    const char *what;
    int64_t extent[3], coef[3], offset;
    opq_type type;
    bool splits;
} split_cases[] = {
    {"row-major over its own dims", {4, 6, 1}, {6, 1, 0}, 0, {.rank = 2, .size = {4, 6}}, true},
    {"a loop for each half of a dim", {4, 2, 3}, {6, 3, 1}, 0, {.rank = 2, .size = {4, 6}}, true},
    {"two dims by one loop of rows", {2, 2, 6}, {12, 6, 1}, 0, {.rank = 2, .size = {4, 6}}, true},
    {"every second element of a row", {4, 3, 1}, {6, 2, 0}, 1, {.rank = 2, .size = {4, 6}}, true},
    {"an offset into a later row", {2, 3, 1}, {6, 1, 0}, 15, {.rank = 2, .size = {4, 6}}, true},
    {"transposed", {6, 4, 1}, {1, 6, 0}, 0, {.rank = 2, .size = {4, 6}}, true},
    {"a broadcast loop", {5, 6, 1}, {0, 1, 0}, 0, {.rank = 2, .size = {4, 6}}, true},
    {"overlapping windows inside one dim", {8, 3, 1}, {1, 1, 0}, 0, {.rank = 1, .size = {10}}, true},
    {"a column of one, any stride", {4, 1, 1}, {6, 5, 0}, 0, {.rank = 2, .size = {4, 6}}, true},
    {"runs across the end of a row", {8, 1, 1}, {3, 0, 0}, 0, {.rank = 2, .size = {4, 6}}, false},
    {"all elements by one loop", {24, 1, 1}, {1, 0, 0}, 0, {.rank = 2, .size = {4, 6}}, false},
    {"a diagonal", {4, 1, 1}, {7, 0, 0}, 0, {.rank = 2, .size = {4, 6}}, false},
    {"starts late in the row and leaves it", {1, 4, 1}, {6, 1, 0}, 3, {.rank = 2, .size = {4, 6}}, false},
    {"backwards", {6, 1, 1}, {-1, 0, 0}, 5, {.rank = 1, .size = {6}}, true},
    {"every second row backwards", {2, 6, 1}, {-12, 1, 0}, 12, {.rank = 2, .size = {4, 6}}, true},
    {"both dims backwards", {4, 6, 1}, {-6, -1, 0}, 23, {.rank = 2, .size = {4, 6}}, true},
    {"backwards across the end of a row", {4, 1, 1}, {-2, 0, 0}, 8, {.rank = 2, .size = {4, 6}}, false},
};

/* Where it splits, every index of the loops is in range and at the same element. */
static void expect_right_split(const struct split_case *c, const opq_affine *linear, const opq_space *space,
                               const opq_index_map *map)
{
    int64_t index[3] = {0};
    opq_affine again = opq_affine_linear(map, &c->type);
    do {
        for (int d = 0; d < c->type.rank; d++) {
            int64_t at = value_at(&map->dim[d], index, space->rank);
            if (at < 0 || at >= c->type.size[d])
                fail_msg("%s: %lld in dim %d", c->what, (long long)at, d);
        }
        if (value_at(&again, index, space->rank) != value_at(linear, index, space->rank))
            fail_msg("%s: another element", c->what);
    } while (next_index(space, index));
}

static void test_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(split_cases); i++) {
        const struct split_case *c = &split_cases[i];
        opq_space space = space_of(c->extent, 3);
        opq_affine linear = {.offset = c->offset};
        opq_index_map map;
        memcpy(linear.coef, c->coef, sizeof c->coef);
        if (opq_affine_split(&linear, &space, &c->type, &map) != c->splits)
            fail_msg("%s: %s", c->what, c->splits ? "does not split" : "splits");
        if (c->splits)
            expect_right_split(c, &linear, &space, &map);
    }
}

/* Whatever is said to split, does: every small linear index over every small shape. */
static void test_split_of_everything(void **state)
{
    (void)state;
    int split = 0;
    for (int64_t code = 0; code < 4 * 4 * 9 * 9 * 6 * 5 * 4; code++) {
        int64_t rest = code;
        struct split_case c = {.what = "sweep", .type = {.rank = 2}};
        c.extent[0] = 1 + rest % 4, rest /= 4;
        c.extent[1] = 1 + rest % 4, rest /= 4;
        c.coef[0] = rest % 9, rest /= 9;
        c.coef[1] = rest % 9, rest /= 9;
        c.type.size[0] = 4;
        c.type.size[1] = 1 + rest % 6, rest /= 6;
        c.offset = rest % 5, rest /= 5;
        for (int l = 0; l < 2; l++, rest /= 2)
            if (rest % 2) { /* the same loop backwards */
                c.offset += c.coef[l] * (c.extent[l] - 1);
                c.coef[l] = -c.coef[l];
            }
        opq_space space = space_of(c.extent, 2);
        opq_affine linear = {.offset = c.offset, .coef = {c.coef[0], c.coef[1]}};
        opq_index_map map;
        if (!opq_affine_split(&linear, &space, &c.type, &map))
            continue;
        split++;
        expect_right_split(&c, &linear, &space, &map);
    }
    assert_true(split > 1000);
}

/* ---- views: the operand's map against the evaluator, element by element */

static const char *const view_texts[] = {
    "graph @permute {\n  %0 = input f32[2,3,4]\n  %1 = permute f32[4,2,3] %0 {dims=[2,0,1]}\n  output %1\n}\n",
    "graph @expand {\n  %0 = input f32[3,1]\n  %1 = expand f32[2,3,4] %0\n  output %1\n}\n",
    "graph @slice {\n  %0 = input f32[5,7]\n  %1 = slice f32[2,3] %0 {start=[1,0], step=[2,3]}\n  output %1\n}\n",
    "graph @flip {\n  %0 = input f32[5,7]\n  %1 = slice f32[2,3] %0 {start=[4,6], step=[-2,-3]}\n  output %1\n}\n",
    "graph @split {\n  %0 = input f32[6,4]\n  %1 = reshape f32[2,3,4] %0\n  output %1\n}\n",
    "graph @merge {\n  %0 = input f32[2,3,4]\n  %1 = reshape f32[6,4] %0\n  output %1\n}\n",
    "graph @cross {\n  %0 = input f32[4,6]\n  %1 = reshape f32[3,8] %0\n  output %1\n}\n",
    "graph @strided {\n  %0 = input f32[4,6]\n  %1 = strided f32[2,3] %0 {offset=1, strides=[12,2]}\n  output %1\n}\n",
    "graph @diagonal {\n  %0 = input f32[4,4]\n  %1 = strided f32[4] %0 {offset=0, strides=[5]}\n  output %1\n}\n",
};

/* The loops are the view's own dims. A merge has to be walked by finer loops: then it is linear, which is right as well. */
static void check_view(const char *text)
{
    opq_graph *graph = graph_of_text(text);
    const opq_node *view = opq_node_at(graph, 1);
    const opq_type *source = &opq_node_at(graph, 0)->type;
    opq_space space = space_of(view->type.size, view->type.rank);
    opq_index_map map = {0}, operand_map = {0};
    opq_affine linear = {0};
    float in[64], out[64];
    int64_t index[OPQ_RANK_MAX] = {0}, element = 0;
    for (int d = 0; d < view->type.rank; d++)
        map.dim[d].coef[d] = 1;
    for (int i = 0; i < 64; i++)
        in[i] = (float)i;
    expect_ok(opq_graph_eval(graph, (const void *const[]){in}, (void *const[]){out}));
    if (opq_affine_view(graph, view, &map, &space, &operand_map, &linear) == OPQ_THROUGH_map)
        linear = opq_affine_linear(&operand_map, source);
    do {
        if (out[element++] != (float)value_at(&linear, index, space.rank))
            fail_msg("%s, element %lld", graph->name, (long long)element - 1);
    } while (next_index(&space, index));
    opq_graph_destroy(graph);
}

static void test_views(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(view_texts); i++)
        check_view(view_texts[i]);
}

static void test_broadcast(void **state)
{
    (void)state;
    opq_type result = TYPE(2, 3, 4), operand = TYPE(3, 1);
    opq_index_map map = {0}, operand_map;
    for (int d = 0; d < 3; d++)
        map.dim[d].coef[d] = 1;
    memset(&operand_map, 0xff, sizeof operand_map);
    opq_affine_broadcast(&map, &result, &operand, &operand_map);
    opq_affine zero = {0};
    assert_true(opq_affine_equal(&operand_map.dim[0], &map.dim[1]));
    assert_true(opq_affine_equal(&operand_map.dim[1], &zero));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_of_everything),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_broadcast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
