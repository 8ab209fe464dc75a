"""Random programs about memory that is shared: views of views, writes through them, storage exchanged,
shapes changed in place, leaves of autograd.

Values are small whole numbers and arithmetic is exact, so the device must have the bits of the CPU. A statement
that the CPU refuses stays in the program, in an error() block, and the device must refuse it too.
"""

import torch

from . import running
from .writer import Writer

SIZES = (1, 1, 2, 3, 4, 5, 8, 17)
DTYPES = ("float32",) * 5 + (
    "float64",
    "int64",
    "int32",
    "int16",
    "uint8",
    "int8",
    "bool",
    "float16",
    "bfloat16",
    "complex64",
)
WHOLE = ("int64", "int32", "int16", "uint8", "int8")  # any bits are a number there


class Aliases(Writer):
    """`alive` are names of tensors."""

    def __init__(self, seed: int):
        super().__init__(seed, torch.float32)
        self.alive = []
        self.new()

    def value(self, expression: str) -> str:
        self.alive.append(self.let("x", expression))
        return self.alive[-1]

    def new(self, shape=None, dtype=None) -> str:
        shape = (
            [self.choose(*SIZES) for _ in range(self.choose(0, 1, 2, 2, 3, 3, 4))]
            if shape is None
            else shape
        )
        dtype = dtype or self.choose(*DTYPES)
        return self.value(
            f"ints({', '.join(map(str, shape))}{', ' if len(shape) else ''}dtype=torch.{dtype})"
        )

    def pick(self, good=lambda x: True) -> str:
        names = [n for n in self.alive if good(self.space[n])]
        return self.random.choice(names[-8:]) if names else self.new([3, 4], "float32")

    def tensor(self, name: str) -> torch.Tensor:
        return self.space[name]

    def view(self, expression: str) -> None:
        """A new name for a view, if the CPU can make it."""
        name = self.try_let("x", expression)
        if name:
            self.alive.append(name)

    def like(self, x: str) -> str:
        """A tensor that broadcasts to x: an alias of it, another of its shape, or a new one."""
        t = self.tensor(x)
        same = [n for n in self.alive if self.tensor(n).shape == t.shape]
        if len(same) > 1 and self.chance(0.6):
            return self.random.choice(same)
        shape = [1 if self.chance(0.3) else n for n in t.shape][self.choose(0, 0, 1) :]
        return self.new(shape, str(t.dtype)[6:] if self.chance(0.7) else None)


def dim(n, x) -> int:
    return n.random.randrange(-n.tensor(x).dim(), n.tensor(x).dim())


def part(n, x, d) -> tuple:
    """(start, length) of a piece along dimension d."""
    size = n.tensor(x).shape[d]
    start = n.random.randrange(size) if size else 0
    return start, n.random.randint(0 if n.chance(0.05) else min(1, size), size - start)


def view(n):
    x = n.pick(lambda t: t.dim() > 0)
    t = n.tensor(x)
    d, e = dim(n, x), dim(n, x)
    start, length = part(n, x, d)
    order = n.random.sample(range(t.dim()), t.dim())
    numel = t.numel()
    rows = n.random.choice([k for k in (1, 2, 3, 4, 5, 8) if numel % k == 0])
    n.view(
        n.choose(
            f"{x}.transpose({d}, {e})",
            f"{x}.permute({order})",
            f"{x}.narrow({d}, {start}, {length})",
            f"{x}[::{n.choose(1, 2, 3)}]",
            f"{x}[..., {n.choose(':', '1:', ':-1', '::2', 'None', '0', '-1')}]",
            f"{x}.select({d}, {start})",
            f"{x}.unsqueeze({d})",
            f"{x}.squeeze()",
            f"{x}.squeeze({d})",
            f"{x}.expand({[n.choose(2, 3), *t.shape]})",
            f"{x}.expand({[n.choose(1, 2, 3) if k == 1 else k for k in t.shape]})",
            f"{x}.reshape(-1)",
            f"{x}.view({rows}, -1)",
            f"{x}.view(-1)",
            f"{x}.flatten({min(d % t.dim(), e % t.dim())})",
            f"{x}.diagonal()",
            f"{x}.unfold({d}, {n.choose(1, 2, 3)}, {n.choose(1, 2)})",
            f"{x}.split({n.choose(1, 2, 3)}, {d})[-1]",
            f"{x}.chunk({n.choose(2, 3)}, {d})[0]",
            f"{x}.unbind({d})[{n.choose(0, -1)}]",
            f"{x}.movedim({d}, {e})",
            f"{x}.mT",
            f"{x}[:]",
            f"{x}.detach()",
            f"{x}.data",
            f"{x}.view_as({x})",
            f"{x}.view(torch.{n.choose(*WHOLE)})",
            f"torch.view_as_real({x})" if t.is_complex() else f"{x}.t()",
            f"{x}.imag" if t.is_complex() else f"{x}.real",
            strided(n, x),
            strided(n, x),
        )
    )


def strided(n, x) -> str:
    """Any window on the storage of x, sometimes one that does not fit or overlaps itself."""
    t = n.tensor(x)
    room = t.untyped_storage().nbytes() // max(1, t.element_size())
    sizes = [n.choose(1, 2, 3, 4) for _ in range(n.choose(1, 2, 3))]
    strides = [n.choose(1, 1, 2, 3, 4, 5, 8) for _ in sizes]
    if n.chance(0.1):
        strides[0] = 0
    reach = sum((s - 1) * k for s, k in zip(sizes, strides))
    offset = n.random.randrange(max(1, room - reach))
    return f"{x}.as_strided({sizes}, {strides}, {offset})"


def compute(n):
    """A new tensor, by exact arithmetic."""
    x = n.pick()
    t, y = n.tensor(x), n.like(x)
    d = dim(n, x) if t.dim() else 0
    number = n.choose(2, -1, 3)
    if t.numel() > 4000:
        return view(n)
    texts = [
        f"{x} + {y}",
        f"{x} * {number}",
        f"{x} - {y}",
        f"{x}.clone()",
        f"{x}.contiguous()",
        f"torch.where({x} == {y}, {x}, {y})",
        f"{x} == {y}",
        f"{x}.to(torch.{n.choose('float32', 'float64', 'int64', 'int32')})",
        f"{x}.flip(0)" if t.dim() else f"{x} + 1",
        f"torch.empty_like({x}).copy_({x})",
    ]
    if not t.is_complex() and t.dtype != torch.bool:
        texts += [
            f"{x}.abs()",
            f"{x}.clamp(-5, 5)",
            f"torch.maximum({x}, {y}) + 0",  # the zero of 0 and -0 is the CPU's choice
            f"{x}.relu()",
            f"{x}.sum().clamp(-9, 9)",
            f"{x}.cumsum({d}).clamp(-9, 9)",
        ]
        if t.dim() and t.shape[d]:
            texts += [
                f"{x}.amax({d})",
                f"{x}.sum({d}).clamp(-9, 9)",
                f"torch.cat([{x}, {x}], {d})",
                f"{x}.index_select({d}, {index(n, t.shape[d])})",
            ]
    n.view(n.random.choice(texts))


def index(n, size: int, count=None) -> str:
    """A tensor of valid indices, or (rarely) one too large."""
    count = count or n.choose(1, 2, 3)
    numbers = [n.random.randrange(-size if n.chance(0) else 0, size) for _ in range(count)]
    return f"torch.tensor({numbers}, device=D)"


def overlaps(t) -> bool:
    """True if two elements of t are in one place."""
    places = torch.zeros(t.shape, dtype=torch.int64)
    for d, (size, stride) in enumerate(zip(t.shape, t.stride())):
        places += (torch.arange(size) * stride).reshape(-1, *[1] * (t.dim() - d - 1))
    return places.unique().numel() < t.numel()


def target(n, *operands) -> str:
    """Where a result may go. Not into a view that has to grow over an operand's memory: the CPU then reads what it writes."""
    name = n.pick()
    t, read = n.tensor(name), [n.tensor(x) for x in operands]
    grows = t.shape != read[0].shape
    cells = [r.untyped_storage().data_ptr() for r in read if r is not t]
    return n.like(operands[0]) if grows and t.untyped_storage().data_ptr() in cells else name


def change(n):
    x = n.pick()
    t, y = n.tensor(x), n.like(x)
    number = n.choose(0, 1, 2, -1, 3)
    texts = [
        f"{x}.copy_({y})",
        f"{x}.copy_({y})",
        f"{x}.fill_({number})",
        f"{x}.zero_()",
        f"{x}.add_({number})",
        f"{x}.add_({y})",
        f"{x}.sub_({y})",
        f"{x}.mul_({number})",
        f"{x} += {y}",
        f"{x}[...] = {number}",
        f"{x}[...] = {y}",
        f"{x}.masked_fill_({y} == {x}, {number})",
        f"{x}[{x} == {number}] = {n.choose(0, 1, 4)}",
        f"{x}.neg_()",
        f"{x}.clamp_(-3, 3)",
        f"{x}.relu_()",
        f"torch.add({x}, {y}, out={target(n, x, y)})",
        f"torch.mul({x}, {number}, out={n.like(x)})",
        f"torch.maximum({x}, {y}, out={x}).add_(0)",
        f"{x}.set_({n.pick()})",
        f"{x}.resize_({[n.choose(*SIZES) for _ in range(n.choose(1, 2))]}).fill_({number})",
        f"{x}.data = {n.pick()}",
        f"torch.utils.swap_tensors({x}, {n.pick()})",
        f"{x}.squeeze_()",
        f"{x}.unsqueeze_(0)",
        f"{x}.copy_(torch.from_numpy({y}.cpu().clone().numpy()).to(D))",
        f"{x}.copy_(torch.from_dlpack({y}.cpu().clone()).to(D))",
        f"torch._foreach_add_([{x}], {number})",
    ]
    if t.dim():
        d = dim(n, x)
        size = t.shape[d]
        start, length = part(n, x, d)
        shift, many = n.choose(1, 2), n.choose(1, 2, 9)
        # PyTorch sees that windows overlap only where both are contiguous.
        whole = "" if t.is_contiguous() else ".clone()"
        if size:
            texts += [
                f"{x}.narrow({d}, {start}, {length}).add_({number})",
                f"{x}.select({d}, {start}).fill_({number})",
                f"{x}.split({n.choose(1, 2, 3)}, {d})[0].zero_()",
                f"{x}.unbind({d})[-1].mul_(2)",
                f"for piece in {x}.chunk(2, {d}):\n    piece.add_(1)",
                f"{x}.index_fill_({d}, {index(n, size)}, {number})",
                f"{x}.index_copy_({d}, {index(n, size, 1)}, {x}.narrow({d}, 0, 1).clone())",
                f"{x}.index_copy_({d}, {index(n, size, many)}, {x}.index_select({d}, {index(n, size, many)}))",
                f"{x}.scatter_({d}, {index(n, size, 1)}.expand({[n.choose(1, k) for k in t.shape]}), {x}.clone())",
                f"{x}[{index(n, t.shape[0], many)}] = {x}[{index(n, t.shape[0], many)}]"
                if t.shape[0]
                else f"{x}.zero_()",
                f"{x}.index_add_({d}, {index(n, size, 2)}, {x}.narrow({d}, 0, 1).clone().expand({[2 if i == d % t.dim() else k for i, k in enumerate(t.shape)]}))",
                f"{x}[{index(n, t.shape[0])}] = {number}" if t.shape[0] else f"{x}.zero_()",
                f"{x}.transpose_(0, {d})",
                f"{x}[1:].copy_({x}[:-1]{whole})",
                f"{x}[1:] += {x}[:-1]{whole}",
                f"{x}[:-{shift}] = {x}[{shift}:].clone()",
                f"{x}.narrow({d}, 0, {length}).copy_({x}.narrow({d}, {size - length}, {length}).flip({d}))",
            ]
            if t.dtype == torch.int64:
                texts.append(f"{x}.scatter_({d}, {x}.clamp(0, {size - 1}), {number})")
    if overlaps(t):  # the order of writes would decide
        texts = [f"{x}.fill_({number})", f"{x}.zero_()", f"{x}[...] = {number}"]
    n.attempt(n.random.choice(texts))


def autograd(n):
    """Leaves and what is derived from them; which writes are refused is part of it."""
    shape = [n.choose(1, 2, 3, 5) for _ in range(n.choose(1, 2, 3))]
    leaf = n.let("w", f"ints({', '.join(map(str, shape))}).requires_grad_()")
    way = n.choose(
        "leaf", "view of leaf", "result", "saved", "no_grad", "data", "detach", "slice", "chain"
    )
    last = f"{leaf}[..., 0]"
    if way == "leaf":
        n.attempt(
            f"{leaf}.{n.choose('add_(1)', 'zero_()', 'mul_(2)', 'fill_(1)', 'copy_(' + leaf + ')')}"
        )
    elif way == "view of leaf":
        n.attempt(f"{last}.add_(1)")
    elif way == "result":
        y = n.let("y", f"{leaf} * 2")
        n.attempt(f"{y}[..., 0].mul_(3)")
        n.attempt(f"{y}.view(-1)[0] = 5")
        n.attempt(f"{y}.sum().backward()")
    elif way == "saved":
        y = n.let("y", f"{leaf} + 1")
        z = n.let("z", f"{y} * {y}")
        n.attempt(f"{y}.{n.choose('add_(1)', 'detach().add_(1)', 'data.add_(1)')}")
        n.attempt(f"{z}.sum().backward()")
    elif way == "no_grad":
        n.attempt(f"with torch.no_grad():\n    {last}.add_(1)\n    {leaf}.mul_(2)")
        n.attempt(f"({leaf} * {leaf}).sum().backward()")
    elif way == "data":
        n.attempt(f"{leaf}.data.mul_(2)")
        n.attempt(f"({leaf} * 3).sum().backward()")
    elif way == "detach":
        y = n.let("y", f"{leaf}.detach()")
        n.attempt(f"{y}.add_(1)")
        n.alive.append(y)
        n.attempt(f"({leaf} * {y}).sum().backward()")
    elif way == "slice":
        y = n.let("y", f"{leaf}.clone()")
        n.attempt(f"{y}[..., :1] = {y}[..., -1:] * 2\n{y}.sum().backward()")
    else:
        y = n.let("y", f"{leaf}.clone()")
        v = n.let(
            "v",
            f"{y}.{n.choose('view(-1)', 't()', 'transpose(0, -1)', 'unsqueeze(0)', 'narrow(0, 0, 1)', 'expand(2, *' + leaf + '.shape)')}"
            if len(shape) < 3
            else f"{y}.transpose(0, 1)",
        )
        n.attempt(f"{v}.mul_({n.choose(2, 3)})")
        n.attempt(f"{y}.add_({leaf})")
        n.attempt(f"({y} * {v.replace('v', 'v')}.sum()).sum().backward()")
    n.attempt(f"look({leaf}.grad)")
    n.attempt(f"look({leaf}._version)")
    n.alive.append(leaf)


def inspect(n):
    x, y = n.pick(), n.pick()
    n.attempt(
        n.choose(
            f"look({x})",
            f"look({x}.sum().item())",
            f"look({x}.tolist() == {y}.tolist())",
            # PyTorch orders the strides of no elements one way for x + x and another for x * 2
            f"look(str({x}.stride()) + str({x}.storage_offset()))" if n.tensor(x).numel() else "",
            f"look({x}.is_contiguous())",
            f"look({x}.untyped_storage().data_ptr() == {y}.untyped_storage().data_ptr())",
            f"look({x}.untyped_storage().nbytes())",
            f"look({x}._is_view())",
            f"look(torch._debug_has_internal_overlap({x}))",
            f"look({x}._version)",
            f"look(torch.equal({x}, {y}))",
            "torch.opaque.synchronize()",
            f"del {n.alive.pop(n.alive.index(x))}" if len(n.alive) > 3 else f"look({x})",
        )
    )


STATEMENTS = {view: 8, compute: 3, change: 8, autograd: 1, inspect: 3}


def write(seed: int):
    n = Aliases(seed)
    for _ in range(n.random.randint(4, 25)):
        n.random.choices(list(STATEMENTS), list(STATEMENTS.values()))[0](n)
    return n.program("aliasing")


check, check_some = running.check_exact, running.check_exact_some
