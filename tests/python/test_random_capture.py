"""Random functions, captured and not: training and inference, arguments that share memory, writes to what they close over, numbers, modes and
shapes that change between calls, dropout. Each call gives the same bits, and leaves the same behind."""

import contextlib
import random

import pytest
import torch
import torch_opaque
from torch import nn
from torch.nn import functional as F
from torch_opaque import capture

D = "opaque"
WIDTH, WIDE = 8, 48
PROGRAMS, BLOCK = 300, 25

LAYERS = (
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.Dropout(0.3),
    nn.GELU,
    nn.ReLU,
    nn.Tanh,
    lambda: nn.Softmax(-1),
)
OPTIMIZERS = (
    lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1, fused=True),
    lambda p: torch.optim.Adam(p, lr=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, lr=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.05),
)
# What a function does to its value h; w: the world, a: its arguments.
STEPS = (
    ("layer", lambda w, a, h, r: w.net[r.randrange(len(w.net))](h)),
    ("activation", lambda w, a, h, r: r.choice((torch.sin, torch.relu, torch.sigmoid, F.silu))(h)),
    ("add argument", lambda w, a, h, r: h + a["y"]),
    ("scale", lambda w, a, h, r: h * a["t"]),
    ("divide", lambda w, a, h, r: h / (a["n"] + 1)),
    ("add alpha", lambda w, a, h, r: torch.add(h, h.detach(), alpha=-a["t"])),
    ("number of Python's", lambda w, a, h, r: h * (1 - 0.9 ** a["n"])),
    ("branch", lambda w, a, h, r: h.exp().clamp(max=3) if a["flag"] else h - 1),
    ("branch on a number", lambda w, a, h, r: h + 1 if a["t"] > 0.8 else h),
    ("write to state", lambda w, a, h, r: (w.state.add_(h.detach().mean(0)), h + w.state)[1]),
    ("write to a view", lambda w, a, h, r: (w.view.mul_(0.5).add_(1), h + w.state * 0.1)[1]),
    ("exchange", lambda w, a, h, r: (w.swap(), h + w.other)[1]),
    ("write to an argument", lambda w, a, h, r: (a["y"].detach().add_(1), h)[1]),
    ("slice", lambda w, a, h, r: torch.cat([h[:, :3], h[:, 3:].flip(1)], 1)),
    ("reduce", lambda w, a, h, r: h - h.mean(0, keepdim=True)),
    ("norm", lambda w, a, h, r: h / (1 + h.detach().norm())),
    ("dropout", lambda w, a, h, r: F.dropout(h, 0.25, training=w.net.training)),
    ("noise", lambda w, a, h, r: h + 0.1 * torch.rand_like(h)),
    ("matmul", lambda w, a, h, r: h @ w.matrix),
    ("attention", lambda w, a, h, r: F.scaled_dot_product_attention(h[None], h[None], h[None])[0]),
    ("index", lambda w, a, h, r: h[torch.tensor([0, 1, 0], device=D)].sum(0) + h),
    ("gather", lambda w, a, h, r: h + w.table[a["i"]].sum(0)),
    ("cache", lambda w, a, h, r: h + w.keep(a["i"], h.detach().mean(0)).mean(0)),
    ("cache by an item", lambda w, a, h, r: h + w.keep(a["i"] + 20, h.detach()[0], True).amax(0)),
    ("counter", lambda w, a, h, r: (w.count.add_(1), h * (1 + 1 / w.count.item()))[1]),
    ("cpu tensor", lambda w, a, h, r: h + a["c"].to(D)),
    ("turned parameter", lambda w, a, h, r: h @ w.weight().t()),
    ("part of a parameter", lambda w, a, h, r: h * w.weight()[r.randrange(WIDTH)]),
    ("rows apart", lambda w, a, h, r: torch.cat([h[:1].sin(), h[1:]])),
    ("made before", lambda w, a, h, r: h + (w.before.detach() if w.rounds else w.before)),
    ("look back", lambda w, a, h, r: h + a["x"]),
    ("float64", lambda w, a, h, r: (h.double() * 2).float()),
    ("bf16", lambda w, a, h, r: (h.bfloat16() * 1.5 + h.bfloat16()).float()),
    ("product of bf16", lambda w, a, h, r: _of_wide(lambda x: x @ w.wide.bfloat16(), h)),
    (
        "product rounded to bf16",
        lambda w, a, h, r: _of_wide(lambda x: _rounded(x.float() / 3, w.wide), h),
    ),
    (
        "attention of bf16",
        lambda w, a, h, r: _of_wide(
            lambda x: F.scaled_dot_product_attention(
                x[None], x[None], x[None], is_causal=r.random() < 0.5
            )[0],
            h,
        ),
    ),
    (
        "recurrent layer of bf16",
        lambda w, a, h, r: _of_wide(lambda x: w.recurrent(x[:, None])[0][:, 0], h),
    ),
)
ENDS = ("value", "pair", "dict", "view", "loss", "argument", "before")


def _rounded(a, b):
    """A product of f32 whose sums show by what rule they were made."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        return a @ b
    finally:
        torch.set_float32_matmul_precision(before)


def _of_wide(fn, h):
    """What fn makes of a matrix of bf16 whose products have an instruction for pairs, where the processor has one: as large as h again."""
    return (
        h
        + fn(h.repeat(-(-WIDE // len(h)), WIDE // WIDTH)[:WIDE].bfloat16())[
            : len(h), :WIDTH
        ].float()
    )


class World:
    """What a function closes over."""

    def __init__(self, seed: int):
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            *(r.choice(LAYERS)() for _ in range(r.randrange(2, 6))), nn.Linear(WIDTH, WIDTH)
        ).to(D)
        self.state, self.other = torch.randn(WIDTH, device=D), torch.randn(WIDTH, device=D)
        self.view = self.state[2:5]
        self.matrix, self.table = (
            torch.randn(WIDTH, WIDTH, device=D),
            torch.randn(6, WIDTH, device=D),
        )
        self.cache = torch.zeros(40, WIDTH, device=D)
        self.count = torch.zeros(())
        self.leaf = torch.randn(WIDTH, device=D, requires_grad=True)
        self.before = self.leaf + 1  # its graph may be gone through again and again
        self.wide = torch.randn(WIDE, WIDE, device=D)
        self.recurrent = nn.GRU(WIDE, WIDE).bfloat16().to(D).requires_grad_(False)
        self.trains = r.random() < 0.5
        self.optimizer = r.choice(OPTIMIZERS)(self.net.parameters()) if self.trains else None
        self.zero_first, self.clips = r.random() < 0.5, r.random() < 0.3
        self.steps = [(r.choice(STEPS), r.randrange(1 << 30)) for _ in range(r.randrange(2, 9))]
        # Halves are rounded where kernels end, and those of a gradient that goes on outside end elsewhere.
        self.rounds = any("bf16" in name for (name, _), _ in self.steps)
        self.end = r.choice(ENDS)
        self.returns_loss = r.random() < 0.5

    def weight(self):
        weight = self.net[-1].weight
        return weight.detach() if self.rounds else weight

    @torch.no_grad()
    def swap(self):
        kept = self.state.clone()
        self.state.copy_(self.other)
        self.other.copy_(kept)

    @torch.no_grad()
    def keep(self, places, row, by_item=False):
        if by_item:
            self.cache[places] = row
        else:
            self.cache.index_copy_(0, places, row.expand(len(places), WIDTH))
        return self.cache

    def forward(self, a):
        h = a["x"]
        for (_, step), seed in self.steps:
            h = step(self, a, h, random.Random(seed))
        return self.net[-1](h) if self.trains else h

    def infer(self, **a):
        before = [self.state.clone(), a["y"].clone()]
        h = self.forward(a)
        if self.end == "before":
            return h, before, h.new_zeros(0, 2)
        if self.end == "pair":
            return h, h.mean(0)
        if self.end == "dict":
            return {"h": h, "t": a["t"] * 2, "state": self.state}
        if self.end == "view":
            return [h.t(), h[0], h]
        if self.end == "argument":
            return h, a["y"], a["x"][1:]
        return h.square().mean() if self.end == "loss" else h

    def train(self, **a):
        if self.zero_first:
            self.optimizer.zero_grad()
        loss = (self.forward(a) - a["y"].detach()).square().mean()
        loss.backward()
        if self.clips:
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        if not self.zero_first:
            self.optimizer.zero_grad()
        return loss if self.returns_loss else {"loss": loss.detach(), "t": a["t"]}

    def left(self) -> list:
        """What a call may have changed."""
        found = [self.state, self.other, self.matrix, self.count, self.cache]
        found += [*self.net.parameters(), *self.net.buffers()]
        grads = [p.grad for p in (self.leaf, *self.net.parameters())]
        return found + [grad for grad in grads if grad is not None]


def _arguments(r, rows: int) -> dict:
    x, y = torch.randn(rows, WIDTH, device=D), torch.randn(rows, WIDTH, device=D)
    if r.random() < 0.08:
        y = x  # they share memory
    elif r.random() < 0.08:
        both = torch.randn(2 * rows, WIDTH, device=D)
        x, y = both[:rows], both[rows:]
    if r.random() < 0.05:
        x = torch.randn(WIDTH, rows, device=D).t()
    return {
        "x": x,
        "y": y,
        "t": r.choice((0.5, 1.0, r.random())),
        "n": r.choice((1, 2, r.randrange(9))),
        "flag": r.random() < 0.92,
        "i": torch.randint(6, (3,), device=D),
        "c": torch.randn(WIDTH),
    }


def _flat(result) -> list:
    leaves = torch.utils._pytree.tree_leaves(result)
    return [one.detach().clone().cpu() if isinstance(one, torch.Tensor) else one for one in leaves]


def _change(r, world) -> contextlib.AbstractContextManager:
    """Something between two calls, and the mode of the next."""
    kind = r.randrange(12)
    if kind == 0:
        world.net.train(not world.net.training)
    elif kind == 1 and world.optimizer:
        world.optimizer.param_groups[0]["lr"] *= 0.5
    elif kind == 2:
        world.state.fill_(r.random())
    elif kind == 3:
        world.net[-1].weight.requires_grad_(not world.net[-1].weight.requires_grad)
        if world.optimizer and not any(p.requires_grad for p in world.net.parameters()):
            world.net[-1].weight.requires_grad_(True)
    elif kind == 4:
        torch.manual_seed(r.randrange(1000))
    elif kind == 5 and not world.trains:
        return torch.no_grad()
    elif kind == 6:
        return torch_opaque.unfused()
    elif kind == 7:
        world.net[-1].weight.data = torch.randn(WIDTH, WIDTH, device=D)
    elif kind == 8:
        world.net.zero_grad()
    return contextlib.nullcontext()


def _used(seed: int, captured: bool) -> tuple:
    world, r = World(seed), random.Random(seed + 1)
    fn = world.train if world.trains else world.infer
    fn = capture(fn, check=r.choice((0, 0, 2, 3))) if captured else (r.choice((0, 0, 2, 3)), fn)[1]
    seen, rows = [], r.choice((2, 3, 5))
    for call in range(10):
        if r.random() < 0.08:
            rows = r.choice((2, 3, 5))
        change = _change(r, world) if call > 2 and r.random() < 0.3 else contextlib.nullcontext()
        a = _arguments(r, rows)
        if r.random() < 0.08 and not world.rounds:
            a["x"] = a["x"] * world.leaf.detach() + world.leaf
            a["y"] = a["x"].sin() if r.random() < 0.5 else a["y"]
        with change:
            try:
                result = fn(**a)
                seen += _flat(result)
                wants = [
                    one
                    for one in torch.utils._pytree.tree_leaves(result)
                    if isinstance(one, torch.Tensor) and one.requires_grad
                ]
                if not world.trains and wants and r.random() < 0.7:
                    sum(one.sum() for one in wants).backward()
            except (
                RuntimeError,
                ValueError,
            ) as error:  # a row alone in a batch norm, a leaf that is written to
                seen.append(str(error).splitlines()[0][:40])
        seen += _flat([a["y"], a["x"]])
        seen += [torch.opaque.get_rng_state()]
    return seen + _flat(world.left()), fn


def _bits(x):
    x = x.contiguous().reshape(-1)
    return (
        x.view({4: torch.int32, 8: torch.int64}[x.element_size()]) if x.is_floating_point() else x
    )


def _unequal(a, b) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape != b.shape or a.dtype != b.dtype or not torch.equal(_bits(a), _bits(b))
    return a != b


def differences(seed: int) -> str:
    wanted, _ = _used(seed, False)
    got, fn = _used(seed, True)
    if len(wanted) != len(got):
        return f"{len(got)} values, not {len(wanted)}"
    wrong = [i for i, (a, b) in enumerate(zip(wanted, got)) if _unequal(a, b)]
    return (
        f"value {wrong[0]} of {len(got)}: {got[wrong[0]]}, not {wanted[wrong[0]]}" if wrong else ""
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, PROGRAMS, BLOCK))
def test_random_functions(first):
    for seed in range(first, first + BLOCK):
        found = differences(seed)
        assert not found, (seed, [name for (name, _), _ in World(seed).steps], found)
