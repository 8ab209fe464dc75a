"""Runs a script or module as the program of this process, as `python script.py` and `python -m module` do."""

import importlib.util
import os
import sys
import types

from . import placement


class Stopped(BaseException):
    """Ends the program from within: what was to be seen was seen. No Exception, so that programs let it pass."""


class NoProgram(Exception):
    """There is nothing of that name to run."""


def _script(path: str) -> tuple:
    """(its code, module __main__, first entry of sys.path)"""
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise NoProgram(f"can't open {path!r}: {error.strerror}") from error
    path, main = os.path.abspath(path), types.ModuleType("__main__")
    main.__file__, main.__builtins__ = path, __builtins__
    return compile(source, path, "exec"), main, os.path.dirname(path)


def _module(name: str) -> tuple:
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
        code = spec.loader.get_code(spec.name) if spec else None
    except (ImportError, ValueError, AttributeError) as error:
        raise NoProgram(f"no module {name!r}: {error}") from error
    finally:
        del sys.path[0]
    if code is None:
        raise NoProgram(f"no module {name!r} with code to run")
    main = types.ModuleType("__main__")
    main.__file__, main.__builtins__ = spec.origin, __builtins__
    main.__spec__, main.__package__, main.__loader__ = spec, spec.parent, spec.loader
    return code, main, os.getcwd()


def _own(traceback):
    """Without the frames of this file, which the program did not call."""
    while traceback and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _status(code) -> int:
    """Exit status of sys.exit(code)."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def run(target: str, arguments: list, is_module: bool = False) -> int:
    """Runs it to its end and returns its exit status. An exception is printed as Python does it, with the program's frames.
    Raises NoProgram."""
    try:
        code, main, folder = (_module if is_module else _script)(target)
        sys.argv = [main.__file__ if is_module else target, *arguments]
        sys.path[0] = folder
        sys.modules["__main__"] = main  # for pickle, and for processes that the program starts
        exec(code, vars(main))
        return 0
    except (Stopped, SystemExit) as end:
        return 0 if isinstance(end, Stopped) else _status(end.code)
    except NoProgram:
        raise
    except BaseException as error:
        placement.hint(error)
        error = error.with_traceback(_own(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
