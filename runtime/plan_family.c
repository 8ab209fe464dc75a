/* Plans of one graph at several values of one size, or of two, which differ in numbers only: extents, strides, bytes. Each of these is a polynomial
 * of the sizes with whole coefficients, so that the plan for other sizes is written down, not built.
 *
 *   x + b, x f32[n,64]      extents n, 64; strides 64, 1, 0, 1; 256 n bytes
 *
 * A family is made of plans for the ends of the range of sizes that it is for, and of two others between (polynomial.c). What passes decide by
 * comparing something that grows with the sizes against a limit is then decided alike in between; what they find because a size divides another, or is
 * equal to it, is not found for all, as the two others are primes. Who makes a family asks for one plan more.
 *
 * needs   plans that are built
 * keeps   code: equal trees have equal keys; what each step computes
 * not     kernels that are several (blocks, products side by side), whose numbers stand in more places; tables of windows; calls and
 *         routines, which read the graph
 */
#include "runtime/plan_family.h"
#include "runtime/plan_internal.h"
#include "runtime/polynomial.h"
#include "runtime/step_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_MAX = 1 << 24 };

struct opq_plan_family {
    opq_plan *like; /* the plan of the lowest sizes */
    size_t bytes;   /* of such a plan */
    opq_points points;
    int32_t count;
    opq_polynomial numbers[];
};

/* ---- the numbers of a plan, always in one order */

typedef struct numbers {
    opq_step_visitor visitor;
    int64_t **at; /* NULL: they are counted */
    int32_t count;
} numbers;

static void add(numbers *n, int64_t *first, int64_t count)
{
    for (int64_t i = 0; i < count && n->at; i++)
        n->at[n->count + i] = first + i;
    n->count += (int32_t)count;
}

static void add_sizes(opq_step_visitor *visitor, int64_t *first, int64_t count)
{
    add((numbers *)visitor, first, count);
}

static void add_plan(numbers *n, opq_plan *plan)
{
    for (int32_t s = 0; s < plan->step_count; s++)
        opq_step_visit(&n->visitor, &plan->steps[s]);
    for (int32_t w = 0; w < plan->wave_count; w++) {
        opq_wave *wave = &plan->waves[w];
        add(n, wave->ends, wave->ends ? (int64_t)wave->phases * wave->count : 0);
        add(n, &wave->work, 1);
    }
    for (int32_t i = 0; i < plan->storage_count; i++) {
        add(n, &plan->storage[i].bytes, 1);
        add(n, &plan->storage[i].offset, 1);
    }
    add(n, plan->buffer_bytes, plan->buffer_count);
    add(n, &plan->arena_bytes, 1);
    add(n, &plan->input_bytes, 1);
    for (int32_t i = 0; i < plan->slot_count; i++) /* the last ones; what each run gives is no number of the plan */
        if (plan->slot_source[i] < 0)
            add(n, &plan->slot_value[i].i, 1);
}

/* malloc'd; NULL: no memory. */
static int64_t **numbers_of(const opq_plan *plan, int32_t *out_count)
{
    numbers n = {.visitor = {.sizes = add_sizes}};
    opq_plan *changeable = (opq_plan *)plan; /* who has a const plan only reads them */
    add_plan(&n, changeable);
    n.at = malloc(((size_t)n.count + 1) * sizeof *n.at);
    n.count = 0;
    if (n.at)
        add_plan(&n, changeable);
    *out_count = n.count;
    return n.at;
}

/* ---- all else that a plan is made of */

static bool is_table(const opq_matmul_step *m)
{
    for (int o = 0; o < 2; o++)
        if (m->matrix[o].rows || m->matrix[o].columns)
            return true;
    return false;
}

bool opq_plan_family_possible(const opq_plan *plan)
{
    for (int32_t s = 0; s < plan->step_count; s++) {
        const opq_step *step = &plan->steps[s];
        if (step->kind == OPQ_KERNEL_extern || step->routine || step->block || step->parts || step->payload ||
            step->code == NULL || (step->matmul && is_table(step->matmul)))
            return false;
    }
    return plan->fallback_count == 0 && !plan->dry && plan->like == NULL;
}

static bool same(const void *a, const void *b, size_t bytes) { return bytes == 0 || memcmp(a, b, bytes) == 0; }

static bool same_matmul(const opq_matmul_step *a, const opq_matmul_step *b)
{
    const opq_contract *c = &a->contract, *d = &b->contract;
    bool equal = c->tile == d->tile && c->product == d->product && c->batch_rank == d->batch_rank &&
                 a->outer_rank == b->outer_rank && a->dtype == b->dtype &&
                 c->epilogue.access_count == d->epilogue.access_count;
    for (int o = 0; o < 2; o++)
        equal = equal && c->operand[o].buffer == d->operand[o].buffer && c->operand[o].dtype == d->operand[o].dtype &&
                a->matrix[o].dtype == b->matrix[o].dtype;
    return equal;
}

/* But for how columns are folded, whose bits are the same either way. */
static bool same_loops(opq_loops a, opq_loops b)
{
    opq_text keys[2] = {0};
    a.by_rows = b.by_rows;
    opq_loops_key(&a, &keys[0]);
    opq_loops_key(&b, &keys[1]);
    bool equal = !keys[0].failed && !keys[1].failed && keys[0].length == keys[1].length &&
                 same(keys[0].data, keys[1].data, keys[0].length);
    opq_text_drop(&keys[0]);
    opq_text_drop(&keys[1]);
    return equal;
}

static bool same_step(const opq_step *a, const opq_step *b)
{
    bool same_code = a->code == b->code || a->loops.by_rows != b->loops.by_rows;
    return same_code && a->kind == b->kind && a->order == b->order && a->copy_from == b->copy_from &&
           a->copy_to == b->copy_to && a->check_count == b->check_count && a->taken_count == b->taken_count &&
           (a->matmul != NULL) == (b->matmul != NULL) && same_loops(a->loops, b->loops) &&
           same(a->buffers, b->buffers, (size_t)a->loops.buffer_count * sizeof *a->buffers) &&
           same(a->scalars, b->scalars, (size_t)a->loops.scalar_count * sizeof *a->scalars) &&
           (a->matmul == NULL || same_matmul(a->matmul, b->matmul));
}

static bool same_storage(const opq_plan *a, const opq_plan *b)
{
    for (int32_t i = 0; i < a->storage_count; i++) {
        const opq_storage *s = &a->storage[i], *t = &b->storage[i];
        if (s->home != t->home || s->index != t->index || s->first != t->first || s->last != t->last)
            return false;
    }
    return same(a->output_storage, b->output_storage, (size_t)a->output_count * sizeof *a->output_storage) &&
           same(a->slot_source, b->slot_source, (size_t)a->slot_count * sizeof *a->slot_source) &&
           same(a->first_replacement, b->first_replacement, (size_t)a->buffer_count * sizeof *a->first_replacement) &&
           same(a->replacements, b->replacements, (size_t)a->replacement_count * sizeof *a->replacements);
}

static bool same_but_for_numbers(const opq_plan *a, const opq_plan *b)
{
    if (a->step_count != b->step_count || a->wave_count != b->wave_count || a->row_max != b->row_max ||
        a->storage_count != b->storage_count || a->input_count != b->input_count ||
        a->output_count != b->output_count || a->buffer_count != b->buffer_count ||
        a->replacement_count != b->replacement_count || a->sure_wave != b->sure_wave || a->slot_count != b->slot_count)
        return false;
    for (int32_t s = 0; s < a->step_count; s++)
        if (!same_step(&a->steps[s], &b->steps[s]))
            return false;
    for (int32_t w = 0; w < a->wave_count; w++)
        if (a->waves[w].first != b->waves[w].first || a->waves[w].count != b->waves[w].count ||
            a->waves[w].phases != b->waves[w].phases)
            return false;
    return same_storage(a, b);
}

/* ---- their polynomials */

/* As it stands in a plan. */
static bool number_at(const opq_polynomial *p, const opq_terms at, int64_t *out)
{
    if (!opq_polynomial_at(p, at, out))
        return false;
    double real = (double)*out;
    if (p->real)
        memcpy(out, &real, sizeof real);
    return !p->real || fabs(real) <= WHOLE_MAX;
}

/* To the whole numbers that they are; false: they are none, or too large for an f32. */
static bool from_reals(int64_t *value, int count)
{
    for (int k = 0; k < count; k++) {
        double real;
        memcpy(&real, &value[k], sizeof real);
        if (!(fabs(real) <= WHOLE_MAX) || real != floor(real))
            return false;
        value[k] = (int64_t)real;
    }
    return true;
}

/* Of those slots that the plan has values for. */
static bool is_real(const opq_plan *plan, int32_t slot)
{
    int32_t i = 0;
    opq_ref n = 0;
    while (plan->slot_source[i] >= 0 || slot-- > 0)
        i++;
    for (;; n++)
        if (opq_node_class(opq_node_at(plan->graph, n)) == OPQ_CLASS_SCALAR && i-- == 0)
            return opq_dtype_kind_of((opq_dtype)opq_node_at(plan->graph, n)->type.dtype) == OPQ_KIND_FLOAT;
}

static bool fit_all(opq_plan_family *f, int64_t **const *at)
{
    int64_t value[OPQ_FAMILY_PLANS];
    int32_t slots = f->count;
    for (int32_t i = 0; i < f->like->slot_count; i++)
        slots -= f->like->slot_source[i] < 0;
    for (int32_t i = 0; i < f->count; i++) {
        bool constant = true;
        for (int k = 0; k < f->points.count; k++)
            constant = (value[k] = *at[k][i]) == value[0] && constant;
        bool real = !constant && i >= slots && is_real(f->like, i - slots);
        if ((real && !from_reals(value, f->points.count)) || !opq_polynomial_fit(&f->points, value, &f->numbers[i]))
            return false;
        f->numbers[i].real = real;
    }
    return true;
}

/* ---- a plan with other numbers */

typedef struct copying {
    opq_step_visitor visitor;
    opq_arena *arena;
    bool failed;
} copying;

static void pass_over(opq_step_visitor *visitor, int64_t *first, int64_t count)
{
    (void)visitor, (void)first, (void)count;
}

static void *copy(opq_step_visitor *visitor, const void *data, int64_t bytes)
{
    copying *c = (copying *)visitor;
    void *made = opq_arena_copy(c->arena, data, (size_t)bytes);
    c->failed = c->failed || (made == NULL && bytes > 0);
    return made;
}

/* Arrays that hold numbers are its own, all others those of `like`. */
static bool copy_arrays(opq_plan *made)
{
    opq_arena *arena = &made->arena;
    made->steps = opq_arena_copy(arena, made->steps, (size_t)made->step_count * sizeof *made->steps);
    made->waves = opq_arena_copy(arena, made->waves, ((size_t)made->wave_count + 1) * sizeof *made->waves);
    made->storage = opq_arena_copy(arena, made->storage, ((size_t)made->storage_count + 1) * sizeof *made->storage);
    made->buffer_bytes =
        opq_arena_copy(arena, made->buffer_bytes, ((size_t)made->buffer_count + 1) * sizeof *made->buffer_bytes);
    made->slot_value = opq_arena_copy(arena, made->slot_value, ((size_t)made->slot_count + 1) * sizeof *made->slot_value);
    bool good = made->steps && made->waves && made->storage && made->buffer_bytes && made->slot_value;
    copying steps = {.visitor = {.sizes = pass_over, .own = copy}, .arena = arena};
    for (int32_t s = 0; s < made->step_count && good; s++) {
        made->steps[s].fresh = false;
        opq_step_visit(&steps.visitor, &made->steps[s]);
        good = !steps.failed;
    }
    for (int32_t w = 0; w < made->wave_count && good; w++) {
        opq_wave *wave = &made->waves[w];
        size_t ends = (size_t)wave->phases * (size_t)wave->count;
        if (wave->ends)
            good = (wave->ends = opq_arena_copy(arena, wave->ends, ends * sizeof *wave->ends)) != NULL;
    }
    return good;
}

/* bytes: that it takes; 0: that is not known. */
static opq_plan *copy_plan(opq_plan *like, size_t bytes)
{
    opq_arena arena = {0};
    if (bytes > 0 && !opq_arena_begin(&arena, bytes))
        return NULL;
    opq_plan *made = opq_arena_copy(&arena, like, sizeof *made);
    if (made == NULL)
        return NULL;
    made->arena = arena;
    atomic_init(&made->refs, 1);
    made->unfused = (opq_unfused){0};
    made->codes = NULL;
    made->compiled = made->loaded = 0;
    made->compile_seconds = 0;
    made->lines = 0;
    made->like = like;
    opq_plan_retain(like);
    if (copy_arrays(made))
        return made;
    opq_plan_release(made);
    return NULL;
}

/* False: no memory. */
static bool find_bytes(opq_plan_family *f)
{
    opq_plan *made = copy_plan(f->like, 0);
    if (made == NULL)
        return false;
    f->bytes = opq_arena_given(&made->arena);
    opq_plan_release(made);
    return true;
}

/* ---- the interface */

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "family of plans: out of memory"); }

bool opq_plan_family_alike(const opq_plan *a, const opq_plan *b)
{
    return opq_plan_family_possible(a) && opq_plan_family_possible(b) && same_but_for_numbers(a, b);
}

/* malloc'd, with the first plan; NULL: no memory. */
static opq_plan_family *new_family(opq_plan *like, const opq_points *points, int32_t count)
{
    opq_plan_family *made = malloc(sizeof *made + (size_t)count * sizeof *made->numbers);
    if (made == NULL)
        return NULL;
    made->points = *points;
    made->count = count;
    made->like = like;
    opq_plan_retain(like);
    return made;
}

opq_status opq_plan_family_make(opq_plan *const *plans, const opq_family_range *range, opq_plan_family **out_family)
{
    int64_t **at[OPQ_FAMILY_PLANS] = {0};
    opq_points points = {.range = *range};
    points.count = opq_plan_family_sizes(range, points.size);
    int32_t count = 0;
    opq_plan_family *made = NULL;
    *out_family = NULL;
    bool taken = points.count > 0;
    for (int k = 0; k < points.count; k++)
        taken = (at[k] = numbers_of(plans[k], &count)) != NULL && taken;
    if (taken)
        made = new_family(plans[0], &points, count);
    bool allocated = made != NULL && find_bytes(made), fits = allocated && fit_all(made, at);
    for (int k = 0; k < points.count; k++)
        free(at[k]);
    if (fits)
        *out_family = made;
    else
        opq_plan_family_drop(made);
    return allocated ? OPQ_OK : out_of_memory();
}

void opq_plan_family_drop(opq_plan_family *family)
{
    if (family == NULL)
        return;
    opq_plan_release(family->like);
    free(family);
}

static bool has_numbers(const opq_plan_family *f, const int64_t *sizes, const opq_plan *plan)
{
    int32_t count;
    int64_t value;
    int64_t **at = numbers_of(plan, &count);
    opq_terms of;
    bool equal = at && count == f->count;
    opq_points_terms(&f->points, sizes, of);
    for (int32_t i = 0; i < f->count && equal; i++)
        equal = number_at(&f->numbers[i], of, &value) && value == *at[i];
    free(at);
    return equal;
}

bool opq_plan_family_has(const opq_plan_family *f, const int64_t *sizes, const opq_plan *plan)
{
    return same_but_for_numbers(f->like, plan) && has_numbers(f, sizes, plan);
}

bool opq_plan_family_contradicts(const opq_plan_family *f, const int64_t *sizes, const opq_plan *plan)
{
    return same_but_for_numbers(f->like, plan) && !has_numbers(f, sizes, plan);
}

opq_status opq_plan_family_plan(const opq_plan_family *f, const int64_t *sizes, opq_plan **out_plan)
{
    int32_t count;
    opq_terms of;
    opq_plan *made = copy_plan(f->like, f->bytes);
    int64_t **at = made ? numbers_of(made, &count) : NULL;
    opq_status status = at ? OPQ_OK : out_of_memory();
    opq_points_terms(&f->points, sizes, of);
    for (int32_t i = 0; at && i < f->count && status == OPQ_OK; i++)
        if (!number_at(&f->numbers[i], of, at[i]))
            status =
                opq_fail(OPQ_UNSUPPORTED, "family of plans: a number at size %lld is too large", (long long)sizes[0]);
    free(at);
    for (int32_t s = 0; status == OPQ_OK && s < made->step_count; s++) {
        opq_step_measure(&made->steps[s]); /* rounds up, as no polynomial does */
        status = opq_step_verify_bounds(made, &made->steps[s]);
    }
    if (status != OPQ_OK)
        opq_plan_release(made);
    else
        *out_plan = made;
    return status;
}
