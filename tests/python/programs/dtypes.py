"""Random programs over all dtypes: promotion between tensors, 0-d tensors and Python numbers that may
not fit, every form of an op (function, method, in place, out), casts, moves.

Exact ops must have the CPU's bits; results named r are of inexact ops, may differ by a few roundings,
and nothing is computed from them. What the CPU refuses, the device must refuse with the same exception.
"""

import torch

from . import running
from .writer import Writer

REAL = ("float32", "float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
EIGHT = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
COMPLEX = ("complex64", "complex64", "complex128", "complex32")
DTYPES = (*REAL, *SIGNED, *UNSIGNED, "bool", "bool", *COMPLEX, EIGHT[0], EIGHT[1])
NUMBERS = (
    "0",
    "1",
    "2",
    "-1",
    "3",
    "True",
    "False",
    "0.5",
    "-1.5",
    "2.0",
    "127",
    "128",
    "255",
    "256",
    "300",
    "-200",
)
BIG = (
    "2**31",
    "2**40",
    "-(2**63)",
    "2**63 - 1",
    "2**63",
    "2**64 - 1",
    "1e40",
    "1e300",
    'float("inf")',
    'float("nan")',
    "1j",
    "1+2j",
    "70000.0",
)

BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "floor_divide",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "pow",
]
BINARY += [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "logical_and",
    "logical_or",
    "logical_xor",
    "gcd",
    "lcm",
    "copysign",
    "heaviside",
]
UNARY = [
    "abs",
    "neg",
    "sign",
    "sgn",
    "square",
    "floor",
    "ceil",
    "trunc",
    "frac",
    "bitwise_not",
    "logical_not",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "signbit",
    "conj_physical",
    "real",
    "angle",
    "positive",
    "relu",
    "clone",
    "round",
    "nan_to_num",
]
NO_IN_PLACE = {
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "signbit",
    "real",
    "angle",
    "positive",
    "clone",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
}
INEXACT = [
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "erf",
    "exp2",
    "log2",
    "log10",
    "log1p",
    "expm1",
    "asin",
    "atan",
    "sinh",
    "cosh",
    "reciprocal",
    "digamma",
    "lgamma",
]
INEXACT_BINARY = ["atan2", "hypot", "pow", "float_power", "xlogy", "logaddexp"]
REDUCE = [
    "sum",
    "prod",
    "amax",
    "amin",
    "any",
    "all",
    "argmax",
    "argmin",
    "count_nonzero",
    "max",
    "min",
]
INEXACT_REDUCE = ["mean", "std", "var", "norm", "logsumexp", "median"]
OPERATORS = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>", "==", "<", ">=", "**")
HALVES = (torch.float16, torch.bfloat16)


class Dtypes(Writer):
    def __init__(self, seed: int):
        super().__init__(seed, torch.float32)
        self.alive = []

    def new(self, shape=None, dtype=None) -> str:
        shape = (
            [self.choose(1, 2, 3, 5, 17) for _ in range(self.choose(0, 1, 1, 2))]
            if shape is None
            else shape
        )
        extreme = ", extreme=True" if self.chance(0.3) else ""
        self.alive.append(
            self.let(
                "x",
                f"values({''.join(f'{k}, ' for k in shape)}dtype=torch.{dtype or self.choose(*DTYPES)}{extreme})",
            )
        )
        return self.alive[-1]

    def pick(self) -> str:
        return (
            self.random.choice(self.alive[-6:]) if self.alive and self.chance(0.7) else self.new()
        )

    def other(self, x: str) -> str:
        """The second operand: a tensor of the same or another dtype, a 0-d one, a number."""
        shape = list(self.space[x].shape)
        way = self.random.random()
        if way < 0.25:
            return self.choose(*NUMBERS)
        if way < 0.35:
            return self.choose(*BIG)
        if way < 0.5:
            return self.new([])
        if way < 0.7:
            return self.new(shape, str(self.space[x].dtype)[6:])
        return self.new([1 if self.chance(0.2) else k for k in shape])

    def keep(self, expression: str, exact: bool = True, checks: str = "") -> None:
        """A result, if there is one. An error that values decide appears when they are read."""
        name = f"{'x' if exact else 'r'}{self.numbers.get('x' if exact else 'r', -1) + 1}"
        try:
            exec(f"{name} = {expression}", self.space)
        except Exception:
            self.lines += ["with error():", f"    look({expression})"]
            return
        self.numbers[name[0]] = int(name[1:])
        self.lines.append(f"{name} = {expression}")
        result = self.space[name]
        if not isinstance(result, torch.Tensor):
            return
        if exact:
            self.alive.append(name)
        self.settle(result)

    def settle(self, result) -> None:
        """float16 and bfloat16 keep float32 inside a kernel: what is exact is one op from memory to memory."""
        if result.dtype in HALVES:
            self.say("torch.opaque.synchronize()")

    def change(self, x: str, text: str) -> None:
        """A write to x."""
        try:
            exec(text, self.space)
        except Exception as error:
            if "ZeroDivision" not in str(error):  # which leaves a part written, on the CPU
                self.lines += ["with error():", f"    {text}", f"    look({x})"]
        else:
            self.lines.append(text)
            self.settle(self.space[x])


def binary(n):
    x = n.pick()
    y = n.other(x)
    op = n.choose(*BINARY)
    exact = op not in ("pow", "div", "true_divide") or not n.space[x].is_complex()
    exact = exact and op not in ("maximum", "minimum", "fmax", "fmin")  # 0 and -0 are equal
    if op in ("fmod", "remainder") and n.space[x].is_floating_point():
        return  # the CPU's vectors give NaN for large quotients
    if op == "pow":
        y = n.choose("0", "1", "2", "3", "-1", "0.5", "2.0") if n.chance(0.7) else y
        exact = False
    if op == "mul" or op == "lcm":
        exact = not n.space[x].is_complex() and "j" not in y
    if op.startswith("bitwise_") and "shift" in op:
        y = n.choose("0", "1", "2", "3")
    complex_y = y in n.space and n.space[y].is_complex()
    exact = exact and not complex_y and "j" not in y
    way = n.random.random()
    if way < 0.35:
        n.keep(f"torch.{op}({x}, {y})", exact)
    elif way < 0.5:
        n.keep(f"{x}.{op}({y})", exact)
    elif way < 0.6 and exact:
        n.keep(f"{y} {n.choose('+', '-', '*')} {x}")
    elif exact and op not in NO_IN_PLACE and way < 0.8:
        n.change(x, f"{x}.{op}_({y})")
    elif exact:
        out = n.new(
            list(n.space[x].shape),
            str(n.space[x].dtype)[6:] if n.space[x].dtype in HALVES else None,
        )
        n.change(out, f"torch.{op}({x}, {y}, out={out})")


def operator(n):
    x = n.pick()
    y = n.other(x)
    sign = n.choose(*OPERATORS)
    if sign in ("<<", ">>"):
        y = n.choose("0", "1", "2")
    inexact = (
        sign == "**"
        or "j" in y
        or n.space[x].is_complex()
        or (y in n.space and n.space[y].is_complex())
    )
    if n.chance(0.3) and not inexact:
        if sign not in ("==", "<", ">="):
            n.change(x, f"{x} {sign}= {y}")
        return
    n.keep(f"{x} {sign} {y}" if n.chance(0.7) else f"{y} {sign} {x}", not inexact)


def unary(n):
    x = n.pick()
    op = n.choose(*UNARY)
    exact = not n.space[x].is_complex() or op in ("neg", "clone", "real", "conj_physical")
    way = n.random.random()
    if way < 0.6:
        n.keep(f"{x}.{op}()" if op != "conj_physical" else f"torch.{op}({x})", exact)
    elif way < 0.8 and op not in NO_IN_PLACE and exact:
        n.change(x, f"{x}.{op}_()")
    elif exact and op not in ("clone", "relu", "positive", "real", "isnan", "isinf", "isfinite"):
        out = n.new(list(n.space[x].shape))
        n.change(out, f"torch.{op}({x}, out={out})")


def inexact(n):
    x = n.new()
    if n.chance(0.3):
        n.keep(f"torch.{n.choose(*INEXACT_BINARY)}({x}, {n.other(x)})", exact=False)
    else:
        n.keep(f"torch.{n.choose(*INEXACT)}({x})", exact=False)


def reduce(n):
    x = n.pick()
    rank = n.space[x].dim()
    real = not n.space[x].is_complex()
    op = n.choose(*REDUCE)
    small = not (n.space[x].is_floating_point() or n.space[x].is_complex()) or op in (
        "any",
        "all",
        "count_nonzero",
    )
    arguments = n.choose("", f"{n.random.randrange(rank)}" if rank else "")
    if n.chance(0.25):
        n.keep(f"{x}.{n.choose(*INEXACT_REDUCE)}({arguments})", exact=False)
    elif op == "prod" and (n.space[x].dtype in HALVES or not n.space[x].double().prod().isfinite()):
        return  # the order, or what is rounded on the way, decides between inf and NaN
    elif op in ("sum", "prod") and n.chance(0.4):
        n.keep(
            f"{x}.{op}({arguments + ', ' if arguments else ''}dtype=torch.{n.choose(*DTYPES)})",
            exact=small and False,
        )
    elif op in ("argmax", "argmin") and not real:
        n.keep(f"{x}.{op}({arguments})", exact=False)
    else:
        n.keep(f"{x}.{op}({arguments})", exact=small)


def whole(x, dtype) -> bool:
    """True if a cast of x to dtype is defined: real to integer in range, and not of NaN."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return True
    t = x.real if x.is_complex() else x
    if not t.is_floating_point():
        return True
    t = t.double()
    low, high = (max(torch.iinfo(dtype).min, -(2**31)), min(torch.iinfo(dtype).max, 2**31))
    return bool((t.isfinite() & (t >= low) & (t <= high)).all())


def cast(n):
    x = n.pick()
    names = [d for d in (*DTYPES, *EIGHT) if whole(n.space[x], getattr(torch, d))]
    dtype = n.random.choice(names)
    way = n.choose("to", "to", "type_as", "copy_", "empty", "float", "view", "setitem")
    if way == "to":
        n.keep(f"{x}.to(torch.{dtype})")
    elif way == "view":
        n.keep(f"{x}.view(torch.{n.choose(*DTYPES, *EIGHT)})")
    elif way == "type_as":
        n.keep(f"{x}.type(torch.{dtype}).clone()")
    elif way == "float":
        n.keep(f"{x}.{n.choose('float', 'double', 'half', 'bool', 'bfloat16')}()")
    else:
        y = n.new(list(n.space[x].shape), dtype)
        n.change(y, f"{y}.copy_({x})" if way == "copy_" else f"{y}[...] = {x}")


def product(n):
    """Of int8: exact sums, or a weight that the product widens. PyTorch's sums of one term are of memory that was never written, where the processor
    has AMX; test_low_precision.py has them."""
    rows, inner, columns = (n.choose(1, 2, 3, 5, 17, 40) for _ in range(3))
    turned = n.chance(0.5)
    y = n.new([columns, inner] if turned else [inner, columns], "int8") + ".t()" * turned
    if n.chance(0.6) and inner > 1:
        n.keep(f"torch._int_mm({n.new([rows, inner], 'int8')}, {y})")
    else:
        n.keep(f"values({rows}, {inner}, dtype=torch.float32) @ {y}.float() * 0.125", exact=False)


def move(n):
    """What moves data and works for every dtype."""
    x = n.pick()
    t = n.space[x]
    texts = [
        f"{x}.clone()",
        f"{x}.reshape(-1)",
        f"{x}.unsqueeze(0).expand(2, *{x}.shape).contiguous()",
        f"torch.zeros_like({x})",
        f"torch.ones_like({x})",
        f"{x}.cpu().clone().to(D)",
        f"torch.empty_like({x}).copy_({x})",
        f"{x}.tolist() and {x}",
        f"torch.stack([{x}, {x}])",
    ]
    if t.dim():
        k = t.shape[0]
        texts += [
            f"{x}.flip(0)",
            f"{x}[::2]",
            f"{x}.t().contiguous()",
            f"torch.cat([{x}, {x}])",
            f"torch.cat([{x}, {n.new([2, *t.shape[1:]])}])",
        ]
        texts += [
            f"{x}.roll(1, 0)",
            f"{x}[torch.tensor([0, {k - 1}], device=D)]",
            f"{x}.index_select(0, torch.tensor([{k - 1}, 0], device=D))",
            f"{x}.repeat(2{', 1' * (t.dim() - 1)})",
        ]
        texts += [
            f"{x}.sort(0).values",
            f"torch.where({x} == {x}, {x}, {x}.flip(0))",
            f"{x}.masked_select({x} == {x})",
            f"{x}.gather(0, torch.zeros_like({x}, dtype=torch.int64))",
        ]
    n.keep(n.random.choice(texts))


def number(n):
    """Numbers that may not fit where they go."""
    x = n.pick()
    t = n.space[x]
    value = n.choose(*NUMBERS, *BIG)
    if (
        not t.is_floating_point()
        and not t.is_complex()
        and (
            "." in value
            or "e" in value.replace("False", "").replace("True", "")
            or "float" in value
        )
    ):
        value = n.choose(*NUMBERS[:7], "2**31", "300", "-200", "2**40")
    way = n.choose(
        "fill_",
        "masked_fill",
        "where",
        "clamp",
        "clamp_",
        "full",
        "setitem",
        "index_fill_",
        "compare",
        "isin",
        "addcmul",
        "add alpha",
        "tensor",
        "arange",
        "full_like",
    )
    if way == "fill_":
        n.change(x, f"{x}.fill_({value})")
    elif way == "masked_fill":
        n.keep(f"{x}.masked_fill({x} == {x}, {value})")
    elif way == "where":
        n.keep(
            f"torch.where({x} == {x}, {x}, {value})"
            if n.chance(0.5)
            else f"torch.where({x} == {x}, {value}, {n.choose(*NUMBERS)})"
        )
    elif way == "clamp":
        n.keep(f"{x}.clamp({n.choose('', 'min=', 'max=')}{value})", exact=not t.is_floating_point())
    elif way == "clamp_":
        low, high = n.choose(*NUMBERS), n.choose(*NUMBERS)
        if not t.is_floating_point():  # 0 and -0 are equal
            n.change(x, f"{x}.clamp_({low}, {high})")
    elif way == "full":
        n.keep(
            f"torch.full((3,), {value}, device=D)"
            if n.chance(0.4)
            else f"torch.full((3,), {value}, dtype={x}.dtype, device=D)"
        )
    elif way == "full_like":
        n.keep(f"torch.full_like({x}, {value})")
    elif way == "tensor":
        n.keep(f"torch.tensor([{value}, {n.choose('0', '1')}], device=D)")
    elif way == "arange":
        n.keep(
            f"torch.arange({n.choose('0', '-2', '1.5')}, {n.choose('5', '7.5')}, {n.choose('1', '2', '0.5')}, dtype={n.choose('None', x + '.dtype')}, device=D)"
        )
    elif way == "setitem" and t.dim():
        n.change(x, f"{x}[0] = {value}")
    elif way == "index_fill_" and t.dim():
        n.change(x, f"{x}.index_fill_(0, torch.tensor([0], device=D), {value})")
    elif way == "isin":
        n.keep(f"torch.isin({x}, {n.choose('0', '1', '2')})")
    elif way == "addcmul":
        n.keep(f"torch.addcmul({x}, {x}, {x}, value={value})", exact=False)
    elif way == "add alpha":
        n.keep(
            f"torch.add({x}, {n.new(list(t.shape))}, alpha={n.choose('2', '-1', '0.5', 'True', '300')})",
            exact=not t.is_complex() and t.dtype not in HALVES,
        )
    else:
        n.keep(f"{x} {n.choose('==', '<', '>=', '!=')} {value}")


STATEMENTS = {
    binary: 8,
    operator: 4,
    unary: 5,
    inexact: 3,
    reduce: 3,
    cast: 4,
    move: 3,
    number: 6,
    product: 1,
}


def write(seed: int):
    n = Dtypes(seed)
    for _ in range(n.random.randint(2, 8)):
        n.random.choices(list(STATEMENTS), list(STATEMENTS.values()))[0](n)
    return n.program("dtypes")


check, check_some = running.check_exact, running.check_exact_some
