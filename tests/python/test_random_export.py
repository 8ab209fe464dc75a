"""The functions of test_random_capture.py, exported: each call of the library gives the bits of the device, call after call, state and random
numbers included; or exporting says what it cannot do, and has changed nothing."""

import random

import pytest
import torch
import torch_opaque
from test_export import Model, pytestmark, tensors  # noqa: F401
from test_random_capture import World, _arguments

D = "opaque"
PROGRAMS, BLOCK, TRIES = 64, 4, 8
REFUSALS = (
    "writes to argument",  # in place
    "needs a value",
    "reads a tensor of the CPU",  # an optimizer that counts steps there
    "changes a tensor of the CPU",
    "as Python's number",
    "goes through what was computed before it",
)


def outcome(seed: int, folder) -> str:
    """ "" if all calls agree, "refused" if it cannot be exported, else what is wrong."""
    world, r = World(seed), random.Random(seed + 1)
    fn = world.train if world.trains else world.infer
    first = _arguments(r, 3)
    numbers = {k: v for k, v in first.items() if not isinstance(v, torch.Tensor)}
    calls = [{**_arguments(r, 3), **numbers} for _ in range(4)]
    for a in calls:  # what an exported function is called with is its own memory
        a["x"], a["y"], a["c"] = a["x"].clone().contiguous(), a["y"].clone(), a["c"].to(D)
    try:
        fn(**calls[0])  # an optimizer's state comes with its first step
    except (RuntimeError, ValueError):
        return "refused"
    try:
        made = torch_opaque.export(fn, (), folder / f"m{seed}.so", kwargs=calls[0])
    except (RuntimeError, NotImplementedError) as error:
        return "refused" if any(text in str(error) for text in REFUSALS) else str(error)
    with Model(made.library) as model:
        for call, a in enumerate(calls):
            given = [x.cpu() for x in a.values() if isinstance(x, torch.Tensor)]
            wanted = tensors(fn(**a))
            got = [torch.full_like(w, 7) for w in wanted]
            if model.run(given, got) != 0:
                return model.error()
            for k, (w, g) in enumerate(zip(wanted, got, strict=True)):
                if not torch.equal(w.flatten().view(torch.uint8), g.flatten().view(torch.uint8)):
                    return f"call {call}, result {k}: {w}, not {g}"
            for t in (*given, *got):  # the library keeps no pointer to the caller's memory
                t.zero_()
    return ""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("block", range(PROGRAMS // BLOCK))
def test_programs(block, tmp_path):
    """Of each seed the first function that can be exported: half cannot, mostly because of what optimizers count on the CPU."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        for other in range(seed, seed + TRIES * PROGRAMS, PROGRAMS):
            found = outcome(other, tmp_path)
            if found != "refused":
                break
        assert found == "", other
