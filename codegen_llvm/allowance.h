/* What a thread may spend on compiling. Whoever plans a graph to save time says how much it may take; a kernel that is in memory or on disk takes none
 * of it. One that would take more than is left is refused, which ends the planning; what was meant for it stays with it, so that graphs of many
 * shapes, each seen a few times, pay together for the kernels that they share.
 *
 * What a kernel will take is foreseen by the bytes of its key, and by what these took lately: off by a factor of two either way for nine of ten.
 */
#ifndef OPAQUE_CODEGEN_ALLOWANCE_H
#define OPAQUE_CODEGEN_ALLOWANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct opq_allowance {
    double seconds; /* left */
    double deposit; /* of these, what may stay with a kernel that is refused */
    double missing; /* what that one takes beyond all this; 0: none was refused */
} opq_allowance;

/* The calling thread's from now on; NULL: it compiles whatever it needs. Returns the one before. */
opq_allowance *opq_compile_limit(opq_allowance *allowance);
/* Does it allow nothing? Then who asks wants to see what is there. */
bool opq_compile_is_look(void);
/* Has it refused a kernel? */
bool opq_compile_refused(void);

enum { OPQ_DEPOSITS = 1024 };
typedef struct opq_prices {
    double seconds_per_byte;
    struct opq_deposit {
        uint64_t key;
        double seconds;
    } deposits[OPQ_DEPOSITS];
} opq_prices;

/* Of a kernel that has to be compiled: true if the calling thread's allowance has paid for it, *out_price seconds. With the JIT's lock held, both. */
bool opq_prices_pay(opq_prices *prices, const void *key, size_t bytes, double *out_price);
/* It took so many seconds, of which the calling thread lost so many (others were compiled at the same time): that is taken in place of its price. It may
 * be more than there was: the allowance is then less than nothing. */
void opq_prices_learn(opq_prices *prices, size_t bytes, double seconds, double price, double lost);

#endif
