"""Random eager programs, run line by line on the CPU and on the device: views, in-place writes through them, reductions, matmul,
indexing, autograd, values looked at half-way. Both must agree at the end; OPAQUE_TEST_FULL=1 runs many more."""

import os
import random

import pytest
import torch
import torch_opaque
from torch_opaque.numerics import same_bits

D = "opaque"
PROGRAMS = 3000 if os.environ.get("OPAQUE_TEST_FULL") else 150
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)

UNARY = [
    "abs",
    "neg",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "relu",
    "erf",
    "exp",
    "floor",
    "ceil",
    "sign",
    "square",
    "trunc",
    "atan",
    "asinh",
    "log1p",
    "expm1",
    "round",
    "frac",
    "isnan",
    "isfinite",
    "logical_not",
]
DEFINED = torch_opaque.define_op(
    "programs::gate(Tensor a, Tensor b, float c) -> Tensor", "a * sigmoid(c * b)"
)
JUMPS = {"floor", "ceil", "trunc", "round", "frac", "sign", "isnan", "isfinite", "logical_not"}
JUMPS |= {"gt", "lt", "eq", "ne", "ge", "le", "argmax", "any", "all"}
BINARY = [
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "atan2",
    "fmax",
    "fmin",
    "hypot",
    "gt",
    "lt",
    "eq",
    "ne",
    "ge",
    "le",
]
IN_PLACE = [
    "add_",
    "sub_",
    "mul_",
    "maximum",
    "copy_",
    "clamp_",
    "zero_",
    "fill_",
    "relu_",
    "addcmul_",
    "lerp_",
    "masked_fill_",
    "sigmoid_",
    "neg_",
]
REDUCE = [
    "sum",
    "mean",
    "amax",
    "amin",
    "argmax",
    "var",
    "softmax",
    "log_softmax",
    "logsumexp",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "cummax",
    "any",
    "all",
    "prod",
    "norm",
    "max",
    "std",
]


def where(x):
    return x.untyped_storage().data_ptr()


def overlaps(x) -> bool:
    """Several elements in one place: what a write does there is not for a test to say."""
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


class Unlike(Exception):
    """The two sides went different ways, and may."""


class Twin:
    """The same tensor on both sides."""

    def __init__(self, cpu, device):
        self.cpu, self.device = cpu, device


class Program:
    """Statements chosen by `seed`; `log` is what they were, for the failure message."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.twins, self.log = [], []
        self.rounded = set()  # storages whose elements may differ in the last bits
        for _ in range(self.random.randint(1, 3)):
            self.new()

    # ---- choosing

    def shape(self):
        return [self.random.choice(SIZES) for _ in range(self.random.choice((0, 1, 2, 2, 3, 4)))]

    def new(self, shape=None, dtype=None):
        shape = self.shape() if shape is None else shape
        dtype = dtype or self.random.choice(
            (torch.float32,) * 6 + (torch.float64, torch.int64, torch.int32, torch.bool)
        )
        x = (torch.randn(shape) * 3).to(dtype)
        self.log.append(f"t{len(self.twins)} = randn({shape}).to({dtype})")
        self.twins.append(Twin(x, x.to(D)))
        return self.twins[-1]

    def pick(self, floating=False, rank=None):
        good = [
            t
            for t in self.twins
            if (not floating or t.cpu.is_floating_point()) and (rank is None or t.cpu.dim() >= rank)
        ]
        if not good:
            return self.new([3, 4] if rank else None, torch.float32)
        return self.random.choice(good[-6:])

    def name(self, twin):
        return f"t{self.twins.index(twin)}"

    def fellow(self, twin):
        """A tensor that broadcasts with `twin`."""
        shape = list(twin.cpu.shape)
        good = [t for t in self.twins if t.cpu.shape == twin.cpu.shape]
        if good and self.random.random() < 0.6:
            return self.random.choice(good)
        shape = [1 if self.random.random() < 0.3 else n for n in shape][
            self.random.choice((0, 0, 1)) :
        ]
        return self.new(shape)

    # ---- statements

    def run(self, text, f, *twins, exact=False):
        """f on both sides; either both raise or neither. The result, if any, is a new twin."""
        if text.split("(")[0].split(".")[-1] in JUMPS and any(
            where(t.cpu) in self.rounded for t in twins
        ):
            return  # a difference in the last bit would become a large one
        self.log.append(text)
        try:
            want = f(*(t.cpu for t in twins))
        except (RuntimeError, IndexError, NotImplementedError, TypeError) as error:
            want = error
        try:
            got = f(*(t.device for t in twins))
            if isinstance(want, Exception):
                got.cpu()
        except (RuntimeError, IndexError, NotImplementedError, TypeError) as error:
            assert isinstance(want, Exception), f"only the device raises {error!r}\n{self}"
            return
        if "some elements of the input tensor and the written-to tensor" in str(want):
            raise Unlike  # PyTorch refuses overlapping operands; a device without storage need not
        assert not isinstance(want, Exception), f"only the CPU raises {want!r}\n{self}"
        if not exact or any(where(t.cpu) in self.rounded for t in twins):
            self.rounded.add(where(want))
        else:
            self.rounded.discard(where(want))
        if any(want is t.cpu for t in twins):
            return
        assert got.shape == want.shape and got.dtype == want.dtype, str(self)
        self.log[-1] = f"t{len(self.twins)} = " + text
        self.twins.append(Twin(want, got))

    def view(self):
        t = self.pick(rank=1)
        n, rank = self.name(t), t.cpu.dim()
        d = self.random.randrange(rank)
        size = t.cpu.shape[d]
        start = self.random.randrange(size)
        step = self.random.choice((1, 1, 2, 3))
        order = self.random.sample(range(rank), rank)
        wide = [self.random.choice((2, 3))] + [k for k in t.cpu.shape]
        flat = t.cpu.numel()
        choices = [
            (f"{n}.transpose(0, {d})", lambda x: x.transpose(0, d)),
            (f"{n}.permute({order})", lambda x: x.permute(order)),
            (
                f"{n}.narrow({d}, {start}, {size - start})",
                lambda x: x.narrow(d, start, size - start),
            ),
            (f"{n}[::{step}]", lambda x: x[::step]),
            (f"{n}.select({d}, {start})", lambda x: x.select(d, start)),
            (f"{n}.unsqueeze({d})", lambda x: x.unsqueeze(d)),
            (f"{n}.expand({wide})", lambda x: x.expand(wide)),
            (f"{n}.reshape(-1)", lambda x: x.reshape(-1)),
            (f"{n}.view({[flat]})", lambda x: x.view(flat)),
            (f"{n}.flatten()", lambda x: x.flatten()),
            (f"{n}.diagonal()", lambda x: x.diagonal()),
            (f"{n}.flip({d})", lambda x: x.flip(d)),
            (f"{n}.unfold({d}, 1, {step})", lambda x: x.unfold(d, 1, step)),
            (f"{n}.contiguous()", lambda x: x.contiguous()),
            (f"{n}.squeeze()", lambda x: x.squeeze()),
        ]
        text, f = self.random.choice(choices)
        self.run(text, f, t, exact=True)

    def unary(self):
        t, op = self.pick(), self.random.choice(UNARY)
        # Their error is the absolute one of their operand, which grows with it.
        limit = {"sin": 100, "cos": 100, "exp": 10, "expm1": 10}.get(op)
        if limit and not bool((t.cpu.float().abs() < limit).all()):
            return
        self.run(f"{self.name(t)}.{op}()", lambda x: getattr(x, op)(), t)

    def binary(self):
        t, op = self.pick(), self.random.choice(BINARY)
        if self.random.random() < 0.3:
            value = self.random.choice((0.5, -1.5, 2, 3, 0, 1e-3))
            if op not in ("maximum", "minimum", "atan2", "fmax", "fmin", "hypot"):
                self.run(f"{self.name(t)}.{op}({value})", lambda x: getattr(x, op)(value), t)
            return
        u = self.fellow(t)
        self.run(f"{self.name(t)}.{op}({self.name(u)})", lambda x, y: getattr(x, op)(y), t, u)

    def defined(self):
        t, c = self.pick(floating=True), self.random.choice((0.5, -1.5, 2.0))
        u = self.fellow(t)
        self.run(f"gate({self.name(t)}, {self.name(u)}, {c})", lambda x, y: DEFINED(x, y, c), t, u)

    def where(self):
        t = self.pick()
        u = self.fellow(t)
        self.run(
            f"where({self.name(t)} > {self.name(u)}, ...)",
            lambda x, y: torch.where(x > y, x, y),
            t,
            u,
        )

    def reduce(self):
        t, op = self.pick(rank=1), self.random.choice(REDUCE)
        d, keep = self.random.randrange(t.cpu.dim()), self.random.random() < 0.5

        def f(x):
            if op in ("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"):
                return getattr(x, op)(d)
            if op == "cummax":
                return x.cummax(d).values
            if op == "norm":
                return x.norm(dim=d, keepdim=keep)
            if op == "max":
                return x.max(d, keepdim=keep).values
            return getattr(x, op)(d, keepdim=keep)

        self.run(f"{self.name(t)}.{op}({d}, keepdim={keep})", f, t)

    def full_reduce(self):
        t, op = self.pick(), self.random.choice(("sum", "mean", "max", "min", "any", "amax"))
        self.run(f"{self.name(t)}.{op}()", lambda x: getattr(x, op)(), t)

    def matmul(self):
        t = self.pick(floating=True, rank=1)
        k = t.cpu.shape[-1]
        u = self.new([k, self.random.choice(SIZES)], t.cpu.dtype)
        self.run(f"{self.name(t)} @ {self.name(u)}", lambda x, y: x @ y, t, u)

    def cast(self):
        t = self.pick()
        dtype = self.random.choice(
            (torch.float32, torch.float64, torch.int32, torch.bool, torch.float32)
        )
        if not dtype.is_floating_point and t.cpu.is_floating_point():
            return  # a difference in the last bit would become one of 1
        self.run(f"{self.name(t)}.to({dtype})", lambda x: x.to(dtype), t)

    def index(self):
        t = self.pick(rank=1)
        d = self.random.randrange(t.cpu.dim())
        index = torch.randint(t.cpu.shape[d], (self.random.choice((1, 3, 6)),))
        self.log.append(f"i = {index.tolist()}")
        moved = index.to(D)

        def on(x):
            return index if x.device.type == "cpu" else moved

        if self.random.random() < 0.5:
            self.run(
                f"{self.name(t)}.index_select({d}, i)",
                lambda x: x.index_select(d, on(x)),
                t,
                exact=True,
            )
        else:
            at = (slice(None),) * d
            self.run(f"{self.name(t)}[{':, ' * d}i]", lambda x: x[(*at, on(x))], t, exact=True)

    def join(self):
        t = self.pick(rank=1)
        d = self.random.randrange(t.cpu.dim())
        u = self.new(list(t.cpu.shape), t.cpu.dtype)
        op = self.random.choice((torch.cat, torch.stack))
        self.run(
            f"{op.__name__}([{self.name(t)}, {self.name(u)}], {d})",
            lambda x, y: op([x, y], d),
            t,
            u,
        )

    def write(self):
        t, op = self.pick(), self.random.choice(IN_PLACE)
        u = self.fellow(t)
        n, m = self.name(t), self.name(u)

        def f(x, y):
            if op == "maximum":
                return torch.maximum(x, y, out=x)
            if op == "clamp_":
                return x.clamp_(-1, 2)
            if op in ("zero_", "relu_", "sigmoid_", "neg_"):
                return getattr(x, op)()
            if op == "fill_":
                return x.fill_(1.5)
            if op == "addcmul_":
                return x.addcmul_(y, y, value=0.5)
            if op == "lerp_":
                return x.lerp_(y, 0.25)
            if op == "masked_fill_":
                return x.masked_fill_(y > 0, 2)
            return getattr(x, op)(y)

        if overlaps(t.cpu):
            return
        if op in ("maximum",) and torch.broadcast_shapes(t.cpu.shape, u.cpu.shape) != t.cpu.shape:
            return
        self.run(f"{n}.{op}({m})", f, t, u)

    def assign(self):
        t = self.pick(rank=1)
        d = self.random.randrange(t.cpu.dim())
        if overlaps(t.cpu):
            return
        start = self.random.randrange(t.cpu.shape[d])
        at = (slice(None),) * d + (slice(start, None),)
        if self.random.random() < 0.5:
            value = self.random.choice((0.0, 1.0, -2.0))
            self.run(
                f"{self.name(t)}[{at}] = {value}",
                lambda x: x.__setitem__(at, value) or x,
                t,
                exact=True,
            )
            return

        def f(x):
            x[at] = x[at] * 2 + 1 if x.is_floating_point() else x[at]
            return x

        self.run(f"{self.name(t)}[{at}] = 2 * itself + 1", f, t)

    def look(self):
        t = self.pick()
        self.log.append(f"{self.name(t)}.cpu()")
        self.check(t)

    def gradient(self):
        t = self.pick(floating=True)
        if t.cpu.numel() > 4096:
            return  # sums of so many f32 differ more than the tolerance
        u = self.fellow(t)
        scale = self.random.choice((0.5, 2.0))

        def f(x, y):
            leaf = x.detach().clone().requires_grad_()
            other = y.detach().to(x.dtype)
            out = (leaf * scale + other).tanh() * leaf.sigmoid()
            if out.dim() > 0:
                out = out.softmax(-1) + out.sum(0, keepdim=True)
            out.square().sum().backward()
            return leaf.grad

        self.run(f"gradient({self.name(t)}, {self.name(u)})", f, t, u)

    # ---- the end

    def check(self, twin):
        want, got = twin.cpu, twin.device.cpu()
        if want.dtype.is_floating_point:
            scale = float(want[want.isfinite()].abs().max()) if want.isfinite().any() else 0.0
            torch.testing.assert_close(
                got,
                want,
                rtol=2e-4,
                atol=2e-4 + 2e-5 * scale,
                equal_nan=True,
                msg=lambda m: f"{m}\n{self}",
            )
        else:
            assert torch.equal(got, want), f"{self.name(twin)} differs\n{self}"

    def __str__(self):
        return "\n".join(self.log)


STATEMENTS = "view view view unary binary binary defined where reduce full_reduce matmul cast index join write write assign look gradient"


def play(seed):
    """The program, checked; None if its sides went different ways."""
    program = Program(seed)
    try:
        for _ in range(program.random.randint(3, 25)):
            getattr(program, program.random.choice(STATEMENTS.split()))()
    except Unlike:
        return None
    for twin in program.twins:
        program.check(twin)
    return program


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(10))
def test_random_program(block):
    for seed in range(block, PROGRAMS, 10):
        play(seed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(5))
def test_fused_is_unfused(block):
    for seed in range(block, PROGRAMS // 3, 5):
        fused = play(seed)
        with torch_opaque.unfused():
            unfused = play(seed)
        for a, b in zip(fused.twins, unfused.twins, strict=True) if fused else ():
            assert same_bits(a.device.cpu(), b.device.cpu()), f"{fused.name(a)} differs\n{fused}"
