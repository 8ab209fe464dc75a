"""Random nets: what people write in forward(), with a loss, gradients and optimizer steps, values kept
alive here and there, and looks at values in between.

A net is a stream: each block takes the current value `h` and gives the next one. What came before is
mostly deleted, as the locals of a forward() are, and sometimes kept; blocks look back at what is still there.
"""

import torch

from . import running
from .writer import Writer

SIZES = (1, 2, 3, 5, 8, 17, 64, 65)
SMALL = (1, 2, 3, 5, 8)
ACTIVATIONS = (
    "torch.tanh({})",
    "torch.relu({})",
    "F.gelu({})",
    'F.gelu({}, approximate="tanh")',
    "F.silu({})",
    "torch.sigmoid({})",
    "{}.sin()",
    "({}).clamp(-2, 2)",
    "F.softplus({})",
    "F.elu({})",
    "F.leaky_relu({}, 0.1)",
    "F.leaky_relu_({} * 1, 0.1)",
    "F.elu_({} * 1)",
    "({0}) * ({0}).detach().sort(-1).values",
    "F.hardswish({})",
    "F.mish({})",
    "({}).square()",
    "({}).abs().sqrt()",
    "(1 + ({}).abs()).log()",
    "({}).exp().clamp(max=9)",
    "(1 / (1 + ({}).square()))",
)


class Net(Writer):
    """A writer with the vocabulary of nets. `params` are names of leaves, `alive` of other values. `length`: how long the first value is, for
    nets that are run at several lengths, and `wide`: a width that varies, too."""

    length = wide = None

    def __init__(self, seed: int):
        super().__init__(seed)
        self.params, self.modules, self.alive = [], [], []
        self.uses_dropout = False

    def act(self, text: str) -> str:
        return self.choose(*ACTIVATIONS).format(text)

    def weight(self, *shape) -> str:
        """A parameter, sometimes one that is used already (tied)."""
        tied = [p for p in self.params if self.shape(p) == shape]
        if tied and self.chance(0.3):
            return self.random.choice(tied)
        self.params.append(self.let("w", f"param({', '.join(map(str, shape))})"))
        return self.params[-1]

    def fixed(self, *shape) -> str:
        """A vector that scales or shifts: a parameter or a constant."""
        return (
            self.weight(*shape)
            if self.chance(0.7)
            else self.let("c", f"randn({', '.join(map(str, shape))})")
        )

    def value(self, expression: str) -> str:
        self.alive.append(self.let("h", expression))
        return self.alive[-1]

    def module(self, text: str) -> str:
        self.modules.append(self.let("m", f"module({text})"))
        return self.modules[-1]

    def width(self) -> int:
        if self.wide and self.chance(0.4):
            return self.wide
        return self.choose(*SIZES)


# ---- blocks: features are the last dimension -------------------------------------------------------------------------


def linear(n, h):
    c, o = n.shape(h)[-1], n.width()
    way = n.choose("matmul", "bias", "F", "module", "transposed", "bytes")
    if way == "matmul":
        return n.value(f"{h} @ {n.weight(c, o)}")
    if way == "bias":
        return n.value(n.act(f"{h} @ {n.weight(c, o)} + {n.fixed(o)}"))
    if way == "F":
        return n.value(n.act(f"F.linear({h}, {n.weight(o, c)}, {n.weight(o)})"))
    if way == "module":
        return n.value(n.act(f"{n.module(f'nn.Linear({c}, {o})')}({h})"))
    if way == "bytes":  # a quantized weight
        w = n.let("c", f"(randn({o}, {c}) * 40).to(torch.int8)")
        return n.value(n.act(f"F.linear({h}, {w}.to({h}.dtype)) * ({n.fixed(o)} / 40)"))
    return n.value(f"({n.weight(o, c)} @ {h}.transpose(-1, -2)).transpose(-1, -2)")


def residual(n, h):
    """Around a matmul: the sum needs what the matmul reads."""
    c = n.shape(h)[-1]
    w = n.weight(c, c)
    inner = n.choose(
        "{a} @ {w}",
        "F.linear({a}, {w})",
        "{a} @ {w} + {b}",
        "{s} * ({a} @ {w})",
        "{a} @ {w} @ {w2}",
    )
    inner = inner.format(
        a=n.act(n.choose(h, h, f"{h} * {n.fixed(c)}", norm_text(n, h))),
        w=w,
        w2=n.weight(c, c) if "{w2}" in inner else "",
        b=n.fixed(c) if "{b}" in inner else "",
        s=n.choose("0.5", "2"),
    )
    if n.chance(0.3):
        inner = n.act(inner)
    return n.value(
        n.choose(
            f"{h} + {inner}",
            f"{inner} + {h}",
            f"{h} - {inner}",
            f"{h} * ({inner})",
            f"({h} + {inner}) * 0.5",
        )
    )


def mlp(n, h):
    """A residual with a hidden layer, as in a transformer."""
    c, o = n.shape(h)[-1], n.width()
    first = f"{norm_text(n, h) if n.chance(0.6) else h} @ {n.weight(c, o)}"
    return n.value(f"{h} + {n.act(first)} @ {n.weight(o, c)}")


def gate(n, h):
    c, o = n.shape(h)[-1], n.width()
    way = n.choose("glu", "two", "self", "highway", "squeeze")
    if way == "glu" and o > 1:
        return n.value(f"F.glu({h} @ {n.weight(c, 2 * o)}, -1)")
    if way == "two":
        return n.value(f"{n.act(f'({h} @ {n.weight(c, o)})')} * ({h} @ {n.weight(c, o)})")
    if way == "self":
        return n.value(f"{h} * torch.sigmoid({h} @ {n.weight(c, c)})")
    if way == "highway":
        g = n.let("g", f"torch.sigmoid({h} @ {n.weight(c, c)} + {n.fixed(c)})")
        n.alive.append(g)
        return n.value(f"{g} * {n.act(h)} + (1 - {g}) * {h}")
    pooled = f"{h}.mean(-2, keepdim=True)" if len(n.shape(h)) > 1 else h
    return n.value(
        f"{h} * torch.sigmoid(torch.relu({pooled} @ {n.weight(c, 2)}) @ {n.weight(2, c)})"
    )


def norm_text(n, h):
    """An expression that normalises over the last dimension."""
    c = n.shape(h)[-1]
    return n.choose(
        lambda: f"F.layer_norm({h}, ({c},), {n.fixed(c)}, {n.fixed(c)})",
        lambda: f"F.layer_norm({h}, ({c},))",
        lambda: f"F.rms_norm({h}, ({c},), {n.fixed(c)}, eps=1e-5)",
        lambda: f"({h} * torch.rsqrt({h}.square().mean(-1, keepdim=True) + 1e-5) * {n.fixed(c)})",
        lambda: (
            f"(({h} - {h}.mean(-1, keepdim=True)) / ({h}.var(-1, keepdim=True, unbiased=False) + 1e-3).sqrt())"
        ),
        lambda: f"F.normalize({h}, dim=-1, eps=1e-2)",
        lambda: f"{h}.softmax(-1)",
        lambda: f"{h}.log_softmax(-1).clamp(min=-9)",
    )()


def norm(n, h):
    return n.value(norm_text(n, h))


def batch_norm(n, h):
    shape = n.shape(h)
    channels = shape[1] if len(shape) in (2, 3, 4) else 0
    per_channel = shape[0] * torch.Size(shape[2:]).numel() if channels else 0
    if not channels:
        return norm(n, h)
    if n.chance(0.5):
        kind = {2: "1d", 3: "1d", 4: "2d"}[len(shape)]
        m = n.module(f"nn.BatchNorm{kind}({channels})")
        if per_channel == 1 or n.chance(0.4):
            n.say(f"{m}.eval()")
        return n.value(f"{m}({h})")
    mean, var = (
        n.let("c", f"torch.zeros({channels}, device=D, dtype=R)"),
        n.let("c", f"torch.ones({channels}, device=D, dtype=R)"),
    )
    training = per_channel > 1 and n.chance(0.6)
    return n.value(
        f"F.batch_norm({h}, {mean}, {var}, {n.fixed(channels)}, {n.fixed(channels)}, training={training})"
    )


def group_norm(n, h):
    shape = n.shape(h)
    if len(shape) < 3:
        return norm(n, h)
    groups = n.random.choice([g for g in (1, 2, 4, shape[1]) if shape[1] % g == 0])
    if shape[1] // groups * torch.Size(shape[2:]).numel() == 1:
        return norm(n, h)
    return n.value(f"F.group_norm({h}, {groups}, {n.fixed(shape[1])}, {n.fixed(shape[1])})")


def attention(n, h):
    shape = n.shape(h)
    if len(shape) not in (2, 3):
        return mlp(n, h)
    t, c = shape[-2:]
    heads = n.random.choice([k for k in (1, 2, 4) if c % k == 0])
    d, lead = c // heads, ", ".join(map(str, shape[:-2]))
    lead += ", " if lead else ""
    split = f".view({lead}{t}, {heads}, {d}).transpose(-2, -3)"
    source = norm_text(n, h) if n.chance(0.4) else h
    if n.chance(0.5):
        q, k, v = (n.let("q", f"({source} @ {n.weight(c, c)}){split}") for _ in range(3))
    else:
        packed = n.let("q", f"{source} @ {n.weight(c, 3 * c)}")
        q, k, v = (
            f"{packed}{piece}{split}"
            for piece in (f"[..., :{c}]", f"[..., {c}:{2 * c}]", f"[..., {2 * c}:]")
        )
        q = q.replace(".view", ".reshape")
        k, v = k.replace(".view", ".reshape"), v.replace(".view", ".reshape")
    mask = f"torch.ones({t}, {t}, device=D, dtype=torch.bool).tril()"
    way = n.choose(
        "sdpa", "causal", "masked", "composed", "composed", "composed masked", "linear", "columns"
    )
    if way == "sdpa":
        out = f"F.scaled_dot_product_attention({q}, {k}, {v})"
    elif way == "causal":
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True)"
    elif way == "masked":
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}, attn_mask={mask})"
    elif way == "linear":
        out = f"(F.elu({q}) + 1) @ ((F.elu({k}) + 1).transpose(-1, -2) @ {v})"
    elif way == "columns":
        rows = n.choose("sigmoid()", "exp()", "softmax(-2)")
        out = f"(({q} @ {k}.transpose(-1, -2)) * {d**-0.5:.4f}).{rows}.transpose(-1, -2) @ {v}"
    else:
        scores = f"({q} @ {k}.transpose(-1, -2)) * {d**-0.5:.4f}"
        if way == "composed masked":
            fill = n.choose('float("-inf")', "-1e9", "-30")
            scores = f"({scores}).masked_fill(~{mask}, {fill})"
        out = f"({scores}).softmax(-1) @ {v}"
    out = f"({out}).transpose(-2, -3).reshape({lead}{t}, {c})"
    if n.chance(0.7):
        out = f"{out} @ {n.weight(c, c)}"
    return n.value(f"{h} + {out}" if n.chance(0.7) else out)


def products(n, h):
    """Products of what is made of a product, each matrix by its rows and over them, with a right operand of its own or one for all."""
    shape = n.shape(h)
    if len(shape) < 3:
        return mlp(n, h)
    lead, (t, c) = shape[:-2], shape[-2:]
    o = n.width()
    made = n.value(f"{h} @ {n.weight(*(lead if n.chance(0.5) else ()), c, o)}")
    made = n.value(
        n.choose(
            "torch.exp({} * 0.1)", "torch.tanh({})", "{}.softmax(-1)", "{}.softmax(-2)"
        ).format(made)
    )
    right = h if n.chance(0.5) else n.weight(*(lead if n.chance(0.5) else ()), t, c)
    summed = n.value(f"{made}.transpose(-1, -2) @ {right}")
    out = f"{made} @ {summed}"
    if n.chance(0.5):
        other = n.value(f"{made}.transpose(-1, -2) @ {n.weight(t, c)}")
        out = f"{out} * 0.1 + {made} @ {other}"
    return n.value(f"{h} + 0.1 * ({out})")


def recurrent(n, h):
    """Steps over time with a carried state; the loss of each step may be summed."""
    shape = n.shape(h)
    if len(shape) != 3 or shape[1] > 17:
        return residual(n, h)
    b, t, c = shape
    o = n.choose(*SMALL)
    state = n.let("s", f"torch.zeros({b}, {o}, device=D, dtype=R)")
    w, u = n.weight(c, o), n.weight(o, o)
    way = n.choose("rnn", "gru", "cell", "layer")
    if way == "layer":
        more = n.choose("", ", bidirectional=True", ", num_layers=2", ", bias=False")
        layer = n.module(f"nn.{n.choose('LSTM', 'GRU')}({c}, {o}, batch_first=True{more})")
        return n.value(f"{layer}({h})[0]")
    cell = n.module(f"nn.{n.choose('GRUCell', 'RNNCell')}({c}, {o})") if way == "cell" else ""
    g = n.weight(o, o) if way == "gru" else ""
    steps = n.let("steps", "[]")
    with n.block(f"for i in range({t}):"):
        n.space["i"] = 0
        if way == "rnn":
            n.say(f"{state} = torch.tanh({h}[:, i] @ {w} + {state} @ {u})")
        elif way == "gru":
            n.say(
                f"z = torch.sigmoid({state} @ {g})\n{state} = z * {state} + (1 - z) * torch.tanh({h}[:, i] @ {w} + {state} @ {u})"
            )
        else:
            n.say(f"{state} = {cell}({h}[:, i], {state})")
        n.say(f"{steps}.append({state})")
    n.space[steps] = [n.space[state]] * t
    result = n.value(
        f"torch.stack({steps}, 1)"
        if n.chance(0.7)
        else f"{state}.unsqueeze(1).expand({b}, {t}, {o})"
    )
    n.say(f"del {steps}")
    return result


def carried(n, h):
    """A loop around one block with the value carried: weights are shared by its turns."""
    c = n.shape(h)[-1]
    w = n.weight(c, c)
    e = n.value(f"{h} * 1")
    body = n.choose(
        "{e} = {e} + torch.tanh({e}) @ {w}",
        "{e} = F.layer_norm({e} + {e} @ {w}, ({c},))",
        "{e} = torch.tanh({e} @ {w} + {h})",
        "{e} = 0.5 * {e} + {act}",
        "{e} = {e} - 0.1 * ({e} @ {w}) @ {w}.t()",
    )
    with n.block(f"for _ in range({n.choose(1, 2, 3, 5)}):"):
        n.say(body.format(e=e, w=w, h=h, c=c, act=n.act(e)))
        if n.chance(0.15):
            n.say(f"look({e}.sum())")
    return e


def accumulate(n, h):
    """A running average of a detached value, as batch norm and EMA keep."""
    e = (
        n.let("e", f"torch.zeros({', '.join(map(str, n.shape(h)[1:]))}, device=D, dtype=R)")
        if len(n.shape(h)) > 1
        else None
    )
    if e is None:
        return residual(n, h)
    with n.block("with torch.no_grad():"):
        n.say(
            n.choose(
                f"{e}.mul_(0.9).add_({h}.mean(0), alpha=0.1)",
                f"{e}.lerp_({h}.mean(0), 0.1)",
                f"{e} = 0.9 * {e} + 0.1 * {h}.mean(0)",
            )
        )
    return n.value(n.choose(f"{h} - {e}", f"{h} * (1 + {e})", f"{h} + 0 * {e}"))


def join(n, h):
    shape = n.shape(h)
    d = n.random.randrange(len(shape))
    same = [x for x in n.alive if n.shape(x) == shape]
    other = n.random.choice(same or [h])
    if shape[d] > 32:
        return n.value(f"{h} + {other}")
    way = n.choose("cat", "stack", "chunk", "max", "where", "lerp", "roll", "flip", "pad", "einsum")
    if way == "cat":
        return n.value(f"torch.cat([{h}, {n.act(other)}], {d})")
    if way == "stack":
        return n.value(f"torch.stack([{h}, {other}]).{n.choose('mean', 'sum', 'amax')}(0)")
    if way == "chunk" and shape[-1] > 1:
        a, b = n.let("h", f"{h}[..., ::2]"), n.let("h", f"{h}[..., 1::2]")
        return n.value(f"torch.cat([-{b}, {a}], -1)")
    if way == "max":
        return n.value(f"torch.maximum({h}, {n.act(other)})")
    if way == "where":
        return n.value(f"torch.where({h} > 0, {n.act(other)}, 0.1 * {h})")
    if way == "lerp":
        return n.value(f"torch.lerp({h}, {other}, 0.3)")
    if way == "roll":
        return n.value(f"{h} + {h}.roll(1, {d})")
    if way == "flip":
        return n.value(f"{h} * {h}.flip({d})")
    if way == "pad":
        return n.value(f"F.pad({h}, (1, 1)).unfold(-1, 3, 1).mean(-1)")
    if len(shape) == 3:
        return n.value(f'torch.einsum("btc,cd->btd", {h}, {n.weight(shape[-1], n.width())})')
    return n.value(f"{h} + {other}")


def reduce(n, h):
    """Statistics of the value that scale or shift it again."""
    d = n.choose(-1, 0, *range(len(n.shape(h))))
    text = n.choose(
        "{h} - {h}.mean({d}, keepdim=True)",
        "{h} / (1 + {h}.abs().sum({d}, keepdim=True))",
        "{h} / (1 + {h}.norm())",
        "{h} * torch.sigmoid({h}.amax({d}, keepdim=True))",
        "{h} - {h}.logsumexp({d}, keepdim=True)",
        "{h}.softmax({d}) * {h}",
        "{h}.cumsum({d}) * 0.3",
        "{h} + {h}.mean()",
        "{h} / (0.1 + {h}.std({d}, keepdim=True, unbiased=False))",
    )
    return n.value(text.format(h=h, d=d))


def elementwise(n, h):
    return n.value(
        n.act(
            n.choose(h, f"({h} * {n.choose(0.5, 2)} + {n.choose(1, 0.1)})", f"({h} - {n.act(h)})")
        )
    )


def in_place(n, h):
    """In place on an activation: on a result that nothing saved, as F.relu(inplace=True) after a layer."""
    c = n.shape(h)[-1]
    way = n.choose("relu_", "add_", "mul_", "slice", "masked", "copy", "+=")
    e = n.value(f"{h} + {n.fixed(c)}")
    text = {
        "relu_": f"{e}.relu_()",
        "add_": f"{e}.add_({h}, alpha=0.5)",
        "mul_": f"{e}.mul_(0.5).sub_(1)",
        "slice": f"{e}[..., 0] = {h}[..., -1] * 2",
        "masked": f"{e}.masked_fill_({h} < 0, 0.25)",
        "copy": f"{e}[:1].copy_({n.act(h + '[:1]')})",
        "+=": f"{e} += {n.act(h)}",
    }[way]
    n.say(text)
    return e


def detach(n, h):
    return n.value(
        n.choose(
            f"{h} - {h}.detach().mean(0)",
            f"{h} * {n.act(h)}.detach()",
            f"{h} + ({h}.round() - {h}).detach() * 0",
        )
    )


def dropped(n, h):
    n.uses_dropout = True
    return n.value(f"dropout({n.act(h)}, {n.choose(0.1, 0.5)})")


FEATURES = {
    residual: 8,
    mlp: 4,
    linear: 4,
    gate: 4,
    norm: 3,
    attention: 4,
    products: 3,
    recurrent: 2,
    carried: 3,
    reduce: 3,
    elementwise: 3,
    join: 3,
    in_place: 2,
    batch_norm: 2,
    group_norm: 1,
    accumulate: 1,
    detach: 1,
    dropped: 1,
}


# ---- blocks: images --------------------------------------------------------------------------------------------------


def conv(n, h):
    c, height, wide = n.shape(h)[1:]
    o = n.choose(1, 2, 3, 8)
    k = n.choose(*(k for k in (1, 3) if k <= min(height, wide) + 2))
    way = n.choose("plain", "depthwise", "module", "residual")
    if way == "depthwise":
        return n.value(f"F.conv2d({h}, {n.weight(c, 1, k, k)}, padding={k // 2}, groups={c})")
    if way == "module":
        stride = n.choose(1, 2)
        return n.value(
            n.act(
                f"{n.module(f'nn.Conv2d({c}, {o}, {k}, stride={stride}, padding={k // 2}, bias={n.chance(0.5)})')}({h})"
            )
        )
    if way == "residual":
        return n.value(f"{h} + F.conv2d({n.act(h)}, {n.weight(c, c, k, k)}, padding={k // 2})")
    return n.value(f"F.conv2d({h}, {n.weight(o, c, k, k)}, {n.weight(o)}, padding={k // 2})")


def pool(n, h):
    height, wide = n.shape(h)[2:]
    if min(height, wide) < 2:
        return elementwise(n, h)
    return n.value(
        n.choose(
            f"F.avg_pool2d({h}, 2)",
            f"F.max_pool2d({h}, 2)",
            f"F.adaptive_avg_pool2d({h}, 1) * {h}",
            f'F.interpolate({h}[..., :2, :2], scale_factor=2, mode="nearest")',
            f"F.pad({h}, (1, 0, 0, 1))",
        )
    )


def excite(n, h):
    """Squeeze and excitation."""
    c = n.shape(h)[1]
    return n.value(
        f"{h} * torch.sigmoid({n.act(f'{h}.mean((2, 3)) @ {n.weight(c, 2)}')} @ {n.weight(2, c)})[:, :, None, None]"
    )


IMAGES = {
    conv: 5,
    pool: 2,
    excite: 2,
    batch_norm: 4,
    group_norm: 2,
    elementwise: 2,
    reduce: 1,
    in_place: 1,
    join: 1,
    residual: 1,
}


# ---- the whole -------------------------------------------------------------------------------------------------------


def begin(n):
    """The first value: features, time steps, tokens or images."""
    if n.length:
        return n.value(
            f"randn({n.choose('', '2, ', '3, ')}{n.length}, {n.choose(1, 2, 8, 17)})"
        ), FEATURES
    b = n.choose(1, 1, 2, 3, 5, 17)
    way = n.choose("rows", "rows", "time", "time", "tokens", "image")
    if way == "rows":
        return n.value(f"randn({n.choose(b, 64)}, {n.width()})"), FEATURES
    if way == "time":
        return n.value(
            f"randn({n.choose(1, 2, 3)}, {n.choose(1, 2, 5, 8, 17)}, {n.choose(1, 2, 4, 8, 17, 64)})"
        ), FEATURES
    if way == "tokens":
        count, c, t = n.choose(5, 17), n.choose(2, 4, 8, 17), n.choose(1, 3, 8)
        tokens = n.let("x", f"randint({count}, {n.choose(1, 2, 3)}, {t})")
        return n.value(f"F.embedding({tokens}, {n.weight(count, c)}) + {n.weight(t, c)}"), FEATURES
    return n.value(
        f"randn({n.choose(1, 1, 2, 3)}, {n.choose(1, 2, 3, 8)}, {n.choose(1, 3, 8)}, {n.choose(1, 3, 8)})"
    ), IMAGES


def between(n, h):
    """What happens between layers: locals die, some stay, some are looked at."""
    for name in list(n.alive):
        if name != h and n.chance(0.6):
            n.alive.remove(name)
            n.say(f"del {name}")
    if n.chance(0.08):
        n.say(
            n.choose(
                f"look({h}.sum().item())",
                f"look({n.random.choice(n.alive)})",
                f"_ = str({h})",
                f"look({h}.mean())",
                f"look({h}.isnan().any())",
                f"_ = bool({h}.sum() > 0)",
            )
        )
    if n.chance(0.05):
        n.say("torch.opaque.synchronize()")


def forward(n, blocks: int) -> str:
    h, vocabulary = begin(n)
    for _ in range(blocks):
        if vocabulary is IMAGES and n.chance(0.15):
            h = n.value(n.choose(f"{h}.flatten(2).transpose(1, 2)", f"{h}.flatten(1)"))
            vocabulary = FEATURES
        n.space["torch"].manual_seed(n.seed)
        block = n.random.choices(list(vocabulary), list(vocabulary.values()))[0]
        h = block(n, h)
        if torch.Size(n.shape(h)).numel() > 20000:
            h = n.value(f"{h}[..., :2]")
        between(n, h)
    return h


def loss_text(n, h):
    shape = n.shape(h)
    if len(shape) == 3 and n.chance(0.3):
        return f"sum(({n.act(h)})[:, i].square().mean() for i in range({shape[1]}))"
    way = n.choose("square", "mse", "smooth", "cross", "bce", "huber", "sum")
    if way == "cross" and shape[-1] > 1:
        labels = n.let("y", f"randint({shape[-1]}, {torch.Size(shape[:-1]).numel()})")
        return f"F.cross_entropy({h}.reshape(-1, {shape[-1]}), {labels})"
    if way == "bce":
        target = n.let("y", f"torch.sigmoid(randn({', '.join(map(str, shape))}))")
        return f"F.binary_cross_entropy_with_logits({h}, {target})"
    if way in ("mse", "smooth", "huber"):
        target = n.let("y", f"randn({', '.join(map(str, shape))})")
        return f"F.{ {'mse': 'mse_loss', 'smooth': 'smooth_l1_loss', 'huber': 'huber_loss'}[way] }({h}, {target})"
    return (
        f"({n.act(h)}).{'sum' if way == 'sum' else 'mean'}()"
        if way != "square"
        else f"{h}.square().mean()"
    )


def leaves(n) -> list:
    return n.params + [f"{m}.{k}" for m in n.modules for k, _ in n.space[m].named_parameters()]


def backward(n, h):
    """A loss and gradients, read in one of the ways people read them."""
    loss = n.let("loss", loss_text(n, h))
    names = leaves(n)
    if not n.space[loss].requires_grad:
        return
    if n.chance(0.2):
        listed = ", ".join(names)
        n.let("grads", f"torch.autograd.grad({loss}, [{listed}], allow_unused=True)")
        return
    n.say(f"{loss}.backward()")
    way = n.choose("kept", "kept", "norms", "values", "steps", "clip")
    if way == "clip":
        n.let("total", f"nn.utils.clip_grad_norm_([{', '.join(names)}], 0.5)")
    for name in names:
        if n.space[name.split(".")[0]] is None or eval(f"{name}.grad", n.space) is None:
            continue
        if way == "norms":
            n.say(f"look({name}.grad.norm().item())")
        elif way == "values":
            n.say(f"look({name}.grad)")
        else:
            n.let("d", f"{name}.grad")
    n.say("torch.opaque.synchronize()") if n.chance(0.1) else None


def train(n):
    """Two steps of an optimizer over the whole forward pass: written once, run twice."""
    probe = Net(n.seed + 1_000_000)
    h = forward(probe, probe.random.randint(1, 4))
    loss = probe.let("loss", loss_text(probe, h))
    if not probe.space[loss].requires_grad:
        return False
    made = ("w", "m", "c", "x", "y", "e")
    setup, body = [], []
    for line in probe.lines:
        made_once = line.split(" = ")[0].rstrip("0123456789") in made and not line.startswith(" ")
        fresh = any(
            f in line for f in ("param(", "module(", "randn(", "randint(")
        ) or line.endswith(".eval()")
        (setup if made_once and fresh or line.endswith(".eval()") else body).append(line)
    optimizer = n.choose(
        "SGD({}, lr=0.1)",
        "SGD({}, lr=0.1, momentum=0.9)",
        "Adam({}, lr=0.01)",
        "AdamW({}, lr=0.01)",
        "RMSprop({}, lr=0.01)",
    )
    names = ", ".join(dict.fromkeys(leaves(probe)))
    for line in setup:
        n.say(line)
    n.say(f"opt = torch.optim.{optimizer.format(f'[{names}]')}")
    n.lines.append(f"for step in range({n.choose(2, 2, 3)}):")
    n.lines += ["    " + line for line in body]
    n.lines += ["    opt.zero_grad()", f"    {loss}.backward()", "    opt.step()"]
    if n.chance(0.5):
        n.lines.append(f"    look({loss}.item())")
    n.lines.append(f"    del {h}") if n.chance(0.3) and h.startswith("h") else None
    if n.chance(0.5):
        average(n, names)
    return True


def average(n, names: str) -> None:
    """Moving averages of the parameters, which begin as copies."""
    loop = next(i for i, line in enumerate(n.lines) if line.startswith("for step in"))
    n.lines.insert(loop, f"average = [p.detach().clone() for p in [{names}]]")
    n.lines.append(f"    for a, p in zip(average, [{names}]):")
    n.lines.append(
        f"        a.{n.choose('mul_(0.9).add_(p.detach(), alpha=0.1)', 'lerp_(p.detach(), 0.1)')}"
    )


def write(seed: int):
    n = Net(seed)
    if not (n.chance(0.25) and train(n)):
        h = forward(n, n.random.randint(1, 8))
        if n.params and n.chance(0.75):
            backward(n, h)
    return n.program("nets")


check, check_some = running.check, running.check_some
