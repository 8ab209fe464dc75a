"""Transformers and a recurrent network: blocks, GPT-2 of 124M parameters, decoding, training steps, lengths that change."""

import functools

import numpy
import torch
import torch.nn.functional as F
from registry import row
from torch import nn

from rows.attention import causal_jax, composed_jax
from rows.matmul import linear_jax
from rows.reductions import layer_norm_jax

WIDTH, HEADS = 768, 12


class Block(nn.Module):
    """A block of GPT-2 (norms first, causal) or of BERT (norms last)."""

    def __init__(self, width=WIDTH, heads=HEADS, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def split(self, x):
        batch, length, width = x.shape
        return self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def attend(self, x, cache=None):
        """With a cache x is the last position, which sees all; returns the longer cache as well."""
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and cache is None)
        return self.out(y.transpose(1, 2).reshape(x.shape)), (k, v)

    def widen(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.causal else "none"))

    def forward(self, x):
        if self.causal:
            x = x + self.attend(self.norm1(x))[0]
            return x + self.widen(self.norm2(x))
        x = self.norm1(x + self.attend(x)[0])
        return self.norm2(x + self.widen(x))

    def decode(self, x, cache):
        y, cache = self.attend(self.norm1(x), cache)
        x = x + y
        return x + self.widen(self.norm2(x)), cache


def block_jax(jax, weights, x, causal=True, prefix=""):
    weights = {k[len(prefix) :]: v for k, v in weights.items() if k.startswith(prefix)}

    def attend(x):
        batch, length, width = x.shape
        qkv = linear_jax(weights, "qkv", x).reshape(batch, length, 3, HEADS, -1)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        y = (causal_jax if causal else composed_jax)(jax, q, k, v)
        return linear_jax(weights, "out", y.swapaxes(1, 2).reshape(x.shape))

    def widen(x):
        return linear_jax(weights, "down", jax.nn.gelu(linear_jax(weights, "up", x), causal))

    def norm(name, x):
        return layer_norm_jax(jax, x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    if causal:
        x = x + attend(norm("norm1", x))
        return x + widen(norm("norm2", x))
    x = norm("norm1", x + attend(x))
    return norm("norm2", x + widen(x))


def jax_weights(jax, make_model):
    """Those that a row's start gives its model."""
    torch.manual_seed(1)
    return {k: jax.numpy.asarray(v.numpy()) for k, v in make_model().state_dict().items()}


def block_flops(length, causal):
    products = 2 * length * 12 * WIDTH * WIDTH
    return products + (2 if causal else 4) * length * length * WIDTH


def block(length, causal, dtype):
    return Block(causal=causal).to(dtype), (torch.randn(1, length, WIDTH, dtype=dtype),)


for _length in (128, 512):
    row(f"gpt2_block_{_length}", flops=block_flops(_length, True), jax=block_jax)(
        functools.partial(block, _length, True, torch.float32)
    )
    row(f"gpt2_block_bf16_{_length}", jax=block_jax)(
        functools.partial(block, _length, True, torch.bfloat16)
    )
row(
    "bert_layer_128",
    flops=block_flops(128, False),
    jax=functools.partial(block_jax, causal=False),
)(functools.partial(block, 128, False, torch.float32))


class Encoder(nn.Module):
    """A MiniLM of 6 layers: an embedding of length 1 of each sentence, the mean of its words."""

    def __init__(self, width=384, words=30522, positions=512):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, HEADS, causal=False) for _ in range(6))

    def forward(self, text, mask):
        x = self.norm(self.words(text) + self.positions.weight[: text.shape[1]])
        for layer in self.blocks:
            x = layer(x)
        mask = mask.unsqueeze(-1).to(x.dtype)
        return F.normalize((x * mask).sum(1) / mask.sum(1), dim=1)


@row()
def minilm_8x16():
    mask = torch.arange(16) < torch.arange(9, 17).unsqueeze(1)
    return Encoder(), (torch.randint(0, 30522, (8, 16)), mask)


# ---- GPT-2


class Gpt2(nn.Module):
    def __init__(self, width=WIDTH, heads=HEADS, layers=12, words=50257, positions=1024):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def head(self, x):
        return F.linear(self.norm(x), self.words.weight)

    def forward(self, text):
        x = self.words(text) + self.positions.weight[: text.shape[1]]
        for layer in self.blocks:
            x = layer(x)
        return self.head(x)


def gpt2_jax(jax, weights, text):
    x = weights["words.weight"][text] + weights["positions.weight"][: text.shape[1]]
    for i in range(12):
        x = block_jax(jax, weights, x, prefix=f"blocks.{i}.")
    x = layer_norm_jax(jax, x, weights["norm.weight"], weights["norm.bias"])
    return x @ weights["words.weight"].T


# Twelve blocks of sums of up to 3,072 products, whose order differs.
@row(flops=12 * block_flops(128, True) + 2 * 128 * WIDTH * 50257, tolerance=1e-5, jax=gpt2_jax)
def gpt2_124M_128():
    return Gpt2(), (torch.randint(0, 50257, (1, 128)),)


class Decoder(nn.Module):
    """The word after `cache`, of 127 words; the longer caches are results too."""

    def __init__(self):
        super().__init__()
        self.model = Gpt2()

    def forward(self, word, cache):
        x = self.model.words(word) + self.model.positions.weight[cache.shape[4]]
        longer = []
        for i, layer in enumerate(self.model.blocks):
            x, kept = layer.decode(x, cache[i])
            longer.extend(kept)
        return self.model.head(x), *longer


# Reading the weights is nearly all there is to do.
@row(bytes=4 * 124e6, floor=0.9)
def gpt2_decode_128():
    cache = torch.randn(12, 2, 1, HEADS, 127, WIDTH // HEADS)
    return Decoder(), (torch.randint(0, 50257, (1, 1)), cache)


class StaticDecoder(Decoder):
    """The word after `text[:, place]`, with its keys and values put into caches of 256 words: each step of a text is the same program."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(12, 2, 1, HEADS, 256, WIDTH // HEADS))
        self.register_buffer("places", torch.arange(256))

    def attend(self, layer, x, cache, place, seen):
        q, k, v = layer.split(x)
        cache[0].index_copy_(2, place, k)
        cache[1].index_copy_(2, place, v)
        y = F.scaled_dot_product_attention(q, *cache, attn_mask=seen)
        return layer.out(y.transpose(1, 2).reshape(x.shape))

    def forward(self, word, place):
        x = self.model.words(word) + self.model.positions(place)
        seen = (self.places <= place)[None, None, None]
        for layer, cache in zip(self.model.blocks, self.cache, strict=True):
            x = x + self.attend(layer, layer.norm1(x), cache, place, seen)
            x = x + layer.widen(layer.norm2(x))
        return self.model.head(x)


def decode_jax(jax, weights, word, place):
    """What it writes into the caches is no result, so that nothing has to be copied for it."""
    weights = {name.removeprefix("model."): value for name, value in weights.items()}
    x = weights["words.weight"][word] + weights["positions.weight"][place]
    seen = jax.numpy.where(weights["places"] <= place, 0, -jax.numpy.inf)

    def norm(name, x):
        return layer_norm_jax(jax, x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    for i in range(12):
        here = f"blocks.{i}."
        qkv = linear_jax(weights, here + "qkv", norm(here + "norm1", x))
        q, k, v = qkv.reshape(1, 1, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
        keys, values = (
            jax.lax.dynamic_update_slice(weights["cache"][i, c], new, (0, 0, place[0], 0))
            for c, new in enumerate((k, v))
        )
        scores = q @ keys.swapaxes(-1, -2) / (WIDTH // HEADS) ** 0.5 + seen
        y = jax.nn.softmax(scores, -1) @ values
        x = x + linear_jax(weights, here + "out", y.swapaxes(1, 2).reshape(x.shape))
        wide = jax.nn.gelu(linear_jax(weights, here + "up", norm(here + "norm2", x)), True)
        x = x + linear_jax(weights, here + "down", wide)
    return norm("norm", x) @ weights["words.weight"].T


@row(bytes=4 * 124e6, floor=0.9, tolerance=1e-5, jax=decode_jax)
def gpt2_decode_static():
    return StaticDecoder(), (torch.randint(0, 50257, (1, 1)), torch.tensor([100]))


# ---- lengths that are new in each call


@row(kind="once", dynamic=True)
def decode_growing_16_to_48():
    """32 words of a small GPT-2 without a cache: each step reads a text that is one word longer."""

    def start(compiled, text):
        torch.manual_seed(1)
        model = Gpt2(width=256, heads=4, layers=4, words=1000).to(text.device)
        forward = compiled(lambda text: model(text)[:, -1])

        def generate(text=text):
            for _ in range(32):
                scores = forward(text)
                text = torch.cat((text, scores.argmax(-1, keepdim=True)), 1)
            return scores

        return generate

    return start, (torch.randint(0, 1000, (1, 16)),)


def lengths_jax(jax, *texts):
    weights = jax_weights(jax, Block)
    run = jax.jit(functools.partial(block_jax, jax))
    return lambda: [run(weights, x) for x in texts]


@row(kind="once", dynamic=True, jax=lengths_jax)
def block_of_50_lengths():
    """A block of GPT-2 on texts of 50 lengths, each for the first time."""

    def start(compiled, *texts):
        torch.manual_seed(1)
        forward = compiled(Block().to(texts[0].device, texts[0].dtype))
        return lambda: [forward(x) for x in texts]

    return start, tuple(torch.randn(1, n, WIDTH) for n in range(16, 266, 5))


# ---- recurrent


def lstm_jax(jax, weights, x):
    def layer(x, i):
        w, u = weights[f"weight_ih_l{i}"], weights[f"weight_hh_l{i}"]
        x = x @ w.T + weights[f"bias_ih_l{i}"] + weights[f"bias_hh_l{i}"]

        def step(state, gates):
            h, c = state
            i, f, g, o = jax.numpy.split(gates + h @ u.T, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jax.numpy.tanh(g)
            h = jax.nn.sigmoid(o) * jax.numpy.tanh(c)
            return (h, c), h

        zero = jax.numpy.zeros((x.shape[1], u.shape[1]))
        return jax.lax.scan(step, (zero, zero), x)

    x = layer(x, 0)[1]
    (h, c), x = layer(x, 1)
    return x


class Lstm(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


LSTM_BYTES = 2 * 8 * 512 * 512 * 4  # of weights, which do not fit into a core's own cache


@row(bytes=50 * LSTM_BYTES, working_set=LSTM_BYTES, jax=lstm_jax)
def lstm_2x512_of_50():
    return Lstm(512, 512, 2), (torch.randn(50, 1, 512),)


@row()
def lstm_bf16_512_of_50x16():
    return Lstm(512, 512).bfloat16(), (torch.randn(50, 16, 512, dtype=torch.bfloat16),)


# ---- training


def training(make_model, loss_of):
    """start(compiled, x, y) for a row of kind steps: forward, backward, Adam; a step returns its loss."""

    def start(compiled, x, y):
        torch.manual_seed(1)
        model = make_model().to(x.device, x.dtype)
        optimizer = torch.optim.Adam(model.parameters())
        forward = compiled(lambda x, y: loss_of(model(x), y))
        update = compiled(optimizer.step)

        def step():
            loss = forward(x, y)
            loss.backward()
            update()
            optimizer.zero_grad()
            return loss.detach()

        return step

    return start


def training_jax(make_model, function, loss_of):
    def start(jax, x, y):
        weights = jax_weights(jax, make_model)
        zero = jax.tree.map(jax.numpy.zeros_like, weights)

        @functools.partial(jax.jit, donate_argnums=(0,))
        def step(state, x, y):
            weights, m, v, t = state
            loss, gradient = jax.value_and_grad(lambda w: loss_of(function(jax, w, x), y))(weights)
            t = t + 1
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradient)
            weights = jax.tree.map(
                lambda w, m, v: (
                    w - 1e-3 * (m / (1 - 0.9**t)) / (jax.numpy.sqrt(v / (1 - 0.999**t)) + 1e-8)
                ),
                weights,
                m,
                v,
            )
            return (weights, m, v, t), loss

        state = (weights, zero, jax.tree.map(jax.numpy.copy, zero), 0.0)

        def run():
            nonlocal state
            state, loss = step(state, x, y)
            return loss

        return run

    return start


def digits():
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def digits_jax(jax, weights, x):
    for i in (0, 2):
        x = jax.nn.relu(linear_jax(weights, i, x))
    x = linear_jax(weights, 4, x)
    return x - jax.scipy.special.logsumexp(x, -1, keepdims=True)


def nll(logs, y):
    return -logs[numpy.arange(len(y)), y].mean()


# A step changes each weight by a rate that does not shrink with its gradient, whose last bits so come to count.
@row(
    kind="steps",
    flops=6 * 128 * (784 * 512 + 512 * 512 + 512 * 10),
    tolerance=1e-4,
    jax=training_jax(digits, digits_jax, nll),
)
def train_mlp_784():
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))
    return training(digits, F.cross_entropy), (x, y)


def mean_square(x, y):
    return ((x - y) ** 2).mean()


@row(
    kind="steps",
    flops=3 * block_flops(128, True),
    tolerance=1e-4,
    jax=training_jax(Block, block_jax, mean_square),
)
def train_gpt2_block_128():
    x, y = torch.randn(1, 128, WIDTH), torch.randn(1, 128, WIDTH)
    return training(Block, mean_square), (x, y)


@row(kind="steps")
def train_gpt2_block_bf16_128():
    x, y = (torch.randn(1, 128, WIDTH, dtype=torch.bfloat16) for _ in range(2))
    return training(Block, mean_square), (x, y)


class Recurrent(nn.Module):
    """The mean of a recurrent network's outputs, classified."""

    def __init__(self, kind, hidden, **options):
        super().__init__()
        self.layers = kind(hidden, hidden, **options)
        self.head = nn.Linear(hidden * (2 if self.layers.bidirectional else 1), 10)

    def forward(self, x):
        return self.head(self.layers(x)[0].mean(0))


# Sixteen sequences of 64 steps.
for _name, _kind, _hidden, _options in (
    ("lstm_64", nn.LSTM, 64, {}),
    ("lstm_64_bidirectional", nn.LSTM, 64, {"bidirectional": True}),
    ("lstm_2x128", nn.LSTM, 128, {"num_layers": 2}),
    ("gru_128", nn.GRU, 128, {}),
):
    row(f"train_{_name}_of_64", kind="steps", tolerance=1e-4)(
        lambda kind=_kind, hidden=_hidden, options=_options: (
            training(functools.partial(Recurrent, kind, hidden, **options), F.cross_entropy),
            (torch.randn(64, 16, hidden), torch.randint(0, 10, (16,))),
        )
    )
