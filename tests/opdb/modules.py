"""PyTorch's samples of modules (module_db) and optimizers (optim_db) on the device against the CPU.

    modules.py [NAME ...] [--jobs N] [--full] [--out FILE]

A module is run with each of its samples, in training and in evaluation: results, gradients of inputs and parameters, buffers
afterwards. Without --full a sample is run in one mode and layout, in turn; with it in all modes. An optimizer makes five steps with
each of its samples and each implementation that the CPU accepts (a loop, foreach, fused): parameters and state. Where the CPU
raises, the device has to raise as well. Rows as those of sweep.py; an optimizer's entry is called optim.NAME.
"""

import copy
import inspect

import layouts

STEPS = 5
# Draw random numbers in training: results are compared by shape and dtype.
RANDOM = {
    *(
        f"nn.{name}Dropout{d}"
        for name in ("", "Alpha", "FeatureAlpha")
        for d in ("", "1d", "2d", "3d")
    ),
    *("nn.RReLU", "nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"),
    *(
        "nn.Transformer",
        "nn.TransformerEncoder",
        "nn.TransformerEncoderLayer",
        "nn.TransformerDecoderLayer",
    ),
}


def moved(value, layout, device="opaque"):
    import torch

    if isinstance(value, torch.Tensor):
        leaf = value.detach().to(device)
        leaf = layout(leaf) if leaf.layout == torch.strided else leaf
        return leaf.detach().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(moved(v, layout, device) for v in value)
    if isinstance(value, dict):
        return {k: moved(v, layout, device) for k, v in value.items()}
    return value


class Modules(layouts.Comparison):
    """Compares one ModuleInfo."""

    def __init__(self, info, full: bool):
        super().__init__()
        self.info, self.full = info, full

    def answer(self, module, args, kwargs, layout):
        """Names with tensors: results, gradients, buffers."""
        torch = self.torch
        torch.manual_seed(0)
        out = module(*args, **kwargs)
        outs = self.tensors(out)
        named = [(f"result {i}", t.detach()) for i, t in enumerate(outs)]
        slopes = [t for t in outs if t.requires_grad]
        leaves = [
            (f"input {i}", t) for i, t in enumerate(self.tensors((args, kwargs))) if t.requires_grad
        ]
        leaves += [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        if slopes and leaves:
            torch.manual_seed(1)
            weights = [layout(torch.randn(t.shape).to(t.device, t.dtype)) for t in slopes]
            found = torch.autograd.grad(slopes, [t for _, t in leaves], weights, allow_unused=True)
            named += [(f"gradient of {n}", g) for (n, _), g in zip(leaves, found, strict=True)]
        return named + [(f"buffer {n}", b.detach()) for n, b in module.named_buffers()]

    def one(self, sample, training, plan):
        torch = self.torch
        layout, cotangent, (_, mode), _ = plan
        given = sample.constructor_input
        try:
            torch.manual_seed(0)
            module = (
                self.info.module_cls(*given.args, **given.kwargs).to(torch.float32).train(training)
            )
            twin, again, double = (copy.deepcopy(module) for _ in range(3))
            double.double()
            args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
            wide = self.cast(args), {k: self.cast(v) for k, v in kwargs.items()}
            want = self.answer(module, args, kwargs, layouts.contiguous)
        except Exception:
            return False
        random = training and self.info.name in RANDOM
        with mode():
            try:
                got = self.answer(twin.to("opaque"), *moved((args, kwargs), layout), cotangent)
                got = [(name, self.read(t)) for name, t in got]
            except Exception:
                try:
                    self.answer(again, *moved((args, kwargs), layout, "cpu"), cotangent)
                except Exception:  # not in this layout, says PyTorch
                    return False
                raise
            try:
                truth = self.answer(double, *wide, layouts.contiguous)
            except Exception:
                truth = want
            for (name, g), (_, w), (_, t) in zip(got, want, truth, strict=True):
                if random:
                    assert g is None or (g.shape == w.shape and g.dtype == w.dtype), name
                    continue
                self.near(
                    name, g, w, None if t is w or t is None or t.dtype != torch.float64 else t
                )
        return True

    def run(self):
        import torch

        index = 0
        for training in (True, False):
            samples = self.info.module_inputs_func(
                self.info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for sample in samples:
                if sample.forward_input is None:
                    continue
                for plan in layouts.plans(index, self.full, values=True):
                    name = (
                        f"sample {index} {'training' if training else 'eval'} {layouts.title(plan)}"
                    )
                    self.attempt(name, self.one, sample, training, plan)
                index += 1
        return self.verdict()


class Optimizers(layouts.Comparison):
    """Compares one OptimizerInfo."""

    def __init__(self, info, full: bool):
        super().__init__()
        self.info, self.full = info, full
        self.muon = info.optim_cls.__name__ == "Muon"
        if self.muon:  # makes its steps orthogonal in bf16, whatever the dtype of the parameters
            self.tolerance = {"atol": 2e-3}

    def sizes(self):
        if self.muon:
            return ((4, 6), (3, 3), (1, 5))
        return ((4, 6), (7,), (1,), (2, 3, 1, 2), ())

    def train(self, device, kwargs, dtype=None):
        """Parameters and state after some steps. The numbers drawn are those of float32, whatever the dtype."""
        torch = self.torch
        torch.manual_seed(0)
        start, *moves = (
            [torch.randn(s, dtype=torch.float32).to(dtype or torch.float32) for s in self.sizes()]
            for _ in range(STEPS + 1)
        )
        parameters = [torch.nn.Parameter(t.to(device)) for t in start]
        given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        optimizer = self.info.optim_cls(parameters, **given)
        for gradients in moves:
            gradients = [g.to(device) for g in gradients]

            def closure(gradients=gradients):
                optimizer.zero_grad()
                loss = sum(((p - g) ** 2).sum() for p, g in zip(parameters, gradients, strict=True))
                loss.backward()
                return loss

            if self.info.step_requires_closure:
                # Towards one goal: on the way to a new one, rounding of what is left of the old one would decide.
                gradients[:] = [g.to(device) for g in moves[0]]
                optimizer.step(closure)
                continue
            closure()
            if self.info.only_supports_sparse_grads:
                for p in parameters:
                    p.grad = p.grad.to_sparse()
            optimizer.step()
        named = [(f"parameter {i}", p.detach()) for i, p in enumerate(parameters)]
        if self.info.step_requires_closure:
            return named  # the state is differences of nearly equal gradients: rounding
        for i, p in enumerate(parameters):
            state = optimizer.state.get(p, {})
            named += [
                (f"state {key} of {i}", v)
                for key, v in state.items()
                if isinstance(v, torch.Tensor)
            ]
        return named

    def one(self, kwargs, mode):
        torch = self.torch
        ours, kwargs = (
            kwargs,
            {k: v for k, v in kwargs.items() if k != "capturable"},
        )  # the CPU has no graphs to capture
        try:
            want = self.train("cpu", kwargs)
        except Exception as error:
            try:
                self.train("opaque", ours)
            except type(error):
                return False
            raise AssertionError(f"the CPU raises {type(error).__name__}: {error}") from None
        wide = self.train("cpu", kwargs, torch.float64)
        with mode():
            got = [(name, self.read(t)) for name, t in self.train("opaque", ours)]
            for (name, g), (_, w), (_, t) in zip(got, want, wide, strict=True):
                self.near(name, g, w, t if t.dtype == torch.float64 else None)
        return True

    def run(self):
        flavours = [
            {"foreach": False},
            {"foreach": True},
            {"fused": True},
            {"capturable": True},
            {"differentiable": True},
        ]
        known = set(inspect.signature(self.info.optim_cls).parameters)
        for index, given in enumerate(self.info.optim_inputs_func(device="cpu")):
            for k, flavour in enumerate([{}, *flavours]):
                if set(flavour) & set(given.kwargs) or not set(flavour) <= known:
                    continue
                for m, (title, mode) in enumerate(layouts.modes()):
                    if self.full or m == (index + k) % 3:
                        kwargs = {**given.kwargs, **flavour}
                        self.attempt(f"{given.desc} {kwargs} {title}", self.one, kwargs, mode)
        return self.verdict()


def entries() -> dict:
    """{name: its comparison}"""
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    found = {info.name: lambda full, info=info: Modules(info, full) for info in module_db}
    for info in optim_db:
        found[f"optim.{info.optim_cls.__name__}"] = lambda full, info=info: Optimizers(info, full)
    return found


if __name__ == "__main__":
    layouts.main(__file__, entries)
