"""torch.distributed on the device: two processes run the checks of ranks.py."""

import os
import subprocess

from conftest import PYTHON

COLLECTIVES = "reductions,movement,layouts,values_are_kept,asynchronous,functional,groups"
SHARDED = "mesh,ddp_with_device_ids,fsdp1,fsdp2,fsdp2_state,tensor_parallel,dtensor"
DDP = "ddp_options,ddp_is_one_process_with_the_whole_batch,ddp_features,ddp_of_sparse_gradients"


def launch(folder, checks, *backend, program="ranks.py", **environment):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), program)
    ranks = [
        subprocess.Popen(
            [*PYTHON, script, checks, str(rank), str(folder), *backend],
            env={
                **os.environ,
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "LOCAL_RANK": str(rank),  # as torchrun does
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = []
    for process in ranks:
        try:
            outputs.append(process.communicate(timeout=500)[0])
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            outputs.append("hung: " + process.communicate()[0])
    assert all(process.returncode == 0 for process in ranks), "\n".join(outputs)
    return outputs


def test_two_ranks(tmp_path):
    for output in launch(tmp_path, f"{COLLECTIVES},{DDP}"):
        assert "Overriding" not in output, "a warning of PyTorch's dispatcher"


def test_two_ranks_share_what_one_has(tmp_path):
    launch(tmp_path, SHARDED, program="ranks_sharded.py")


def test_debug_mode(tmp_path):
    """Without DistributedDataParallel, whose logger takes the debugging group for a gloo group and crashes, also on the CPU."""
    launch(tmp_path, "movement,asynchronous,functional", TORCH_DISTRIBUTED_DEBUG="DETAIL")


def test_without_a_backend_named(tmp_path):
    launch(tmp_path, "reductions,groups", "none")


def test_imported_behind_what_it_teaches(run_python):
    """import torch imports the package first, unless it is told not to."""
    text = """
import torch, torch.distributed.tensor as t
import torch_opaque
print(torch.ops.aten.linear_backward.default in t.DTensor._op_dispatcher._custom_op_handlers)"""
    assert run_python(text, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.split() == ["True"]
    assert run_python(text).stdout.split() == ["True"]
