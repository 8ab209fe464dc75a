/* Plans of ops for sizes that did not come before. An op on batches of random length has a new key for each length, and planning it takes ten times
 * what running it does. What of its key is no size is its shape; where keys of one shape differ in one size, and in what follows from it, the plans
 * for some of these sizes make a family (runtime/plan_family.h), which has those for all in between.
 *
 * A family is for the sizes between two powers of two, and is made when the third of them comes, from four plans that are built as they would be for
 * these sizes; nothing is compiled for it. One of CHECK_EVERY plans by a family is built as well, and compared.
 */
#define XXH_INLINE_ALL
#include "opaque/sizes.h"
#include "opaque/execution.h"
#include "opaque/log.h"
#include "runtime/plan_family.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SIZES_MAX = 64, SEEN = 8, SHAPES_MAX = 4096, SMALLEST = 17, FAMILIES_MAX = 32, CHECK_EVERY = 64 };

typedef struct family {
    struct family *next;
    int64_t low, high;
    opq_plan_family *plans; /* NULL: there is none */
    struct line {
        int64_t times, plus; /* each size is so many times the one that varies, and so much more */
    } of[];
} family;

typedef struct opq_shape {
    struct opq_shape *next;
    uint64_t hash;
    int count, seen_count;
    int64_t *seen; /* [SEEN][count], the last ones */
    family *families;
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

static void note_seen(instance *it)
{
    shape *s = it->of;
    memcpy(s->seen + (size_t)(s->seen_count++ % SEEN) * (size_t)s->count, it->sizes, (size_t)s->count * sizeof *s->seen);
}

/* ---- families */

/* Are these sizes of the family, for any range? out_size: the one that varies. */
static bool is_of(const family *f, const int64_t *sizes, int count, int64_t *out_size)
{
    bool found = false;
    for (int i = 0; i < count; i++) {
        int64_t times = f->of[i].times, rest = sizes[i] - f->of[i].plus;
        if (times == 0 ? rest != 0 : rest % times != 0 || (found && rest / times != *out_size))
            return false;
        if (times != 0)
            *out_size = rest / times;
        found = found || times != 0;
    }
    return found;
}

static bool is_in(const family *f, int64_t size) { return size >= f->low && size <= f->high; }

static family *find_family(const instance *it, int64_t *out_size)
{
    for (family *f = it->of->families; f; f = f->next)
        if (is_of(f, it->sizes, it->of->count, out_size) && is_in(f, *out_size))
            return f;
    return NULL;
}

/* What two instances have in common: one size that varies, the least of those that do, and others that follow it. False: there are several. */
static bool relate(const int64_t *a, const int64_t *b, int count, family *out)
{
    int64_t least = INT64_MAX, other = 0, size;
    for (int i = 0; i < count; i++)
        if (a[i] != b[i] && a[i] < least) {
            least = a[i];
            other = b[i];
        }
    if (least < SMALLEST || least == INT64_MAX || (least & (least - 1)) == 0)
        return false;
    for (int i = 0; i < count; i++) {
        if ((a[i] - b[i]) % (least - other) != 0)
            return false;
        out->of[i].times = (a[i] - b[i]) / (least - other);
        out->of[i].plus = a[i] - out->of[i].times * least;
    }
    for (out->low = SMALLEST; 2 * out->low - 1 <= least;)
        out->low = 2 * out->low - 1;
    out->high = 2 * out->low - 3;
    return is_of(out, b, count, &size) && size == other;
}

/* How many sizes in its range were seen. */
static int count_seen(const shape *s, const family *f)
{
    int64_t found[SEEN], size;
    int count = 0;
    for (int i = 0; i < SEEN && i < s->seen_count; i++) {
        if (!is_of(f, s->seen + (size_t)i * (size_t)s->count, s->count, &size) || !is_in(f, size))
            continue;
        bool known = false;
        for (int k = 0; k < count; k++)
            known = known || found[k] == size;
        if (!known)
            found[count++] = size;
    }
    return count;
}

static bool is_prime(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return false;
    return true;
}

static int64_t next_prime(const instance *it, int64_t from)
{
    for (;; from++) {
        bool taken = !is_prime(from);
        for (int i = 0; i < it->of->count && !taken; i++)
            taken = it->sizes[i] == from;
        if (!taken)
            return from;
    }
}

/* The plan for another size; NULL: there is none, or it would have to be compiled. */
static opq_plan *plan_at(const instance *it, const family *f, int64_t size)
{
    int64_t sizes[SIZES_MAX], taken[SIZES_MAX];
    int count = it->of->count;
    for (int i = 0; i < count; i++)
        sizes[i] = f->of[i].times * size + f->of[i].plus;
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

/* Of the plans for four sizes, and that of this instance, which was built. */
static opq_status make_plans(const instance *it, int64_t size, family *f)
{
    int64_t third = (f->high - f->low) / 3, at[OPQ_FAMILY_PLANS] = {f->low, next_prime(it, f->low + third), 0, f->high};
    at[2] = next_prime(it, at[1] + third);
    opq_plan *plans[OPQ_FAMILY_PLANS] = {0};
    opq_status status = OPQ_OK;
    bool all = at[2] < at[3] && opq_plan_family_possible(it->p->plan);
    for (int k = 0; k < OPQ_FAMILY_PLANS && all; k++)
        all = (plans[k] = plan_at(it, f, at[k])) != NULL;
    if (all)
        status = opq_plan_family_make(plans, at, &f->plans);
    for (int k = 0; k < OPQ_FAMILY_PLANS; k++)
        opq_plan_release(plans[k]);
    if (f->plans && !opq_plan_family_has(f->plans, size, it->p->plan)) {
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
    int64_t size;
    if (made == NULL)
        return out_of_memory();
    memcpy(made, like, bytes);
    made->plans = NULL;
    drop_oldest(it->of);
    made->next = it->of->families;
    it->of->families = made;
    if (!is_of(made, it->sizes, it->of->count, &size))
        return OPQ_OK;
    OPQ_TRY(make_plans(it, size, made));
    sizes->families += made->plans != NULL;
    return OPQ_OK;
}

/* A plan was built, which no family has. */
static opq_status learn(opq_sizes *sizes, instance *it)
{
    enum { ENOUGH = 2 };
    _Alignas(family) char room[sizeof(family) + SIZES_MAX * sizeof(struct line)];
    family *like = (family *)room;
    const shape *s = it->of;
    for (int i = 0; i < SEEN && i < s->seen_count; i++)
        if (relate(it->sizes, s->seen + (size_t)i * (size_t)s->count, s->count, like) && count_seen(s, like) >= ENOUGH) {
            OPQ_TRY(make_family(sizes, it, like));
            break;
        }
    note_seen(it);
    return OPQ_OK;
}

/* ---- the interface */

/* It is dropped; where all are compared it is an error. */
static opq_status refuse(const opq_execution *p, family *f, int64_t size)
{
    opq_plan_family_drop(f->plans);
    f->plans = NULL;
    opq_log("plan: a family of plans had a wrong one for size %lld, which is a bug; it is dropped", (long long)size);
    return p->runner->ctx->tiers.mode == OPQ_TIERS_random
               ? opq_fail(OPQ_INTERNAL, "a family of plans is wrong at size %lld", (long long)size)
               : OPQ_OK;
}

static opq_status compare(opq_sizes *sizes, opq_execution *p, family *f, int64_t size)
{
    OPQ_TRY(opq_execution_build(p));
    sizes->compared++;
    return opq_plan_family_contradicts(f->plans, size, p->plan) ? refuse(p, f, size) : OPQ_OK;
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

static opq_status write_plan(opq_sizes *sizes, opq_execution *p, family *f, int64_t size)
{
    opq_ctx *ctx = p->runner->ctx;
    bool always = ctx->tiers.mode == OPQ_TIERS_random;
    sizes->written++;
    if (always || sizes->written % CHECK_EVERY == 0)
        OPQ_TRY(compare(sizes, p, f, size));
    if (f->plans == NULL || (p->plan && !always))
        return OPQ_OK;
    opq_plan_release(p->plan);
    p->plan = NULL;
    if (opq_plan_family_plan(f->plans, size, &p->plan) != OPQ_OK)
        return opq_execution_build(p);
    if (!suits(p->plan, p->snapshot)) {
        opq_plan_release(p->plan);
        p->plan = NULL;
        OPQ_TRY(refuse(p, f, size));
        return opq_execution_build(p);
    }
    opq_plan_cache_keep(ctx->plans, p->snapshot->key, p->snapshot->key_bytes, p->plan);
    return OPQ_OK;
}

/* Who looks at a plan sees the graph that it was built from. */
static bool is_looked_at(const opq_execution *p)
{
    return p->runner->watched || p->runner->recorder || opq_modes_get() & OPQ_MODE_UNFUSED ||
           opq_logs(OPQ_LOG_flush, OPQ_LOG_DEBUG) || opq_logs(OPQ_LOG_plan, OPQ_LOG_DEBUG);
}

opq_status opq_sizes_build(opq_sizes *sizes, opq_execution *p)
{
    instance it;
    int64_t size;
    if (is_looked_at(p))
        return opq_execution_build(p);
    OPQ_TRY(find_shape(sizes, p, &it));
    if (it.of == NULL)
        return opq_execution_build(p);
    family *f = find_family(&it, &size);
    if (f && f->plans)
        return write_plan(sizes, p, f, size);
    OPQ_TRY(opq_execution_build(p));
    return f ? OPQ_OK : learn(sizes, &it);
}
