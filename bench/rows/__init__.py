"""The rows, by theme. Importing this package registers them all."""

from . import (  # noqa: F401
    attention,
    dynamic,
    elementwise,
    first,
    images,
    matmul,
    models,
    optimizers,
    plans,
    reductions,
    science,
    short,
    training,
    various,
    vision,
)
