"""A random program as a captured function: what its end makes of what its beginning made, call after call with other values."""

import random
import re

import torch
import torch_opaque

from .oracle import unequal_bits
from .program import PRELUDE, _compiled, _tensors

CALLS = 3
_DRAWN = re.compile(r"\b(?:ints|values|randn|randint|param)\([^()]*\)")
# What a captured function cannot do, and says: look at values, exchange a tensor that it holds on to.
_REFUSALS = ("captured", "weakrefs")


def _blocks(lines) -> list:
    """Statements that are whole, but for those that look at a value."""
    blocks = []
    for line in lines:
        if line.startswith("    ") and blocks:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return [block for block in blocks if not any("look(" in line for line in block)]


def _halves(program) -> tuple:
    """(lines before, lines of the function): values are drawn before."""
    blocks, drawn = _blocks(program.lines), []

    def draw(found):
        drawn.append(f"k{len(drawn)} = {found[0]}")
        return f"k{len(drawn) - 1}"

    cut = random.Random(program.seed).randrange(len(blocks) or 1)
    inside = [_DRAWN.sub(draw, line) for block in blocks[cut:] for line in block]
    return [line for block in blocks[:cut] for line in block] + drawn, inside


def _begin(lines, seed: int) -> dict:
    """The tensors that the lines make."""
    space = {"SIDE": ("opaque", torch.float32, seed)}
    exec(_compiled(PRELUDE), space)
    own = set(space)
    exec(_compiled("\n".join(lines) + "\n"), space)
    return {k: v for k, v in space.items() if isinstance(v, torch.Tensor) and k not in own}


def _calls(program, wrap) -> list:
    """Per call what the function gives, and what its arguments are then."""
    before, inside = _halves(program)
    names, found = list(_begin(before, program.seed)), []
    space = {"SIDE": ("opaque", torch.float32, program.seed)}
    exec(_compiled(PRELUDE), space)
    body = "".join(f"    {line}\n" for line in inside)
    given = "{k: v for k, v in locals().items() if isinstance(v, torch.Tensor)}"
    exec(_compiled(f"def fn({', '.join(names)}):\n{body}    return {given}\n"), space)
    fn = wrap(space["fn"])
    for call in range(CALLS):
        arguments = _begin(before, program.seed + call)
        result = fn(**arguments)
        left = {f"argument {k}": v for k, v in arguments.items()}
        left |= {
            f"gradient of {k}": v.grad
            for k, v in arguments.items()
            if v.is_leaf and v.grad is not None
        }
        found.append({n: x for k, v in (result | left).items() for n, x in _tensors(k, v).items()})
    return found


def captured(program, _fused) -> str:
    """What differs from calls of the function itself, or ""."""
    try:
        wanted = _calls(program, lambda fn: fn)
    except Exception:  # of a program that is to raise
        return ""
    try:
        got = _calls(program, torch_opaque.capture)
    except RuntimeError as error:
        return "" if any(word in str(error) for word in _REFUSALS) else f"raised {error}"
    for call, (a, b) in enumerate(zip(got, wanted)):
        if found := unequal_bits(a, b):
            return f"call {call}: {found}"
    return ""
