"""Who runs a row: eager PyTorch, this device, Inductor, Inductor with all that it has, JAX.

An engine has its own copies of a row's arguments. `run()` makes the result, `wait(result)` returns when it is there, `tensors(result)`
gives CPU tensors. What is waited for is held until then: a lazy result that nobody holds is not computed.
"""

import contextlib
import copy
import os

import torch
import torch_opaque

PEERS = ("eager", "inductor", "inductor-max", "jax")


class Missing(Exception):
    """The engine cannot run the row, with the reason; no failure."""


def flat(result):
    """The tensors or arrays of nested lists and tuples."""
    if isinstance(result, (list, tuple)):
        return [leaf for part in result for leaf in flat(part)]
    return [result]


class Engine:
    def __init__(self, row, function, arguments):
        self.settings = contextlib.nullcontext
        if row.kind in ("steps", "once"):
            self.run = function(self.compiled, *map(self.copy, arguments))
            return
        if isinstance(function, torch.nn.Module):
            function = self.moved(copy.deepcopy(function))
        call, arguments = self.compiled(function), tuple(map(self.copy, arguments))
        self.run = lambda: call(*arguments)

    def compiled(self, function):
        return function

    def copy(self, tensor):
        return tensor.clone()

    def moved(self, module):
        return module

    def wait(self, result):
        pass

    def warm(self, calls):
        """Calls until what repeats itself runs as it will go on: `calls` at least."""
        for _ in range(calls):
            self.wait(self.run())

    def tensors(self, result):
        return [tensor.detach().clone() for tensor in flat(result)]


class Eager(Engine):
    pass


class Double(Engine):
    """Eager in f64: what is right."""

    def copy(self, tensor):
        return tensor.double() if tensor.is_floating_point() else tensor.clone()

    def moved(self, module):
        return module.double()


class Opaque(Engine):
    def copy(self, tensor):
        return tensor.to("opaque")

    def moved(self, module):
        return module.to("opaque")

    def wait(self, result):
        torch.opaque.synchronize()

    def warm(self, calls):
        """Until it has its plan, which may be made in the background; a program that changes never has."""
        for _ in range(10):
            before = torch_opaque.stats()["runs_in_pieces"]
            super().warm(calls)
            torch_opaque.wait_for_plans()
            if torch_opaque.stats()["runs_in_pieces"] == before:
                break

    def tensors(self, result):
        return [tensor.detach().cpu() for tensor in flat(result)]


class Captured(Opaque):
    def compiled(self, function):
        return torch_opaque.capture(function)


class Compiled(Engine):
    """torch.compile on tensors of the CPU, whose memory this device borrows."""

    def __init__(self, row, function, arguments):
        self.dynamic = row.dynamic or None
        super().__init__(row, function, arguments)

    def compiled(self, function):
        return torch.compile(function, backend="opaque", dynamic=self.dynamic)


class Inductor(Engine):
    options = None

    def __init__(self, row, function, arguments):
        import torch._dynamo.config
        import torch._inductor.config as config

        # Each engine of a process is to compile for itself; and a wide loop for AVX2 is not to be vectorised for more.
        config.force_disable_caches = True
        config.compile_threads = 1
        if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
            config.cpp.march = "x86-64-v3"
        torch._dynamo.config.allow_rnn = True  # else they are run as eager does
        self.dynamic = row.dynamic or None
        super().__init__(row, function, arguments)

    def compiled(self, function):
        return torch.compile(function, dynamic=self.dynamic, options=self.options)


class InductorMax(Inductor):
    """Weights are constants, laid out as the product likes them best; what is best is measured."""

    options = {"max_autotune": True}

    def __init__(self, row, function, arguments):
        if not isinstance(function, torch.nn.Module):
            raise Missing("no weights to freeze")
        super().__init__(row, function, arguments)
        # As an option of torch.compile it would be ignored: tracing looks at the global setting.
        self.settings = lambda: torch._inductor.config.patch(freezing=True)


class Jax(Engine):
    def __init__(self, row, function, arguments):
        if row.jax is None:
            raise Missing("not written")
        try:
            import jax
            import jax.scipy.special  # noqa: F401
        except ImportError as error:
            raise Missing("not installed") from error
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.jax, self.settings = jax, contextlib.nullcontext
        arrays = tuple(map(self.copy, arguments))
        if row.kind in ("steps", "once"):
            self.run = row.jax(jax, *arrays)
            return
        if isinstance(function, torch.nn.Module):
            arrays = ({k: self.copy(v) for k, v in function.state_dict().items()}, *arrays)
        call = jax.jit(lambda *arrays: row.jax(jax, *arrays))
        self.run = lambda: call(*arrays)

    def copy(self, tensor):
        numbers = tensor.detach()
        if tensor.dtype == torch.bfloat16:
            return self.jax.numpy.asarray(numbers.float().numpy()).astype("bfloat16")
        return self.jax.numpy.array(numbers.numpy())

    def wait(self, result):
        self.jax.block_until_ready(result)

    def tensors(self, result):
        def tensor(array):
            if array.dtype == self.jax.numpy.bfloat16:
                array = array.astype("float32")
            return torch.from_numpy(self.jax.device_get(array).copy())

        return [tensor(array) for array in flat(result)]


# How a row is run on this device.
WAYS = {"recorded": Opaque, "captured": Captured, "compiled": Compiled}

ENGINES = {
    "opaque": Opaque,
    "eager": Eager,
    "inductor": Inductor,
    "inductor-max": InductorMax,
    "jax": Jax,
}
