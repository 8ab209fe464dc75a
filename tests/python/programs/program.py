"""A program is Python text. It runs on one side (a device, a dtype for "real", a seed of the values)
and leaves the values of its variables and what it read on the way."""

import os
from dataclasses import dataclass, replace

import torch

_HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(_HERE, "prelude.py")) as file:
    PRELUDE = file.read()


@dataclass(frozen=True)
class Program:
    """`lines` follow the prelude; blocks are indented by 4. `seed` made it and is the seed of its values."""

    seed: int
    lines: tuple
    kind: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def run(self, device: str, dtype=torch.float32, seed=None) -> dict:
        """The program's variables as they are in the end. Raises what the program raises."""
        space = {"SIDE": (device, dtype, self.seed if seed is None else seed)}
        exec(_compiled(PRELUDE), space)
        own = set(space)
        exec(_compiled(self.text), space)
        return {k: v for k, v in space.items() if k == "seen" or (k not in own and k[0] != "_")}

    def results(self, device: str, dtype=torch.float32, seed=None) -> dict:
        """Values of all tensors by name, on the CPU, and what was read, in order. An exception ends the
        program: "raised" is then the name of its type, "message" its text."""
        space, results = {"seen": []}, {}
        try:
            space = self.run(device, dtype, seed)
            for name, value in space.items():
                results.update(_tensors(name, value))
        except Exception as error:
            results["raised"] = type(error).__name__
            results["message"] = str(error)
        return results

    def without(self, lines) -> "Program":
        return replace(self, lines=tuple(lines))

    def script(self, message: str) -> str:
        """A file that runs by itself and prints how far each mode is from the reference."""
        comment = "".join(f"# {line}\n" for line in message.splitlines())
        head = PRELUDE.replace("torch.float32, 0)", f"torch.float32, {self.seed})")
        with open(os.path.join(_HERE, "epilogue.txt")) as file:
            return f"{comment}{head}\n\n# ---- the program\n\n{self.text}\n\n{file.read()}"


_codes = {}


def _compiled(text: str):
    """Code under the file name "<program>"; the last few texts are kept."""
    if text not in _codes:
        if len(_codes) > 64:
            _codes.clear()
        _codes[text] = compile(text, "<program>", "exec")
    return _codes[text]


def _tensors(name: str, value) -> dict:
    """{name: tensor on the CPU} of a tensor, a number, or a list of them."""
    if isinstance(value, torch.Tensor):
        found = {name: value.detach().cpu().clone()}
        return (
            found | {f"{name}.is_inference": value.is_inference()}
            if value.is_inference()
            else found
        )
    if isinstance(value, (bool, int, float, complex)):
        return {name: torch.tensor(value)}
    if isinstance(value, str):
        return {name: value}
    if isinstance(value, torch.nn.Module):
        found = dict(value.state_dict())
        found |= {f"{k}.grad": p.grad for k, p in value.named_parameters()}
        return {k: v for key, x in found.items() for k, v in _tensors(f"{name}.{key}", x).items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, x in enumerate(value) for k, v in _tensors(f"{name}[{i}]", x).items()}
    return {}
