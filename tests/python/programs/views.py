"""Random programs about what lies under views: paddings (negative ones too), flips, rolls, windows and repeats, with
reshapes, expands, strides and casts above them and above each other, read by arithmetic, sums, products and
indices, some of the values in between kept alive.

Values are small whole numbers and arithmetic is exact: the device must have the bits of the CPU.
"""

import torch

from . import running
from .writer import Writer

SIZES = (1, 1, 1, 2, 2, 3, 4, 5, 8)
DTYPES = ("float32",) * 7 + ("float64", "int64", "int32", "uint8", "bool", "float16", "bfloat16")
ELEMENTS = 4000


class Views(Writer):
    """`alive` are names of tensors that later statements may read."""

    def __init__(self, seed: int):
        super().__init__(seed, torch.float32)
        self.alive = []

    def new(self) -> str:
        shape = [self.choose(*SIZES) for _ in range(self.choose(1, 1, 2, 2, 3))]
        if self.chance(0.1):
            return self.let("x", f"torch.arange({shape[0]}, device=D).view(-1, 1)")
        dtype = self.choose(*DTYPES)
        return self.let("x", f"ints({', '.join(map(str, shape))}, dtype=torch.{dtype})")

    def tensor(self, name: str) -> torch.Tensor:
        return self.space[name]


def padding(n, t) -> list:
    """Of the last dimensions, as F.pad takes them; what is left has an element."""
    pads = []
    for size in reversed(t.shape[-n.choose(1, 1, 2, 3) :]):
        low = n.choose(0, 1, 1, 2, -1, -2)
        low = max(low, 1 - size)
        high = max(n.choose(0, 0, 1, 2, -1, -1, -low), 1 - size - low)
        pads += [low, high]
    return pads


def factors(n, count: int) -> list:
    shape = []
    while count > 1 and len(shape) < 3:
        shape.append(n.random.choice([k for k in range(1, count + 1) if count % k == 0 and k < 17]))
        count //= shape[-1]
    return [*shape, count]


def window(n, t) -> str:
    """as_strided over all of a tensor that is made whole first, sometimes overlapping itself."""
    room, sizes, strides = t.numel() - 1, [], []
    for _ in range(n.choose(1, 2, 2, 3)):
        strides.append(n.choose(0, 1, 1, 2, 3, 5, 8))
        most = 4 if strides[-1] == 0 else room // strides[-1] + 1
        sizes.append(n.random.randint(1, min(most, 9)))
        room -= (sizes[-1] - 1) * strides[-1]
    return f"contiguous().as_strided({sizes}, {strides}, {n.random.randint(0, room)})"


def part(n, size: int) -> str:
    first = n.random.randrange(size)
    return f"{first}:{n.random.randint(first + 1, size)}:{n.choose(1, 1, 2, 3)}"


def view(n, x: str) -> str:
    """The text of a view of x that has elements."""
    t = n.tensor(x)
    d = n.random.randrange(t.dim()) if t.dim() else 0
    if t.dim() == 0:
        return n.choose(f"{x}.expand(3)", f"{x}.view(1, 1)")
    order = n.random.sample(range(t.dim()), t.dim())
    value = n.choose("", "", ", value=1")
    return n.choose(
        f"F.pad({x}, {padding(n, t)}{value})",
        f"F.pad({x}, {padding(n, t)}{value})",
        f"F.pad({x}.reshape(-1), {padding(n, t.reshape(-1))}{value})",
        f"F.pad({x}.reshape(-1), {n.choose([1, -1], [-1, 1], [2, -2], [t.shape[-1], -t.shape[-1]])})"
        if t.numel() > 2 and t.numel() > t.shape[-1]
        else f"{x}.reshape(-1)",
        f"{x}.reshape({factors(n, t.numel())})",
        f"{x}.reshape({factors(n, t.numel())})",
        f"{x}.reshape(-1)",
        f"{x}.unsqueeze({d})",
        f"{x}.expand({[n.choose(2, 3, 8) if k == 1 else k for k in t.shape]})",
        f"{x}.expand({[n.choose(2, 3), *t.shape]})",
        f"{x}.repeat_interleave({n.choose(2, 3)}, {d})",
        f"{x}.reshape(-1).repeat_interleave({n.choose(2, 3)})",
        f"{x}.repeat({[n.choose(1, 2) for _ in t.shape]})",
        f"{x}.permute({order})",
        f"{x}.flip({d})",
        f"{x}.roll({n.choose(1, -1, 2)}, {d})",
        f"{x}.roll({n.choose(1, 2)})",
        f"{x}.unfold({d}, {n.random.randint(1, t.shape[d])}, {n.choose(1, 1, 2)})",
        f"{x}[{':, ' * d}{part(n, t.shape[d])}]",
        f"{x}.{window(n, t)}",
        f"{x}.diagonal()" if t.dim() > 1 else f"{x}.view(-1, 1)",
        f"{x}.to(torch.{n.choose('float32', 'float64', 'int64', 'int32', 'float16')})",
        f"torch.cat([{x}, {x}.flip({d})], {d})",
    )


def stack(n, x: str) -> str:
    """Views of views, in one expression or in names of their own, of which some stay alive."""
    for _ in range(n.choose(2, 3, 3, 4, 5)):
        text = view(n, x)
        if n.chance(0.15):
            text = f"({text}) * 2" if n.tensor(x).dtype != torch.bool else f"~({text})"
        made = n.try_let("v", text)
        if made and 0 < n.tensor(made).numel() <= ELEMENTS and n.tensor(made).dim() < 7:
            x = made
    return x


def small(n, x: str) -> str:
    """x as numbers whose sums and products are exact."""
    t = n.tensor(x)
    if t.dtype == torch.bool:
        return f"{x}.float()"
    return f"{x}.clamp({0 if t.dtype == torch.uint8 else -9}, 9).to(torch.{n.choose('float32', 'float32', 'float64')})"


def like(n, x: str) -> str:
    """What broadcasts to x."""
    t = n.tensor(x)
    same = [y for y in n.alive if n.tensor(y).shape == t.shape]
    shape = [1 if n.chance(0.3) else k for k in t.shape]
    return (
        n.random.choice(same)
        if same and n.chance(0.5)
        else f"ints({', '.join(map(str, shape))}{',' if shape else ''} dtype=torch.float32)"
    )


def read(n, x: str) -> None:
    """What a kernel computes of it."""
    t = n.tensor(x)
    d = n.random.randrange(t.dim()) if t.dim() else 0
    a = small(n, x)
    texts = [
        f"{a} + {like(n, x)}",
        f"{a} * {like(n, x)}",
        f"({a}).abs()",
        f"torch.maximum({a}, {a} * -1)",
    ]
    if t.dim():
        size = t.shape[d]
        index = f"torch.tensor({[n.random.randrange(size) for _ in range(n.choose(1, 2, 5))]}, device=D)"
        texts += [
            f"({a}).sum({d})",
            f"({a}).sum({d})",
            f"({a}).sum()",
            f"({a}).amax({d})",
            f"({a}).argmax({d})" if size == 1 else f"({a}).cumsum({d})",
            f"{x}.index_select({d}, {index})",
            f"{x}[{':, ' * d}{index}]",
            f"torch.zeros({list(t.shape)}, device=D).index_add({d}, {index}[:1], ({a}).float().narrow({d}, 0, 1))",
            f"torch.cat([{a}, {a}], {d})",
            f"torch.where({x} == 1, {a}, {like(n, x)})",
        ]
    if t.dim() > 1:
        for _ in range(3):
            w = f"ints({t.shape[-1]}, {n.choose(1, 3, 8, 17)}, dtype=torch.float32)"
            texts += [f"({a}).float() @ {w}", f"{w}.t() @ ({a}).float().transpose(-1, -2)"]
        texts.append(f"({a}).float() @ ({a}).float().transpose(-1, -2)")
    made = n.try_let(
        "y", f"({n.random.choice(texts)}) + 0"
    )  # the zero of 0 and -0 is the CPU's choice
    if made and n.tensor(made).numel() <= ELEMENTS:
        n.attempt(f"{made} = {made}.clamp(-99, 99)") if n.chance(0.5) else None
        n.alive.append(made)


def gradient(n) -> None:
    """Of a stack of views, which is what was written read backwards."""
    shape = [n.choose(*SIZES) for _ in range(n.choose(1, 2, 3))]
    leaf = n.let("w", f"ints({', '.join(map(str, shape))}, dtype=torch.float32).requires_grad_()")
    out = stack(n, leaf)
    if n.tensor(out).requires_grad and n.tensor(out).numel() <= ELEMENTS:
        shape = ", ".join(map(str, n.tensor(out).shape))
        n.attempt(
            f"({out}.float() * ints({shape}{',' if shape else ''} dtype=torch.float32)).sum().backward()"
        )
        n.attempt(f"look({leaf}.grad)")


def write(seed: int):
    n = Views(seed)
    for _ in range(n.choose(1, 1, 2, 3)):
        x = stack(n, n.random.choice(n.alive) if n.alive and n.chance(0.4) else n.new())
        for _ in range(n.choose(1, 1, 2)):
            read(n, x)
        if n.chance(0.5):
            n.alive.append(x)
        if n.chance(0.15):
            n.attempt(f"look({x})")
    if n.chance(0.2):
        gradient(n)
    gone = [
        v for v in n.space if v[0] == "v" and v[1:].isdigit() and v not in n.alive and n.chance(0.7)
    ]
    if gone:
        n.say(f"del {', '.join(gone)}")
    return n.program("views")


check, check_some = running.check_exact, running.check_exact_some
