"""Programs without a layer: option prices, bodies that attract each other, the Mandelbrot set."""

import math
from functools import partial

import torch
from registry import row

MILLION4 = 1 << 22


def black_scholes(erf, exp, log, sqrt, price, strike, years):
    rate, volatility = 0.02, 0.3
    spread = volatility * sqrt(years)
    d1 = (log(price / strike) + (rate + 0.5 * volatility * volatility) * years) / spread
    d2 = d1 - spread
    discounted = strike * exp(-rate * years)
    half = math.sqrt(0.5)
    call = price * 0.5 * (1 + erf(d1 * half)) - discounted * 0.5 * (1 + erf(d2 * half))
    return call, call - price + discounted


def black_scholes_jax(jax, *arguments):
    jnp = jax.numpy
    return black_scholes(jax.scipy.special.erf, jnp.exp, jnp.log, jnp.sqrt, *arguments)


@row(bytes=5 * 4 * MILLION4, jax=black_scholes_jax)
def black_scholes_4M():
    def function(*arguments):
        return black_scholes(torch.erf, torch.exp, torch.log, torch.sqrt, *arguments)

    return function, tuple(torch.rand(MILLION4) + shift for shift in (0.5, 0.5, 0.1))


def accelerations_jax(jax, place, mass):
    apart = place[None] - place[:, None]
    near = jax.lax.rsqrt((apart * apart).sum(-1) + 1e-3)
    return (apart * (mass * near * near * near)[..., None]).sum(1)


@row(flops=2048 * 2048 * 20, jax=accelerations_jax)
def nbody_2048():
    def accelerations(place, mass):
        apart = place[None] - place[:, None]
        near = torch.rsqrt((apart * apart).sum(-1) + 1e-3)
        return (apart * (mass * near * near * near)[..., None]).sum(1)

    return accelerations, (torch.randn(2048, 3), torch.rand(2048))


def mandelbrot_jax(jax, re, im):
    jnp = jax.numpy

    def step(_, state):
        x, y, count = state
        x, y = x * x - y * y + re, 2 * x * y + im
        inside = x * x + y * y < 4
        return jnp.where(inside, x, 2.0), jnp.where(inside, y, 0.0), count + inside

    zero = jnp.zeros_like(re)
    return jax.lax.fori_loop(0, 50, step, (zero, zero, zero))[2]


@row(
    flops=512 * 512 * 50 * 8, bytes=12 * 512 * 512, chaotic=True, tolerance=1e-3, jax=mandelbrot_jax
)
def mandelbrot_512x50():
    """Steps until a point leaves the circle of 2; where that is decided by a last bit, the counts differ."""

    def function(re, im):
        x = y = count = torch.zeros_like(re)
        for _ in range(50):
            x, y = x * x - y * y + re, 2 * x * y + im
            inside = x * x + y * y < 4
            x, y = torch.where(inside, x, 2.0), torch.where(inside, y, 0.0)
            count = count + inside
        return count

    re, im = torch.meshgrid(
        torch.linspace(-2, 0.6, 512), torch.linspace(-1.3, 1.3, 512), indexing="xy"
    )
    return function, (re.contiguous(), im.contiguous())


JOINTS = 35


def skew(stack, zero, v):
    return stack(
        [stack(row) for row in ([zero, -v[2], v[1]], [v[2], zero, -v[0]], [-v[1], v[0], zero])]
    )


def masses(einsum, cross, world, centers, weights, seen):
    """Of a chain of bodies: how its joints' speeds and its energy go together."""
    places = (world[:, :3, :3] @ centers[:, :, None])[:, :, 0] + world[:, :3, 3]
    arms = places[:, None] - world[None, :, :3, 3]
    speeds = cross(world[None, :, :3, 2] + arms * 0, arms) * seen[:, :, None]
    return einsum("b,bik,bjk->ij", weights, speeds, speeds)


def kinematics_jax(jax, angles, links, axes, weights, centers):
    jnp = jax.numpy
    world, here = jnp.zeros((JOINTS, 4, 4)), jnp.eye(4)
    for i in range(JOINTS):
        k = skew(jnp.stack, 0.0, axes[i])
        turned = jnp.eye(3) + jnp.sin(angles[i]) * k + (1 - jnp.cos(angles[i])) * (k @ k)
        here = here @ links[i] @ jnp.eye(4).at[:3, :3].set(turned)
        world = world.at[i].set(here)
    seen = jnp.tril(jnp.ones((JOINTS, JOINTS)))
    return masses(jnp.einsum, jnp.cross, world, centers, weights, seen)


# Hundreds of products of 4 x 4, each of which needs the one before.
@row(tolerance=1e-5, jax=kinematics_jax)
def kinematics_35():
    def function(angles, links, axes, weights, centers):
        kind = {"dtype": angles.dtype, "device": angles.device}
        zero, one = torch.zeros((), **kind), torch.eye(3, **kind)
        world, here = torch.zeros(JOINTS, 4, 4, **kind), torch.eye(4, **kind)
        for i in range(JOINTS):
            k = skew(torch.stack, zero, axes[i])
            joint = torch.eye(4, **kind)
            joint[:3, :3] = one + angles[i].sin() * k + (1 - angles[i].cos()) * (k @ k)
            here = here @ links[i] @ joint
            world[i] = here
        seen = torch.ones(JOINTS, JOINTS, **kind).tril()
        return masses(torch.einsum, torch.linalg.cross, world, centers, weights, seen)

    links = torch.eye(4).repeat(JOINTS, 1, 1)
    links[:, :3, 3] = torch.randn(JOINTS, 3) * 0.1
    axes = torch.nn.functional.normalize(torch.randn(JOINTS, 3), dim=1)
    return function, (
        torch.randn(JOINTS),
        links,
        axes,
        torch.rand(JOINTS),
        torch.randn(JOINTS, 3),
    )


def recurrence(tanh, w, x):
    for _ in range(200):
        x = tanh(w @ x)
    return x


def recurrence_jax(jax, w, x):
    return recurrence(jax.numpy.tanh, w, x)


def steps_of(size):
    function = partial(recurrence, torch.tanh)
    return function, (torch.randn(size, size) / size**0.5, torch.randn(size))


# Each step reads all of one matrix across its rows.
for _size in (16, 64):
    row(f"recurrence_200x{_size}", tolerance=1e-4, jax=recurrence_jax)(partial(steps_of, _size))


def kalman(diagonal, f, h, q, r, p, x, measured):
    for z in measured:
        x, p = f @ x, f @ p @ f.T + q
        gain = p @ h.T / diagonal(h @ p @ h.T + r)
        x, p = x + gain @ (z - h @ x), p - gain @ h @ p
    return x, p


def kalman_jax(jax, *arguments):
    return kalman(jax.numpy.diagonal, *arguments)


@row(tolerance=1e-3, jax=kalman_jax)
def kalman_50_of_8():
    """A filter of 8 states and 4 measurements, which gains as if these were independent."""
    f = torch.linalg.qr(torch.randn(8, 8))[0] * 0.9
    h = torch.randn(4, 8) / 8**0.5
    return partial(kalman, torch.diagonal), (
        *(f, h, torch.eye(8) * 0.1, torch.eye(4) * 4, torch.eye(8)),
        *(torch.zeros(8), torch.randn(50, 4)),
    )


def rank_one(outer, a, u):
    for v in u:
        a = a + 0.1 * outer(v, a @ v)
    return a


def rank_one_jax(jax, a, u):
    return rank_one(jax.numpy.outer, a, u)


@row(tolerance=1e-4, jax=rank_one_jax)
def rank_one_100_of_32():
    return partial(rank_one, torch.outer), (torch.eye(32), torch.randn(100, 32) * 0.1)


def pulled(tanh, states, force, stiffness):
    """Each of the states is pulled by the next one."""
    following = states[1:] + states[:1]
    return [
        0.9 * x + 0.1 * tanh(y * stiffness) + 0.01 * force
        for x, y in zip(states, following, strict=True)
    ]


def scalars_jax(jax, stiffness, start, forces):
    def loss(stiffness):
        def step(states, force):
            return pulled(jax.numpy.tanh, states, force, stiffness), None

        return sum(x * x for x in jax.lax.scan(step, list(start), forces)[0])

    return jax.grad(loss)(stiffness)


# As programs are written whose states have names: loops over tensors of one element, and back through them.
@row(tolerance=1e-4, jax=scalars_jax)
def scalars_gradient_50_of_24():
    def function(stiffness, start, forces):
        stiffness = stiffness.detach().requires_grad_()
        states = list(start)
        with torch.enable_grad():
            for force in forces:
                states = pulled(torch.tanh, states, force, stiffness)
            loss = sum(x * x for x in states)
        return torch.autograd.grad(loss, stiffness)[0]

    return function, (torch.tensor(0.7), torch.randn(24), torch.randn(50))
