"""Timing several ways of running one function: in turns, so that a machine that is busy for a while is it for all of them.

What is timed is a loop as anyone would write it: the result is held until the next one is there, the garbage collector is on,
nothing else happens in it."""

import math
import random
import statistics
import time
from dataclasses import dataclass

BLOCK_SECONDS = 1e-3  # of a sample: shorter calls are repeated
TURN_SECONDS = 0.02
LEAST_TURNS = 6  # fewer have no interval of 95 %


@dataclass
class Spread:
    """A median with its interval of 95 % confidence: order statistics, of no assumption but that samples are independent.
    Fewer than 6 samples have none: their least and greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: list) -> "Spread":
        found, n = sorted(samples), len(samples)
        # The true median lies outside of [found[k], found[-1 - k]] with probability 2 P(Binomial(n, 1/2) <= k).
        k, below = 0, 1 + n
        while 2 * below <= 0.05 * 2**n:
            k, below = k + 1, below + math.comb(n, k + 2)
        return cls(statistics.median(found), found[k], found[n - 1 - k])


def loop(fn, args: tuple, wait, count: int) -> float:
    """Seconds of `count` calls."""
    begin = time.perf_counter()
    for _ in range(count):
        result = fn(*args)  # noqa: F841  what nobody holds is not computed
        wait()
    return time.perf_counter() - begin


def _sample(way) -> float:
    """Seconds of a call: the median of some blocks, after calls that warm up."""
    way.loop(2)
    one = way.loop(1)
    count = max(1, math.ceil(BLOCK_SECONDS / max(one, 1e-9)))
    end = time.perf_counter() + TURN_SECONDS - one
    blocks = [one] if one >= TURN_SECONDS else []
    while not blocks or time.perf_counter() < end:
        blocks.append(way.loop(count) / count)
    return statistics.median(blocks)


def take_turns(ways: list, turns: int, seconds: float, say) -> dict:
    """Seconds of a call of each turn, by name. A way has `name`, `loop(count)` and `turn()`, a context in which it runs and behind
    which all is as before. After `seconds` there are no more turns than an interval needs."""
    times, order, draw = {way.name: [] for way in ways}, list(ways), random.Random(0)
    end = time.perf_counter() + seconds
    for i in range(turns):
        if i >= LEAST_TURNS and time.perf_counter() > end:
            break
        draw.shuffle(order)
        for way in order:
            say(f"timing {way.name}, turn {i + 1} of {turns}")
            with way.turn():
                times[way.name].append(_sample(way))
    return times
