"""Functions of common layers with extents of 1 in every place, as entries for layouts.py: what op_db's samples have too little of."""

import itertools

SIZES = {  # extents that a case's input takes: with 1 in every place, and without
    2: ((1, 2, 5), (1, 6)),
    3: ((1, 2), (1, 4), (1, 5)),
    4: ((1, 2), (1, 4), (1, 5), (1, 6)),
    5: ((1, 2), (1, 2), (1, 3), (4,), (1, 3)),
}


class Sample:
    def __init__(self, input, *args):
        self.input, self.args, self.kwargs = input, args, {}


class Case:
    """Looks like an OpInfo to layouts.py. `function` takes x and the tensors that `more` makes of x's sizes."""

    variant_test_name, supports_autograd, decorators = "", True, ()
    sample_limit = 16

    def __init__(self, name, rank, function, more=lambda *size: ()):
        self.name, self.rank, self.function, self.more = name, rank, function, more

    def __call__(self, *args):
        return self.function(*args)

    def sample_inputs(self, device, dtype, requires_grad):
        import torch

        def made(size):
            if isinstance(size, torch.Tensor):
                return size
            return torch.randn(size, device=device, dtype=dtype).requires_grad_(requires_grad)

        sizes = list(itertools.product(*SIZES[self.rank]))
        order = torch.randperm(len(sizes)).tolist()  # so that a limit takes a fair share
        for at in order:
            size = sizes[at]
            yield Sample(made(size), *(made(m) for m in self.more(*size)))


def norms():
    import torch
    from torch.nn import functional as F

    def batch(training):
        return lambda x, w, b, m, v: F.batch_norm(
            x, m.detach().clone(), v.detach().square() + 0.5, w, b, training
        )

    for rank in (2, 3, 4, 5):
        for training in (False, True):
            yield Case(
                f"case.batch_norm.{rank}d.{'training' if training else 'eval'}",
                rank,
                batch(training),
                lambda n, c, *r: [(c,)] * 4,
            )
        yield Case(
            f"case.layer_norm.{rank}d",
            rank,
            lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
            lambda *s: [s[-1:]] * 2,
        )
        yield Case(
            f"case.layer_norm.all.{rank}d",
            rank,
            lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
            lambda *s: [s[1:]] * 2,
        )
        yield Case(
            f"case.rms_norm.{rank}d",
            rank,
            lambda x, w: F.rms_norm(x, x.shape[-1:], w),
            lambda *s: [s[-1:]],
        )
        yield Case(
            f"case.group_norm.{rank}d",
            rank,
            lambda x, w, b: F.group_norm(x, 1, w, b),
            lambda n, c, *r: [(c,)] * 2,
        )
        yield Case(f"case.normalize.{rank}d", rank, lambda x: F.normalize(x, dim=1))
        yield Case(f"case.softmax.{rank}d", rank, lambda x: x.softmax(1) + x.log_softmax(-1))
        yield Case(f"case.var_mean.{rank}d", rank, lambda x: torch.var_mean(x, 1, correction=0))
    for rank in (3, 4, 5):
        yield Case(
            f"case.instance_norm.{rank}d",
            rank,
            lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
            lambda n, c, *r: [(c,)] * 2,
        )
    yield Case("case.local_response_norm", 4, lambda x: F.local_response_norm(x, 2))


def convolutions():
    from torch.nn import functional as F

    for rank, conv, back in (
        (3, F.conv1d, F.conv_transpose1d),
        (4, F.conv2d, F.conv_transpose2d),
        (5, F.conv3d, F.conv_transpose3d),
    ):
        spatial = rank - 2
        yield Case(
            f"case.conv.{spatial}d",
            rank,
            lambda x, w, b, f=conv: f(x, w, b, padding=1),
            lambda n, c, *r, k=spatial: [(3, c, *[3] * k), (3,)],
        )
        yield Case(
            f"case.conv.pointwise.{spatial}d",
            rank,
            lambda x, w, f=conv: f(x, w),
            lambda n, c, *r, k=spatial: [(3, c, *[1] * k)],
        )
        yield Case(
            f"case.conv.depthwise.{spatial}d",
            rank,
            lambda x, w, f=conv: f(x, w, padding=1, groups=x.shape[1]),
            lambda n, c, *r, k=spatial: [(c, 1, *[3] * k)],
        )
        yield Case(
            f"case.conv.strided.{spatial}d",
            rank,
            lambda x, w, f=conv: f(x, w, stride=2, padding=1),
            lambda n, c, *r, k=spatial: [(1, c, *[3] * k)],
        )
        yield Case(
            f"case.conv.transposed.{spatial}d",
            rank,
            lambda x, w, b, f=back: f(x, w, b, stride=2),
            lambda n, c, *r, k=spatial: [(c, 3, *[2] * k), (3,)],
        )


def pooling():
    from torch.nn import functional as F

    for d, rank in ((1, 3), (2, 4), (3, 5)):
        for name, extents in (
            ("max", (2, 1, 1)),
            ("avg", (2, 1, 1)),
            ("adaptive_max", (1,)),
            ("adaptive_avg", (1,)),
        ):
            pool = getattr(F, f"{name}_pool{d}d")
            yield Case(
                f"case.{name}_pool.{d}d",
                rank,
                lambda x, pool=pool, extents=extents: pool(x, *extents),
            )
        yield Case(
            f"case.pad.{d}d",
            rank,
            lambda x, d=d: F.pad(x, (1, 2)) + F.pad(x, (2, 1) + (0, 0) * (d - 1), mode="replicate"),
        )
        yield Case(
            f"case.interpolate.nearest.{d}d", rank, lambda x: F.interpolate(x, scale_factor=2)
        )
    yield Case(
        "case.interpolate.bilinear", 4, lambda x: F.interpolate(x, size=(4, 3), mode="bilinear")
    )
    yield Case(
        "case.interpolate.bicubic",
        4,
        lambda x: F.interpolate(x, size=(4, 3), mode="bicubic", align_corners=True),
    )
    yield Case(
        "case.pixel_shuffle",
        4,
        lambda x: F.pixel_unshuffle(F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2), 2),
    )
    yield Case("case.unfold", 4, lambda x: F.unfold(x, 2, padding=1))
    yield Case(
        "case.grid_sample",
        4,
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        lambda n, c, h, w: [(n, h, w, 2)],
    )


def products():
    import torch
    from torch.nn import functional as F

    for rank in (2, 3, 4):
        yield Case(f"case.linear.{rank}d", rank, F.linear, lambda *s: [(3, s[-1]), (3,)])
        yield Case(f"case.linear.one.{rank}d", rank, F.linear, lambda *s: [(1, s[-1]), (1,)])
        yield Case(f"case.matmul.{rank}d", rank, lambda x, w: x @ w, lambda *s: [(s[-1], 5)])
        yield Case(f"case.matmul.same.{rank}d", rank, lambda x: x @ x.mT)
    yield Case("case.bmm", 3, lambda a, b: torch.bmm(a, b), lambda b, n, k: [(b, k, 3)])
    yield Case(
        "case.baddbmm",
        3,
        lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        lambda b, n, k: [(b, k, 3), (1, n, 3)],
    )
    yield Case(
        "case.einsum",
        4,
        lambda x, w: torch.einsum("nchw,cd->ndwh", x, w),
        lambda n, c, h, w: [(c, 3)],
    )
    yield Case("case.mv", 2, lambda a, v: a.mv(v) + torch.addmv(a[:, 0], a, v), lambda n, k: [(k,)])
    yield Case(
        "case.tensordot",
        3,
        lambda a, b: torch.tensordot(a, b, dims=([2], [0])),
        lambda b, n, k: [(k, 1, 3)],
    )
    yield Case(
        "case.bilinear",
        2,
        lambda x, y, w, b: F.bilinear(x, y, w, b),
        lambda n, k: [(n, 3), (4, k, 3), (4,)],
    )
    yield Case(
        "case.attention",
        4,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda *s: [s, s],
    )
    yield Case(
        "case.attention.causal",
        4,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda *s: [s, s],
    )
    yield Case(
        "case.patches", 4, lambda x, w: x.flatten(2).transpose(1, 2) @ w, lambda n, c, *r: [(c, 5)]
    )


def movements():
    import torch
    from torch.nn import functional as F

    for rank in (2, 3, 4, 5):
        yield Case(f"case.cat.{rank}d", rank, lambda x, y: torch.cat([x, y, x], 1), lambda *s: [s])
        yield Case(
            f"case.stack.{rank}d",
            rank,
            lambda x, y: torch.stack([x, y], -1) if x.dim() < 5 else x + y,
            lambda *s: [s],
        )
        yield Case(f"case.cumsum.{rank}d", rank, lambda x: x.cumsum(1) + x.cumsum(-1))
        yield Case(f"case.sort.{rank}d", rank, lambda x: x.sort(1).values + x.topk(1, -1).values)
        yield Case(
            f"case.index.{rank}d",
            rank,
            lambda x: x[:, torch.zeros(3, dtype=torch.int64, device=x.device)],
        )
        yield Case(
            f"case.gather.{rank}d",
            rank,
            lambda x: x.gather(1, torch.zeros_like(x, dtype=torch.int64)),
        )
        yield Case(
            f"case.index_select.{rank}d",
            rank,
            lambda x: x.index_select(-1, torch.zeros(2, dtype=torch.int64, device=x.device)),
        )
        yield Case(
            f"case.index_put.{rank}d",
            rank,
            lambda x, y: x.clone().index_put_(
                (torch.zeros(1, dtype=torch.int64, device=x.device),), y[:1] * 2
            ),
            lambda *s: [s],
        )
        yield Case(
            f"case.max.{rank}d", rank, lambda x: x.max(1).values + x.amin(1) + x.logsumexp(1)
        )
        yield Case(f"case.prod.{rank}d", rank, lambda x: x.prod(1) * x.norm(dim=-1).sum())
        yield Case(
            f"case.where.{rank}d", rank, lambda x, y: torch.where(x > 0, x * y, y), lambda *s: [s]
        )
        yield Case(
            f"case.slices.{rank}d",
            rank,
            lambda x: x[..., ::2].sum(-1) + x[..., -1] * x.select(-1, 0),
        )
        yield Case(f"case.flip_roll.{rank}d", rank, lambda x: x.flip(1) * x.roll(1, -1))
        yield Case(
            f"case.broadcast.{rank}d",
            rank,
            lambda x, y: x * y + y / (x.square() + 1),
            lambda *s: [(s[1], *[1] * (len(s) - 2))],
        )
        yield Case(f"case.write.{rank}d", rank, _write)
        yield Case(f"case.gelu.{rank}d", rank, lambda x: F.gelu(x) + F.silu(x) + F.relu(x))
    yield Case(
        "case.embedding", 2, lambda w: F.embedding(torch.tensor([[0], [0]], device=w.device), w)
    )
    yield Case(
        "case.embedding_bag",
        2,
        lambda w: F.embedding_bag(torch.tensor([[0, 0]], device=w.device), w, mode="mean"),
    )


def _write(x):
    """In-place writes through windows with extents of 1."""
    y = x * 2
    y[:, :1] *= x[:, :1]
    y.transpose(0, 1)[0] += 1
    y.select(-1, 0).mul_(x.select(-1, 0))
    return y


def losses():
    import torch
    from torch.nn import functional as F

    def classes(n, c, *rest):
        return [torch.zeros((n, *rest), dtype=torch.int64)]

    for reduction in ("none", "mean", "sum"):
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy_with_logits",
            "kl_div",
            "poisson_nll_loss",
        ):
            loss = getattr(F, name)
            yield Case(
                f"case.{name}.{reduction}",
                3,
                lambda x, y, loss=loss, r=reduction: loss(x, y, reduction=r),
                lambda *s: [s],
            )
        for rank in (2, 3, 4):
            yield Case(
                f"case.cross_entropy.{reduction}.{rank}d",
                rank,
                lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r),
                classes,
            )
        yield Case(
            f"case.cross_entropy.probabilities.{reduction}",
            3,
            lambda x, y, r=reduction: F.cross_entropy(
                x, y.softmax(1), reduction=r, label_smoothing=0.1
            ),
            lambda *s: [s],
        )


def recurrences():
    import torch

    def run(cls, backwards=False, first=False):
        def function(x, h, *weights):
            count, hidden = len(weights), 3
            module = cls(x.shape[-1], hidden, batch_first=first, bidirectional=backwards).to(
                x.device, x.dtype
            )
            assert count == len(list(module.parameters()))
            names = [n for n, _ in module.named_parameters()]
            state = (h, h * 0.5) if cls is torch.nn.LSTM else h
            return torch.func.functional_call(
                module, dict(zip(names, weights, strict=True)), (x, state)
            )

        return function

    def more(gates, backwards, first):
        def sizes(a, b, k):
            one = [(3 * gates, k), (3 * gates, 3), (3 * gates,), (3 * gates,)]
            return [(1 + backwards, a if first else b, 3), *one * (1 + backwards)]

        return sizes

    for cls, gates in ((torch.nn.RNN, 1), (torch.nn.GRU, 3), (torch.nn.LSTM, 4)):
        for backwards in (False, True):
            for first in (False, True):
                yield Case(
                    f"case.{cls.__name__}{'.both' if backwards else ''}{'.batch_first' if first else ''}",
                    3,
                    run(cls, backwards, first),
                    more(gates, backwards, first),
                )


def all_cases() -> list:
    groups = (norms, convolutions, pooling, products, movements, losses, recurrences)
    return [case for group in groups for case in group()]
