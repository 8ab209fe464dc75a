"""Three lines of PyTorch, and what becomes of them: the graph recorded, simplified, fused, and its LLVM IR.

    ./dev python examples/three_lines.py [--device opaque] [--stage recorded]

Exits with 1 if the result is not the CPU's.
"""

import argparse
import sys

import torch

STAGES = ("recorded", "simplified", "fused", "llvm")


def three_lines(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Softmax of a scaled, gated input, row by row."""
    h = x * torch.sigmoid(x) * w
    e = torch.exp(h - h.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opaque")
    parser.add_argument("--stage", choices=STAGES, help="one stage (all)")
    options = parser.parse_args()

    torch.manual_seed(0)
    x, w = torch.randn(64, 1000), torch.randn(1000)
    y = three_lines(x.to(options.device), w.to(options.device))
    if options.device == "opaque":
        import torch_opaque

        for stage in [options.stage] if options.stage else STAGES:
            print(f"---- {stage}\n{torch_opaque.graph(y, stage=stage)}")
    difference = (y.cpu() - three_lines(x, w)).abs().max().item()
    good = difference <= 1e-6
    print(f"against CPU: largest difference {difference:.1e}: {'ok' if good else 'WRONG'}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
