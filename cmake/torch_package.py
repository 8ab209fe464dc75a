"""What a build needs to know of the torch package: prints its folder, its version, and 1 or 0 for std::string's ABI, as a list of CMake's.

Nothing of it is imported or configured: a CUDA build of PyTorch cannot be imported without CUDA's libraries, and its own CMake files
want CUDA's toolkit, of which the extension needs neither.

pyproject.toml asks here, too: what is built depends on the minor version of torch that it was built against, because the next one has
other symbols. And `pip install .` builds in an environment of its own, where the torch beside which it installs is not on the path:
it is taken from the environment that the interpreter belongs to, and only where there is none is one asked for.
"""

import importlib.util
import os
import re
import sys
import sysconfig

# The versions whose headers the sources compile with.
REQUIREMENT = "torch>=2.13,<2.15"


def folder() -> str:
    """ "" if there is none."""
    spec = importlib.util.find_spec("torch")
    found = list(spec.submodule_search_locations or []) if spec else []
    found += [os.path.join(sysconfig.get_path(name), "torch") for name in ("platlib", "purelib")]
    return next((f for f in found if os.path.exists(os.path.join(f, "version.py"))), "")


def version() -> str:
    with open(os.path.join(folder(), "version.py")) as file:
        return re.search(r"^__version__ = '(.+)'$", file.read(), re.M)[1]


def get_requires_for_dynamic_metadata(settings: dict) -> list:
    """scikit-build-core: what the environment of the build has to have."""
    return [] if folder() else [REQUIREMENT]


def dynamic_metadata(settings: dict, project: dict) -> dict:
    """scikit-build-core: fields of the package's metadata."""
    major, minor = version().split(".")[:2]
    return {"dependencies": [f"torch=={major}.{minor}.*"]}


def main() -> None:
    if not folder():
        sys.exit(f"{sys.executable} has no package torch")
    with open(os.path.join(folder(), "lib", "libc10.so"), "rb") as library:
        new_abi = b"__cxx11" in library.read()
    print(folder(), version(), int(new_abi), sep=";", end="")


if __name__ == "__main__":
    main()
