"""torch.opaque.make_graphed_callables, in the form of torch.cuda's."""

import functools

import torch

from .captured import capture


def _arguments(callables, sample_args) -> list:
    if len(callables) != len(sample_args):
        raise ValueError(f"{len(callables)} callables, and arguments for {len(sample_args)}")
    return [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in sample_args]


def _graphed(fn, args, warm_ups: int):
    module = isinstance(fn, torch.nn.Module)
    if module and (fn._forward_hooks or fn._forward_pre_hooks or fn._backward_hooks):
        raise RuntimeError("Modules must not have hooks registered at the time they are passed.")
    captured = capture(fn.forward if module else fn)
    for _ in range(max(warm_ups, 1)):  # the first one records
        captured(*args)
    if not module:
        return captured
    training = fn.training
    forward = fn.forward

    @functools.wraps(forward)
    def graphed(*args, **kwargs):
        return (captured if fn.training == training else forward)(*args, **kwargs)

    fn.forward = graphed
    return fn


def make_graphed_callables(
    callables, sample_args, num_warmup_iters=3, allow_unused_input=False, pool=None
):
    """Functions or modules whose calls run a captured plan (torch_opaque.capture), made now with `sample_args`: a tuple of tensors, of several
    callables a tuple of such. A module is changed in place and returned; in the other mode of train() and eval() it runs as it did. What
    differs from the sample is captured in its turn, where CUDA's graphs refuse or go wrong. `allow_unused_input` and `pool` are for programs written
    for CUDA: unused inputs are allowed, and graphs have no memory of their own."""
    del allow_unused_input, pool
    if torch.is_autocast_enabled("opaque") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    if not isinstance(callables, tuple):
        return _graphed(callables, tuple(sample_args), num_warmup_iters)
    arguments = _arguments(callables, sample_args)
    return tuple(
        _graphed(fn, args, num_warmup_iters) for fn, args in zip(callables, arguments, strict=True)
    )
