"""Runs pending work after optimizer.step(), the natural end of a training iteration.

Everything live is computed, not the parameters alone: a loss read later (`loss.item()` after the
step) would otherwise record its whole forward pass again, with the old weights kept alive for it.
"""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _C


def _involves_opaque(optimizer: torch.optim.Optimizer) -> bool:
    return any(
        parameter.device.type == "opaque"
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _after_step(optimizer, args, kwargs) -> None:
    if torch.compiler.is_compiling():  # a step on the CPU, of which this is no part
        return
    # Under graph(), explain() and dump() the step is recorded as one graph: they run it.
    if _C.is_initialized() and not _C.journal_depth() and _involves_opaque(optimizer):
        try:
            _C.synchronize("optimizer_step")
        except Exception:
            _undo_failed(optimizer)
            raise


def _failed(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "opaque":
        return False
    try:
        _C.materialize([tensor], "optimizer_step")
    except Exception:
        return True
    return False


def _undo_failed(optimizer: torch.optim.Optimizer) -> None:
    """The run has put parameters and moments whose gradient failed back to where the step began.
    Left are step counters, which do not depend on the gradient and have counted a step nobody took,
    and moments that the step itself made: they have no earlier value."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state or parameter.grad is None or not _failed(parameter.grad):
                continue
            moments = [t for t in state.values() if isinstance(t, torch.Tensor)]
            if any(map(_failed, moments)):
                del optimizer.state[parameter]
            elif "step" in state:
                state["step"] -= 1


def register() -> None:
    """Installs the hook for every optimizer, present and future."""
    register_optimizer_step_post_hook(_after_step)
