"""Recipes of CONTRIBUTING.md, carried out as they are written."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
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


def indented(name):
    """The indented lines of a recipe, as they stand there without four spaces."""
    with open(os.path.join(ROOT, "CONTRIBUTING.md")) as file:
        section = file.read().partition(f"## Recipe: {name}\n")[2].partition("\n## ")[0]
    return re.findall(r"^    (.*\S)$", section, re.M)


@pytest.fixture(scope="module")
def recipe():
    lines = indented("a scan")
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


@pytest.fixture(scope="module")
def core(recipe, tmp_path_factory):
    """A copy of the core with what the recipes say, built. The row of the scan is taken away and written again under another name."""
    folder = tmp_path_factory.mktemp("core")
    for name in FOLDERS:
        shutil.copytree(os.path.join(ROOT, name), folder / name)
    for name in ("CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(os.path.join(ROOT, name), folder)
    table = folder / "include/opaque/ops.def"
    rows = table.read_text().splitlines()
    kept = [row for row in rows if squeezed(recipe[0]) not in squeezed(row)]
    assert len(kept) == len(rows) - 1
    new = recipe[0].replace("scan_max", "scan_new")
    table.write_text("\n".join([*kept, new]) + "\n")
    *file, row = indented("a target")
    (folder / "fusion/target_wide.c").write_text("\n".join(file) + "\n")
    header = folder / "fusion/target.h"
    text, count = re.subn(r"(#define OPQ_TARGETS\(X\)) ", rf"\1 {row} ", header.read_text())
    assert count == 1 and row == "X(wide)"
    header.write_text(text)
    options = [
        "-G",
        "Ninja",
        "-DOPAQUE_TORCH=OFF",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_C_FLAGS_RELEASE=-O0",
    ]
    for command in (
        ["cmake", "-S", ".", "-B", "out", *options],
        ["cmake", "--build", "out", "--target", "opq-opt", "opq_exported"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


UNCHANGED = ("CMakeLists.txt", "CONTRIBUTING.md", *FOLDERS[:-2], "tools")


@pytest.mark.unchanged_folders(*UNCHANGED)
def test_a_row_is_all_that_a_scan_needs(root, core, tmp_path):
    built = os.path.join(root, "build", "opq-opt")
    np.save(
        tmp_path / "input0.npy",
        np.random.default_rng(0).standard_normal((19, 37), dtype=np.float32),
    )
    for axis in (0, 1):
        want = run(built, "--eval", tmp_path, GRAPH.format(scan="scan_max", axis=axis))
        for mode in ("--eval", "--eval-kernels", "--run"):
            got = run(
                core / "out/opq-opt", mode, tmp_path, GRAPH.format(scan="scan_new", axis=axis)
            )
            assert got.tobytes() == want.tobytes(), mode


# Passed to the kernel by hand: dims are extents, and for each access where it begins and its strides.
MAIN = """
#include <stdint.h>
#include <stdio.h>
void kernel_0(void *const *, const int64_t *, const void *, int64_t, int64_t, void *, int64_t *);
int main(void)
{
    static float x[37], out[37];
    void *buffers[] = {x, out};
    int64_t dims[] = {37, 0, 1, 0, 1, 0, 1}, error[2] = {0};
    for (int i = 0; i < 37; i++)
        x[i] = i;
    kernel_0(buffers, dims, 0, 0, 37, 0, error);
    for (int i = 0; i < 37; i++)
        if (out[i] != -x[i] * x[i])
            return 1;
    return error[0] != 0;
}
"""


@pytest.mark.unchanged_folders(*UNCHANGED)
def test_a_file_and_a_row_are_all_that_a_target_needs(core, tmp_path):
    graph = "graph @g {\n  %0 = input f32[37]\n  %1 = neg f32[37] %0\n  %2 = mul f32[37] %1, %0\n  output %2\n}\n"
    (tmp_path / "graph.ir").write_text(graph)
    (tmp_path / "main.c").write_text(MAIN)
    emit = [core / "out/opq-opt", tmp_path / "graph.ir", "--target=wide"]
    text = subprocess.run([*emit, "--emit=llvm"], capture_output=True, text=True).stdout
    assert "<8 x float>" in text and '"target-cpu"="neoverse-n1"' in text
    for command in (
        [*emit, "--emit=obj", f"--out={tmp_path}"],
        ["aarch64-linux-gnu-gcc", "-static", "-o", "main", "main.c", "kernel_0.o"],
        ["qemu-aarch64", "main"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
