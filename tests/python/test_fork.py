"""Forked processes use the device: after runs on several threads, from any thread, and while another thread is in a run."""

import pytest

# What a child does, and how long it may take.
HEAD = """
import multiprocessing, os, signal, sys, threading, time, torch, traceback
torch.set_num_threads({threads})
def tasks():
    return len(os.listdir("/proc/self/task"))
def forked(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(250)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
big = torch.arange(1 << 17, device="opaque").view(256, 512).float() % 7
def compute():
    y = (torch.tanh(big) * 2).sum(1)                                  # a kernel of several threads
    z = (big @ big.t()).diagonal().sum()                              # a product
    w = torch.linalg.svdvals(big[:40, :40]).sum()                     # a kernel of PyTorch's
    v = torch.ones(1 << 20).exp().sum()                               # the CPU
    return [y.sum().item(), z.item(), w.item(), v.item()]
"""

PLAIN = """
expected = compute()
def child():
    assert compute() == expected
    assert torch.get_num_threads() == {threads} <= tasks(), (torch.get_num_threads(), tasks())
    x = torch.randn(8, 8, device="opaque", requires_grad=False)
    (torch.relu(x * 3.5) + x).cpu()                                   # compiles
    forked(lambda: compute() == expected or os._exit(3))              # a child of the child
forked(child)
assert compute() == expected
forked_there = []
thread = threading.Thread(target=lambda: forked_there.append(forked(child)))
thread.start(); thread.join()
assert forked_there == [None]
print("done")
"""

CONTEXTS = """
from torch.utils.data import DataLoader, Dataset
expected = compute()
context = multiprocessing.get_context("fork")
def answer(queue):
    queue.put(compute())
queue = context.Queue()
process = context.Process(target=answer, args=(queue,))
process.start()
assert queue.get(timeout=60) == expected
process.join()
class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.tanh(big[i] * 2).sum()
for workers in (1, 2):
    rows = torch.cat(list(DataLoader(Rows(), batch_size=4, num_workers=workers, multiprocessing_context="fork", timeout=60)))
    assert torch.equal(rows.cpu(), torch.tanh(big[:8] * 2).sum(1).cpu())
with context.Pool(2) as pool:
    assert pool.apply(compute) == expected
print("done")
"""

# The other thread updates a tensor in place. In the child it is what it was before or after some update, or lost, in words.
IN_A_RUN = """
compute() # has PyTorch import what it needs for the svd: in a child that was forked in the middle of an import, Python waits for it forever
x = torch.zeros(1 << 20, device="opaque")
stop = False
def work():
    y = big
    while not stop:
        x.add_(1)
        y = torch.relu(y @ big.t() @ big) * 1e-6
        torch.opaque.synchronize()
        torch.ones(3).pin_memory()
        torch.linalg.svdvals(big[:8, :8]).cpu()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
outcomes = []
def child():
    try:
        values = x.cpu()
        assert (values == values[0]).all() and values[0] == values[0].round(), "torn"
    except RuntimeError as error:
        assert "when this process was forked" in str(error), error
    assert (torch.ones(1 << 20, device="opaque") * 2).sum().item() == 2 << 20
    torch.randn(100, device="opaque").cpu()
    torch.linalg.svdvals(torch.eye(3, device="opaque")).cpu()
    x.fill_(2)
    assert x.sum().item() == 2 * x.numel()
try:
    for i in range(5):
        time.sleep(0.003 * (i % 7))
        forked(child)
finally:
    stop = True
for thread in threads:
    thread.join()
assert (x == x[0]).all().item()
print("done")
"""

BACKWARD = """
x = torch.ones(300, 300, device="opaque", requires_grad=True)
(x @ x).sum().backward()
def child():
    compute()
    try:
        (x @ x).sum().backward()
    except RuntimeError as error:
        assert "fork" in str(error), error
forked(child)
print("done")
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "text", [PLAIN, CONTEXTS, IN_A_RUN, BACKWARD], ids=["plain", "contexts", "in_a_run", "backward"]
)
def test_fork(run_python, text, threads):
    program = (HEAD + text).replace("{threads}", str(threads))
    assert run_python(program, OPAQUE_FALLBACK_WARN="0").stdout.split()[-1] == "done"


def test_a_fork_inside_a_parallel_loop_computes_on_one_thread(run_python):
    """The pool cannot be ended there."""
    text = HEAD.replace("{threads}", "2") + (
        "expected = compute()\n"
        "import ctypes\n"
        "gomp = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), 'lib', 'libgomp.so.1'))\n"
        "def child():\n"
        "    assert torch.get_num_threads() == 1\n"
        "    compute()\n"
        "@ctypes.CFUNCTYPE(None, ctypes.c_void_p)\n"
        "def region(data):\n"
        "    if gomp.omp_get_thread_num() == 0:\n"
        "        forked(child)\n"
        "gomp.GOMP_parallel(region, None, 2, 0)\n"
        "print('done')\n"
    )
    assert run_python(text, OPAQUE_FALLBACK_WARN="0").stdout.split()[-1] == "done"
