"""Whole programs in processes of their own: the same one in several ways, which take turns."""

import contextlib
import functools
import json
import os
import select
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field

from .comparison import PEERS
from .progress import progress
from .slips import meant
from .summary import seconds_text, table

_PEERS = ("unfused", "eager", "cpu")
_MODES = {"fused": "planned", "unfused": "unfused", "eager": "eager"}


class Trouble(Exception):
    """No comparison: a program that failed, or a way there is not."""


@dataclass
class Row:
    """One way of running the program. `seconds`: the median of `turns`, of the program without the start of Python; the other
    figures are those of the last turn. `same_bits`: was what it printed the same as that of the fused one?"""

    mode: str
    turns: list = field(default_factory=list)
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    kernels: int = 0
    same_bits: bool = True
    output: str = field(default="", repr=False)

    @property
    def seconds(self) -> float:
        return statistics.median(self.turns)


@dataclass
class Turns:
    """What comparing a program gave. Rows by way, the fused one last."""

    rows: list

    def text(self) -> str:
        fused = self.rows[-1].seconds
        rows = [
            (
                row.mode,
                seconds_text(row.seconds),
                f"{row.seconds / fused:.2f}x",
                seconds_text(row.run_seconds) if row.kernels else "",
                seconds_text(row.compile_seconds) if row.kernels else "",
                row.kernels or "",
                "yes" if row.same_bits else "no",
            )
            for row in self.rows
        ]
        header = ("way", "program", "of fused", "running", "compiling", "kernels", "same output")
        return table(header, rows)

    def to_json(self) -> str:
        rows = [asdict(row) | {"seconds": row.seconds} for row in self.rows]
        return json.dumps({"schema": "opaque.turns", "version": 1, "rows": rows}, indent=1)


class _Input:
    """What comes in on stdin, for each of several processes: read as far as one of them wants it, and kept for the others. A terminal is
    theirs, one after the other."""

    def __init__(self):
        self._known, self._ended = bytearray(), False
        try:
            self._file = sys.stdin.fileno()
            self.shared = not os.isatty(self._file)
        except (AttributeError, OSError, ValueError):  # closed, or none
            self._file, self._ended, self.shared = -1, True, True

    def _more(self, process) -> bool:
        """Reads on. False: there is no more, or nobody who wants it."""
        while not self._ended and process.poll() is None:
            if not select.select([self._file], [], [], 0.05)[0]:
                continue
            found = os.read(self._file, 65536)
            self._known += found
            self._ended = not found
            return bool(found)
        return False

    def feed(self, process, pipe) -> None:
        """Until the process ends or has all of it."""
        place = 0
        with contextlib.suppress(BrokenPipeError), pipe:
            while place < len(self._known) or self._more(process):
                place += os.write(pipe.fileno(), self._known[place : place + 65536])


_input = functools.cache(_Input)


def _process(command: list) -> str:
    """What it printed. Each process has all that came in on stdin."""
    source = _input()
    with subprocess.Popen(
        [sys.executable, "-m", "torch_opaque", *command],
        stdin=subprocess.PIPE if source.shared else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        pipe, process.stdin = process.stdin, None
        feeder = threading.Thread(target=source.feed, args=(process, pipe), daemon=True)
        if source.shared:
            feeder.start()
        stdout, stderr = process.communicate()
    if source.shared:
        feeder.join()
    if process.returncode:
        tail = "\n".join((stderr or stdout).splitlines()[-20:])
        raise Trouble(f"{shlex.join(command)}: exit status {process.returncode}\n{tail}")
    return stdout


def _take_turn(row: Row, options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        command = ["run", "--json", path]
        command += ["--device", "none" if row.mode == "cpu" else options.device]
        command += ["--mode", _MODES[row.mode]] if row.mode in _MODES else []
        command += ["-m"] if options.module else []
        row.output = _process([*command, options.script, *options.arguments])
        with open(path, encoding="utf-8") as file:
            counted = json.load(file)
    row.turns.append(counted["seconds"])
    stats = counted["stats"]
    row.compile_seconds, row.run_seconds = stats["compile_seconds"], stats["run_seconds"]
    row.kernels = stats["kernels_run"]


def compare(options, peers: tuple) -> Turns:
    """Runs the program some times in each way. Raises Trouble."""
    for peer in peers:
        if peer not in _PEERS:
            of_functions = peer in PEERS
            hint = ", or name a function: --function" if of_functions else meant(peer, _PEERS)
            raise Trouble(f"--vs {peer}: expected some of {', '.join(_PEERS)}{hint}")
    rows, repeat = [Row(way) for way in (*peers, "fused")], options.repeat or 3
    with progress() as say:
        for turn in range(1, repeat + 1):
            for row in rows:
                say(f"{row.mode}, turn {turn} of {repeat}")
                _take_turn(row, options)
    for row in rows:
        row.same_bits = row.output == rows[-1].output
    return Turns(rows)


def graph_of(command: str, options) -> str:
    """The fused graph of a script with its arguments, as JSON. Raises Trouble."""
    looked = ["--function", options.function] if options.function else []
    looked += ["--call", str(options.call)] if options.call else []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.json")
        _process(["graph", "--json", path, *looked, *shlex.split(command)])
        with open(path, encoding="utf-8") as file:
            return file.read()
