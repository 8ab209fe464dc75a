"""torch.distributed with opaque tensors: any backend that works on CPU tensors works on theirs.

The kernels of the collectives (registration/collectives.cpp) hand the device's host memory to the
backend a process group has for device "opaque". Here PyTorch learns that gloo is such a backend, so
that init_process_group("gloo") covers the device.
"""

import importlib.util
import sys

import torch.distributed


def _linear_backward(op, args, kwargs):
    """aten::linear is no composition on this device, and DTensor knows how to shard it, but not its gradient."""
    x, gradient, weight, wanted = args
    rows, columns = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
    return (
        gradient @ weight if wanted[0] else None,
        rows.t() @ columns if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


class _AfterImport:
    """Calls `then` once `name` was imported: importing it here would make every program wait for it."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.then(module)

        spec.loader.exec_module = exec_module
        return spec


def _add_to(dispatcher) -> None:
    dispatcher._custom_op_handlers[torch.ops.aten.linear_backward.default] = _linear_backward


def _teach(dispatch) -> None:
    make = dispatch.OpDispatcher.__init__

    def __init__(self):
        make(self)
        _add_to(self)

    dispatch.OpDispatcher.__init__ = __init__


def _with_cpu(make_config):
    """BackendConfig.__init__, for which no backend given means the accelerator's. Ours is there
    whether or not a program uses it, so the CPU keeps what it has without the package."""

    def __init__(self, backend):
        make_config(self, backend)
        if str(backend) == "undefined" and "opaque" in self.device_backend_map:
            gloo = self.device_backend_map["opaque"]
            self.device_backend_map = {"cpu": gloo, "opaque": gloo}

    return __init__


def register() -> None:
    """Makes gloo the backend of the device, where torch was built with it."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    Backend.default_device_backend_map["opaque"] = Backend.GLOO
    Backend.backend_capability[Backend.GLOO].append("opaque")
    BackendConfig.__init__ = _with_cpu(BackendConfig.__init__)
    tensor = "torch.distributed.tensor"
    if f"{tensor}._dispatch" not in sys.modules:
        sys.meta_path.insert(0, _AfterImport(f"{tensor}._dispatch", _teach))
    else:  # import torch did not import this package, and something else came before it
        _teach(sys.modules[f"{tensor}._dispatch"])
        _add_to(sys.modules[f"{tensor}._api"].DTensor._op_dispatcher)
