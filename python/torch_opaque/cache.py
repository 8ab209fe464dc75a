"""Compiled kernels on disk, which processes of the same build share: what `python -m torch_opaque cache` does with them."""

import itertools
import os
import re
import subprocess
import sys

_FILE = re.compile(r"[0-9a-f]{32}\.o|new-\d+-\d+")  # codegen_llvm/store.c names them
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels")


def folder() -> str | None:
    """Where this process keeps kernels by OPAQUE_CACHE, as codegen_llvm/store.c finds it; None if nowhere. It may not be there yet."""
    asked = os.environ.get("OPAQUE_CACHE") or "on"
    if asked == "off":
        return None
    if asked != "on":
        return asked
    base, home = (os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HOME"))
    if base.startswith("/"):
        return os.path.join(base, "torch_opaque")
    return os.path.join(home, ".cache", "torch_opaque") if home.startswith("/") else None


def files(path: str | None) -> list:
    """(path, bytes) of the files of kernels in a folder."""
    if not path or not os.path.isdir(path):
        return []
    with os.scandir(path) as entries:
        found = [entry for entry in entries if _FILE.fullmatch(entry.name)]
        return sorted((e.path, e.stat(follow_symlinks=False).st_size) for e in found)


def text() -> str:
    lines = []
    for path, what in ((folder(), "this user's"), (SHIPPED, "made with the package")):
        found = files(path)
        size = sum(size for _, size in found) / 1e6
        lines.append(f"{path or 'nowhere'}: {len(found)} kernels, {size:.1f} MB, {what}")
    return "\n".join(lines)


def clear() -> int:
    """Removes this user's files, and nothing else that lies there; how many there were."""
    found = files(folder())
    for path, _ in found:
        os.unlink(path)
    return len(found)


def _has_avx512() -> bool:
    try:
        with open("/proc/cpuinfo") as file:
            return "avx512f" in file.read()
    except OSError:
        return False


def warm(into: str | None = None) -> int:
    """What common programs need is there afterwards, in the folder of OPAQUE_CACHE or in `into`, for each instruction set that runs here;
    how many kernels there are. Raises OSError."""
    path = into or folder()
    if path is None:
        raise OSError("OPAQUE_CACHE=off, or no HOME: there is nowhere to keep kernels")
    os.makedirs(path, mode=0o700, exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OPAQUE_")}
    cpus = ("avx512", "avx2") if _has_avx512() else ("avx2",)
    processes = []
    for cpu, tiers in itertools.product(cpus, ("lazy", "eager")):
        settings = {
            "OPAQUE_CACHE": path,
            "OPAQUE_TIERS": tiers,
            "OPAQUE_CPU": cpu,
            "OPAQUE_FALLBACK_WARN": "0",
        }
        command = [sys.executable, "-W", "ignore", "-m", "torch_opaque.common"]
        processes.append(
            subprocess.Popen(command, env=kept | settings, stderr=subprocess.PIPE, text=True)
        )
    said = [process.communicate()[1] for process in processes]
    for process, text in zip(processes, said, strict=True):
        if process.returncode:
            raise OSError(f"the programs to warm up with failed:\n{text}")
    if into:  # everybody reads them
        os.chmod(into, 0o755)
        for file, _ in files(into):
            os.chmod(file, 0o644)
    return len(files(path))
