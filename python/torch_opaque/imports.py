"""What is to be done to a module of PyTorch's that most programs never import."""

import importlib.util
import sys


class _AfterImport:
    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.then(module)

        spec.loader.exec_module = exec_module
        return spec


def after_import(name: str, then) -> None:
    """Calls `then` with the module once it was imported, which may be now: importing it here would make every program wait for it."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))
