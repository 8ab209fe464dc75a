"""Data-parallel training with DistributedDataParallel: gloo works on the device's memory without copies.

    ./dev python -m torch.distributed.run --nproc-per-node 2 examples/ddp.py [--device opaque] [--steps N]

Each rank trains on its half of a batch. Rank 0 trains the same model alone on whole batches as well.
Exits with 1 unless the ranks end with the same parameters, equal to those of the lone model to
rounding.
"""

import argparse
import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64


def batch(step: int) -> tuple:
    """(inputs [64,16], targets [64,1]), the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 16, generator=generator)
    return x, (x[:, :4].sum(1, keepdim=True)).sin()


def train(model: nn.Module, device: str, steps: int, rows: slice) -> float:
    """Loss of the last step, over `rows` of each batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        x, y = (t[rows].to(device) for t in batch(step))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="opaque")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(options.device)
    alone = copy.deepcopy(model)
    share = BATCH // world
    loss = train(
        DistributedDataParallel(model),
        options.device,
        options.steps,
        slice(rank * share, (rank + 1) * share),
    )

    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    every = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(every, mine)
    good = all(torch.equal(one, mine) for one in every)
    print(f"rank {rank}: loss {loss:.5f}, ranks {'agree' if good else 'DIFFER'}", flush=True)
    if rank == 0:
        loss = train(alone, options.device, options.steps, slice(0, share * world))
        lone = nn.utils.parameters_to_vector(alone.parameters()).detach()
        difference = (lone - mine).abs().max().item()
        good = good and difference < 1e-3
        print(f"one process: loss {loss:.5f}, parameters differ by {difference:.1e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
