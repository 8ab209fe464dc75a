"""PyTorch's own operator samples (op_db), float32, on the device against the CPU: values and gradients.

    sweep.py [--only NAME ...] [--shard I/N] [--jobs N] [--samples N] [--out FILE]

Writes a CSV row per entry: op, forward, backward, note, fallbacks. A cell is `ok`, `wrong` (values differ), `error` (only the device raises),
`crash`, `hang`, or `-` (nothing to compare: the CPU cannot do it either, or there is no gradient). `fallbacks` are the ops that went
through PyTorch's CPU kernels, which torch_opaque.strict() refuses. What draws from the CPU's default generator is `wrong`, too. OPAQUE_TEST_SEED=N draws other samples. --samples: of an entry that
has more that many, evenly. Entries run in worker processes, so that a crash costs one entry. Tolerances are assert_close's for the dtype, or what
OpInfo itself allows for the op if that is more; operators that draw random numbers are compared by shape and dtype.
"""

import argparse
import csv
import io
import os
import queue
import subprocess
import sys
import threading
import warnings

# All samples in all layouts take some entries minutes.
SECONDS_PER_ENTRY = 1200 if os.environ.get("OPAQUE_TEST_FULL") else 120
_WARM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "warm", "python")
RANDOM = {
    *(
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "normal",
        "uniform",
    ),
    *("randint", "randn", "rand_like", "randint_like", "randn_like", "svd_lowrank", "pca_lowrank"),
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *(
        f"nn.functional.{name}dropout{d}"
        for name in ("", "alpha_", "feature_alpha_")
        for d in ("", "2d", "3d")
    ),
    *(
        "nn.functional.rrelu",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
    ),
}


def name_of(op) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


# ---- one entry


class Entry:
    """Compares one OpInfo."""

    def __init__(self, op):
        import torch
        from torch.testing._internal import common_device_type

        self.torch, self.op = torch, op
        self.tolerance = {}
        for info in op.decorators:
            for decorator in getattr(info, "decorators", ()):
                if (
                    isinstance(decorator, common_device_type.toleranceOverride)
                    and torch.float32 in decorator.d
                ):
                    own = decorator.d[torch.float32]
                    for key, value in (("atol", own.atol), ("rtol", own.rtol)):
                        self.tolerance[key] = max(
                            value, self.tolerance.get(key, {"atol": 1e-5, "rtol": 1.3e-6}[key])
                        )

    def moved(self, value):
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return value.detach().to("opaque").requires_grad_(value.requires_grad)
        if isinstance(value, torch.device):
            return torch.device("opaque")
        if isinstance(value, (list, tuple)):
            return (
                type(value)(self.moved(v) for v in value) if type(value) in (list, tuple) else value
            )
        return value

    def tensors(self, value):
        from torch.utils import _pytree

        return [t for t in _pytree.tree_leaves(value) if isinstance(t, self.torch.Tensor)]

    def sides(self, sample):
        """The sample as it is and on the device: (function of no arguments, its differentiable inputs)."""
        kwargs = {
            k: self.torch.device("opaque") if k == "device" and v is not None else self.moved(v)
            for k, v in sample.kwargs.items()
        }
        here = (sample.input, *sample.args), sample.kwargs
        there = (self.moved(sample.input), *(self.moved(a) for a in sample.args)), kwargs
        for args, kwargs in (here, there):
            leaves = [t for t in self.tensors((args, kwargs)) if t.requires_grad]
            yield lambda args=args, kwargs=kwargs: self.op(*args, **kwargs), leaves

    def compare(self, want, got, random=False):
        torch = self.torch
        want, got = self.tensors(want), self.tensors(got)
        if len(want) != len(got):
            raise AssertionError(f"{len(got)} results for {len(want)}")
        for w, g in zip(want, got, strict=True):
            if w.shape != g.shape or w.dtype != g.dtype:
                raise AssertionError(f"{g.dtype}{list(g.shape)} for {w.dtype}{list(w.shape)}")
            g = g.detach().cpu()
            if random:
                continue
            w = w.detach()
            if w.is_sparse or w.layout != torch.strided:
                w, g = w.to_dense(), g.to_dense()
            tolerance = (
                self.tolerance
                if len(self.tolerance) == 2 and w.dtype in (torch.float32, torch.complex64)
                else {}
            )
            torch.testing.assert_close(g, w, equal_nan=True, check_stride=False, **tolerance)

    def drops(self, sample) -> bool:
        """Does this call of an attention drop anything at random?"""
        positional = "attention" in self.op.name and any(
            isinstance(a, float) and a > 0 for a in sample.args
        )
        return positional or sample.kwargs.get("dropout_p", 0) > 0

    def gradients(self, out, leaves):
        torch = self.torch
        outs = [t for t in self.tensors(out) if t.requires_grad]
        torch.manual_seed(1)
        weights = [torch.randn(t.shape, dtype=t.dtype).to(t.device) for t in outs]
        return torch.autograd.grad(outs, leaves, weights, allow_unused=True)

    def samples(self, most: int):
        """Its samples, or `most` of them, evenly, where there are more."""
        torch = self.torch
        torch.manual_seed(int(os.environ.get("OPAQUE_TEST_SEED", "0")))
        found = list(
            self.op.sample_inputs("cpu", torch.float32, requires_grad=self.op.supports_autograd)
        )
        if most and len(found) > most:
            found = [found[i * len(found) // most] for i in range(most)]
        return found

    def run(self, most: int = 0):
        """(forward, backward, note)"""
        torch = self.torch
        forward, backward, note = "-", "-", ""
        for sample in self.samples(most):
            (here, leaves), (there, moved) = self.sides(sample)
            random = self.op.name in RANDOM or self.drops(sample)
            torch.manual_seed(0)
            try:
                want = here()
            except Exception:
                continue
            stage = "forward"
            try:
                torch.manual_seed(0)
                drawn = torch.get_rng_state()
                got = there()
                self.compare(want, got, random)
                if not torch.equal(drawn, torch.get_rng_state()):
                    raise AssertionError("draws from the CPU's generator, which is the program's")
                forward = "ok"
                if not leaves or not any(t.requires_grad for t in self.tensors(want)):
                    continue
                try:
                    slopes = self.gradients(want, leaves)
                except Exception:
                    continue
                stage = "backward"
                mine = self.gradients(got, moved)
                pairs = [
                    (a, b)
                    for a, b in zip(slopes, mine, strict=True)
                    if a is not None or b is not None
                ]
                if any(a is None or b is None for a, b in pairs):
                    raise AssertionError("a gradient on one side only")
                self.compare([a for a, _ in pairs], [b for _, b in pairs], random)
                backward = "ok"
            except Exception as error:
                kind = "wrong" if isinstance(error, AssertionError) else "error"
                note = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                if stage == "forward":
                    return kind, "-", note
                return forward, kind, note
        return forward, backward, note


def work() -> None:
    """Reads entry names from stdin, with how many samples behind some, writes a CSV row each to stdout."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch  # noqa: F401
    import torch_opaque
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    by_name = {name_of(op): op for op in op_db}
    writer = csv.writer(out)
    for line in sys.stdin:
        name, *samples = line.split()
        torch_opaque.reset_stats()
        row = Entry(by_name[name]).run(*map(int, samples))
        writer.writerow([name, *row, " ".join(torch_opaque.fallback_counts())])
        out.flush()


# ---- all of them


class Worker:
    """A process that takes entries one by one, and is replaced when it dies or hangs."""

    def __init__(self, arguments: list):
        self.arguments, self.process = arguments, None

    def start(self):
        command = [sys.executable, "-IS", _WARM, *self.arguments]
        environment = dict(os.environ, OPAQUE_FALLBACK_WARN="0", WARM_PYTHON=sys.executable)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def run(self, name: str, samples: int = 0) -> list:
        if self.process is None or self.process.poll() is not None:
            self.start()
        hung = threading.Event()

        def give_up():
            hung.set()
            self.process.kill()

        timer = threading.Timer(SECONDS_PER_ENTRY, give_up)
        timer.start()
        try:
            self.process.stdin.write(f"{name} {samples}\n" if samples else name + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return next(csv.reader(io.StringIO(line)))
        code = self.process.wait()
        return [name, "hang" if hung.is_set() else "crash", "-", f"exit status {code}", ""]

    def stop(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()


def sweep(
    names: list,
    jobs: int = 1,
    note=lambda row: None,
    arguments: list | None = None,
    samples: dict | None = None,
) -> dict:
    """{name: (forward, backward, note, fallbacks)}. `arguments`: the worker to start, if it is not this file's; `samples`: how many of some."""
    arguments = arguments or [os.path.abspath(__file__), "--worker"]
    todo, rows = queue.Queue(), {}
    for name in names:
        todo.put(name)

    def loop():
        worker = Worker(arguments)
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                break
            row = worker.run(name, (samples or {}).get(name, 0))
            rows[name] = tuple(row[1:])
            note(row)
        worker.stop()

    threads = [threading.Thread(target=loop) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: rows[name] for name in names}


def entries() -> list:
    """Names of all entries with float32 samples."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted({name_of(op) for op in op_db if torch.float32 in op.dtypes})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.worker:
        return work()
    names = options.only or entries()
    index, count = map(int, options.shard.split("/"))
    out = open(options.out, "w", newline="") if options.out else sys.stdout  # noqa: SIM115
    writer = csv.writer(out)
    writer.writerow(["op", "forward", "backward", "note", "fallbacks"])

    def note(row):
        writer.writerow(row)
        out.flush()

    most = dict.fromkeys(names, options.samples)
    rows = sweep(names[index::count], options.jobs, note, samples=most).values()
    for at, title in ((0, "forward"), (1, "backward")):
        counts = {}
        for row in rows:
            counts[row[at]] = counts.get(row[at], 0) + 1
        print(title, counts, file=sys.stderr)


if __name__ == "__main__":
    main()
