"""More programs that change, of kinds that dynamic.py does not have: what people do with sets, signals, clouds of points and searches."""

import torch
import torch.nn.functional as F
from torch import nn

from .dynamic import dynamic, source, train


@dynamic
def gaussian_process():
    """The marginal likelihood of 20 to 80 points and its gradient."""

    def start(draw, where):
        random = source(where)
        scale, noise = (nn.Parameter(torch.tensor(v).to(where)) for v in (0.5, 0.1))
        optimizer = torch.optim.Adam([scale, noise], 1e-2)

        def step():
            n = draw.randrange(20, 80)
            x = random(n, 3)
            y = x.sum(1).sin()
            far = (x[:, None] - x).pow(2).sum(-1)
            k = torch.exp(-far / (2 * scale**2)) + noise.exp() * torch.eye(n, device=where.device)
            factor = torch.linalg.cholesky(k)
            solved = torch.cholesky_solve(y[:, None], factor)[:, 0]
            return train(optimizer, 0.5 * y @ solved + factor.diagonal().log().sum())

        return step

    return start, (torch.zeros(1),)


@dynamic
def kalman():
    """A filter over tracks of 5 to 30 measurements."""

    def start(draw, where):
        random = source(where)
        move = torch.eye(4).to(where) + 0.1 * torch.eye(4).roll(2, 1).to(where)
        see, noise = torch.eye(2, 4).to(where), 0.1 * torch.eye(2).to(where)

        @torch.no_grad()
        def step():
            x, p = random(4), torch.eye(4, device=where.device, dtype=where.dtype)
            for z in random(draw.randrange(5, 30), 2):
                x, p = move @ x, move @ p @ move.T + 0.01
                gain = p @ see.T @ torch.linalg.inv(see @ p @ see.T + noise)
                x, p = x + gain @ (z - see @ x), p - gain @ see @ p
            return x

        return step

    return start, (torch.zeros(1),)


@dynamic
def clusters():
    """k-means of 100 to 400 points into 3 to 12 clusters, until none moves."""

    def start(draw, where):
        random = source(where)

        @torch.no_grad()
        def step():
            n, k = draw.randrange(100, 400), draw.randrange(3, 12)
            x = random(n, 8)
            centers, before = x[:k], None
            for _ in range(20):
                nearest = torch.cdist(x, centers).argmin(1)
                if before is not None and bool((nearest == before).all()):
                    break
                before = nearest
                sums = torch.zeros_like(centers).index_add(0, nearest, x)
                centers = sums / torch.bincount(nearest, minlength=k).clamp(min=1)[:, None]
            return centers.sum()

        return step

    return start, (torch.zeros(1),)


@dynamic
def graph_attention():
    """Attention over the edges of a random graph, of which the softmax is by scatter."""

    def start(draw, where):
        random = source(where)
        first, second = nn.Linear(16, 32).to(where), nn.Linear(32, 32).to(where)
        score, out = nn.Linear(64, 1).to(where), nn.Linear(32, 4).to(where)
        optimizer = torch.optim.Adam(
            [p for m in (first, second, score, out) for p in m.parameters()]
        )

        def step():
            nodes = draw.randrange(20, 60)
            edges = draw.randrange(2 * nodes, 4 * nodes)
            x = random(nodes, 16)
            ends = torch.tensor([[draw.randrange(nodes) for _ in range(edges)] for _ in "ab"])
            source_, target = ends.to(where.device)
            for layer in (first, second):
                h = layer(x)
                e = F.leaky_relu(score(torch.cat((h[source_], h[target]), 1))[:, 0], 0.2)
                most = torch.full_like(h[:, 0], -1e9).scatter_reduce(0, target, e, "amax")
                e = torch.exp(e - most[target].detach())
                total = torch.zeros_like(most).index_add(0, target, e)
                share = (e / total[target])[:, None]
                x = F.elu(torch.zeros_like(h).index_add(0, target, share * h[source_]))
            label = torch.tensor([edges % 4]).to(where.device)
            return train(optimizer, F.cross_entropy(out(x.mean(0, keepdim=True)), label))

        return step

    return start, (torch.zeros(1),)


@dynamic
def particles():
    """A particle filter: drawn anew by weight wherever too few carry it."""

    def start(draw, where):
        random = source(where)

        @torch.no_grad()
        def step():
            n = draw.randrange(50, 300)
            x, weights = random(n, 2), torch.full((n,), 1 / n).to(where)
            for _ in range(draw.randrange(5, 15)):
                x = x + 0.1 * random(n, 2)
                seen = draw.uniform(-1, 1)
                weights = weights * torch.exp(-(x[:, 0] - seen).pow(2) / 0.5)
                weights = weights / weights.sum()
                if 1 / weights.pow(2).sum().item() < n / 2:
                    places = (torch.arange(n, device=where.device) + draw.random()) / n
                    chosen = torch.searchsorted(weights.cumsum(0), places.to(where)).clamp(
                        max=n - 1
                    )
                    x, weights = x[chosen], torch.full_like(weights, 1 / n)
            return (x * weights[:, None]).sum()

        return step

    return start, (torch.zeros(1),)


@dynamic
def packed():
    """An LSTM over packed sequences, each of its own length."""

    def start(draw, where):
        words, lstm = nn.Embedding(200, 32).to(where), nn.LSTM(32, 64, batch_first=True).to(where)
        out = nn.Linear(64, 2).to(where)
        optimizer = torch.optim.Adam([p for m in (words, lstm, out) for p in m.parameters()])

        def step():
            lengths = sorted((draw.randrange(3, 40) for _ in range(8)), reverse=True)
            text = [torch.tensor([draw.randrange(200) for _ in range(n)]) for n in lengths]
            text = nn.utils.rnn.pad_sequence(text, batch_first=True).to(where.device)
            given = nn.utils.rnn.pack_padded_sequence(words(text), lengths, batch_first=True)
            last = lstm(given)[1][0][-1]
            labels = torch.tensor([n % 2 for n in lengths]).to(where.device)
            return train(optimizer, F.cross_entropy(out(last), labels))

        return step

    return start, (torch.zeros(1),)


@dynamic
def sets():
    """Sets of 1 to 30 elements, padded and masked, pooled by mean and maximum."""

    def start(draw, where):
        random = source(where)
        each = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64)).to(where)
        out = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)).to(where)
        optimizer = torch.optim.Adam([*each.parameters(), *out.parameters()], 1e-3)

        def step():
            sizes = [draw.randrange(1, 30) for _ in range(draw.randrange(4, 20))]
            x = random(len(sizes), max(sizes), 8)
            counts = torch.tensor(sizes).to(where.device)
            mask = (torch.arange(max(sizes), device=where.device) < counts[:, None])[..., None]
            h = each(x)
            mean = (h * mask).sum(1) / mask.sum(1)
            most = h.masked_fill(~mask, float("-inf")).amax(1)
            found = out(torch.cat((mean, most), 1))[:, 0]
            wanted = (x * mask).sum((1, 2))
            return train(optimizer, F.mse_loss(found, wanted))

        return step

    return start, (torch.zeros(1),)


@dynamic
def spectra():
    """Signals of random length, filtered in frequencies."""

    def start(draw, where):
        random = source(where)
        gain = nn.Parameter(torch.ones(16).to(where))
        optimizer = torch.optim.SGD([gain], 1e-3)

        def step():
            signal = random(8, draw.randrange(100, 500))
            waves = torch.fft.rfft(signal)
            bands = F.interpolate(gain[None, None], size=waves.shape[1], mode="linear")[0]
            back = torch.fft.irfft(waves * bands, n=signal.shape[1])
            return train(optimizer, (back - signal.roll(1, 1)).pow(2).mean())

        return step

    return start, (torch.zeros(1),)


@dynamic
def components():
    """The principal components of 30 to 200 points, and what is left without them."""

    def start(draw, where):
        random = source(where)

        @torch.no_grad()
        def step():
            x = random(draw.randrange(30, 200), 12)
            x = (x - x.mean(0)) / x.std(0)
            _, s, v = torch.linalg.svd(x, full_matrices=False)
            kept = int((s.cumsum(0) / s.sum() < 0.8).sum())
            return (x - x @ v[:kept].T @ v[:kept]).pow(2).mean()

        return step

    return start, (torch.zeros(1),)


@dynamic
def newton():
    """Newton's method on logistic regressions of random size, a system in each iteration."""

    def start(draw, where):
        random = source(where)

        @torch.no_grad()
        def step():
            n, d = draw.randrange(50, 200), draw.randrange(4, 16)
            x = random(n, d)
            y, w = (x[:, 0] > 0).to(where), torch.zeros(d).to(where)
            for _ in range(10):
                p = torch.sigmoid(x @ w)
                slope = x.T @ (p - y) + 0.1 * w
                if slope.norm().item() < 1e-3:
                    break
                curve = (x * (p * (1 - p))[:, None]).T @ x
                w = w - torch.linalg.solve(curve + 0.1 * torch.eye(d, device=where.device), slope)
            return w.sum()

        return step

    return start, (torch.zeros(1),)


@dynamic
def dropped_layers():
    """A deep net of which each step leaves out other layers, on a batch of another size."""

    def start(draw, where):
        random = source(where)
        layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12)).to(where)
        optimizer = torch.optim.AdamW(layers.parameters(), 1e-3)

        def step():
            x = wanted = random(draw.randrange(8, 64), 64)
            for layer in layers:
                if draw.random() < 0.7:
                    x = x + F.gelu(layer(F.layer_norm(x, (64,))))
            return train(optimizer, F.mse_loss(x, wanted.roll(1, 0)))

        return step

    return start, (torch.zeros(1),)


@dynamic
def widths():
    """A net whose layers are cut to a width that is drawn at each step."""

    def start(draw, where):
        random = source(where)
        first, second, out = (
            m.to(where) for m in (nn.Linear(32, 256), nn.Linear(256, 256), nn.Linear(256, 8))
        )
        optimizer = torch.optim.SGD([p for m in (first, second, out) for p in m.parameters()], 1e-2)

        def step():
            a, b = draw.randrange(64, 256), draw.randrange(64, 256)
            x = random(32, 32)
            h = F.relu(F.linear(x, first.weight[:a], first.bias[:a]))
            h = F.relu(F.linear(h, second.weight[:b, :a], second.bias[:b]))
            y = F.linear(h, out.weight[:, :b], out.bias)
            return train(optimizer, F.cross_entropy(y, x[:, :8].argmax(1)))

        return step

    return start, (torch.zeros(1),)


@dynamic
def molecules():
    """Forces between 8 to 40 atoms from the gradient of an energy, a few steps of motion."""

    def start(draw, where):
        random = source(where)
        net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)).to(where)
        bands = torch.linspace(0, 3, 8).to(where)

        def step():
            n = draw.randrange(8, 40)
            x, v = random(n, 3) * 2, torch.zeros(n, 3).to(where)
            above = torch.triu_indices(n, n, 1).to(where.device)
            for _ in range(draw.randrange(2, 6)):
                x = x.detach().requires_grad_()
                far = (x[above[0]] - x[above[1]]).pow(2).sum(1).add(1e-6).sqrt()
                near = far[far < 3]
                energy = net(torch.exp(-((near[:, None] - bands) ** 2))).sum()
                (force,) = torch.autograd.grad(energy, x)
                v = v - 0.01 * force
                x = x + 0.1 * v
            return x.detach().sum()

        return step

    return start, (torch.zeros(1),)


@dynamic
def beams():
    """A beam search with a GRU: the four best of all continuations, until one of them ends."""

    def start(draw, where):
        words, cell, out = (
            m.to(where) for m in (nn.Embedding(100, 32), nn.GRUCell(32, 64), nn.Linear(64, 100))
        )
        random = source(where)

        @torch.no_grad()
        def step():
            state = random(1, 64).expand(4, 64)
            last = torch.zeros(4, dtype=torch.long, device=where.device)
            total = torch.tensor([0.0, -1e9, -1e9, -1e9]).to(where)
            for _ in range(draw.randrange(5, 25)):
                state = cell(words(last), state)
                scores = total[:, None] + F.log_softmax(out(state), -1)
                total, best = scores.flatten().topk(4)
                state, last = state[best // 100], best % 100
                if int(last[0]) == 7:
                    break
            return total.sum()

        return step

    return start, (torch.zeros(1),)


@dynamic
def alignments():
    """Speech: convolutions over 40 to 120 frames and the CTC loss of texts of random length."""

    def start(draw, where):
        random = source(where)
        net = nn.Sequential(
            nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 20, 5, padding=2)
        ).to(where)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)

        def step():
            frames = draw.randrange(40, 120)
            lengths = [draw.randrange(3, 12) for _ in range(4)]
            text = torch.tensor([draw.randrange(1, 20) for _ in range(sum(lengths))])
            scores = net(random(4, 16, frames)).permute(2, 0, 1).log_softmax(-1)
            every = torch.full((4,), frames)
            loss = F.ctc_loss(scores, text.to(where.device), every, torch.tensor(lengths))
            return train(optimizer, loss)

        return step

    return start, (torch.zeros(1),)


@dynamic
def regions():
    """Features of 3 to 10 boxes of an image, each pooled to 5x5, and their classes."""

    def start(draw, where):
        random = source(where)
        body = nn.Conv2d(3, 16, 3, padding=1).to(where)
        out = nn.Linear(16 * 25, 5).to(where)
        optimizer = torch.optim.SGD([*body.parameters(), *out.parameters()], 1e-3, momentum=0.9)

        def step():
            features = F.relu(body(random(1, 3, 48, 48)))
            parts = []
            for _ in range(draw.randrange(3, 10)):
                y, x = draw.randrange(30), draw.randrange(30)
                h, w = draw.randrange(6, 18), draw.randrange(6, 18)
                parts.append(F.adaptive_max_pool2d(features[:, :, y : y + h, x : x + w], 5))
            labels = torch.arange(len(parts)).to(where.device) % 5
            return train(optimizer, F.cross_entropy(out(torch.cat(parts).flatten(1)), labels))

        return step

    return start, (torch.zeros(1),)


@dynamic
def retrieval():
    """Queries against lists of random length: a loss over pairs, the best five."""

    def start(draw, where):
        random = source(where)
        net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 1, bias=False)).to(where)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)

        def step():
            n = draw.randrange(6, 60)
            x = random(n, 24)
            grade = x[:, 0] + 0.1 * random(n)
            scores = net(x)[:, 0]
            better = grade[:, None] > grade
            loss = F.softplus(-(scores[:, None] - scores)[better]).mean()
            train(optimizer, loss)
            return scores.detach().topk(5).values.sum()

        return step

    return start, (torch.zeros(1),)


@dynamic
def ragged_attention():
    """An encoder layer over several texts in one row, each with itself, then the mean of each."""

    def start(draw, where):
        random = source(where)
        qkv, out, head = (
            m.to(where) for m in (nn.Linear(64, 192), nn.Linear(64, 64), nn.Linear(64, 4))
        )
        optimizer = torch.optim.AdamW([p for m in (qkv, out, head) for p in m.parameters()], 1e-3)

        def step():
            lengths = [draw.randrange(3, 30) for _ in range(draw.randrange(2, 8))]
            x = random(sum(lengths), 64)
            texts = []
            for part in qkv(x).split(lengths):
                q, k, v = part.view(-1, 3, 4, 16).permute(1, 2, 0, 3)
                texts.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
            h = F.layer_norm(x + out(torch.cat(texts)), (64,))
            means = torch.stack([t.mean(0) for t in h.split(lengths)])
            labels = torch.tensor([n % 4 for n in lengths]).to(where.device)
            return train(optimizer, F.cross_entropy(head(means), labels))

        return step

    return start, (torch.zeros(1),)
