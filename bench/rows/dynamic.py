"""Programs whose graphs change from step to step: episodes, trees, lengths, routing, solvers that choose their steps.

A step is the next of an endless sequence, the same one for each engine. The argument of most says where to, and in which dtype.
"""

import random

import torch
import torch.nn.functional as F
from registry import row
from torch import nn


def dynamic(make):
    """A row: make() gives start(draw, *arguments), where `draw` is a random.Random of the engine, and the arguments."""

    def made():
        start, arguments = make()

        def begin(compiled, *arguments):
            torch.manual_seed(1)
            return start(random.Random(7), *arguments)

        return begin, arguments

    return row("dynamic_" + make.__name__, kind="steps", dynamic=True)(made)


def train(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def source(where):
    """Random tensors of any shape for `where`, the same for each engine."""
    generator = torch.Generator().manual_seed(3)
    return lambda *shape: torch.randn(*shape, generator=generator).to(where)


@dynamic
def actor_critic():
    """An episode of 10 to 60 steps, each of which reads the action; then a loss over the episode, as PyTorch's example has it."""

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.actor, self.critic = (
                nn.Linear(4, 128),
                nn.Linear(128, 2),
                nn.Linear(128, 1),
            )

        def forward(self, x):
            x = F.relu(self.body(x))
            return F.softmax(self.actor(x), -1), self.critic(x)

    def start(draw, where):
        model = Policy().to(where)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

        def step():
            saved, rewards = [], []
            state = [draw.uniform(-0.05, 0.05) for _ in range(4)]
            for _ in range(draw.randrange(10, 60)):
                probabilities, value = model(torch.tensor(state).to(where))
                action = int(draw.random() > probabilities[0].item())
                saved.append((torch.log(probabilities[action]), value))
                state = [
                    0.9 * s + draw.uniform(-0.1, 0.1) + (0.05 if action else -0.05) for s in state
                ]
                rewards.append(1.0 - abs(state[0]))
            returns, total = [], 0.0
            for reward in reversed(rewards):
                total = reward + 0.99 * total
                returns.insert(0, total)
            returns = torch.tensor(returns)
            returns = ((returns - returns.mean()) / (returns.std() + 1e-6)).tolist()
            losses = []
            for (logarithm, value), target in zip(saved, returns, strict=True):
                advantage = target - value.item()
                losses.append(-logarithm * advantage)
                losses.append(F.smooth_l1_loss(value, torch.tensor([target]).to(where)))
            loss = torch.stack([x.sum() for x in losses]).sum()
            return train(optimizer, loss)

        return step

    return start, (torch.zeros(1),)


_DOPRI = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


@dynamic
def ode_adaptive():
    """Dormand-Prince with steps as the error allows, gradients through all of them."""

    def start(draw, where):
        net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)).to(where)
        optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)

        def integrate(y, until):
            t, h = 0.0, 0.1
            k = [net(y**3)]
            while t < until:
                h = min(h, until - t)
                for row_ in _DOPRI:
                    z = y + h * sum(a * x for a, x in zip(row_, k, strict=False) if a)
                    k.append(net(z**3))
                error = h * sum(e * x for e, x in zip(_ERROR, k, strict=True) if e)
                ratio = (error.abs() / (1e-5 + 1e-4 * torch.maximum(y.abs(), z.abs()))).max().item()
                if ratio <= 1:
                    t, y, k = t + h, z, [k[-1]]
                else:
                    k = k[:1]
                h *= min(5.0, max(0.2, 0.9 * max(ratio, 1e-9) ** -0.2))
            return y

        def step():
            y = torch.tensor([[draw.uniform(-2, 2), draw.uniform(-2, 2)] for _ in range(20)]).to(
                where
            )
            loss = integrate(y, draw.uniform(0.5, 3.0)).pow(2).mean()
            return train(optimizer, loss)

        return step

    return start, (torch.zeros(1),)


@dynamic
def lstm_lengths():
    """Batches of random length."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.lstm, self.out = (
                nn.Embedding(1000, 64),
                nn.LSTM(64, 128, batch_first=True),
                nn.Linear(128, 20),
            )

        def forward(self, text):
            return self.out(self.lstm(self.words(text))[0])

    def start(draw, where):
        model = Tagger().to(where)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

        def step():
            length = draw.randrange(5, 80)
            text = torch.tensor(
                [[draw.randrange(1000) for _ in range(length)] for _ in range(16)]
            ).to(where.device)
            loss = F.cross_entropy(model(text).flatten(0, 1), text.flatten() % 20)
            return train(optimizer, loss)

        return step

    return start, (torch.zeros(1),)


@dynamic
def trees():
    """A recursive network over random binary trees."""

    def start(draw, where):
        words, join, out = (
            m.to(where) for m in (nn.Embedding(100, 64), nn.Linear(128, 64), nn.Linear(64, 5))
        )
        optimizer = torch.optim.SGD(
            [*words.parameters(), *join.parameters(), *out.parameters()], lr=1e-2
        )

        def encode(leaves):
            if len(leaves) == 1:
                return words(torch.tensor(leaves).to(where.device))
            cut = draw.randrange(1, len(leaves))
            return torch.tanh(join(torch.cat((encode(leaves[:cut]), encode(leaves[cut:])), 1)))

        def step():
            leaves = [draw.randrange(100) for _ in range(draw.randrange(4, 30))]
            loss = F.cross_entropy(
                out(encode(leaves)), torch.tensor([sum(leaves) % 5]).to(where.device)
            )
            return train(optimizer, loss)

        return step

    return start, (torch.zeros(1),)


@dynamic
def experts():
    """A mixture of experts, top 2 of 8, each of which has the tokens that were sent to it."""

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(128, 8)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(8)
            )

        def forward(self, x):
            weights, chosen = torch.topk(F.softmax(self.gate(x), -1), 2, -1)
            y = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                token, slot = torch.where(chosen == i)
                if token.numel():
                    y = y.index_add(0, token, expert(x[token]) * weights[token, slot, None])
            return y

    def start(draw, where):
        model = Mixture().to(where)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        random_ = source(where)

        def step():
            x = random_(draw.randrange(100, 200), 128)
            loss = (model(x) - x.roll(1, 0)).pow(2).mean()
            return train(optimizer, loss)

        return step

    return start, (torch.zeros(1),)


class Decoder(nn.Module):
    def __init__(self, width=256, heads=4, layers=4, words=1000):
        super().__init__()
        self.heads = heads
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(512, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, text, caches, first):
        x = self.words(text) + self.positions(
            torch.arange(first, first + text.shape[1], device=text.device)
        )
        kept = []
        for i, layer in enumerate(self.layers):
            q, k, v = (
                layer["qkv"](layer["norm1"](x))
                .view(*x.shape[:2], 3, self.heads, -1)
                .permute(2, 0, 3, 1, 4)
            )
            if caches:
                k, v = torch.cat((caches[i][0], k), 2), torch.cat((caches[i][1], v), 2)
            kept.append((k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=not caches)
            x = x + layer["out"](y.transpose(1, 2).reshape(x.shape))
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x))))
        return self.head(x[:, -1]), kept


def decoding(cached):
    def start(draw, where):
        model = Decoder().to(where).eval()

        @torch.no_grad()
        def step():
            text = [draw.randrange(1000) for _ in range(draw.randrange(4, 100))]
            caches, first = None, 0
            for _ in range(12):
                given = torch.tensor([text[first:]]).to(where.device)
                scores, kept = model(given, caches, first)
                if cached:
                    caches, first = kept, len(text)
                text.append(scores.argmax(-1).item())
            return scores

        return step

    return start, (torch.zeros(1),)


@dynamic
def decode_cache():
    return decoding(True)


@dynamic
def decode_no_cache():
    return decoding(False)


@dynamic
def crops():
    """Random crops of random size, resized, and a small net's training."""

    def start(draw, images):
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        ).to(images)  # fmt: skip
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)

        def step():
            parts = []
            for i in range(8):
                size = draw.randrange(40, 96)
                y, x = draw.randrange(96 - size), draw.randrange(96 - size)
                part = images[i : i + 1, :, y : y + size, x : x + size]
                part = F.interpolate(part, size=(48, 48), mode="bilinear", align_corners=False)
                parts.append(part.flip(-1) if draw.random() < 0.5 else part)
            loss = F.cross_entropy(net(torch.cat(parts)), torch.arange(8).to(images.device))
            return train(optimizer, loss)

        return step

    return start, (torch.randn(8, 3, 96, 96),)


@dynamic
def graphs():
    """A network over graphs of 20 to 60 nodes and 2 to 4 edges for each: messages are added where the edges point."""

    def start(draw, where):
        layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 32)]).to(where)
        out = nn.Linear(32, 4).to(where)
        optimizer = torch.optim.Adam([*layers.parameters(), *out.parameters()], 1e-3)
        generator = torch.Generator().manual_seed(3)

        def step():
            nodes = draw.randrange(20, 60)
            edges = draw.randrange(2 * nodes, 4 * nodes)
            x = torch.randn(nodes, 16, generator=generator).to(where)
            ends = torch.randint(nodes, (2, edges), generator=generator).to(where.device)
            ones = torch.ones(edges, device=where.device, dtype=where.dtype)
            degrees = torch.zeros_like(x[:, 0]).index_add(0, ends[1], ones).clamp(min=1)
            for layer in layers:
                h = layer(x)
                messages = torch.zeros_like(h).index_add(0, ends[1], h[ends[0]])
                x = F.relu(messages / degrees[:, None] + h)
            label = torch.tensor([edges % 4]).to(where.device)
            return train(optimizer, F.cross_entropy(out(x.mean(0, keepdim=True)), label))

        return step

    return start, (torch.zeros(1),)


@dynamic
def tagger():
    """A conditional random field over texts of 6 to 30 words: the sum over all sequences of labels, word by word."""

    def start(draw, where):
        words, scores = nn.Embedding(100, 32).to(where), nn.Linear(32, 9).to(where)
        follows = nn.Parameter(torch.randn(9, 9).to(where))
        parameters = [*words.parameters(), *scores.parameters(), follows]
        optimizer = torch.optim.SGD(parameters, 1e-2, momentum=0.9)
        generator = torch.Generator().manual_seed(3)

        def step():
            length = draw.randrange(6, 30)
            text = torch.randint(100, (8, length), generator=generator).to(where.device)
            labels = torch.randint(9, (8, length), generator=generator).to(where.device)
            each = scores(words(text))
            every, one = each[:, 0], each[:, 0].gather(1, labels[:, :1]).squeeze(1)
            for t in range(1, length):
                every = torch.logsumexp(every[:, :, None] + follows, 1) + each[:, t]
                one = one + each[:, t].gather(1, labels[:, t : t + 1]).squeeze(1)
                one = one + follows[labels[:, t - 1], labels[:, t]]
            return train(optimizer, (torch.logsumexp(every, 1) - one).mean())

        return step

    return start, (torch.zeros(1),)


@dynamic
def conjugate_gradients():
    """Systems of 30 to 120 equations, each solved until the residual is small, which is read in every iteration."""

    def start(draw, where):
        generator = torch.Generator().manual_seed(3)

        def step():
            n = draw.randrange(30, 120)
            m = torch.randn(n, n, generator=generator)
            a = (m @ m.T / n + torch.eye(n)).to(where)
            b = torch.randn(n, generator=generator).to(where)
            x, residual = torch.zeros_like(b), b
            p, size = residual, residual @ residual
            for _ in range(100):
                ap = a @ p
                far = size / (p @ ap)
                x, residual = x + far * p, residual - far * ap
                before, size = size, residual @ residual
                if size.item() < 1e-8:
                    break
                p = residual + size / before * p
            return x.sum()

        return step

    return start, (torch.zeros(1),)


@dynamic
def detections():
    """Up to 20 of 50 to 300 boxes: the best one, and again the best of those that do not overlap any of the chosen."""

    def start(draw, where):
        generator = torch.Generator().manual_seed(3)

        def step():
            n = draw.randrange(50, 300)
            corner, size = torch.rand(2, n, 2, generator=generator).to(where) * 30
            order = torch.rand(n, generator=generator).to(where).argsort(descending=True)
            boxes = torch.cat([corner * 3, corner * 3 + size + 5], 1)[order]
            low, high = boxes[:, :2], boxes[:, 2:]
            area, alive = (high - low).prod(1), torch.ones(n, dtype=torch.bool, device=where.device)
            chosen, i = [], 0
            while len(chosen) < 20:
                chosen.append(i)
                both = torch.minimum(high[i], high) - torch.maximum(low[i], low)
                both = both.clamp(min=0).prod(1)
                alive = alive & (both / (area + area[i] - both) < 0.3)
                left = alive.nonzero().flatten()
                left = left[left > i]
                if left.numel() == 0:
                    break
                i = int(left[0])
            return boxes[torch.tensor(chosen, device=where.device)].sum()

        return step

    return start, (torch.zeros(1),)
