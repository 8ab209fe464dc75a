"""Times of a plan's launches over the runs that were watched: medians, how far they spread, and the runs in which something else had
the processor."""

import statistics
from collections import deque

KEPT = 255  # runs: the last ones
# A launch that took this many times its median, and so much more, was interrupted.
_TIMES, _SECONDS = 3, 30e-6


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
        seconds = [launch["seconds"] for launch in launches]
        self.times += 1
        (self._cold if planned else self._warm).append(seconds)

    @property
    def runs(self) -> list:
        return list(self._warm if self.warm else self._cold)

    @property
    def warm(self) -> bool:
        return bool(self._warm) and len(self._warm) >= len(self._cold)

    @property
    def each(self) -> float:
        """Of a run: its launches together, the median."""
        return statistics.median(map(sum, self.runs)) if self.runs else 0.0

    def apply(self, launches: list) -> int:
        """Gives launches their medians as `seconds`, the quartiles as `low` and `high`, and `worst`, the longest. Returns how many runs
        were interrupted."""
        runs, interrupted = self.runs, set()
        for i, launch in enumerate(launches):
            found = [run[i] for run in runs]
            middle = statistics.median(found)
            quartiles = statistics.quantiles(found, n=4, method="inclusive") if found[1:] else found
            launch["seconds"], launch["worst"] = middle, max(found)
            launch["low"], launch["high"] = quartiles[0], quartiles[-1]
            most = max(_TIMES * middle, middle + _SECONDS)
            interrupted.update(r for r, seconds in enumerate(found) if seconds > most)
        return len(interrupted)


def worst(launches: list) -> dict:
    """The launch that lost the most time in one run."""
    return max(launches, key=lambda launch: launch["worst"] - launch["seconds"])
