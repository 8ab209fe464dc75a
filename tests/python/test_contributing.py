"""Recipes of CONTRIBUTING.md, carried out as they are written."""

import os
import re
import shutil
import subprocess
import textwrap

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


def section(root, title):
    return read(root, "CONTRIBUTING.md").partition(f"## Recipe: {title}\n")[2].partition("\n## ")[0]


def recipe(root, title):
    """The indented lines of the section, as they stand there."""
    lines = re.findall(r"^    (\S.*)$", section(root, title), re.M)
    assert len(lines) == 2
    return lines


def new_file(root, title):
    """What a section has from an #include on, as far as it is indented, and the last line of such."""
    text = re.search(r"^    #include(?s:.*?)(?=^\S)", section(root, title), re.M).group()
    return textwrap.dedent(text), re.findall(r"^    (X\(.*\))$", section(root, title), re.M)[-1]


def read(root, name):
    with open(os.path.join(root, name)) as file:
        return file.read()


def test_the_scan_of_the_recipe_is_that_of_the_tree(root):
    row, line = recipe(root, "a scan")
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
def core(root, tmp_path_factory):
    """A copy of the core: the row of the scan is taken away and written again under another name; a fold and a pass are new."""
    folder = tmp_path_factory.mktemp("core")
    for name in FOLDERS:
        shutil.copytree(
            os.path.join(root, name), folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(os.path.join(root, name), folder)
    scan, fold, reduction = recipe(root, "a scan")[0], *recipe(root, "a fold")
    table = folder / "include/opaque/ops.def"
    rows = table.read_text().splitlines()
    kept = [row for row in rows if squeezed(scan) not in squeezed(row)]
    assert len(kept) == len(rows) - 1
    table.write_text("\n".join([*kept, scan.replace("scan_max", "scan_new"), reduction]) + "\n")
    with open(folder / "include/opaque/folds.def", "a") as file:
        file.write(fold + "\n")
    tile, row = new_file(root, "a pass of schedules")
    (folder / "fusion/schedule_tile.c").write_text(tile)
    passes = folder / "fusion/schedule.h"
    text, count = re.subn(
        r"(#define OPQ_SCHEDULE_PASSES\(X\) .*)", rf"\1 {row}", passes.read_text()
    )
    assert count == 1
    passes.write_text(text)
    *target, row = re.findall(r"^    (.*\S)$", section(root, "a target"), re.M)
    (folder / "fusion/target_wide.c").write_text("\n".join(target) + "\n")
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


BUILT = pytest.mark.unchanged_folders("CMakeLists.txt", "CONTRIBUTING.md", *FOLDERS[:-2], "tools")


@BUILT
def test_a_row_is_all_that_a_scan_needs(root, core):
    built = os.path.join(root, "build", "opq-opt")
    np.save(
        core / "input0.npy",
        np.random.default_rng(0).standard_normal((19, 37), dtype=np.float32),
    )
    for axis in (0, 1):
        want = run(built, "--eval", core, GRAPH.format(scan="scan_max", axis=axis))
        for mode in ("--eval", "--eval-kernels", "--run"):
            got = run(core / "out/opq-opt", mode, core, GRAPH.format(scan="scan_new", axis=axis))
            assert got.tobytes() == want.tobytes(), mode


PLACES = """graph @g {{
  %0 = input f32[{shape}]
  %1 = neg f32[{shape}] %0
  %2 = argmax_last i64[{result}] %1 {{axes=[{axis}], tree={tree}}}
  output %2
}}
"""


def last_of_the_largest(x, axis):
    """NaN is the largest, as torch.argmax has it."""
    x = np.flip(np.where(np.isnan(x), np.inf, x), axis)
    return x.shape[axis] - 1 - np.argmax(x, axis, keepdims=True)


@BUILT
@pytest.mark.parametrize(
    "shape, axis", [((19, 37), 0), ((19, 37), 1), ((3, 9001), 1), ((300, 5), 1)]
)
@pytest.mark.parametrize("values", ["few", "nan", "least"])
def test_a_row_is_all_that_a_fold_needs(core, shape, axis, values):
    x = np.random.default_rng(1).integers(-2, 3, shape).astype(np.float32)
    if values == "nan":
        x[np.random.default_rng(2).random(shape) < 0.05] = np.nan
    if values == "least":
        x[:] = np.inf  # what is folded is -inf throughout, as what it begins with
    np.save(core / "input0.npy", x)
    text = PLACES.format(
        shape=f"{shape[0]},{shape[1]}",
        result=f"1,{shape[1]}" if axis == 0 else f"{shape[0]},1",
        axis=axis,
        tree="column" if axis == 0 else "lanes",
    )
    for mode in ("--eval", "--eval-kernels", "--run"):
        got = run(core / "out/opq-opt", mode, core, text)
        assert np.array_equal(got, last_of_the_largest(-x, axis)), mode


@BUILT
@pytest.mark.parametrize("form", ["c", "schedule_c"])
def test_a_new_fold_is_printed_as_c(core, form):
    text = PLACES.format(shape="19,37", result="19,1", axis=1, tree="lanes")
    (core / "graph.ir").write_text(text)
    printed = subprocess.run(
        [core / "out/opq-opt", core / "graph.ir", f"--emit={form}"], capture_output=True, text=True
    )
    assert printed.returncode == 0, printed.stderr
    assert "opq_argmax_last_f32" in printed.stdout
    done = subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Werror", "-Wno-unused", "-fsyntax-only"]
        + ["-I", core / "include", "-x", "c", "-"],
        input=printed.stdout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


STENCIL = """graph @g {{
  %0 = input f32[{rows2},{columns2}]
  %1 = slice f32[{rows},{columns}] %0 {{start=[0,1], step=[1,1]}}
  %2 = slice f32[{rows},{columns}] %0 {{start=[2,1], step=[1,1]}}
  %3 = slice f32[{rows},{columns}] %0 {{start=[1,0], step=[1,1]}}
  %4 = slice f32[{rows},{columns}] %0 {{start=[1,2], step=[1,1]}}
  %5 = add f32[{rows},{columns}] %1, %2
  %6 = add f32[{rows},{columns}] %3, %4
  %7 = mul f32[{rows},{columns}] %5, %6
  output %7
}}
"""


@BUILT
@pytest.mark.parametrize("rows, columns", [(513, 1299), (128, 512), (3, 5), (129, 130), (31, 2000)])
def test_a_file_and_a_row_are_all_that_tiles_need(core, rows, columns):
    x = np.random.default_rng(3).standard_normal((rows + 2, columns + 2), dtype=np.float32)
    np.save(core / "input0.npy", x)
    text = STENCIL.format(rows=rows, columns=columns, rows2=rows + 2, columns2=columns + 2)
    want = (x[:-2, 1:-1] + x[2:, 1:-1]) * (x[1:-1, :-2] + x[1:-1, 2:])
    for mode in ("--eval", "--eval-kernels", "--run"):
        assert run(core / "out/opq-opt", mode, core, text).tobytes() == want.tobytes(), mode
    printed = subprocess.run(
        [core / "out/opq-opt", core / "graph.ir", "--schedule", "--after=tile"],
        capture_output=True,
        text=True,
    )
    for loop in (
        "parallel k by 4 {",
        "each l by 4 {",
        "each m by 32 in k {",
        "each n by 128 in l {",
    ):
        assert loop in printed.stdout
    assert "each i < d0 in m {" in printed.stdout and "vector j < d1 in n {" in printed.stdout


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


@BUILT
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
