"""PyTorch's own tests of a compiler for CPU tensors, with this backend or another one:

    ./dev python tests/python/scripts/pytorch_tests.py .../test/inductor/test_torchinductor.py [NAME ...] [--backend inductor] [--dynamic] [--write FILE]

The file is of a checkout of PyTorch. Each test of its CommonTemplate runs in a process of its own, and what Inductor's code looks like is not asked
of others. Prints each test that fails, and counts; FILE gets a line of JSON for each test: name, outcome, seconds, why.
"""

import argparse
import functools
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
import unittest
from collections import Counter

LIMIT = 240  # seconds of a test


class _Nothing:
    """Looks for text in code."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: self


def load(path):
    spec = importlib.util.spec_from_file_location("pytorch_tests_of_inductor", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def replace_backend(name):
    """torch.compile without a backend, or with Inductor, is with this one."""
    import torch

    real = torch.compile

    @functools.wraps(real)
    def compile(model=None, *args, backend="inductor", options=None, **rest):
        if model is None:
            return lambda model: compile(model, *args, backend=backend, options=options, **rest)
        if backend == "inductor":
            backend, options = name, None
        return real(model, *args, backend=backend, options=options, **rest)

    torch.compile = compile


def without_code(module, name):
    from torch._dynamo.backends.registry import lookup_backend

    module.compile_fx = lookup_backend(name)
    module.FileCheck = _Nothing
    module.assertGeneratedKernelCountEqual = lambda *args, **kwargs: None
    module.run_and_get_code = lambda fn, *args, **kwargs: (fn(*args, **kwargs), ["", ""])


def tests_of(module, wanted):
    case = getattr(module, "CpuTests", None)
    if case is None:
        fields = {"common": module.check_model, "device": "cpu"}
        case = type("CpuTests", (module.TestCase,), fields)
        module.copy_tests(module.CommonTemplate, case, "cpu")
    names = unittest.TestLoader().getTestCaseNames(case)
    return case, [one for one in names if not wanted or any(w in one for w in wanted)]


def outcome(case, name):
    result = unittest.TestResult()
    try:
        case.setUpClass()
        case(name).run(result)
    except BaseException:
        return "error", traceback.format_exc()
    for kind in ("errors", "failures"):
        if found := getattr(result, kind):
            return "failed", found[0][1]
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def in_a_process(case, name, quiet):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if quiet:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        signal.alarm(LIMIT)
        os.write(write, json.dumps(outcome(case, name)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(data) if data else ("crashed", f"status {status}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("names", nargs="*", help="tests that have one of these in their names")
    parser.add_argument("--backend", default="opaque")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols from the start")
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    os.environ.setdefault("OPAQUE_FALLBACK_WARN", "0")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if options.backend != "inductor":
        replace_backend(options.backend)
    module = load(options.file)
    if options.backend != "inductor":
        without_code(module, options.backend)
    if options.dynamic:
        import torch._dynamo.config

        torch._dynamo.config.assume_static_by_default = False
    case, names = tests_of(module, options.names)
    counts = Counter()
    with open(options.write or os.devnull, "a") as record:
        for name in names:
            start = time.time()
            result, why = in_a_process(case, name, quiet=len(names) > 5)
            counts[result] += 1
            record.write(json.dumps([name, result, round(time.time() - start, 2), why]) + "\n")
            record.flush()
            if result not in ("passed", "skipped"):
                said = [line for line in why.splitlines() if "Error" in line and line[:1] != " "]
                print(f"{result}: {name}: {said[0] if said else why[-200:]}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
