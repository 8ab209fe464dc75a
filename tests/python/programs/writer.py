"""Writes a program statement by statement. Each runs on the CPU as it is written, so the writer knows
every value: shapes are looked up, not predicted, and a statement that makes no sense is a bug here."""

import random

import torch

from .program import PRELUDE, Program


class Writer:
    """`random` chooses; `lines` is the program so far; `space` its variables on the CPU in float64."""

    def __init__(self, seed: int, dtype=torch.float64):
        self.seed = seed
        self.random = random.Random(seed)
        self.lines, self.numbers, self.depth = [], {}, 0
        self.space = {"SIDE": ("cpu", dtype, seed)}
        exec(PRELUDE, self.space)

    # ---- statements

    def say(self, text: str) -> None:
        """Runs and appends a statement, which may be a block of several lines."""
        exec(text, self.space)
        self.lines += ["    " * self.depth + line for line in text.splitlines()]

    def let(self, prefix: str, expression: str) -> str:
        """A new variable; gives its name."""
        self.numbers[prefix] = self.numbers.get(prefix, -1) + 1
        name = f"{prefix}{self.numbers[prefix]}"
        self.say(f"{name} = {expression}")
        return name

    def attempt(self, text: str) -> bool:
        """A statement that the CPU may refuse: then it stays in an error() block. True if it went through."""
        try:
            exec(text, self.space)
        except Exception:
            self.lines += ["with error():", *("    " + line for line in text.splitlines())]
            return False
        self.lines += text.splitlines()
        return True

    def try_let(self, prefix: str, expression: str) -> str:
        """A new variable and its name, if the CPU can make it; else ""."""
        name = f"{prefix}{self.numbers.get(prefix, -1) + 1}"
        if not self.attempt(f"{name} = {expression}"):
            return ""
        self.numbers[prefix] = self.numbers.get(prefix, -1) + 1
        return name

    def block(self, head: str) -> "_Block":
        """with writer.block("for _ in range(3):"): what is said inside is its body, run once here."""
        return _Block(self, head)

    # ---- choosing

    def shape(self, name: str) -> tuple:
        return tuple(self.space[name].shape)

    def choose(self, *choices):
        return self.random.choice(choices)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def program(self, kind: str) -> Program:
        return Program(self.seed, tuple(self.lines), kind)


class _Block:
    def __init__(self, writer, head):
        self.writer, self.head = writer, head

    def __enter__(self):
        self.writer.lines.append("    " * self.writer.depth + self.head)
        self.writer.depth += 1

    def __exit__(self, kind, *_):
        self.writer.depth -= 1
        if kind is None and self.writer.lines[-1].endswith(":"):
            self.writer.lines.append("    " * (self.writer.depth + 1) + "pass")
