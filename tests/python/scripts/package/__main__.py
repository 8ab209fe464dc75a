import sys

import torch

from .part import VALUE

print(__package__, sys.argv[1:], torch.full((2,), VALUE).device)
