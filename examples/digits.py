"""Training on real data: scikit-learn's 8x8 handwritten digits, an MLP and a small convnet, Adam.

    ./dev python examples/digits.py [--device opaque] [--model mlp|convnet|both] [--epochs N]

The same model, seed and batch order are trained on the CPU as well, and both once more in float64.
Exits with 1 if the loss curves part by more than 1e-3 within the first 50 steps (later an element on
the edge of a ReLU or of a maximum makes the curves of PyTorch's own kernels part, too), in float64
by more than 1e-9 within the first 200, if test accuracy is below 96 %, or if it is more than one
point from the CPU's.
"""

import argparse
import copy
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

BATCH = 64


def data() -> tuple:
    """(train images [1437,1,8,8] f32 in 0..1, labels, test images, labels), in a fixed shuffle."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = (torch.tensor(digits.images, dtype=torch.float32) / 16).unsqueeze(1)[order]
    labels = torch.tensor(digits.target)[order]
    cut = int(0.8 * len(labels))
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def mlp() -> nn.Module:
    """64 - 128 - 64 - 10."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def convnet() -> nn.Module:
    """Two 3x3 convolutions with pooling, one hidden layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model: nn.Module, device: str, epochs: int, dtype: torch.dtype = torch.float32) -> tuple:
    """(losses per step, accuracy on the test set, seconds). The batch order depends on the epoch alone."""
    images, labels, test_images, test_labels = (x.to(device) for x in data())
    images, test_images = images.to(dtype), test_images.to(dtype)
    model.to(device, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses = []
    begin = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for part in order.split(BATCH):
            part = part.to(device)
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    losses = torch.stack(losses).cpu()
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    return losses, right, seconds


def check(name: str, make, device: str, epochs: int) -> bool:
    """Trains on both devices from the same weights, prints, compares."""
    torch.manual_seed(0)
    model = make()
    expected, cpu_accuracy, cpu_seconds = train(copy.deepcopy(model), "cpu", epochs)
    double_model, wide = copy.deepcopy(model), min(epochs, 9)
    actual, accuracy, seconds = train(model, device, epochs)
    gap = (actual[:50] - expected[:50]).abs().max().item()
    truth, *_ = train(copy.deepcopy(double_model), "cpu", wide, torch.float64)
    double, *_ = train(double_model, device, wide, torch.float64)
    double_gap = (double[:200] - truth[:200]).abs().max().item()
    good = (
        gap <= 1e-3
        and double_gap <= 1e-9
        and accuracy >= 0.96
        and abs(accuracy - cpu_accuracy) <= 0.01
    )
    print(
        f"{name}: loss {actual[0]:.3f} -> {actual[-1]:.4f}, accuracy {accuracy:.1%} (CPU {cpu_accuracy:.1%}), "
        f"loss curve within {gap:.1e} of CPU's, in float64 {double_gap:.1e}, {seconds:.2f} s (CPU {cpu_seconds:.2f} s): "
        f"{'ok' if good else 'WRONG'}"
    )
    return good


def main(arguments: list | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opaque")
    parser.add_argument("--model", choices=("mlp", "convnet", "both"), default="both")
    parser.add_argument(
        "--epochs", type=int, help="passes over the data (20 for the MLP, 10 for the convnet)"
    )
    options = parser.parse_args(arguments)
    models = {"mlp": (mlp, 20), "convnet": (convnet, 10)}
    chosen = models if options.model == "both" else {options.model: models[options.model]}
    results = [
        check(name, make, options.device, options.epochs or epochs)
        for name, (make, epochs) in chosen.items()
    ]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
