"""Steps over lists of tensors, in place: of 25M parameters in five tensors, and of 1,000 tensors of 1,024."""

import functools

import torch
from registry import row

SHAPES = {"1000x1k": [(1024,)] * 1000, "25M": [(5120, 1024)] * 4 + [(4096, 1024)]}
FORMS = {"for": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
FLOORS = {
    ("adam", "for", "25M"): 2.0,
    ("adam", "foreach", "25M"): 1.5,
    ("adam", "foreach", "1000x1k"): 1.1,
    ("sgd", "for", "25M"): 1.2,
    ("sgd", "foreach", "25M"): 1.2,
}


def elements(shapes):
    return sum(functools.reduce(int.__mul__, shape) for shape in SHAPES[shapes])


def start_of(step_of, compiled, *tensors):
    """Parameters and gradients take turns in `tensors`; a step returns the tensor that step_of(parameters) names beside the update."""
    parameters = tensors[::2]
    for parameter, gradient in zip(parameters, tensors[1::2], strict=True):
        parameter.requires_grad_().grad = gradient
    update, changed = step_of(parameters)
    update = compiled(update)

    def step():
        update()
        return changed.detach()

    return step


def steps(step_of, shapes):
    tensors = tuple(torch.randn(shape) for shape in SHAPES[shapes] for _ in range(2))
    return functools.partial(start_of, step_of), tensors


def adam_jax(jax, *tensors):
    """One program for all parameters; the old ones' memory may be used for the new ones."""
    jnp = jax.numpy
    weights, gradients = list(tensors[::2]), list(tensors[1::2])

    @functools.partial(jax.jit, donate_argnums=(0,))
    def update(state, gradients):
        weights, ms, vs, t = state
        t = t + 1
        ms = [0.9 * m + 0.1 * g for m, g in zip(ms, gradients, strict=True)]
        vs = [0.999 * v + 0.001 * g * g for v, g in zip(vs, gradients, strict=True)]
        size, scale = 1e-3 / (1 - 0.9**t), jnp.sqrt(1 - 0.999**t)
        weights = [
            w - size * m / (jnp.sqrt(v) / scale + 1e-8)
            for w, m, v in zip(weights, ms, vs, strict=True)
        ]
        return weights, ms, vs, t

    state = weights, [w * 0 for w in weights], [w * 0 for w in weights], 0.0

    def step():
        nonlocal state
        state = update(state, gradients)
        return state[0][0]

    return step


def sgd_jax(jax, *tensors):
    weights, gradients = list(tensors[::2]), list(tensors[1::2])

    @functools.partial(jax.jit, donate_argnums=(0,))
    def update(state, gradients):
        weights, momenta = state
        momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)], momenta

    state = weights, [w * 0 for w in weights]

    def step():
        nonlocal state
        state = update(state, gradients)
        return state[0][0]

    return step


def optimizing(make, parameters):
    return make(parameters).step, parameters[0]


# Bytes for each parameter: what is read and written of it, its gradient and its state.
for _name, _optimizer, _options, _bytes, _jax in (
    ("adam", torch.optim.Adam, {}, 28, adam_jax),
    ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, 20, sgd_jax),
):
    for _shapes in SHAPES:
        for _form in FORMS:
            _make = functools.partial(_optimizer, **_options, **FORMS[_form])
            _step_of = functools.partial(optimizing, _make)
            row(
                f"{_name}_{_shapes}_{_form}",
                kind="steps",
                floor=FLOORS.get((_name, _form, _shapes)),
                bytes=_bytes * elements(_shapes),
                jax=_jax,
            )(functools.partial(steps, _step_of, _shapes))


def averaging(parameters):
    averages = [torch.zeros_like(p) for p in parameters]
    return lambda: torch._foreach_lerp_(averages, parameters, 0.01), averages[0]


def clipping(parameters):
    return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0), parameters[0].grad


@row(kind="steps", bytes=12 * elements("1000x1k"))
def ema_1000x1k():
    return steps(averaging, "1000x1k")


@row(kind="steps", bytes=12 * elements("1000x1k"))
def clip_1000x1k():
    return steps(clipping, "1000x1k")
