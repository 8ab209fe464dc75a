"""Times of a plan's launches over the runs that were watched: medians, how far they spread, and the runs in which something else had
the processor."""

import statistics
from collections import deque

KEPT = 255  # runs: the last ones
# A launch that took this many times as long as it was at work, and so much more, was interrupted. Of an extern call, whose threads are
# not watched: this many times what its second fastest run took.
_TIMES, _SECONDS = 1.5, 30e-6


def signature(launches: list) -> tuple:
    """What launches of one plan have in common."""
    return tuple((launch["name"], launch["shape"]) for launch in launches)


class Samples:
    """Seconds of each launch, run by run, of runs that launch the same. A run that was planned touches its code and memory first: such count
    only where most runs are, as where each takes another part of a tensor."""

    def __init__(self):
        self._cold, self._warm = deque(maxlen=KEPT), deque(maxlen=KEPT)
        self.times = 0

    def add(self, launches: list, planned: bool) -> None:
        self.times += 1
        (self._cold if planned else self._warm).append(list(map(_times, launches)))

    @property
    def runs(self) -> list:
        return list(self._warm if self.warm else self._cold)

    @property
    def warm(self) -> bool:
        return bool(self._warm) and len(self._warm) >= len(self._cold)

    @property
    def each(self) -> float:
        """Of a run: its launches together, the median."""
        times = [sum(work for work, _ in run) for run in self.runs]
        return statistics.median(times) if times else 0.0

    def apply(self, launches: list) -> int:
        """Gives launches their medians as `seconds`, the quartiles as `low` and `high`, and `worst`, the longest by the clock. Of a launch
        that was interrupted counts what it was at work. Returns how many runs were interrupted."""
        runs, interrupted = self.runs, set()
        for i, launch in enumerate(launches):
            found = [run[i] for run in runs]
            if launch["kind"] == "extern":
                usual = sorted(clock for _, clock in found)[:2][-1]
                odd = [_is_interrupted(clock, usual) for _, clock in found]
                kept = [clock for (_, clock), was in zip(found, odd, strict=True) if not was]
            else:
                odd, kept = [work < clock for work, clock in found], [work for work, _ in found]
            quartiles = statistics.quantiles(kept, n=4, method="inclusive") if kept[1:] else kept
            launch["seconds"] = statistics.median(kept)
            launch["low"], launch["high"] = quartiles[0], quartiles[-1]
            launch["worst"] = max(clock for _, clock in found)
            interrupted.update(run for run, was in enumerate(odd) if was)
        return len(interrupted)


def _is_interrupted(clock: float, usual: float) -> bool:
    return clock > max(_TIMES * usual, usual + _SECONDS)


def _times(launch: dict) -> tuple:
    """(seconds at work, seconds by the clock), the same if nothing interrupted it."""
    clock, busy = launch["seconds"], launch["busy"]
    return busy if launch["kind"] != "extern" and _is_interrupted(clock, busy) else clock, clock


def worst(launches: list) -> dict:
    """The launch that lost the most time in one run."""
    return max(launches, key=lambda launch: launch["worst"] - launch["seconds"])
