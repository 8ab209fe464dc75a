/* The caching allocator: alignment, reuse, counting, refusals; buffers outlive the pool's owner. */
#include "tests/support.h"

#include "runtime/memory.h"

#include <pthread.h>

/* AddressSanitizer's own allocator ends the process at a request it finds absurd, unless it is told to answer as the C library does. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

static int make_pool(void **state) { return opq_pool_create((opq_pool **)state) != OPQ_OK; }

static int drop_pool(void **state)
{
    bool empty = opq_pool_live(*state) == 0;
    opq_pool_destroy(*state);
    return !empty;
}

static opq_buffer *buffer_of(opq_pool *pool, size_t bytes)
{
    opq_buffer *buffer = NULL;
    expect_ok(opq_pool_buffer(pool, bytes, &buffer));
    return buffer;
}

static const size_t sizes[] = {
    0, 1, 63, 64, 65, 100, 4096, 4097, 100000, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20, 33 << 20};

static void test_every_size_is_aligned_and_whole(void **state)
{
    for (size_t i = 0; i < COUNT(sizes); i++) {
        opq_buffer *buffer = buffer_of(*state, sizes[i]);
        assert_non_null(buffer->data);
        assert_int_equal((uintptr_t)buffer->data % 64, 0);
        assert_int_equal(buffer->bytes, sizes[i]);
        assert_true(buffer->capacity >= sizes[i]);
        memset(buffer->data, 0x5a, sizes[i]); /* under ASan: all of it is ours */
        opq_buffer_release(buffer);
    }
}

static void test_a_freed_block_is_used_again(void **state)
{
    for (size_t i = 0; i < COUNT(sizes); i++) {
        opq_buffer *first = buffer_of(*state, sizes[i]);
        void *data = first->data;
        opq_buffer_release(first);
        opq_buffer *second = buffer_of(*state, sizes[i]);
        assert_ptr_equal(second->data, data);
        opq_buffer *third = buffer_of(*state, sizes[i]); /* that one is taken now */
        assert_ptr_not_equal(third->data, data);
        opq_buffer_release(second);
        opq_buffer_release(third);
    }
}

static void test_trim_gives_back(void **state)
{
    opq_buffer_release(buffer_of(*state, 100));
    opq_buffer_release(buffer_of(*state, 5 << 20));
    opq_pool_trim(*state);
    opq_pool_trim(*state);
    opq_buffer_release(buffer_of(*state, 5 << 20));
}

static void test_live_and_peak(void **state)
{
    opq_pool *pool = *state;
    opq_buffer *a = buffer_of(pool, 1000), *b = buffer_of(pool, 500);
    assert_int_equal(opq_pool_live(pool), 1500);
    opq_buffer_retain(a);
    opq_buffer_release(a);
    assert_int_equal(opq_pool_live(pool), 1500);
    opq_buffer_release(a);
    assert_int_equal(opq_pool_live(pool), 500);
    assert_int_equal(opq_pool_stats(pool).buffers[OPQ_MEMORY_all].bytes.peak, 1500);
    opq_pool_reset_peak(pool);
    assert_int_equal(opq_pool_stats(pool).buffers[OPQ_MEMORY_all].bytes.peak, 500);
    opq_buffer_release(b);
}

static void test_reserved_is_live_and_cached(void **state)
{
    opq_pool *pool = *state;
    char data[1000];
    opq_buffer *small = buffer_of(pool, 1000), *large = buffer_of(pool, 5 << 20), *adopted = NULL;
    expect_ok(opq_pool_adopt(pool, data, sizeof data, NULL, NULL, &adopted));
    int64_t all = opq_pool_reserved(pool);
    assert_true(all >= opq_pool_live(pool));
    assert_true(all < opq_pool_live(pool) * 2);
    opq_buffer_release(adopted);
    opq_buffer_release(large);
    assert_int_equal(opq_pool_reserved(pool), all - (int64_t)sizeof data);
    opq_buffer_release(buffer_of(pool, 5 << 20)); /* from the cache: nothing is taken */
    assert_int_equal(opq_pool_reserved(pool), all - (int64_t)sizeof data);
    opq_pool_trim(pool);
    assert_int_equal(opq_pool_reserved(pool), 1024);
    assert_int_equal(opq_pool_stats(pool).blocks[OPQ_MEMORY_all].bytes.peak, all);
    opq_pool_reset_peak(pool);
    assert_int_equal(opq_pool_stats(pool).blocks[OPQ_MEMORY_all].bytes.peak, 1024);
    opq_buffer_release(small);
    opq_pool_trim(pool);
    assert_int_equal(opq_pool_reserved(pool), 0);
}

static void test_machine_memory(void **state)
{
    (void)state;
    int64_t available = 0, total = 0;
    opq_machine_memory(&available, &total);
    assert_true(0 < available && available <= total);
}

static void count_drop(void *arg) { ++*(int *)arg; }

static void test_adopted_memory(void **state)
{
    char data[100];
    int dropped = 0;
    opq_buffer *buffer = NULL;
    expect_ok(opq_pool_adopt(*state, data, sizeof data, count_drop, &dropped, &buffer));
    assert_ptr_equal(buffer->data, data);
    assert_int_equal(opq_pool_live(*state), 100);
    opq_buffer_retain(buffer);
    opq_buffer_release(buffer);
    assert_int_equal(dropped, 0);
    opq_buffer_release(buffer);
    assert_int_equal(dropped, 1);
    expect_ok(opq_pool_adopt(*state, NULL, 0, NULL, NULL, &buffer));
    assert_non_null(buffer->data);
    opq_buffer_release(buffer);
}

/* More than the machine has is an error at once; malloc would succeed and the kernel would end the process later. */
static void test_what_cannot_be(void **state)
{
    static const size_t huge[] = {(size_t)1 << 40, (size_t)1 << 49, (size_t)1 << 62, SIZE_MAX};
    opq_buffer *buffer = NULL;
    for (size_t i = 0; i < COUNT(huge); i++) {
        assert_int_equal(opq_pool_buffer(*state, huge[i], &buffer), OPQ_NO_MEMORY);
        assert_null(buffer);
        assert_non_null(strstr(opq_error(), "can't allocate memory"));
    }
    assert_int_equal(opq_pool_check(*state, (int64_t)1 << 40), OPQ_NO_MEMORY);
    assert_int_equal(opq_pool_check(*state, -1), OPQ_NO_MEMORY);
    expect_ok(opq_pool_check(*state, 1 << 20));
    assert_int_equal(opq_pool_live(*state), 0);
}

static void test_a_buffer_outlives_the_owner(void **state)
{
    (void)state;
    opq_pool *pool = NULL;
    expect_ok(opq_pool_create(&pool));
    opq_buffer *buffer = buffer_of(pool, 100);
    opq_pool_destroy(pool);
    memset(buffer->data, 1, 100);
    opq_buffer_release(buffer); /* the pool goes with it: LeakSanitizer looks */
}

static void *churn(void *arg)
{
    opq_pool *pool = arg;
    opq_buffer *held[16] = {0};
    for (int i = 0; i < 4000; i++) {
        opq_buffer_release(held[i % 16]);
        held[i % 16] = NULL;
        if (opq_pool_buffer(pool, (size_t)(i * 37 % 5000), &held[i % 16]) != OPQ_OK)
            return arg;
        memset(held[i % 16]->data, i, held[i % 16]->bytes);
        if (i % 1000 == 0)
            opq_pool_trim(pool);
    }
    for (int i = 0; i < 16; i++)
        opq_buffer_release(held[i]);
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[3];
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, *state), 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(opq_pool_live(*state), 0);
}

static int64_t bytes_of_blocks(opq_pool *pool, int *out_count)
{
    opq_memory_block *blocks = NULL;
    int64_t bytes = 0;
    expect_ok(opq_pool_blocks(pool, &blocks, out_count));
    for (int i = 0; i < *out_count; i++)
        bytes += blocks[i].bytes;
    free(blocks);
    return bytes;
}

static void test_blocks_are_the_live_buffers(void **state)
{
    static char outside[48];
    opq_pool *pool = *state;
    opq_buffer *held[24], *packed = NULL, *adopted = NULL;
    opq_memory_block *blocks = NULL;
    int count;
    for (size_t i = 0; i < COUNT(held); i++)
        held[i] = buffer_of(pool, sizes[i % COUNT(sizes)]);
    expect_ok(opq_pool_cache_buffer(pool, 1000, &packed)); /* is not counted */
    expect_ok(opq_pool_adopt(pool, outside, sizeof outside, NULL, NULL, &adopted));
    assert_int_equal(bytes_of_blocks(pool, &count), opq_pool_live(pool));
    assert_int_equal(count, COUNT(held) + 1);
    opq_buffer_made(adopted, OPQ_OP_input, 7);
    expect_ok(opq_pool_blocks(pool, &blocks, &count));
    assert_ptr_equal(blocks[0].address, outside); /* newest first */
    assert_string_equal(blocks[0].op, "input");
    assert_int_equal(blocks[0].line, 7);
    assert_int_equal(blocks[0].reserved, sizeof outside);
    assert_null(blocks[1].op);
    free(blocks);
    for (size_t i = 0; i < COUNT(held); i += 2) /* the newest, the oldest, and between */
        opq_buffer_release(held[i]);
    opq_buffer_release(adopted);
    assert_int_equal(bytes_of_blocks(pool, &count), opq_pool_live(pool));
    assert_int_equal(count, COUNT(held) / 2);
    for (size_t i = 1; i < COUNT(held); i += 2)
        opq_buffer_release(held[i]);
    opq_buffer_release(packed);
    assert_int_equal(bytes_of_blocks(pool, &count), 0);
    assert_int_equal(count, 0);
}

static void test_scratch(void **state)
{
    (void)state;
    char *small = opq_thread_scratch(100), *same = opq_thread_scratch(50), *large = opq_thread_scratch(1 << 20);
    assert_non_null(small);
    assert_ptr_equal(small, same);
    assert_int_equal((uintptr_t)large % 64, 0);
    memset(large, 1, 1 << 20);
    assert_null(opq_thread_scratch((size_t)1 << 60));
    assert_non_null(opq_thread_scratch(100));
}

static void test_pages_that_cost_least(void **state)
{
    (void)state;
    opq_pages pages = {0};
    const size_t piece = OPQ_HUGE_PAGE;
    assert_int_equal(opq_pages_choose_small(&pages, 3 * piece, 1), 3 * piece); /* to know what they cost */
    pages.touch[0] = 2e-3;
    assert_int_equal(opq_pages_choose_small(&pages, 3 * piece, 1), 0);
    pages.touch[1] = 5e-3;
    size_t small = 0;
    for (pages.mapped = 0; pages.mapped < 160; pages.mapped++)
        small += opq_pages_choose_small(&pages, 3 * piece, 1);
    assert_int_equal(small, (3 * 160 - 10) * piece);
    pages.mapped = 1;
    assert_int_equal(opq_pages_choose_small(&pages, 3 * piece, 2), 3 * piece);
    assert_int_equal(opq_pages_choose_small(&pages, 3 * piece, 3), 0); /* worth it */
    pages.mapped = 160;
    pages.touch[1] = 1e-3;
    for (pages.mapped = 0; pages.mapped < 160; pages.mapped++)
        small -= opq_pages_choose_small(&pages, 3 * piece, 1);
    assert_int_equal(small, (3 * 160 - 20) * piece);
}

/* Small pages become huge ones after some runs, also those of a free block, and nothing of what is in them changes. */
static void test_small_pages_become_huge(void **state)
{
    opq_pool *pool = *state;
    opq_buffer *lasting = buffer_of(pool, 8 << 20), *live, *freed;
    expect_ok(opq_pool_run_buffer(pool, 8 << 20, &live)); /* small: not known yet */
    expect_ok(opq_pool_run_buffer(pool, 3 << 20, &freed));
    assert_int_equal(lasting->small, 0);
    if (live->small == 0)
        skip(); /* a system older than Linux 6.1 */
    assert_int_equal(live->small, 8 << 20);
    int *data = live->data, count = (8 << 20) / (int)sizeof *data;
    for (int i = 0; i < count; i++)
        data[i] = i;
    opq_buffer_release(freed);
    for (int i = 0; i < 4; i++)
        opq_pool_tend(pool, 100); /* the program may have no more runs */
    assert_int_equal(live->small, 8 << 20);
    opq_pool_tend(pool, 100);
    assert_int_equal(live->small, 0);
    for (int i = 0; i < count; i++)
        assert_int_equal(data[i], i);
    opq_pool_tend(pool, 100);
    opq_buffer *again = buffer_of(pool, 3 << 20);
    assert_int_equal(again->small, 0);
    opq_buffer_release(again);
    opq_buffer_release(lasting);
    opq_buffer_release(live);
}

/* Packed copies begin with the pages that cost least, too. */
static void test_small_pages_of_packed_copies(void **state)
{
    opq_pool *pool = *state;
    opq_buffer *owner = buffer_of(pool, 8 << 20), *copy;
    expect_ok(opq_pool_cache_buffer(pool, 3 << 20, &copy));
    if (copy->small == 0) {
        opq_buffer_release(copy);
        opq_buffer_release(owner);
        skip();
    }
    opq_packed_key key = {.from = OPQ_f32, .to = OPQ_f32, .rows = 1024, .columns = 768, .row_stride = 768};
    opq_packed_keep(owner, &key, copy);
    opq_buffer_release(copy); /* the cache has it */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(copy->small, 4 << 20);
        opq_pool_tend(pool, 100);
    }
    assert_int_equal(copy->small, 0);
    opq_buffer_release(owner);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_pool, drop_pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_size_is_aligned_and_whole),
        TEST(test_a_freed_block_is_used_again),
        TEST(test_trim_gives_back),
        TEST(test_live_and_peak),
        TEST(test_reserved_is_live_and_cached),
        TEST(test_machine_memory),
        TEST(test_adopted_memory),
        TEST(test_what_cannot_be),
        TEST(test_a_buffer_outlives_the_owner),
        TEST(test_threads),
        TEST(test_blocks_are_the_live_buffers),
        TEST(test_pages_that_cost_least),
        TEST(test_small_pages_become_huge),
        TEST(test_small_pages_of_packed_copies),
        TEST(test_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
