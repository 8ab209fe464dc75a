"""Random nets at many lengths, one after the other, as batches of texts come: most ops then have plans that were written down for their
sizes from plans for other ones. Each has the bits of a plan for all of it.

A length is the number 23 of the net as it was written, wherever it stands; what makes no sense at another one on the CPU is passed over.
"""

import re

import torch_opaque

from . import nets
from .oracle import unequal_bits
from .program import Program

WRITTEN = 23  # no other size is this
LENGTHS = (23, 29, 19, 31, 17, 27, 45, 61, 40, 60, 33, 21, 28, 64, 50, 22)


def write(seed: int) -> Program:
    n = nets.Net(seed)
    n.length = WRITTEN
    h = nets.forward(n, n.random.randint(1, 5))
    if n.params and n.chance(0.8):
        nets.backward(n, h)
    return n.program("lengths")


def at(program: Program, length: int) -> Program:
    return program.without(re.sub(rf"\b{WRITTEN}\b", str(length), line) for line in program.lines)


def check(program: Program, lengths=LENGTHS) -> str:
    """What is wrong with the program on the device, or ""."""
    for length in lengths:
        here = at(program, length)
        if "raised" in here.results("cpu"):
            continue
        new = here.results("opaque")
        with torch_opaque.planned():
            planned = here.results("opaque")
        if found := unequal_bits(new, planned):
            return f"in pieces: length {length}: {found}"
    return ""


check_some = check
