"""Recipes of CONTRIBUTING.md, carried out as they are written."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

FOLDERS = (
    "cmake",
    "codegen_c",
    "codegen_llvm",
    "examples",
    "exported",
    "fusion",
    "graph",
    "include",
    "opaque",
    "runtime",
)
FOLDERS += ("tests", "tools")
GRAPH = """graph @g {{
  %0 = input f32[19,37]
  %1 = neg f32[19,37] %0
  %2 = {scan} f32[19,37] %1 {{axis={axis}}}
  %3 = exp f32[19,37] %2
  output %3
}}
"""


def squeezed(text):
    return re.sub(r"\s+", "", text)


@pytest.fixture(scope="module")
def recipe():
    """The indented lines of the section, as they stand there."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "CONTRIBUTING.md")) as file:
        section = file.read().partition("## Recipe: a scan\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (\S.*)$", section, re.M)
    assert len(lines) == 2
    return lines


def read(root, name):
    with open(os.path.join(root, name)) as file:
        return file.read()


def test_the_scan_of_the_recipe_is_that_of_the_tree(root, recipe):
    row, line = recipe
    assert squeezed(row) in squeezed(read(root, "include/opaque/ops.def"))
    assert squeezed(line) in squeezed(read(root, "registration/scans.cpp"))


def run(program, mode, folder, text):
    (folder / "graph.ir").write_text(text)
    result = subprocess.run(
        [program, folder / "graph.ir", mode, folder], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return np.load(folder / "out0.npy")


@pytest.mark.unchanged_folders("CMakeLists.txt", "CONTRIBUTING.md", *FOLDERS[:-2], "tools")
def test_a_row_is_all_that_a_scan_needs(root, recipe, tmp_path):
    """The row is taken away and written again under another name, in a copy of the core, which is built."""
    for name in FOLDERS:
        shutil.copytree(os.path.join(root, name), tmp_path / name)
    for name in ("CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(os.path.join(root, name), tmp_path)
    table = tmp_path / "include/opaque/ops.def"
    rows = table.read_text().splitlines()
    kept = [row for row in rows if squeezed(recipe[0]) not in squeezed(row)]
    assert len(kept) == len(rows) - 1
    new = recipe[0].replace("scan_max", "scan_new")
    table.write_text("\n".join([*kept, new]) + "\n")
    options = [
        "-G",
        "Ninja",
        "-DOPAQUE_TORCH=OFF",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_C_FLAGS_RELEASE=-O0",
    ]
    for command in (
        ["cmake", "-S", ".", "-B", "out", *options],
        ["cmake", "--build", "out", "--target", "opq-opt"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    built = os.path.join(root, "build", "opq-opt")
    np.save(
        tmp_path / "input0.npy",
        np.random.default_rng(0).standard_normal((19, 37), dtype=np.float32),
    )
    for axis in (0, 1):
        want = run(built, "--eval", tmp_path, GRAPH.format(scan="scan_max", axis=axis))
        for mode in ("--eval", "--eval-kernels", "--run"):
            got = run(
                tmp_path / "out/opq-opt", mode, tmp_path, GRAPH.format(scan="scan_new", axis=axis)
            )
            assert got.tobytes() == want.tobytes(), mode
