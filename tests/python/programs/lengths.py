"""Random nets at many lengths, one after the other, as batches of texts come: most ops then have plans that were written down for their
sizes from plans for other ones. Each has the bits of a plan for all of it.

A length is the number 23 of the net as it was written, wherever it stands, and a width that varies as well the number 59; what makes no sense at
another one on the CPU is passed over.
"""

import re

import torch_opaque

from . import nets
from .oracle import unequal_bits
from .program import Program

LENGTH, WIDTH = 23, 59  # no other sizes are these
LENGTHS = (23, 29, 19, 31, 17, 27, 45, 61, 40, 60, 33, 21, 28, 64, 50, 22)
WIDTHS = (59, 59, 59, 59, 70, 18, 33, 59, 90, 61, 20, 21, 44, 64, 100, 37)
SIZES = tuple(zip(LENGTHS, WIDTHS, strict=True))


def write(seed: int) -> Program:
    n = nets.Net(seed)
    n.length, n.wide = LENGTH, WIDTH if n.chance(0.5) else None
    h = nets.forward(n, n.random.randint(1, 5))
    if n.params and n.chance(0.8):
        nets.backward(n, h)
    return n.program("lengths")


def at(program: Program, length: int, width: int) -> Program:
    new = {str(LENGTH): str(length), str(WIDTH): str(width)}
    either = rf"\b({LENGTH}|{WIDTH})\b"
    return program.without(re.sub(either, lambda m: new[m[1]], line) for line in program.lines)


def check(program: Program, sizes=SIZES) -> str:
    """What is wrong with the program on the device, or ""."""
    for size in sizes:
        here = at(program, *size)
        if "raised" in here.results("cpu"):
            continue
        new = here.results("opaque")
        with torch_opaque.planned():
            planned = here.results("opaque")
        if found := unequal_bits(new, planned):
            return f"in pieces: length and width {size}: {found}"
    return ""


check_some = check
