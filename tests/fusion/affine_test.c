/* Index maps: splitting a linear index into dims, and going through views, against walking every element. */
#include <stdio.h>

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
    {"one element before the first", {4, 6, 1}, {6, 1, 0}, -1, {.rank = 2, .size = {4, 6}}, false},
    {"one row before the first", {4, 6, 1}, {6, 1, 0}, -6, {.rank = 2, .size = {4, 6}}, true},
    {"rows before and behind", {9, 6, 1}, {6, 1, 0}, -12, {.rank = 2, .size = {4, 6}}, true},
    {"the first half of a row before the first", {5, 3, 1}, {6, 1, 0}, -6, {.rank = 2, .size = {4, 6}}, true},
    {"the second half of a row before the first", {5, 3, 1}, {6, 1, 0}, -3, {.rank = 2, .size = {4, 6}}, true},
    {"from the second half of a row into the first", {5, 4, 1}, {6, 1, 0}, -3, {.rank = 2, .size = {4, 6}}, false},
    {"backwards to a row before the first", {5, 6, 1}, {-6, 1, 0}, 18, {.rank = 2, .size = {4, 6}}, true},
    {"backwards in a row before the first", {4, 6, 1}, {6, -1, 0}, -1, {.rank = 2, .size = {4, 6}}, true},
    {"before and behind all of one dim", {12, 1, 1}, {1, 0, 0}, -4, {.rank = 1, .size = {5}}, true},
    {"under a dim of one", {12, 1, 1}, {1, 0, 0}, -4, {.rank = 2, .size = {1, 5}}, true},
    {"around a single element", {3, 3, 1}, {1, 1, 0}, -2, {.rank = 2, .size = {1, 1}}, true},
};

/* Where it splits, every index of the loops at which there is an element is at it. All dims are in range at every turn but the outermost
 * one that moves. */
static void expect_right_split(const struct split_case *c, const opq_affine *linear, const opq_space *space,
                               const opq_index_map *map)
{
    int64_t index[3] = {0}, count = opq_type_count(&c->type);
    int outermost = 0;
    opq_affine again = opq_affine_linear(map, &c->type);
    while (outermost < c->type.rank && c->type.size[outermost] == 1)
        outermost++;
    do {
        int64_t wanted = value_at(linear, index, space->rank);
        bool there = wanted >= 0 && wanted < count;
        for (int d = 0; d < c->type.rank; d++) {
            int64_t at = value_at(&map->dim[d], index, space->rank);
            if ((there || d != outermost) && (at < 0 || at >= c->type.size[d]))
                fail_msg("%s: %lld in dim %d", c->what, (long long)at, d);
        }
        if ((there || count > 1) && value_at(&again, index, space->rank) != wanted)
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

/* Whatever is said to split, does: every small linear index, from far before the first element to far behind the last, over small shapes. */
static void test_split_of_everything(void **state)
{
    static const opq_type types[] = {{.rank = 1, .size = {5}},       {.rank = 2, .size = {4, 1}},
                                     {.rank = 2, .size = {4, 2}},    {.rank = 2, .size = {1, 4}},
                                     {.rank = 2, .size = {3, 4}},    {.rank = 2, .size = {4, 6}},
                                     {.rank = 3, .size = {2, 3, 2}}, {.rank = 3, .size = {3, 1, 4}},
                                     {.rank = 2, .size = {1, 1}},    {.rank = 4, .size = {1, 2, 1, 3}}};
    (void)state;
    int split = 0, outside = 0;
    for (int64_t code = 0; code < (int64_t)COUNT(types) * 4 * 4 * 9 * 9 * 23 * 4; code++) {
        int64_t rest = code;
        struct split_case c = {.what = "sweep"};
        c.extent[0] = 1 + rest % 4, rest /= 4;
        c.extent[1] = 1 + rest % 4, rest /= 4;
        c.coef[0] = rest % 9, rest /= 9;
        c.coef[1] = rest % 9, rest /= 9;
        c.offset = rest % 23 - 14, rest /= 23;
        c.type = types[rest % (int64_t)COUNT(types)], rest /= (int64_t)COUNT(types);
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
        outside += opq_affine_forwards(&linear, &space).offset < 0;
        expect_right_split(&c, &linear, &space, &map);
    }
    assert_true(split > 100000 && outside > 30000);
}

/* ---- views: what they find, against the evaluator, element by element */

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

enum { ELEMENTS = 512, NODES = 8 };

/* An index, and where there is an element. */
typedef struct condition {
    opq_affine index;
    int64_t extent;
} condition;

typedef struct conditions {
    int count;
    condition of[NODES * OPQ_RANK_MAX];
} conditions;

static bool holds(const conditions *c, const int64_t *index, int rank)
{
    for (int i = 0; i < c->count; i++) {
        int64_t at = value_at(&c->of[i].index, index, rank);
        if (at < 0 || at >= c->of[i].extent)
            return false;
    }
    return true;
}

/* What the last view has is at `linear` of node n where the conditions hold, and the number of a padding, -1, elsewhere. */
static void expect_elements(const opq_graph *graph, const opq_space *space, float (*values)[ELEMENTS], opq_ref n,
                            const opq_affine *linear, const conditions *c)
{
    int64_t index[OPQ_RANK_MAX] = {0}, element = 0, count = opq_type_count(&opq_node_at(graph, n)->type);
    do {
        int64_t at = holds(c, index, space->rank) ? value_at(linear, index, space->rank) : -1;
        float found = at < 0 || at >= count ? -1 : values[n][at];
        if (values[graph->count - 1][element++] == found)
            continue;
        char *text = text_of_graph(graph);
        fputs(text, stderr);
        fail_msg("element %lld through to %%%d: %g", (long long)element - 1, n, (double)found);
    } while (next_index(space, index));
}

/* Node 0 is the input, and each node a view of the one before. The loops are the last view's dims. A merge has to be walked by finer loops:
 * then it is linear, which is right as well, of memory. Gives the node that was found. */
static opq_ref check_views(const opq_graph *graph)
{
    static float values[NODES][ELEMENTS];
    const opq_type *type = &opq_node_at(graph, graph->count - 1)->type;
    opq_space space = space_of(type->size, type->rank);
    opq_index_map map = {0}, next = {0};
    opq_affine linear;
    conditions c = {0};
    void *out[NODES];
    for (int d = 0; d < type->rank; d++)
        map.dim[d].coef[d] = 1;
    for (int i = 0; i < ELEMENTS; i++)
        values[0][i] = (float)i;
    for (int n = 1; n < graph->count; n++)
        out[n - 1] = values[n];
    expect_ok(opq_graph_eval(graph, (const void *const[]){values[0]}, out));
    for (opq_ref n = graph->count - 2; n >= 0; n--, map = next) {
        const opq_type *source = &opq_node_at(graph, n)->type;
        opq_through through = opq_affine_view(graph, opq_node_at(graph, n + 1), &map, &space, &next, &linear);
        for (int d = 0; d < source->rank && through == OPQ_THROUGH_pad; d++)
            c.of[c.count++] = (condition){next.dim[d], source->size[d]};
        if (through != OPQ_THROUGH_linear)
            linear = opq_affine_linear(&next, source);
        expect_elements(graph, &space, values, n, &linear, &c);
        if (through == OPQ_THROUGH_linear)
            return n;
    }
    return 0;
}

static void test_views(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(view_texts); i++) {
        opq_graph *graph = graph_of_text(view_texts[i]);
        check_views(graph);
        opq_graph_destroy(graph);
    }
}

/* ---- views of views */

static int64_t below(uint64_t *random, int64_t limit)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)(*random >> 33) % limit;
}

static opq_type reshaped(uint64_t *random, const opq_type *type)
{
    opq_type out = {.dtype = type->dtype};
    int64_t left = opq_type_count(type);
    while (out.rank < 3 && left > 1) {
        int64_t factor = 1 + below(random, left < 9 ? left : 9);
        while (left % factor != 0)
            factor--;
        out.size[out.rank++] = factor;
        left /= factor;
    }
    out.size[out.rank++] = left;
    return out;
}

/* A padding, also a negative one; a part, forwards or backwards; a window. */
static opq_ref add_view(opq_graph *graph, uint64_t *random, opq_ref x)
{
    opq_type type = opq_node_at(graph, x)->type, out = type;
    int64_t start[4] = {0}, step[4] = {1, 1, 1, 1}, count = opq_type_count(&type);
    opq_op op = (opq_op[]){OPQ_OP_pad,    OPQ_OP_pad,   OPQ_OP_reshape, OPQ_OP_reshape,
                           OPQ_OP_expand, OPQ_OP_slice, OPQ_OP_strided}[below(random, 7)];
    opq_attr attrs[2] = {{.key = OPQ_ATTR_start, .count = type.rank, .ints = start},
                         {.key = OPQ_ATTR_step, .count = type.rank, .ints = step}};
    int attr_count = op == OPQ_OP_reshape || op == OPQ_OP_expand ? 0 : 2;
    if (op == OPQ_OP_reshape)
        out = reshaped(random, &type);
    if (op == OPQ_OP_strided) {
        out = (opq_type){.dtype = type.dtype, .rank = 2, .size = {1 + below(random, 4), 1}};
        step[0] = below(random, 1 + (count - 1) / out.size[0]);
        int64_t room = count - 1 - step[0] * (out.size[0] - 1);
        step[1] = 1 + below(random, 3);
        out.size[1] = 1 + below(random, 1 + (room / step[1] < 6 ? room / step[1] : 6));
        attrs[0] = (opq_attr){.key = OPQ_ATTR_offset, .i = below(random, 1 + room - step[1] * (out.size[1] - 1))};
        attrs[1] = (opq_attr){.key = OPQ_ATTR_strides, .count = 2, .ints = step};
    }
    if (op == OPQ_OP_pad)
        attrs[1] = (opq_attr){.key = OPQ_ATTR_value, .number.f = -1};
    for (int d = 0; d < type.rank; d++) {
        if (op == OPQ_OP_pad) {
            start[d] = below(random, 4) - (type.size[d] > 1);
            out.size[d] += start[d] + below(random, 4) - (type.size[d] > 2);
        } else if (op == OPQ_OP_expand && type.size[d] == 1) {
            out.size[d] = 1 + below(random, 4);
        } else if (op == OPQ_OP_slice) {
            start[d] = below(random, type.size[d]);
            step[d] = below(random, 2) ? 1 : -1;
            out.size[d] = 1 + below(random, step[d] > 0 ? type.size[d] - start[d] : start[d] + 1);
        }
    }
    opq_ref made;
    if (opq_type_count(&out) > ELEMENTS)
        return x;
    expect_ok(opq_graph_op_typed(graph, op, &out, &x, 1, attrs, attr_count, &made));
    return made;
}

static void test_views_of_views(void **state)
{
    (void)state;
    uint64_t random = 1;
    int through = 0;
    for (int i = 0; i < 20000; i++) {
        opq_graph *graph;
        opq_type type = TYPE(1 + below(&random, 8), 1 + below(&random, 6));
        opq_ref last;
        expect_ok(opq_graph_create("views", &graph));
        expect_ok(opq_graph_input(graph, &type, &last));
        for (int64_t n = 2 + below(&random, NODES - 2); n > 0; n--)
            last = add_view(graph, &random, last);
        for (opq_ref n = 1; n < graph->count; n++)
            expect_ok(opq_graph_output(graph, n));
        expect_ok(opq_graph_verify(graph));
        through += graph->count > 1 && check_views(graph) == 0;
        opq_graph_destroy(graph);
    }
    assert_true(through > 5000); /* down to the input */
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
        cmocka_unit_test(test_split),          cmocka_unit_test(test_split_of_everything), cmocka_unit_test(test_views),
        cmocka_unit_test(test_views_of_views), cmocka_unit_test(test_broadcast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
