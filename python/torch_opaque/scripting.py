"""TorchScript files of modules on the device: torch.jit.load.

Its reader, in C++, gives tensors a storage behind their back, which tensors of the device have none of. So what is to be on the device is
read to the CPU and moved.
"""

import functools

import torch


def _is_opaque(tensor) -> bool:
    return tensor.device.type == "opaque"


def register() -> None:
    """Wraps torch.jit.load."""
    load_plain = torch.jit.load

    @functools.wraps(load_plain)
    def load(f, map_location=None, *args, **kwargs):
        if map_location is not None:
            if torch.device(map_location).type != "opaque":
                return load_plain(f, map_location, *args, **kwargs)
            return load_plain(f, "cpu", *args, **kwargs).to(map_location)
        start = f.tell() if hasattr(f, "tell") else None
        module = load_plain(f, None, *args, **kwargs)
        tensors = [*module.parameters(), *module.buffers()]
        if not any(map(_is_opaque, tensors)):
            return module
        if not all(map(_is_opaque, tensors)):
            raise RuntimeError(
                "a TorchScript file with tensors on the opaque device and on others: load it with map_location"
            )
        if start is not None:
            f.seek(start)
        return load_plain(f, "cpu", *args, **kwargs).to("opaque")

    torch.jit.load = load
