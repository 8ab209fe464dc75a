"""A random program as a captured function, call after call with other values: what its end makes of what its beginning made (captured), or its end as
a step whose state is what its beginning made (stepped)."""

import ast
import functools
import random
import re

import torch
import torch_opaque

from .oracle import unequal_bits
from .program import PRELUDE, _compiled, _tensors

CALLS = 3
_GIVEN = re.compile(r"\b(?:ints|values|randn|randint)\([^()]*\)")
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


# ---- a step

_STATE = re.compile(r"\w+ = (param\(|module\(|\[p\.detach|torch\.(optim|zeros|ones)\b)")


def _step_of(program) -> tuple:
    """(lines that make the state, what is drawn for each call, lines of the step)."""
    lines = [
        line[: len(line) - len(line.lstrip())] + "pass"
        if "look(" in line or "str(" in line
        else line
        for line in program.lines
    ]
    blocks = _blocks(lines)
    state = [block for block in blocks if len(block) == 1 and _STATE.match(block[0])]
    blocks = state + [block for block in blocks if block not in state]
    cut = len(state) if program.seed % 4 else random.Random(program.seed).randrange(len(blocks))
    drawn = []

    def draw(found):
        drawn.append(found[0])
        return f"k{len(drawn) - 1}"

    inside = [_GIVEN.sub(draw, line) for block in blocks[cut:] for line in block]
    return [line for block in blocks[:cut] for line in block], drawn, inside


def _assigned(lines) -> set:
    """Names that the step gives other values."""
    tree = ast.parse("\n".join(lines) or "pass")
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _forward(lines) -> list:
    """What stands before the first loss."""
    ends = [i for i, line in enumerate(lines) if re.search("loss|grad|opt|backward|^for", line)]
    return lines[: ends[0]] if ends else lines


def _go_back(results):
    """The gradient of a loss that is made of all that a function gives."""
    wants = [v for v in results.values() if v.requires_grad and v.is_floating_point()]
    if wants:
        sum(v.square().mean() for v in wants).backward()


def _steps(program, wrap, backward=True) -> list:
    """Per call what the step gives, and what its state is then. backward: it is all of the program, else what stands before a loss, which is made
    outside."""
    before, drawn, inside = _step_of(program)
    inside = inside if backward else _forward(inside)
    space = {"SIDE": ("opaque", torch.float32, program.seed)}
    exec(_compiled(PRELUDE), space)
    own = set(space)
    exec(_compiled("\n".join(before) + "\n"), space)
    state = [name for name in space if name not in own]
    changes = _assigned(inside)
    given = [name for name in state if name in changes and isinstance(space[name], torch.Tensor)]
    body = "".join(f"    {line}\n" for line in inside) or "    pass\n"
    made = "{k: v for k, v in locals().items() if isinstance(v, torch.Tensor)}"
    names = ", ".join(given + [f"k{i}" for i in range(len(drawn))])
    exec(_compiled(f"def fn({names}):\n{body}    return {made}\n"), space)
    fn, found = wrap(space["fn"]), []
    for call in range(CALLS + 1):  # gradients are there from the second one on
        space["G"].manual_seed(program.seed + call)
        torch.manual_seed(call)
        values = [eval(one, space) for one in drawn]
        all_ = dict(fn(*(space[name] for name in given), *values))
        if not backward:
            _go_back(all_)
        all_ |= {f"state {name}": space[name] for name in state}
        all_ |= {f"gradient of {k}": v.grad for k, v in all_.items() if _has_gradient(v)}
        found.append({n: x for k, v in all_.items() for n, x in _tensors(k, v).items()})
    return found


def _has_gradient(value) -> bool:
    return isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None


def stepped(program, _fused) -> str:
    """As `captured`."""
    return _differs(program, _steps)


def differentiated(program, _fused) -> str:
    """As `captured`, of the gradient of a function."""
    return _differs(program, functools.partial(_steps, backward=False))


def captured(program, _fused) -> str:
    """What differs from calls of the function itself, or ""."""
    return _differs(program, _calls)


def _differs(program, calls) -> str:
    try:
        wanted = calls(program, lambda fn: fn)
    except Exception:  # of a program that is to raise
        return ""
    try:
        got = calls(program, torch_opaque.capture)
    except RuntimeError as error:
        return "" if any(word in str(error) for word in _REFUSALS) else f"raised {error}"
    for call, (a, b) in enumerate(zip(got, wanted)):
        if found := unequal_bits(a, b):
            return f"call {call}: {found}"
    return ""
