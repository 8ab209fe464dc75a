"""What programs commonly do, done once, small: their kernels lie in the cache afterwards. Kernels have no sizes, so that small ones do.

`python -m torch_opaque cache warm` and the build run it as a program, all of it op by op (OPAQUE_TIERS=lazy), and the networks in pieces (eager)."""

import os
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

D = "opaque"


class Decoder(nn.Module):
    """A block as decoders have it: causal attention of views of one product."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 32), nn.Embedding(16, 32)
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.head = (
            nn.Linear(32, 64),
            nn.Linear(64, 32),
            nn.Linear(32, 20, bias=False),
        )

    def forward(self, text, approximate="none"):
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        q, k, v = self.qkv(self.norm(x)).view(*text.shape, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return self.head(x + self.down(F.gelu(self.up(self.last(x)), approximate=approximate)))


def _images(*layers) -> tuple:
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return net, torch.randn(2, 3, 12, 12)


class Residual(nn.Module):
    def __init__(self, strides=1):
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, strides, 1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.norm, self.other, self.past = (nn.BatchNorm2d(8) for _ in range(3))
        self.across = nn.Conv2d(8, 8, 1, strides, bias=False) if strides > 1 else None

    def forward(self, x):
        y = self.other(self.second(F.relu(self.norm(self.first(x)))))
        return F.relu(y + (self.past(self.across(x)) if self.across else x))


class Described(nn.Module):
    """Text as encoders read it: words, kinds of them by a gather of a row of zeros, places; attention under a mask."""

    def __init__(self):
        super().__init__()
        self.words, self.kinds, self.places = (
            nn.Embedding(16, 32, padding_idx=0),
            nn.Embedding(2, 32),
            nn.Embedding(16, 32),
        )
        self.norm, self.layer = nn.LayerNorm(32), nn.Linear(32, 32)
        self.register_buffer("order", torch.arange(16).expand((1, -1)))
        self.register_buffer("kind", torch.zeros(1, 16, dtype=torch.int64))

    def forward(self, text):
        order = self.order[:, : text.shape[1]]
        kind = torch.gather(self.kind.expand(text.shape[0], -1), 1, order.expand(text.shape[0], -1))
        x = self.norm(self.words(text) + self.kinds(kind) + self.places(order))
        q = self.layer(x).view(*text.shape, 4, 8).transpose(1, 2)
        mask = (text != 3)[:, None, None, :].expand(-1, 1, text.shape[1], -1)
        y = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        y = y.transpose(1, 2).reshape(x.shape)
        return y + self.layer(0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * torch.pow(y, 3)))))


def _nets() -> list:
    """(module, input)"""
    encoder = dict(d_model=32, nhead=4, dim_feedforward=64, batch_first=True)
    rows = [
        _images(
            nn.Conv2d(3, 8, 3, 1, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, 2, 1),
            nn.ReLU(),
        ),
        _images(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            Residual(),
            Residual(2),
            nn.AvgPool2d(2),
        ),
        _images(
            nn.Conv2d(3, 8, 1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8),
            nn.Hardswish(),
        ),
        _images(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(**encoder), 1), torch.randn(2, 6, 32)),
        (
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(**encoder, activation="gelu", norm_first=True), 1
            ),
            torch.randn(2, 6, 32),
        ),
        (Decoder(), torch.randint(0, 16, (2, 6))),
        (Described(), torch.randint(0, 16, (2, 6))),
    ]
    for activation in (
        nn.ReLU,
        nn.GELU,
        nn.Tanh,
        nn.Sigmoid,
        nn.SiLU,
        nn.ELU,
        nn.LeakyReLU,
        nn.Softplus,
        nn.ReLU6,
        partial(nn.GELU, approximate="tanh"),
    ):
        net = nn.Sequential(
            nn.Linear(6, 16),
            activation(),
            nn.Dropout(0.1),
            nn.Linear(16, 16, bias=False),
            activation(),
            nn.LayerNorm(16),
            nn.Linear(16, 5),
        )
        rows.append((net, torch.randn(4, 6)))
    return rows


class Last(nn.Module):
    """What a recurrent layer gives, without its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def _losses() -> list:
    def cross_entropy(y):
        return F.cross_entropy(
            y.flatten(0, -2), torch.zeros(y.flatten(0, -2).shape[0], dtype=torch.int64, device=D)
        )

    return [
        cross_entropy,
        lambda y: y.pow(2).mean(),
        lambda y: F.mse_loss(y, torch.zeros_like(y)),
        lambda y: F.binary_cross_entropy_with_logits(y, torch.ones_like(y)),
        lambda y: F.smooth_l1_loss(y, torch.zeros_like(y)),
        lambda y: F.nll_loss(
            F.log_softmax(y.flatten(0, -2), -1),
            torch.zeros(y.flatten(0, -2).shape[0], dtype=torch.int64, device=D),
        ),
    ]


def _optimizers() -> list:
    return [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4),
        lambda p: torch.optim.Adam(p, lr=1e-3),
        lambda p: torch.optim.AdamW(p, lr=1e-3),
        lambda p: torch.optim.RMSprop(p, lr=1e-3),
    ]


def _train(net, x, loss_of, optimizer_of) -> None:
    optimizer = optimizer_of(net.parameters())
    for clips in (False, True):
        optimizer.zero_grad()
        loss = loss_of(net(x))
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        loss.item()


def networks() -> None:
    nets = _nets() + [
        (Last(kind(6, 8, batch_first=True)), torch.randn(2, 4, 6)) for kind in (nn.LSTM, nn.GRU)
    ]
    losses, optimizers = _losses(), _optimizers()
    for i, (net, x) in enumerate(nets):
        net, x = net.to(D), x.to(D)
        _train(net, x, losses[i % len(losses)], optimizers[i % len(optimizers)])
        net.eval()
        with torch.no_grad():
            y = net(x)
            F.softmax(y, -1).cpu(), y.argmax(-1).tolist(), y.topk(3)[1].cpu()
            net(x[:1]).mean().item(), net(x[:1])[:, -1].argmax().item()
    for size in (1, 2):  # maps at the end of a network for large images, when it gets small ones
        net = nn.Sequential(
            nn.Conv2d(3, 64, 3, 1, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        ).to(D)
        _train(net, torch.randn(8, 3, size, size).to(D), losses[1], optimizers[1])
    for net, _ in nets[:3]:  # of more images other tiles of products
        _train(net.train(), torch.randn(16, 3, 24, 24).to(D), losses[1], optimizers[2])
    net = nn.Linear(6, 5).to(D)
    for loss_of in losses:
        for optimizer_of in optimizers:
            _train(net, torch.randn(4, 6).to(D), loss_of, optimizer_of)


ARITHMETIC = (torch.add, torch.sub, torch.mul, torch.div)
COMPARISONS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
EXTREMES = (torch.maximum, torch.minimum)


def elementwise() -> None:
    """Ops of one or two values, contiguous, with numbers, rows, columns, and parts."""
    one = [
        "abs",
        "neg",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "relu",
        "erf",
        "square",
        "sign",
        "floor",
        "ceil",
        "round",
        "log1p",
        "expm1",
        "isnan",
        "isfinite",
    ]
    for dtype in (torch.float32, torch.float64, torch.int64):
        x = (torch.rand(4, 6) * 3 + 1).to(dtype).to(D)
        with_row, with_column = x[0].clone(), x[:, :1].clone()
        for name in one if dtype.is_floating_point else ["abs", "neg", "sign", "square"]:
            getattr(torch, name)(x).cpu(), getattr(torch, name)(x.t()).cpu()
        for op in (*ARITHMETIC, torch.pow, *EXTREMES, *COMPARISONS):
            for other in (x, with_row, with_column, x[0, 0]):
                op(x, other).cpu()
            if op not in EXTREMES:
                op(x, 2).cpu()
            op(x.t(), x.t()).cpu(), op(x[:, ::2], x[:, 1::2]).cpu()
        for name in ["add_", "sub_", "mul_", "div_"]:
            y = x.double() if name == "div_" and dtype == torch.int64 else x.clone()
            getattr(y, name)(y[0].clone()), getattr(y, name)(3)
            y.cpu()
        torch.where(x > 2, x, x * 2).cpu(), x.clamp(1, 2).cpu(), x.masked_fill(x > 2, 0).cpu()
        x.to(torch.float32).cpu(), x.to(torch.int64).cpu(), x.bool().cpu(), (x > 1).sum().item()
        ((x > 1) & (x < 2)).any().item(), (~(x > 1)).all().item()


def structure() -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        x = (torch.rand(4, 6) * 9).to(dtype).to(D)
        reductions = [torch.sum, torch.amax, torch.amin, torch.prod, torch.argmax, torch.argmin]
        if dtype.is_floating_point:
            reductions += [
                torch.mean,
                torch.var,
                torch.std,
                torch.logsumexp,
                torch.softmax,
                torch.log_softmax,
                torch.norm,
            ]
        for reduction in reductions:
            for dim in (0, 1):
                reduction(x, dim=dim).cpu()
        for reduction in (torch.sum, torch.amax, torch.max, torch.min):
            reduction(x).item()
        index = torch.tensor([2, 0, 1], device=D)
        (
            x[index].cpu(),
            x[:, index].cpu(),
            x.index_select(1, index).cpu(),
            x.gather(1, index.expand(4, 3)).cpu(),
        )
        (
            x.clone().index_add_(0, index, x[:3]).cpu(),
            x.clone().scatter_add_(1, index.expand(4, 3), x[:, :3]).cpu(),
        )
        y = x.clone()
        y[1] = 3
        y[:, 2] += 1
        y[index] = x[:3]
        y[y > 4] = 0
        y.cpu(), torch.cat([x, y]).cpu(), torch.cat([x, y], 1).cpu(), torch.stack([x, y]).cpu()
        (
            x.t().contiguous().cpu(),
            x.flip(0).cpu(),
            x.roll(1, 0).cpu(),
            F.pad(x, (1, 1)).cpu(),
            x.repeat(2, 1).cpu(),
        )
        (
            x.cumsum(0).cpu(),
            x.cumsum(1).cpu(),
            x.sort()[0].cpu(),
            x.tril().cpu(),
            F.one_hot(index, 4).cpu(),
        )
        (
            torch.zeros(3, dtype=dtype, device=D).cpu(),
            torch.ones_like(x).cpu(),
            torch.arange(5, device=D, dtype=dtype).cpu(),
        )
    x = torch.rand(2, 4, 6, device=D)
    (
        (x @ x.mT).cpu(),
        (x @ x[0].t()).cpu(),
        torch.bmm(x.mT, x).cpu(),
        (x[0] @ x[0, 0]).cpu(),
        torch.einsum("bij,bkj->bik", x, x).cpu(),
    )
    (
        torch.randn(4, device=D).cpu(),
        torch.rand(4, device=D).cpu(),
        torch.randint(0, 5, (4,), device=D).cpu(),
        F.dropout(x, 0.5).cpu(),
    )
    image = torch.rand(1, 3, 6, 6, device=D)
    for mode in ("nearest", "bilinear"):
        F.interpolate(image, scale_factor=2, mode=mode).cpu()


def single_numbers() -> None:
    """Tensors of one element, as losses, step lengths and norms are: alone, with numbers, and beside vectors."""
    for dtype in (torch.float32, torch.float64, torch.int64):
        x, y = (torch.tensor(v, device=D).to(dtype) for v in (2.0, 3.0))
        line = torch.rand(6, device=D).to(dtype)
        for op in (*ARITHMETIC, *COMPARISONS, *EXTREMES):
            op(x, y).cpu(), op(x, line).cpu(), op(line, line).cpu()
            if op not in EXTREMES:
                op(x, 3).cpu(), op(line, 3).cpu()
        for value in (x, line):
            (3 - value).cpu(), (3 / value).cpu(), value.clamp(min=1).cpu(), value.clamp(max=1).cpu()
            (
                value.abs().cpu(),
                (-value).cpu(),
                (value * value).cpu(),
                value.float().cpu(),
                value.bool().cpu(),
            )
        torch.where(x > 2, x, y).cpu(), x.expand(4).clone().cpu(), torch.stack([x, y]).cpu()
        torch.zeros((), dtype=dtype, device=D).cpu(), torch.full((), 2, dtype=dtype, device=D).cpu()
        if dtype.is_floating_point:
            for name in ("sqrt", "rsqrt", "exp", "log", "sigmoid", "tanh", "reciprocal"):
                getattr(torch, name)(x).cpu()
            torch.addcmul(x, x, y).cpu(), torch.lerp(x, y, 0.1).cpu(), (line @ line).cpu()
            line.norm().cpu(), line.cumsum(0).cpu(), F.softplus(line).cpu()
    steps = [torch.rand(n, device=D).requires_grad_() for n in (1, 6)]
    for optimizer in (
        torch.optim.SGD(steps, 0.1, momentum=0.9),
        torch.optim.Adam(steps, 0.1),
        torch.optim.AdamW(steps, 0.1),
    ):
        for _ in range(2):
            sum(F.mse_loss(w * 2, w * w) for w in steps).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps[0].cpu(), steps[1].cpu()


def broadcasts() -> None:
    """Of a batch of matrices with its rows, its columns, and both against each other; and rows of two to four, as points and boxes have."""
    x = torch.rand(3, 5, 6, device=D) + 1
    rows, columns = x[:, :1].clone(), x[:, :, :1].clone()
    for op in (*ARITHMETIC, *EXTREMES, torch.eq, torch.lt, torch.gt):
        pairs = (
            (x, rows),
            (x, columns),
            (rows, columns),
            (x, x[0].clone()),
            (columns, x[0].clone()),
            (x, x[0, 0].clone()),
        )
        for a, b in pairs:
            op(a, b).cpu(), op(b, a).cpu()
        op(x[:, 1:4], x[:, 2:5]).cpu(), op(x[:, :, 1], x[:, :, 2]).cpu()
    for dim in (1, 2):
        for reduction in (
            torch.sum,
            torch.amax,
            torch.amin,
            torch.mean,
            torch.logsumexp,
            torch.softmax,
            torch.argmax,
        ):
            reduction(x, dim=dim).cpu()
    (
        x.sum((0, 1)).cpu(),
        x.sum((0, 2)).cpu(),
        (x * x).sum(-1).cpu(),
        x.transpose(1, 2).contiguous().cpu(),
    )
    x[:, :1].expand(3, 5, 6).clone().cpu(), torch.cat([x, x], 2).cpu(), torch.cat([x, x], 1).cpu()
    for width in (2, 3, 4):
        for dtype in (torch.float32, torch.int64):
            y = (torch.rand(7, width, device=D) * 5 + 1).to(dtype)
            for op in (*ARITHMETIC, *EXTREMES):
                (
                    op(y, y[0].clone()).cpu(),
                    op(y, y[:, 0].clone()[:, None]).cpu(),
                    op(y[:, 0], y[:, 1]).cpu(),
                )
            for reduction in (
                torch.sum,
                torch.prod,
                torch.amax,
                torch.amin,
                torch.argmin,
                torch.argmax,
            ):
                reduction(y, dim=1).cpu()
            order = torch.tensor([1, 0, 2], device=D)
            (
                y[order].cpu(),
                y[:, order[:2]].cpu(),
                y[:, 0].clone().cpu(),
                y.t().contiguous().cpu(),
                y.flip(1).cpu(),
            )
            (
                torch.stack([y[:, 0], y[:, 1]], 1).cpu(),
                torch.cat([y, y], 1).cpu(),
                y.roll(1, -1).cpu(),
            )
            if dtype.is_floating_point:
                (
                    (y * y).sum(1).cpu(),
                    y.norm(dim=1).cpu(),
                    F.softmax(y, 1).cpu(),
                    (y - y[:1]).square().sum(-1).cpu(),
                )


def places() -> None:
    """What index tensors pick and add to: a label of each row, pairs of places, counts."""
    for dtype in (torch.float32, torch.float64, torch.int64):
        x = (torch.rand(5, 6, device=D) * 9).to(dtype)
        at, ones = torch.tensor([2, 0, 1, 2, 0], device=D), torch.ones(5, dtype=dtype, device=D)
        labels = at.repeat(2, 1).t()
        (
            x.gather(1, at[:, None]).cpu(),
            x.gather(1, labels[:, :1]).cpu(),
            x[at, at].cpu(),
            x[labels[:, 0], at].cpu(),
        )
        (
            x[at[0]].cpu(),
            x[0][at].cpu(),
            x[at[:, None]].cpu(),
            x[torch.tensor(1, device=D)].cpu(),
            x[x[:, 0] > 4].cpu(),
        )
        (
            torch.zeros(5, dtype=dtype, device=D).index_add(0, at, ones).cpu(),
            torch.bincount(at, minlength=4).cpu(),
        )
        torch.zeros(5, dtype=dtype, device=D).scatter_add(0, at, ones).cpu()
        torch.zeros(5, 6, dtype=dtype, device=D).scatter_add(1, at[:, None], ones[:, None]).cpu()
        torch.zeros(5, 6, dtype=dtype, device=D).scatter(1, at[:, None], 1).cpu()
        x.index_put((at, at), ones, accumulate=True).cpu(), x.index_put((at, at), ones).cpu()
        y = x.clone()
        y[:, 0], y[1, 2] = 3, 4
        y.cpu()
        if dtype.is_floating_point:
            w = x.clone().requires_grad_()
            for picked in (
                w[at],
                w[at, at],
                w.gather(1, at[:, None]),
                w[:, 1],
                w[1],
                F.embedding(at, w),
                w.amax(1),
                w.logsumexp(1),
            ):
                _gradients(picked, w)
    at = torch.tensor([2, 0, 1, 2, 0], device=D)
    (
        (at // 3).cpu(),
        (at % 3).cpu(),
        (at == at[0]).all().cpu(),
        (at != 1).cpu(),
        torch.where(at > 1, at, 0).cpu(),
    )
    alive = at > 0
    (
        (alive & (at < 2)).cpu(),
        (~alive).cpu(),
        alive.float().cpu(),
        alive.nonzero().cpu(),
        alive.sum().cpu(),
    )


def products() -> None:
    """What stores tiles of some heights and widths."""
    for rows in (*range(1, 14), 16, 24, 32, 40, 48, 50, 64):
        for columns in (5, 8, 16, 48):
            x, w = torch.rand(rows, 40, device=D), torch.rand(40, columns, device=D)
            (x @ w).cpu(), (x @ w.t().contiguous().t()).cpu(), (x.t().contiguous().t() @ w).cpu()


def _gradients(y, *of) -> None:
    for gradient in torch.autograd.grad(y, of, torch.ones_like(y)):
        gradient.cpu()


def short_loops() -> None:
    """What has a kernel for each kind of how long its short loops are: classes, windows of one channel, steps of few rows."""
    for rows in (1, 4, 16, 64, 128):
        for classes in (2, 3, 5, 10, 100, 1000):
            x = torch.randn(rows, classes, device=D).requires_grad_()
            F.softmax(x, -1).detach().cpu()
            _gradients(F.cross_entropy(x, torch.zeros(rows, dtype=torch.int64, device=D)), x)
    for size in (8, 14, 28, 56):
        for taps in (3, 5, 7):
            for stride in (1, 2):
                for images, last in ((1, False), (4, False), (4, True)):
                    shape = (images, size, size, 8) if last else (images, 8, size, size)
                    x = torch.randn(shape, device=D)
                    x = (x.permute(0, 3, 1, 2) if last else x).requires_grad_()
                    w = torch.randn(8, 1, taps, taps, device=D).requires_grad_()
                    y = F.conv2d(x, w, None, stride, taps // 2, groups=8)
                    y.detach().cpu(), _gradients(y, x, w)
    for rows in (1, 4, 32):
        for kind in (nn.LSTM, nn.GRU):
            layer = Last(kind(8, 64, 2, batch_first=True)).to(D)
            x = torch.randn(rows, 6, 8, device=D)
            with torch.no_grad():
                layer(x).cpu()
            _gradients(layer(x), *layer.parameters())


def main() -> None:
    torch.manual_seed(0)
    by_op = os.environ.get("OPAQUE_TIERS") == "lazy"
    parts = (
        elementwise,
        structure,
        single_numbers,
        broadcasts,
        places,
        products,
        networks,
        short_loops,
    )
    for part in parts if by_op else (networks,):
        part()
        torch.opaque.synchronize()


if __name__ == "__main__":
    main()
