"""One rank of a test of sharded training, as ranks.py, from which it is run: FSDP, FSDP2, tensor parallel, device meshes.

Two ranks of the one device are what a single process is that has the whole batch.
"""

import os
import sys

import ranks
import torch
import torch.distributed as dist
from ranks import WORLD, close, numbers, raises, rows
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 16), nn.Linear(16, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(x + self.down(torch.tanh(self.up(x))))


def net():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(6, 3))


def whole_batch(step):
    return torch.randn(WORLD * 8, 6, generator=torch.Generator().manual_seed(step))


def steps(model, batch, count=3, **options):
    """Losses of steps. The mean over the ranks of means over their rows is the mean over all."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, **options)
    losses = []
    for step in range(count):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def alone():
    """A single process: parameters, and the last gradients, by name."""
    model = net().to("opaque")
    steps(model, lambda step: whole_batch(step).to("opaque"))
    return {name: (p.detach().cpu(), p.grad.cpu()) for name, p in model.named_parameters()}


def mine(step):
    return rows(step).to("opaque")


def same_as_alone(full):
    expected = alone()
    assert full.keys() == expected.keys()
    for name, (parameter, gradient) in expected.items():
        torch.testing.assert_close(full[name][0].cpu(), parameter, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(full[name][1].cpu(), gradient, rtol=1e-6, atol=1e-6)


def gathered(model):
    assert all(p.device.type == "opaque" for p in model.parameters())
    return {
        n: (p.detach().full_tensor(), p.grad.full_tensor()) for n, p in model.named_parameters()
    }


def check_mesh():
    mesh = init_device_mesh("opaque", (WORLD,), mesh_dim_names=("ranks",))
    assert mesh.device_type == "opaque" and mesh.get_local_rank() == dist.get_rank()
    x = numbers("opaque", 3)
    dist.all_reduce(x, group=mesh.get_group("ranks"))
    assert torch.equal(x.cpu(), torch.arange(3.0) * 2 + 7)
    square = init_device_mesh("opaque", (WORLD, 1), mesh_dim_names=("data", "tensor"))
    assert square["data"].size() == WORLD and square["tensor"].size() == 1
    # As programs for torchrun begin.
    local = int(os.environ["LOCAL_RANK"])
    torch.opaque.set_device(local)
    torch.accelerator.set_device_index(local)
    assert torch.ones(2, device=f"opaque:{local}").device.index == 0
    with raises("there is 1 device"):
        torch.opaque.set_device(local + 1)


def check_ddp_with_device_ids():
    local = int(os.environ["LOCAL_RANK"])
    model = nn.parallel.DistributedDataParallel(net().to(f"opaque:{local}"), device_ids=[local])
    steps(model, lambda step: rows(step))  # it moves its inputs
    same_as_alone({n: (p.detach(), p.grad) for n, p in model.module.named_parameters()})


def check_fsdp2():
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    for reshard in (True, False):
        for mesh in (None, init_device_mesh("opaque", (WORLD,))):
            model = net().to("opaque")
            for part in model:
                fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
            assert model[0].up.weight.to_local().shape[0] == 8
            steps(model, mine)
            same_as_alone(gathered(model))
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    model = net().to("opaque")
    fully_shard(
        model,
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    losses = steps(model, mine)
    assert (
        all(p.dtype == torch.float32 for p in model.parameters()) and losses[-1].isfinite().item()
    )

    model = net().to("opaque")
    fully_shard(model, mesh=init_device_mesh("opaque", (WORLD,)), offload_policy=CPUOffloadPolicy())
    steps(model, mine)
    full = {
        n: (p.detach().to("opaque").full_tensor(), p.grad.to("opaque").full_tensor())
        for n, p in model.named_parameters()
    }
    same_as_alone(full)


def check_fsdp2_state():
    """A sharded state_dict, gathered, loads elsewhere; and back."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net().to("opaque"))
    steps(model, mine)
    state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if dist.get_rank() == 0:
        plain = net()
        plain.load_state_dict(state)
        close([p.detach() for p in plain.parameters()], [p for p, _ in alone().values()])
    other = fully_shard(net().to("opaque"))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, state if dist.get_rank() == 0 else {}, options=options)
    close(
        [p.full_tensor().cpu() for p in other.parameters()],
        [p.full_tensor().cpu() for p in model.parameters()],
    )


def check_fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    for strategy in (
        ShardingStrategy.FULL_SHARD,
        ShardingStrategy.SHARD_GRAD_OP,
        ShardingStrategy.NO_SHARD,
    ):
        model = FullyShardedDataParallel(
            net().to("opaque"),
            sharding_strategy=strategy,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            device_id=torch.device("opaque", 0),
            use_orig_params=True,
        )
        steps(model, mine)
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            full = {
                name.replace("_fsdp_wrapped_module.", ""): (p.detach().clone(), p.grad.clone())
                for name, p in model.named_parameters()
            }
        same_as_alone(full)


def check_tensor_parallel():
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("opaque", (WORLD,))
    everything = lambda step: whole_batch(step).to("opaque")  # noqa: E731
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = net().to("opaque")
    for block in model[:2]:
        parallelize_module(block, mesh, plan)
    assert model[0].up.weight.to_local().shape == (8, 6) and model[
        0
    ].down.weight.to_local().shape == (6, 8)
    steps(model, everything, foreach=False)  # which takes no tensors beside DTensors, on any device
    whole = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t  # noqa: E731
    same_as_alone({n: (whole(p.detach()), whole(p.grad)) for n, p in model.named_parameters()})

    torch.manual_seed(0)
    layer = nn.Sequential(nn.LayerNorm(6), nn.Dropout(0.5)).to("opaque")
    parallelize_module(
        layer, mesh, {"0": SequenceParallel(sequence_dim=0), "1": SequenceParallel(sequence_dim=0)}
    )
    y = layer(everything(0)[dist.get_rank() * 8 :][:8])
    assert y.full_tensor().shape == (16, 6)


def check_dtensor():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, full, rand

    mesh = init_device_mesh("opaque", (WORLD,))
    whole = torch.arange(24.0).view(4, 6)
    for placement in (Shard(0), Shard(1), Replicate()):
        x = distribute_tensor(whole.to("opaque"), mesh, [placement])
        assert torch.equal(
            (x @ x.t()).redistribute(placements=[Replicate()]).to_local().cpu(), whole @ whole.t()
        )
        assert torch.equal(x.sum(0).full_tensor().cpu(), whole.sum(0))
        assert torch.equal(
            (x.redistribute(placements=[Shard(1)]) + 1).full_tensor().cpu(), whole + 1
        )
    assert full((4,), 2.0, device_mesh=mesh, placements=[Shard(0)]).sum().full_tensor().item() == 8
    torch.manual_seed(3)
    drawn = rand(64, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    assert len(set(drawn.tolist())) > 60, "ranks draw different parts"


if __name__ == "__main__":
    ranks.main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:], checks_in=globals())
