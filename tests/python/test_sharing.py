"""Opaque tensors and torch.multiprocessing: queues, spawned processes, workers of a DataLoader, saving."""

import io

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, TensorDataset


def double(inbox, outbox):
    """A child: computes on the device with what it is sent, and stays until the answer has arrived."""
    x = inbox.get(timeout=200)
    outbox.put((x * 2, x.requires_grad))
    inbox.get(timeout=200)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_computes_with_a_tensor_from_a_queue(method):
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    x = torch.arange(6.0, device="opaque").view(2, 3).t() + 1  # pending
    child = context.Process(target=double, args=(inbox, outbox))
    child.start()
    inbox.put(x)
    result, requires_grad = outbox.get(timeout=200)
    inbox.put("done")
    child.join(200)
    assert child.exitcode == 0 and not requires_grad
    assert result.device.type == "opaque" and torch.equal(result.cpu(), x.cpu() * 2)


def exit_unless_two(x, parameter):
    same = isinstance(parameter, torch.nn.Parameter) and parameter.device.type == "opaque"
    raise SystemExit(0 if same and (x + parameter).sum().item() == 2 else 1)


def test_a_tensor_with_a_history_is_refused_as_on_the_cpu():
    from multiprocessing.reduction import ForkingPickler

    messages = []
    for device in ("cpu", "opaque"):
        y = torch.ones(2, device=device, requires_grad=True) * 2
        with pytest.raises(RuntimeError) as caught:
            ForkingPickler.dumps(y)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_shared_memory_is_an_error():
    x = torch.ones(2, device="opaque")
    assert not x.is_shared()
    for share in (x.share_memory_, torch.nn.Linear(2, 2).to("opaque").share_memory):
        with pytest.raises(RuntimeError, match="share a CPU tensor"):
            share()
    assert torch.ones(2).share_memory_().is_shared()


def test_save_and_load():
    file = io.BytesIO()
    x = torch.arange(6.0, device="opaque").view(2, 3) * 2
    torch.save({"x": x, "row": x[1]}, file)
    for where, device in ((None, "opaque"), ("cpu", "cpu"), ("opaque", "opaque")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded["x"].device.type == device
        assert torch.equal(loaded["x"].cpu(), x.cpu()) and torch.equal(
            loaded["row"].cpu(), x[1].cpu()
        )


class OpaqueItems(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), float(index), device="opaque") * 2


@pytest.mark.parametrize(
    "options",
    [
        {"pin_memory": True},
        {"num_workers": 2},
        {"num_workers": 2, "pin_memory": True},
        {"num_workers": 1, "pin_memory": True, "persistent_workers": True},
        {"num_workers": 1, "pin_memory": True, "multiprocessing_context": "spawn"},
    ],
    ids=str,
)
def test_loaders(options):
    x = torch.arange(20.0).view(10, 2)
    torch.ones(3, device="opaque").sum().item()  # the device is in use before workers are made
    got = []
    for (batch,) in DataLoader(TensorDataset(x), batch_size=4, **options):
        assert batch.is_pinned() == options.get("pin_memory", False)
        got.append((batch.to("opaque", non_blocking=True) * 2).cpu())
    assert torch.equal(torch.cat(got), x * 2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_make_opaque_tensors(method):
    loader = DataLoader(OpaqueItems(), batch_size=2, num_workers=1, multiprocessing_context=method)
    batches = list(loader)
    assert all(batch.device.type == "opaque" for batch in batches)
    assert torch.cat(batches).cpu().tolist() == [[0, 0], [2, 2], [4, 4], [6, 6]]
