import torch
import torch.nn.functional as F  # noqa: F401
import torch_opaque  # noqa: F401
from torch import nn  # noqa: F401

# The device, what "real" is there, and the seed of the values: the CPU in float64 is the reference.
D, R, SEED = globals().get("SIDE", ("opaque", torch.float32, 0))
G = torch.Generator().manual_seed(SEED)
torch.manual_seed(SEED)
seen = []  # what Python read on the way


def randn(*shape):
    """Drawn on the host in float32, so that all sides have the same values."""
    return torch.randn(shape, generator=G).to(D, R)


def randint(high, *shape):
    return torch.randint(high, shape, generator=G).to(D)


def param(*shape):
    """A leaf that wants a gradient, of the size of an initialised weight."""
    return randn(*shape).mul_(max(shape, default=1) ** -0.5).requires_grad_()


def module(m):
    """A module with parameters drawn from the program's own generator."""
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape, generator=G) * max(p.shape) ** -0.5)
    return m.to(D, R)


def dropout(x, p):
    """The reference takes the mask that the device draws from the same state, in the order in which x lies in memory."""
    if x.device.type == "opaque":
        return F.dropout(x, p)
    kept = F.dropout(torch.ones_like(x, dtype=torch.float32, device="opaque"), p).cpu() != 0
    return x * (kept.to(R) / (1 - p))


def look(x):
    """Reads a value, as print() or .item() would."""
    seen.append(x.detach().cpu().clone() if isinstance(x, torch.Tensor) else x)


class error:
    """with error(): a block that may raise; what it raised is compared."""

    def __enter__(self):
        pass

    def __exit__(self, kind, value, traceback):
        seen.append("no error" if kind is None else kind.__name__)
        return kind is not None and issubclass(kind, Exception)


@torch.inference_mode(False)  # what a program is given was made outside
def ints(*shape, dtype=torch.float32):
    """Small whole numbers, which arithmetic does not round in any dtype."""
    low = 0 if dtype in (torch.bool, torch.uint8) else -9
    return torch.randint(low, 2 if dtype == torch.bool else 10, shape, generator=G).to(dtype).to(D)


@torch.inference_mode(False)
def values(*shape, dtype, extreme=False):
    """Small numbers whose sums and products are exact; `extreme` adds the ends of the dtype and special values."""
    if dtype.is_complex:
        real = {torch.complex32: torch.float16, torch.complex64: torch.float32}.get(
            dtype, torch.float64
        )
        parts = [values(*shape, dtype=real, extreme=extreme).cpu() for _ in range(2)]
        return (
            torch.complex(*(p.float() if real == torch.float16 else p for p in parts))
            .to(dtype)
            .to(D)
        )
    if dtype.is_floating_point:
        pool = [0, 1, -1, 2, -3, 0.5, -1.5, 4]
        pool += (
            [-0.0, float("nan"), float("inf"), -float("inf"), torch.finfo(dtype).max]
            if extreme
            else []
        )
    else:
        low, high = (
            (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        )
        pool = [0, 1] if dtype == torch.bool else [0, 1, 2, 3, 5, 7] + [-1, -2, -5] * (low < 0)
        pool += [low, high, high - 1] if extreme and high > 1 else []
    wide = torch.float64 if dtype.is_floating_point else None
    chosen = torch.randint(len(pool), shape, generator=G).flatten().tolist()
    return (
        torch.tensor([pool[i] for i in chosen], dtype=wide or dtype).to(dtype).reshape(shape).to(D)
    )
