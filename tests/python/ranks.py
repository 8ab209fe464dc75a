"""One rank of a test of torch.distributed: `python ranks.py CHECKS RANK FOLDER`, CHECKS being names joined by commas.

What opaque tensors get is what CPU tensors get through the same gloo.
"""

import contextlib
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_opaque
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
DEVICES = ("cpu", "opaque")
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int8, torch.uint8, torch.bool, torch.complex64)  # fmt: skip


@contextlib.contextmanager
def raises(*parts):
    """The body raises an error whose message has the parts."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        assert all(part in str(error) for part in parts), str(error)
    else:
        raise AssertionError("no error")


def settled_memory() -> int:
    """Allocated bytes, when threads of gloo have let go of what they sent."""
    before, now = -1, torch.opaque.memory_allocated()
    while before != now:
        time.sleep(0.2)
        before, now = now, torch.opaque.memory_allocated()
    return now


def numbers(device, *shape, dtype=torch.float32, shift=0):
    """Other numbers on each rank, computed on the device: a collective finds them pending."""
    count = torch.Size(shape).numel()
    start = 1 + shift + 3 * dist.get_rank()
    if dtype == torch.bool:
        return (torch.arange(start, start + count, device=device) % 3 > 0).view(shape)
    return torch.arange(start, start + count, device=device).to(dtype).view(shape) + 1


def same(call, may_fail=False):
    """Runs `call(device)` on both devices; results, or the errors where there may be some, must be the same."""
    results = []
    for device in DEVICES:
        try:
            results.append(call(device))
        except (RuntimeError, ValueError) as error:
            results.append(type(error).__name__ + ": " + str(error).partition("\n")[0])
    cpu, ours = results
    if isinstance(cpu, str) or isinstance(ours, str):
        assert may_fail and cpu == ours, f"{cpu!r} on the CPU, {ours!r} here"
        return
    for expected, got in zip(cpu, ours, strict=True):
        assert got.device.type == "opaque"
        torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)


# ---- collectives


def check_reductions():
    for name in OPS:
        for dtype in DTYPES:
            op = getattr(dist.ReduceOp, name)

            def all_reduce(device, op=op, dtype=dtype):
                x = numbers(device, 5, dtype=dtype)
                dist.all_reduce(x, op)
                return [x, x + x]

            def reduce(device, op=op, dtype=dtype):
                x = numbers(device, 5, dtype=dtype)
                dist.reduce(x, 1, op)
                return [x] if dist.get_rank() == 1 else []

            same(all_reduce, may_fail=True)
            same(reduce, may_fail=True)


def check_movement():
    rank = dist.get_rank()

    def broadcast(device):
        x = numbers(device, 2, 3)
        dist.broadcast(x, 1)
        return [x]

    def all_gather(device):
        outputs = [torch.zeros(4, device=device) for _ in range(WORLD)]
        dist.all_gather(outputs, numbers(device, 4))
        return outputs

    def all_gather_into_chunks(device):
        whole = torch.zeros(2 * WORLD, 3, device=device)
        dist.all_gather(list(whole.chunk(WORLD)), numbers(device, 2, 3))
        return [whole]

    def all_gather_into_tensor(device):
        out = torch.empty(WORLD * 4, 2, device=device)
        dist.all_gather_into_tensor(out, numbers(device, 4, 2))
        return [out]

    def all_gather_in_place(device):
        out = torch.zeros(WORLD * 3, device=device)
        mine = out[rank * 3 : rank * 3 + 3]
        mine.copy_(numbers(device, 3))
        dist.all_gather_into_tensor(out, mine)
        return [out]

    def gather(device):
        outputs = [torch.zeros(4, device=device) for _ in range(WORLD)] if rank == 0 else None
        dist.gather(numbers(device, 4), outputs, dst=0)
        return outputs or []

    def scatter(device):
        out = torch.zeros(4, device=device)
        parts = list(numbers(device, WORLD, 4).unbind()) if rank == 0 else None
        dist.scatter(out, parts, src=0)
        return [out]

    def reduce_scatter(device):
        out = torch.zeros(4, device=device)
        dist.reduce_scatter(out, list(numbers(device, WORLD, 4).unbind()))
        return [out]

    def reduce_scatter_tensor(device):
        out = torch.zeros(4, device=device)
        dist.reduce_scatter_tensor(out, numbers(device, WORLD * 4))
        return [out]

    def all_to_all(device):
        outputs = [torch.zeros(3, device=device) for _ in range(WORLD)]
        dist.all_to_all(outputs, list(numbers(device, WORLD, 3).unbind()))
        return outputs

    def all_to_all_single(device):
        out = torch.zeros(3 if rank == 0 else 5, device=device)
        dist.all_to_all_single(
            out,
            numbers(device, 4),
            [1, 2] if rank == 0 else [3, 2],
            [1, 3] if rank == 0 else [2, 2],
        )
        return [out]

    def send_and_recv(device):
        x = numbers(device, 3)
        if rank == 0:
            dist.send(x * 2, 1, tag=7)
            dist.recv(x, 1)
        else:
            received = torch.empty(3, device=device)
            assert dist.recv(received, None, tag=7) == 0
            dist.send(x + received, 0)
        return [x]

    def isend_and_irecv(device):
        received = torch.zeros(2, 3, device=device)
        row = received[1]
        works = [dist.isend(numbers(device, 3), 1 - rank), dist.irecv(row, 1 - rank)]
        for work in works:
            work.wait()
        return [received]

    def batch_isend_irecv(device):
        received = torch.zeros(3, device=device)
        ops = [
            dist.P2POp(dist.isend, numbers(device, 3), 1 - rank),
            dist.P2POp(dist.irecv, received, 1 - rank),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return [received]

    def coalesced(device):
        tensors = [numbers(device, 3), numbers(device, 2, 2, shift=5)]
        dist.all_reduce_coalesced(tensors)
        return tensors

    for call in list(locals().values()):
        if callable(call):
            same(call)
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=60))


def check_layouts():
    def transposed(device):
        x = numbers(device, 2, 3).t()
        dist.broadcast(x, 0)
        return [x]

    def strided(device):
        x = numbers(device, 8)
        dist.all_reduce(x[::2])
        return [x]

    def a_row(device):
        x = numbers(device, 3, 4)
        dist.all_reduce(x[1])
        return [x]

    def bytes_of_another_dtype(device):
        x = numbers(device, 4)
        dist.broadcast(x.view(torch.int32), 1)
        return [x]

    def numbers_in_no_dimensions(device):
        x = numbers(device, 1).squeeze()
        dist.all_reduce(x)
        return [x]

    def nothing(device):
        x = torch.empty(0, 3, device=device)
        dist.all_reduce(x)
        return [x]

    def other_shapes(device):
        dist.all_gather(
            [torch.zeros(3, device=device), torch.zeros(4, device=device)], numbers(device, 3)
        )
        return []

    def too_few_outputs(device):
        dist.all_gather([torch.zeros(3, device=device)], numbers(device, 3))
        return []

    for call in list(locals().values()):
        same(call, may_fail=call in (transposed, strided, other_shapes, too_few_outputs))


def check_values_are_kept():
    """Whoever read a tensor before a collective has what it read, and nothing is copied if nobody did."""
    rank = dist.get_rank()
    x = numbers("opaque", 1000)
    before, doubled = x.clone(), x * 2
    alias = x.detach()
    dist.all_reduce(x)
    total = torch.arange(1000.0) * 2 + 2 + 2 + 3
    assert torch.equal(x.cpu(), total) and torch.equal(alias.cpu(), total)
    own = torch.arange(1000.0) + 2 + 3 * rank
    assert torch.equal(before.cpu(), own) and torch.equal(doubled.cpu(), own * 2)
    del before, doubled, alias

    torch.opaque.synchronize()
    torch.opaque.reset_peak_memory_stats()
    held = settled_memory()
    big = torch.ones(1 << 20, device="opaque")
    for _ in range(3):
        dist.all_reduce(big)
        assert big[0].item() == 2
        big -= 1
    torch.opaque.synchronize()
    dist.all_reduce(big)
    assert settled_memory() - held == 4 << 20
    runs = torch_opaque.stats()["flushes"]["collective"]
    dist.all_reduce(big)
    assert torch_opaque.stats()["flushes"]["collective"] == runs, "nothing was pending"

    weight = torch.randn(128, 128, device="opaque")  # a matmul keeps a packed copy of it
    rows = torch.randn(4, 128, device="opaque")
    for _ in range(3):
        (rows @ weight).cpu()
        dist.all_reduce(weight)
        torch.testing.assert_close((rows @ weight).cpu(), rows.cpu() @ weight.cpu())


def check_asynchronous():
    x = numbers("opaque", 6)
    work = dist.all_reduce(x, async_op=True)
    y = x * 2  # recorded, not read
    assert work.wait() and work.is_completed() and work.is_success()
    assert torch.equal(y.cpu(), (torch.arange(6.0) * 2 + 7) * 2)
    assert all(result.device.type == "opaque" for result in work.result())

    outputs = [torch.zeros(2, device="opaque") for _ in range(WORLD)]
    future = dist.all_gather(outputs, numbers("opaque", 2), async_op=True).get_future()
    (given,) = future.then(lambda done: [done.value()]).wait()
    assert [t.device.type for t in given[0]] == ["opaque"] * WORLD
    assert torch.equal(torch.stack(outputs).cpu(), torch.tensor([[2.0, 3.0], [5.0, 6.0]]))

    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": dist.get_rank(), "t": torch.ones(2, device="opaque")})
    assert [o["rank"] for o in objects] == [0, 1] and objects[1]["t"].device.type == "opaque"
    objects = [dist.get_rank(), "x"]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [1, "x"]

    with raises("Expected all tensors to be on the same device"):
        dist.all_gather_into_tensor(torch.zeros(2 * WORLD), torch.zeros(2, device="opaque"))
    z = torch.zeros(3, device="opaque").exp()
    with torch_opaque.forbid_sync(), raises("collective"):
        dist.all_reduce(z)


def check_functional():
    """Functional collectives and those of torch.distributed.nn: a result waits for its work when it is used."""
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn.functional as differentiable

    world = dist.group.WORLD

    def reduced(device):
        x = numbers(device, 4)
        return [functional.all_reduce(x, "sum", world) * 1, x]

    def gathered(device):
        return [functional.all_gather_tensor(numbers(device, 4), 0, world) * 1]

    def scattered(device):
        return [functional.reduce_scatter_tensor(numbers(device, 4), "sum", 0, world) * 1]

    def coalesced(device):
        inputs = [numbers(device, 4), numbers(device, 2, shift=3)]
        return [t * 1 for t in functional.all_reduce_coalesced(inputs, "sum", world)]

    def exchanged(device):
        return [functional.all_to_all_single(numbers(device, 4), None, None, world) * 1]

    def waited_for(device):
        x = torch.ops._c10d_functional.all_reduce(numbers(device, 1 << 18), "sum", world.group_name)
        return [torch.ops._c10d_functional.wait_tensor(x)]

    def gradients(device):
        x = numbers(device, 4).requires_grad_()
        (differentiable.all_reduce(x) * numbers(device, 4, shift=1)).sum().backward()
        return [x.grad]

    for call in (reduced, gathered, scattered, coalesced, exchanged, waited_for, gradients):
        for _ in range(3):
            same(call)


def check_groups():
    """Groups of some ranks, and each way to name the backend."""
    mine = [dist.new_group([rank]) for rank in range(WORLD)][dist.get_rank()]
    x = numbers("opaque", 3)
    dist.all_reduce(x, group=mine)
    assert torch.equal(x.cpu(), numbers("cpu", 3))
    for backend in (None, "gloo", "cpu:gloo,opaque:gloo", "opaque:gloo,cpu:gloo", "opaque:gloo"):
        group = dist.new_group(backend=backend)
        x = numbers("opaque", 3)
        dist.all_reduce(x, group=group)
        assert torch.equal(x.cpu(), torch.arange(3.0) * 2 + 7)
        dist.barrier(group)
        if backend != "opaque:gloo":
            y = numbers("cpu", 3)
            dist.all_reduce(y, group=group)
            assert torch.equal(y, x.cpu())


# ---- data parallel training


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    )


def rows(step, count=8):
    """This rank's rows of a batch."""
    x = torch.randn(WORLD * count, 6, generator=torch.Generator().manual_seed(step))
    return x[dist.get_rank() * count : (dist.get_rank() + 1) * count]


def trained(device, model, steps=4, **options):
    """Gradients of every step and the state at the end."""
    model = DistributedDataParallel(model.to(device), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    result = []
    for step in range(steps):
        optimizer.zero_grad()
        model(rows(step).to(device)).square().sum().backward()
        result += [p.grad.detach().clone() for p in model.parameters()]
        optimizer.step()
    assert all(t.device.type == device for t in result)
    return [t.cpu() for t in [*result, *model.module.state_dict().values()]]


def close(ours, cpu):
    for got, expected in zip(ours, cpu, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def check_ddp_options():
    cases = (
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"broadcast_buffers": False},
        {"bucket_cap_mb": 0.0001},
    )
    for options in cases:
        ours, cpu = (trained(device, net(), **options) for device in ("opaque", "cpu"))
        close(ours, cpu)


def check_ddp_is_one_process_with_the_whole_batch():
    def plain():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to("opaque")

    alone, model = plain(), DistributedDataParallel(plain())
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (alone, model)]
    for step in range(5):
        whole = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)).to("opaque")
        for m, x, optimizer in zip(
            (alone, model), (whole, rows(step).to("opaque")), optimizers, strict=True
        ):
            optimizer.zero_grad()
            m(x).square().mean().backward()
        close(
            [p.grad.cpu() for p in model.parameters()], [p.grad.cpu() for p in alone.parameters()]
        )
        for optimizer in optimizers:
            optimizer.step()


def check_ddp_features():
    def unused(device):
        model = nn.ModuleDict(
            {"a": nn.Linear(6, 3), "b": nn.Linear(6, 3), "never": nn.Linear(2, 2)}
        )
        model.forward = lambda x: model["a" if dist.get_rank() == 0 else "b"](x)
        return model

    def seeded(make, device):
        torch.manual_seed(0)
        return make(device)

    ours, cpu = (
        DistributedDataParallel(seeded(unused, d).to(d), find_unused_parameters=True)
        for d in ("opaque", "cpu")
    )
    for model, device in ((ours, "opaque"), (cpu, "cpu")):
        for step in range(2):
            model(rows(step).to(device)).sum().backward()
    for got, expected in zip(ours.parameters(), cpu.parameters(), strict=True):
        assert (got.grad is None) == (expected.grad is None)
        if got.grad is not None:
            close([got.grad.cpu()], [expected.grad])

    def accumulated(device):
        model = DistributedDataParallel(net().to(device))
        with model.no_sync():
            model(rows(0).to(device)).sum().backward()
        model(rows(1).to(device)).sum().backward()
        return [p.grad.cpu() for p in model.parameters()]

    close(accumulated("opaque"), accumulated("cpu"))

    def hooked(device):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = DistributedDataParallel(net().to(device))
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        model(rows(0).to(device)).sum().backward()
        return [p.grad.cpu() for p in model.parameters()]

    for got, expected in zip(hooked("opaque"), hooked("cpu"), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)

    def by_hand(device):
        model = net().to(device)
        model(rows(0).to(device)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        return [p.grad.cpu() for p in model.parameters()]

    close(by_hand("opaque"), by_hand("cpu"))

    def sharded(device):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = DistributedDataParallel(net().to(device))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        for step in range(2):
            optimizer.zero_grad()
            model(rows(step).to(device)).square().sum().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    close(sharded("opaque"), sharded("cpu"))

    def synchronized_batch_norm(device):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(net()).to(device)
        return DistributedDataParallel(model)(rows(0).to(device))

    for device, message in (
        ("cpu", "SyncBatchNorm layers only work"),
        ("opaque", "batch_norm_stats has no kernel"),
    ):
        with raises(message):
            synchronized_batch_norm(device)


def check_ddp_of_sparse_gradients():
    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2)).to(
            device
        )
        model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            words = torch.randint(
                0,
                20,
                (5, 3),
                generator=torch.Generator().manual_seed(WORLD * step + dist.get_rank()),
            )
            optimizer.zero_grad()
            model(words.to(device)).square().sum().backward()
            assert (
                model.module[0].weight.grad.is_sparse
                and model.module[0].weight.grad.device.type == device
            )
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    close(run("opaque"), run("cpu"))


# ---- one rank


def main(checks, rank, folder, backend="gloo", checks_in=None):
    # A file as store: no port that another test could have taken.
    dist.init_process_group(
        None if backend == "none" else backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=400),
    )
    for check in checks.split(","):
        (checks_in or globals())["check_" + check]()
        print(check, "passed", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
