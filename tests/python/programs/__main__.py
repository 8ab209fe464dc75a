"""Runs many programs of a kind in worker processes, shrinks what fails and writes it down.

    ./dev python tests/python/programs nets 0:2000 [--out DIR] [--jobs 1] [--no-shrink]

A worker that dies or hangs costs the program it was at, which is a failure; the next worker goes on behind it.
"""

import argparse
import importlib
import os
import subprocess
import sys
import threading
import time

if __package__ in (None, ""):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = "programs"
    import programs  # noqa: F401


def load(kind: str):
    return importlib.import_module(f"programs.{kind}")


def work(options) -> None:
    """In a worker: a line "begin N" before each program, and after it "good N" or "bad N" with what is wrong."""
    import torch

    torch.set_num_threads(options.threads)
    kind = load(options.kind)
    for seed in range(options.first, options.end):
        print(f"begin {seed}", flush=True)
        try:
            program = kind.write(seed)
            found = kind.check(program)
        except Exception as error:
            import traceback

            traceback.print_exc()
            print(f"bad {seed} generator: {error!r}".replace("\n", " "), flush=True)
            continue
        if found and options.shrink:
            from programs.shrink import shrink
            from programs.testing import alike

            deadline = time.monotonic() + options.limit / 3

            def same(p):
                return time.monotonic() < deadline and alike(kind.check(p), found)

            try:
                program = shrink(program, same)
            except Exception as error:
                print("shrink failed:", repr(error), file=sys.stderr)
        if found:
            write_down(options.out, options.kind, seed, program, found)
        print(f"{'bad' if found else 'good'} {seed} {found}".replace("\n", " "), flush=True)


def write_down(folder, kind, seed, program, found) -> None:
    if folder:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{kind}_{seed}.py"), "w") as file:
            file.write(program.script(f"{kind} {seed}: {found}"))


class Sweep:
    """Seeds handed to worker processes, in order."""

    def __init__(self, options):
        self.options, self.next, self.lock = options, options.first, threading.Lock()
        self.good, self.bad = 0, []

    def block(self) -> tuple:
        with self.lock:
            first = self.next
            self.next = min(first + 250, self.options.end)
            return first, self.next

    def run(self) -> None:
        threads = [threading.Thread(target=self.lane) for _ in range(self.options.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def lane(self) -> None:
        while True:
            first, end = self.block()
            if first == end:
                return
            while first < end:
                first = self.worker(first, end)

    def worker(self, first: int, end: int) -> int:
        """Runs seeds first:end as far as a process lives; gives the next seed."""
        o = self.options
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            os.path.dirname(os.path.abspath(__file__)),
            o.kind,
            f"{first}:{end}",
        ]
        command += (
            ["--worker", "--threads", str(o.threads)]
            + ["--shrink"] * o.shrink
            + (["--out", o.out] if o.out else [])
        )
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        errors, at = [], first - 1
        threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True).start()
        hung = threading.Timer(o.limit, process.kill)
        hung.start()
        for line in process.stdout:
            word, seed, *rest = line.rstrip("\n").split(" ", 2)
            if word == "begin":
                at = int(seed)
                hung.cancel()
                hung = threading.Timer(o.limit, process.kill)
                hung.start()
            elif word == "good":
                self.good += 1
                at = None
            elif word == "bad":
                self.report(int(seed), rest[0] if rest else "")
                at = None
        hung.cancel()
        status = process.wait()
        if at is None and status == 0:
            return end
        if at is None:
            self.report(end, f"exit status {status} after the last program")
            return end
        kind = load(o.kind)
        if at >= first:
            found = (
                f"died with status {status}: " + " | ".join(x.strip() for x in errors[-30:])[:1500]
            )
            write_down(
                o.out,
                o.kind,
                at,
                kind.write(at),
                f"died with status {status}\n" + "".join(errors[-40:]),
            )
            self.report(at, found)
            return at + 1
        raise RuntimeError("a worker did not start: " + "".join(errors))

    def report(self, seed: int, text: str) -> None:
        self.bad.append((seed, text))
        print(f"{self.options.kind} {seed}: {text[:600]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("seeds", help="first:end")
    parser.add_argument("--out", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--limit", type=int, default=600, help="seconds for one program and its shrinking"
    )
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.first, options.end = map(int, options.seeds.split(":"))
    if options.worker:
        work(options)
        return 0
    begin, sweep = time.monotonic(), Sweep(options)
    sweep.run()
    print(
        f"{options.kind} {options.seeds}: {sweep.good} good, {len(sweep.bad)} bad, {time.monotonic() - begin:.0f} s"
    )
    return int(bool(sweep.bad))


if __name__ == "__main__":
    sys.exit(main())
