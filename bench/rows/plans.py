"""Programs that run in other shapes each time, in kernels that there are: what is timed is how long their plan took."""

import torch
import torch.nn.functional as F
from registry import row


@row(kind="plan", ceiling=1.0)
def plan_gpt_24_layers():
    """A training step."""
    width, words, length = 256, 64, 16
    layer = torch.nn.TransformerEncoderLayer(
        width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model = torch.nn.Sequential(
        torch.nn.Embedding(words, width),
        torch.nn.TransformerEncoder(layer, 24, enable_nested_tensor=False),
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, words),
    ).to("opaque")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(i):
        text = torch.randint(0, words, (2 + i, length)).to("opaque")
        loss = F.cross_entropy(model(text).flatten(0, 1), text.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@row(kind="plan", ceiling=1.5)
def plan_matmuls_8000():
    def chain_of(i):
        x = w = torch.eye(8 + i, device="opaque")
        for _ in range(8000):
            x = x @ w
        return x

    return chain_of


def rows_of_one(i):
    return torch.ones(16000, 4 + i).to("opaque").split(1)


@row(kind="plan", ceiling=1.5)
def plan_slices_added_16000():
    return lambda i: sum(rows_of_one(i))


@row(kind="plan", ceiling=1.5)
def plan_slices_held_16000():
    return lambda i: [part.clone() for part in rows_of_one(i)]


@row(kind="plan", ceiling=1.5)
def plan_shrinking_15000():
    def shrink(i):
        x = torch.ones(15001 + i).to("opaque")
        for _ in range(15000):
            x = x[1:].clone()
        return x

    return shrink


def adam_1000(foreach):
    def step(i):
        parameters = [torch.ones(4 + k % 7, 3 + i).to("opaque") for k in range(1000)]
        for parameter in parameters:
            parameter.grad = parameter.detach()
        torch.optim.Adam(parameters, foreach=foreach).step()
        return parameters

    return step


@row(kind="plan", ceiling=1.5)
def plan_adam_1000_for():
    return adam_1000(False)


@row(kind="plan", ceiling=1.5)
def plan_adam_1000_foreach():
    return adam_1000(True)
