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
    # Under graph(), explain() and dump() the step is recorded as one graph: they run it.
    if _C.is_initialized() and not _C.journal_depth() and _involves_opaque(optimizer):
        _C.synchronize("optimizer_step")


def register() -> None:
    """Installs the hook for every optimizer, present and future."""
    register_optimizer_step_post_hook(_after_step)
