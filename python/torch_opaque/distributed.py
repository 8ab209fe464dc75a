"""torch.distributed with opaque tensors: any backend that works on CPU tensors works on theirs.

The kernels of the collectives (registration/collectives.cpp) hand the device's host memory to the
backend a process group has for device "opaque". Here PyTorch learns that gloo is such a backend, so
that init_process_group("gloo") covers the device.
"""

import torch.distributed


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
