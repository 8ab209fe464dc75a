"""What must hold for a program whose results are numbers: it is as near to the reference as roundings
allow, and every way of running it gives the same bits.

A way takes the program and its results when run alone and fused; it gives what is wrong, or "". What is new runs in pieces first,
and then has its plan.
"""

import threading

import torch
import torch_opaque

from .captured import captured, differentiated, stepped
from .oracle import Reference, unequal_bits


def fused_results(program) -> tuple:
    """(its results by plans for all of each graph, what differs from them where it is new and runs in pieces, or "")."""
    new = program.results("opaque")
    with torch_opaque.planned():
        fused = program.results("opaque")
    found = unequal_bits(new, fused)
    return fused, f"in pieces: {found}" if found else ""


def again(program, fused) -> str:
    """The plan is cached."""
    return unequal_bits(program.results("opaque"), fused)


def unfused(program, fused) -> str:
    with torch_opaque.unfused():
        return unequal_bits(program.results("opaque"), fused)


def eager(program, fused) -> str:
    with torch_opaque.eager():
        return unequal_bits(program.results("opaque"), fused)


def other_values(program, fused) -> str:
    """The cached plan on other values."""
    seed = program.seed + 1
    return Reference(program, seed).difference(program.results("opaque", seed=seed))


def float64(program, fused) -> str:
    """Where a difference that float32 hides is a difference."""
    wide = program.results("opaque", torch.float64)
    found = Reference(program).difference(wide)
    if not found:
        with torch_opaque.unfused():
            found = unequal_bits(program.results("opaque", torch.float64), wide)
    return found


def two_threads(program, fused) -> str:
    """A program that draws from the device's generator has no value of its own there."""
    if "dropout(" in program.text:
        return ""
    results = [None, None]
    count = torch.get_num_threads()

    def run(i):
        torch.set_num_threads(
            count
        )  # a setting of each thread, on which PyTorch's convolutions depend
        results[i] = program.results("opaque")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return unequal_bits(results[0], fused) or unequal_bits(results[1], fused)


WAYS = (unfused, other_values, again, eager, float64, two_threads, stepped, differentiated)


def check(program, ways=WAYS) -> str:
    """What is wrong with the program on the device, or ""."""
    fused, apart = fused_results(program)
    if found := Reference(program).difference(fused):
        return f"fused: {found}"
    if apart:
        return apart
    for way in ways:
        if found := way(program, fused):
            return f"{way.__name__}: {found}"
    return ""


def check_some(program) -> str:
    """Fused, and two of the other ways: what there is time for in a quick run."""
    first = program.seed % len(WAYS)
    return check(program, (WAYS[first], WAYS[(first + 1) % len(WAYS)]))


# ---- programs whose arithmetic is exact: the bits of the CPU


def inference(program, _fused) -> str:
    """What PyTorch refuses is another thing there, and tensors are inference tensors where the CPU's are."""
    with torch.inference_mode():
        return unequal_bits(program.results("opaque"), program.results("cpu"))


EXACT_WAYS = (unfused, again, eager, two_threads, inference, captured)


def check_exact(program, ways=EXACT_WAYS) -> str:
    fused, apart = fused_results(program)
    if found := unequal_bits(fused, program.results("cpu")):
        return f"fused: {found}"
    if apart:
        return apart
    for way in ways:
        if found := way(program, fused):
            return f"{way.__name__}: {found}"
    return ""


def check_exact_some(program) -> str:
    return check_exact(program, (EXACT_WAYS[program.seed % len(EXACT_WAYS)],))
