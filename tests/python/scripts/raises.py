"""What a program's author sees of an error."""

import torch
from safetensors.torch import load, save


def mix():
    there = load(save({"there": torch.ones(2)}))["there"]
    return there + torch.ones(2)


mix()
