/* Plans of ops for sizes that did not come before. An op on batches of random length has a new key for each length, and planning it takes ten times
 * what running it does. What of its key is no size is its shape; where keys of one shape differ in one size or in two, and in what follows from these,
 * the plans for some of these sizes make a family (runtime/plan_family.h), which has those for all in between.
 *
 * A family is made when the third size comes, or the fifth pair of sizes, from plans that are built as they would be for these; nothing is compiled
 * for it. It is for all sizes up to some thousands if the plans for the ends of that range are alike, else for those between two powers of two, as it is
 * for small ones. One of
 * CHECK_EVERY plans by a family is built as well, and compared.
 */
#define XXH_INLINE_ALL
#include "opaque/sizes.h"
#include "opaque/execution.h"
#include "opaque/log.h"
#include "runtime/plan_family.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    SIZES_MAX = 64,
    SEEN = 8,
    SHAPES_MAX = 4096,
    SMALLEST = 9,
    WIDE_FROM = 17,
    WIDE = 2048,
    FAMILIES_MAX = 32,
    CHECK_EVERY = 64
};
enum { LARGE = 1 << 29, VARYING_MAX = 1 << 20, TIMES_MAX = 1 << 20 }; /* or numbers of a line are too large */

typedef struct family {
    struct family *next;
    opq_family_range range;   /* of the sizes that vary */
    int at[OPQ_FAMILY_SIZES]; /* which they are */
    opq_plan_family *plans;   /* NULL: there is none */
    struct line { /* each size is so many times those that vary and so much more, or so many times their product: a square where one varies */
        int64_t times[OPQ_FAMILY_SIZES], product, plus;
    } of[];
} family;

typedef struct opq_shape {
    struct opq_shape *next;
    uint64_t hash;
    int count, seen_count;
    int64_t *seen; /* [SEEN][count], the last ones */
    family *families;
    bool narrow; /* plans for sizes far apart are not alike */
    size_t bytes;
    unsigned char text[]; /* a key without its sizes */
} shape;

typedef struct instance {
    const opq_execution *p;
    shape *of;
    int64_t sizes[SIZES_MAX];
} instance;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory for plans of other sizes"); }

/* ---- shapes */

static void drop_family(family *f)
{
    opq_plan_family_drop(f->plans);
    free(f);
}

static void drop_shape(shape *s)
{
    for (family *f = s->families, *next; f; f = next) {
        next = f->next;
        drop_family(f);
    }
    free(s->seen);
    free(s);
}

void opq_sizes_forget(opq_sizes *sizes)
{
    for (int i = 0; i < OPQ_SIZES_BUCKETS; i++)
        for (shape *s = sizes->shapes[i], *next; s; s = next) {
            next = s->next;
            drop_shape(s);
        }
    *sizes = (opq_sizes){0};
}

static shape *new_shape(uint64_t hash, const unsigned char *text, size_t bytes, int count)
{
    shape *made = malloc(sizeof *made + bytes);
    if (made == NULL)
        return NULL;
    *made =
        (shape){.hash = hash, .count = count, .bytes = bytes, .seen = malloc(SEEN * (size_t)count * sizeof *made->seen)};
    memcpy(made->text, text, bytes);
    if (made->seen)
        return made;
    free(made);
    return NULL;
}

static shape *look_up(opq_sizes *sizes, const unsigned char *text, size_t bytes, int count)
{
    uint64_t hash = XXH3_64bits(text, bytes);
    shape **first = &sizes->shapes[hash % OPQ_SIZES_BUCKETS];
    for (shape *s = *first; s; s = s->next)
        if (s->hash == hash && s->bytes == bytes && memcmp(s->text, text, bytes) == 0)
            return s;
    if (sizes->count == SHAPES_MAX)
        opq_sizes_forget(sizes);
    shape *made = new_shape(hash, text, bytes, count);
    if (made == NULL)
        return NULL;
    made->next = *first;
    *first = made;
    sizes->count++;
    return made;
}

/* out_instance->of NULL: no shape is kept of it. */
static opq_status find_shape(opq_sizes *sizes, const opq_execution *p, instance *out_instance)
{
    const opq_snapshot *s = p->snapshot;
    unsigned char *text = opq_room_take(s->room, s->key_bytes);
    if (text == NULL)
        return out_of_memory();
    out_instance->p = p;
    memcpy(text, s->key, s->key_bytes);
    int count = opq_key_take_sizes(text, out_instance->sizes, SIZES_MAX);
    out_instance->of = count > 0 ? look_up(sizes, text, s->key_bytes, count) : NULL;
    return OPQ_OK;
}

static int64_t *seen_at(const shape *s, int i) { return s->seen + (size_t)i * (size_t)s->count; }

static void note_seen(instance *it)
{
    shape *s = it->of;
    memcpy(seen_at(s, s->seen_count++ % SEEN), it->sizes, (size_t)s->count * sizeof *s->seen);
}

/* ---- families */

static bool is_beyond(int64_t size, int64_t most) { return size > most || size < -most; }

static int64_t size_at(const family *f, int i, const int64_t *varying)
{
    const struct line *line = &f->of[i];
    int64_t size = line->plus, product = varying[0] * varying[f->range.count - 1];
    for (int k = 0; k < f->range.count; k++)
        size += line->times[k] * varying[k];
    return size + line->product * product;
}

/* Are these sizes of the family, for any range? */
static bool is_of(const family *f, const int64_t *sizes, int count, int64_t *out_varying)
{
    for (int k = 0; k < f->range.count; k++)
        if (is_beyond(out_varying[k] = sizes[f->at[k]], VARYING_MAX))
            return false;
    for (int i = 0; i < count; i++)
        if (size_at(f, i, out_varying) != sizes[i])
            return false;
    return true;
}

static bool is_in(const family *f, const int64_t *varying)
{
    for (int k = 0; k < f->range.count; k++)
        if (varying[k] < f->range.low[k] || varying[k] > f->range.high[k])
            return false;
    return true;
}

static family *find_family(const instance *it, int64_t *out_varying)
{
    for (family *f = it->of->families; f; f = f->next)
        if (is_of(f, it->sizes, it->of->count, out_varying) && is_in(f, out_varying))
            return f;
    return NULL;
}

static bool is_small(int64_t size) { return size < WIDE_FROM; }

/* Of sizes up to a power of two, from the one before or from the smallest that are not small on; the second of two begins and ends elsewhere than the first, so that
 * plans for ends of both have no two equal sizes. False: it is for none of these. */
static bool find_range(family *f, const int64_t *sizes, bool wide)
{
    for (int k = 0; k < f->range.count; k++) {
        int64_t size = sizes[f->at[k]], low = SMALLEST - 1;
        bool from_first = wide && !is_small(size);
        while (2 * low <= size || (from_first && 2 * low < WIDE))
            low *= 2;
        f->range.low[k] = (from_first ? WIDE_FROM : low + 1) + k;
        f->range.high[k] = 2 * low - 1 - k;
        if (size < f->range.low[k] || size > f->range.high[k])
            return false;
    }
    return true;
}

static int seen_count(const shape *s) { return s->seen_count < SEEN ? s->seen_count : SEEN; }

/* The least of the sizes that differ, and by what does not follow from how `of` differs, of those that are not too small; -1: there is none. */
static int least_apart(const instance *it, const int64_t *b, const int64_t *c, int of)
{
    const int64_t *a = it->sizes;
    int found = -1;
    for (int i = 0; i < it->of->count; i++) {
        bool apart =
            of < 0 ? a[i] != b[i] || a[i] != c[i] : (a[i] - b[i]) * (a[of] - c[of]) != (a[i] - c[i]) * (a[of] - b[of]);
        if (apart && a[i] >= SMALLEST && (found < 0 || a[i] < a[found]))
            found = i;
    }
    return found;
}

/* How many times the product of those that vary a size is; 0: it is not in all of them. */
static int64_t product_of(const int64_t *const of[3], const family *f, int i)
{
    int64_t times = 0;
    for (int k = 0; k < 3; k++) {
        int64_t size = of[k][i], product = of[k][f->at[0]] * of[k][f->at[f->range.count - 1]];
        if (product == 0 || size % product != 0 || (k > 0 && size / product != times))
            return 0;
        times = size / product;
    }
    return times;
}

/* Each size by those that vary, as these two or three instances have them. False: by no whole numbers. */
static bool find_lines(const instance *it, const int64_t *b, const int64_t *c, family *f)
{
    const int64_t *a = it->sizes;
    int p = f->at[0], q = f->at[f->range.count - 1];
    bool one = f->range.count == 1;
    int64_t by = one ? a[p] - b[p] : (a[p] - b[p]) * (a[q] - c[q]) - (a[p] - c[p]) * (a[q] - b[q]);
    for (int i = 0; i < it->of->count; i++) {
        struct line *line = &f->of[i];
        int64_t d = a[i] - b[i], e = a[i] - c[i];
        int64_t first = one ? d : d * (a[q] - c[q]) - e * (a[q] - b[q]),
                second = one ? 0 : (a[p] - b[p]) * e - (a[p] - c[p]) * d;
        *line = (struct line){.product = product_of((const int64_t *const[]){a, b, c}, f, i)};
        if (line->product != 0)
            continue;
        if (first % by != 0 || second % by != 0)
            return false;
        *line = (struct line){.times = {first / by, second / by}};
        if (is_beyond(line->times[0], TIMES_MAX) || is_beyond(line->times[1], TIMES_MAX))
            return false;
        line->plus = a[i] - line->times[0] * a[p] - (one ? 0 : line->times[1] * a[q]);
    }
    return true;
}

/* What instances have in common: the sizes that vary, the least of those that do, and others that follow them. c: b again, where one varies. */
static bool relate(const instance *it, const int64_t *b, const int64_t *c, family *out)
{
    for (int i = 0; i < it->of->count; i++)
        if (is_beyond(it->sizes[i], LARGE) || is_beyond(b[i], LARGE) || is_beyond(c[i], LARGE))
            return false;
    out->range.count = b == c ? 1 : 2;
    for (int k = 0; k < out->range.count; k++) {
        int64_t size = (out->at[k] = least_apart(it, b, c, k == 0 ? -1 : out->at[0])) < 0 ? 0 : it->sizes[out->at[k]];
        if (size > VARYING_MAX / 2 || (size & (size - 1)) == 0)
            return false;
    }
    return find_lines(it, b, c, out) && find_range(out, it->sizes, !it->of->narrow);
}

/* How many different sizes in its range were seen. */
static int count_seen(const shape *s, const family *f)
{
    int64_t found[SEEN][OPQ_FAMILY_SIZES];
    int count = 0;
    for (int i = 0; i < seen_count(s); i++) {
        int64_t *at = found[count];
        if (!is_of(f, seen_at(s, i), s->count, at) || !is_in(f, at))
            continue;
        bool known = false;
        for (int k = 0; k < count; k++)
            known = known || memcmp(found[k], at, (size_t)f->range.count * sizeof *at) == 0;
        count += !known;
    }
    return count;
}

/* The plan for other sizes; NULL: there is none, or it would have to be compiled. */
static opq_plan *plan_at(const instance *it, const family *f, const int64_t *varying)
{
    int64_t sizes[SIZES_MAX], taken[SIZES_MAX];
    int count = it->of->count;
    for (int i = 0; i < count; i++)
        sizes[i] = size_at(f, i, varying);
    opq_execution p = *it->p;
    opq_snapshot resized;
    p.plan = NULL;
    if (opq_snapshot_resized(it->p->snapshot, sizes, &resized) != OPQ_OK || resized.key_bytes != it->of->bytes ||
        opq_key_take_sizes(resized.key, taken, SIZES_MAX) != count ||
        memcmp(taken, sizes, (size_t)count * sizeof *sizes) != 0 || memcmp(resized.key, it->of->text, it->of->bytes) != 0)
        return NULL;
    p.snapshot = &resized;
    return opq_execution_try(&p) == OPQ_OK ? p.plan : NULL;
}

/* Of plans for sizes in the range, and that of this instance, which was built. */
static opq_status make_plans(const instance *it, const int64_t *varying, family *f)
{
    int64_t at[OPQ_FAMILY_PLANS][OPQ_FAMILY_SIZES];
    opq_plan *plans[OPQ_FAMILY_PLANS] = {0};
    int count = opq_plan_family_sizes(&f->range, at);
    opq_status status = OPQ_OK;
    bool all = count > 0;
    for (int k = 0; k < count && all; k++)
        all = (plans[k] = plan_at(it, f, at[k])) != NULL && opq_plan_family_alike(plans[k], it->p->plan);
    if (all)
        status = opq_plan_family_make(plans, &f->range, &f->plans);
    for (int k = 0; k < count; k++)
        opq_plan_release(plans[k]);
    if (f->plans && !opq_plan_family_has(f->plans, varying, it->p->plan)) {
        opq_plan_family_drop(f->plans);
        f->plans = NULL;
    }
    return status;
}

/* Sizes that change by themselves, each at random, are in one line for a while by chance, again and again. */
static void drop_oldest(shape *s)
{
    family **last = &s->families;
    int count = 1;
    if (*last == NULL)
        return;
    for (; (*last)->next; count++)
        last = &(*last)->next;
    if (count < FAMILIES_MAX)
        return;
    drop_family(*last);
    *last = NULL;
}

static opq_status make_family(opq_sizes *sizes, const instance *it, const family *like)
{
    size_t bytes = sizeof *like + (size_t)it->of->count * sizeof *like->of;
    family *made = malloc(bytes);
    int64_t varying[OPQ_FAMILY_SIZES];
    if (made == NULL)
        return out_of_memory();
    memcpy(made, like, bytes);
    made->plans = NULL;
    drop_oldest(it->of);
    made->next = it->of->families;
    it->of->families = made;
    if (!is_of(made, it->sizes, it->of->count, varying) || !opq_plan_family_possible(it->p->plan))
        return OPQ_OK;
    OPQ_TRY(make_plans(it, varying, made));
    if (made->plans == NULL && !it->of->narrow && !is_small(made->range.low[0])) {
        it->of->narrow = true;
        if (find_range(made, it->sizes, false))
            OPQ_TRY(make_plans(it, varying, made));
    }
    sizes->families += made->plans != NULL;
    return OPQ_OK;
}

/* Do enough of those that were seen say that one size varies, or two? */
static bool find_relation(const instance *it, family *out)
{
    enum { ENOUGH = 2, ENOUGH_OF_TWO = 4 };
    const shape *s = it->of;
    for (int i = 0; i < seen_count(s); i++)
        if (relate(it, seen_at(s, i), seen_at(s, i), out) && count_seen(s, out) >= ENOUGH)
            return true;
    for (int i = 1; i < ENOUGH_OF_TWO && seen_count(s) >= ENOUGH_OF_TWO; i++)
        if (relate(it, seen_at(s, i), seen_at(s, 0), out) && count_seen(s, out) >= ENOUGH_OF_TWO)
            return true;
    return false;
}

/* A plan was built, which no family has. */
static opq_status learn(opq_sizes *sizes, instance *it)
{
    _Alignas(family) char room[sizeof(family) + SIZES_MAX * sizeof(struct line)];
    family *like = (family *)room;
    if (find_relation(it, like))
        OPQ_TRY(make_family(sizes, it, like));
    note_seen(it);
    return OPQ_OK;
}

/* ---- the interface */

/* It is dropped; where all are compared it is an error. */
static opq_status refuse(const opq_execution *p, family *f, const int64_t *varying)
{
    opq_plan_family_drop(f->plans);
    f->plans = NULL;
    opq_log("plan: a family of plans had a wrong one for size %lld, which is a bug; it is dropped",
            (long long)varying[0]);
    return p->runner->ctx->tiers.mode == OPQ_TIERS_random
               ? opq_fail(OPQ_INTERNAL, "a family of plans is wrong at size %lld", (long long)varying[0])
               : OPQ_OK;
}

static opq_status compare(opq_sizes *sizes, opq_execution *p, family *f, const int64_t *varying)
{
    OPQ_TRY(opq_execution_build(p));
    sizes->compared++;
    return opq_plan_family_contradicts(f->plans, varying, p->plan) ? refuse(p, f, varying) : OPQ_OK;
}

/* Does it take and give what the snapshot has? That much is known without building it. */
static bool suits(const opq_plan *plan, const opq_snapshot *s)
{
    for (int32_t i = 0; i < plan->storage_count; i++)
        if (plan->storage[i].home == OPQ_HOME_input &&
            plan->storage[i].bytes != opq_type_bytes(opq_snapshot_leaf_type(s, plan->storage[i].index)))
            return false;
    for (int32_t i = 0; i < plan->output_count; i++)
        if (plan->storage[plan->output_storage[i]].bytes != opq_type_bytes(&opq_snapshot_output(s, i)->type))
            return false;
    return true;
}

static opq_status write_plan(opq_sizes *sizes, opq_execution *p, family *f, const int64_t *varying)
{
    opq_ctx *ctx = p->runner->ctx;
    bool always = ctx->tiers.mode == OPQ_TIERS_random;
    sizes->written++;
    if (always || sizes->written % CHECK_EVERY == 0)
        OPQ_TRY(compare(sizes, p, f, varying));
    if (f->plans == NULL || (p->plan && !always))
        return OPQ_OK;
    opq_plan_release(p->plan);
    p->plan = NULL;
    if (opq_plan_family_plan(f->plans, varying, &p->plan) != OPQ_OK)
        return opq_execution_build(p);
    if (!suits(p->plan, p->snapshot)) {
        opq_plan_release(p->plan);
        p->plan = NULL;
        OPQ_TRY(refuse(p, f, varying));
        return opq_execution_build(p);
    }
    opq_plan_cache_keep(ctx->plans, p->snapshot->key, p->snapshot->key_bytes, p->plan);
    return OPQ_OK;
}

opq_status opq_sizes_build(opq_sizes *sizes, opq_execution *p)
{
    instance it;
    int64_t varying[OPQ_FAMILY_SIZES];
    if (opq_execution_is_looked_at(p))
        return opq_execution_build(p);
    OPQ_TRY(find_shape(sizes, p, &it));
    if (it.of == NULL)
        return opq_execution_build(p);
    family *f = find_family(&it, varying);
    if (f && f->plans)
        return write_plan(sizes, p, f, varying);
    OPQ_TRY(opq_execution_build(p));
    return f ? OPQ_OK : learn(sizes, &it);
}
