"""Processes, signals, torch.compile, and the rest of PyTorch around the device."""

import os
import pickle

import pytest
import torch

WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(64, 3, device="opaque")
assert (x @ x.t()).sum().cpu().isfinite()            # a run, with threads, before the workers are forked
data = TensorDataset(torch.arange(64.0).reshape(32, 2))
seen = sum(batch.to("opaque").sum().item() for (batch,) in DataLoader(data, batch_size=4, num_workers=2))
assert seen == 2016, seen
print("done")
"""

FORK = """
import os, torch
x = torch.ones(1000, device="opaque") + 1
x.sum().item()
child = os.fork()
if child == 0:
    ok = torch.ones(5).sum().item() == 5 and (x * 2).sum().item() == 4000
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (x * 3).sum().item() == 6000
print("done")
"""

INTERRUPT = """
import os, signal, threading, time, torch
x = torch.randn(1500, 1500, device="opaque")
torch.opaque.synchronize()
def work():
    y = x
    for _ in range(60):
        y = torch.relu(y @ x)
    return y.sum().item()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    work()
    time.sleep(1)          # fast machine: the signal finds Python
except KeyboardInterrupt:
    pass
assert torch.ones(3, device="opaque").sum().item() == 3
print("done")
"""

EXIT = """
import torch
x = torch.randn(100, 100, device="opaque", requires_grad=True)
y = (x @ x).sum()
y.backward()
pending = x.grad * 2
print("done")
"""


@pytest.mark.parametrize("text", [WORKERS, FORK, INTERRUPT], ids=["workers", "fork", "interrupt"])
def test_process(run_python, text):
    assert run_python(text).stdout.split()[-1] == "done"


@pytest.mark.parametrize("run", range(30 if os.environ.get("OPAQUE_TEST_FULL") == "1" else 5))
def test_exit_right_after_backward(run_python, run):
    """The autograd thread drops what backward() used while Python ends: without care for that,
    two runs of three aborted."""
    assert run_python(EXIT).stdout.split()[-1] == "done"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_records_like_eager_code(backend):
    def f(x):
        return torch.relu(x * 2) + 1

    x = torch.randn(8, device="opaque", requires_grad=True)
    y = torch.compile(f, backend=backend)(x)
    y.sum().backward()
    expected = x.detach().cpu().requires_grad_()
    f(expected).sum().backward()
    assert torch.equal(y.detach().cpu(), f(expected).detach()) and torch.equal(
        x.grad.cpu(), expected.grad
    )


def test_compile_with_inductor_says_what_to_do():
    with pytest.raises(Exception, match="aot_eager"):
        torch.compile(lambda x: x * 2 + 1)(torch.ones(3, device="opaque"))


def test_default_device():
    with torch.device("opaque"):
        x = torch.ones(2) + torch.arange(2)
    torch.set_default_device("opaque")
    try:
        y = torch.nn.Linear(2, 2)(torch.ones(1, 2))
    finally:
        torch.set_default_device(None)
    assert x.is_opaque and y.is_opaque


def test_pickle_of_a_tensor():
    x = torch.randn(3, 4, device="opaque").t() + 1
    y = pickle.loads(pickle.dumps(x))
    assert y.is_opaque and torch.equal(y.cpu(), x.cpu())


def test_autocast():
    model = torch.nn.Linear(4, 4).to("opaque")
    with torch.autocast("opaque", dtype=torch.bfloat16):
        y = model(torch.ones(2, 4, device="opaque"))
    assert y.dtype == torch.bfloat16 and y.float().cpu().isfinite().all()


def test_pin_memory_loader():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    total = sum(
        b.sum().item() for (b,) in torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    )
    assert total == 28
