"""torch.utils.checkpoint: the device's random state is part of every checkpoint.

PyTorch saves the states of those devices on which it finds tensors among the positional arguments. A
tensor given by keyword or held by the function, or an argument that the function moves to the device,
is not seen; the recomputed dropout would then differ from the first one, and so would the gradients.
"""

from torch.utils import checkpoint

from .device import get_rng_state


def register() -> None:
    """Wraps torch.utils.checkpoint.get_device_states, which both variants of checkpoint() call."""
    states_of_arguments = checkpoint.get_device_states

    def get_device_states(*args):
        devices, states = states_of_arguments(*args)
        if not devices and checkpoint._infer_device_type(*args) == "opaque":
            return [0], [get_rng_state()]
        return devices, states

    checkpoint.get_device_states = get_device_states
