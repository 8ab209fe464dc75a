"""What others install: the wheel, the sdist, the C library; beside another PyTorch, with another build type.

Building the extension takes a quarter of an hour of a processor, so whole installations belong to --full. OPAQUE_TEST_TORCH names the
second PyTorch of these, a version that pip can download.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv

import pytest
import torch

FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))
full = pytest.mark.skipif(not FULL, reason="builds the extension anew; ./dev test --full does")
pytestmark = pytest.mark.timeout(5400)  # of an extension built while other tests run
SECOND_TORCH = os.environ.get("OPAQUE_TEST_TORCH", "2.14.1")
PROGRAM = """
import torch
x = torch.randn(32, 64, device="opaque", requires_grad=True)
y = torch.nn.functional.gelu(x @ x.t()).softmax(-1).square().sum()
y.backward()
import torch_opaque
assert torch_opaque.__file__.startswith({prefix!r}), torch_opaque.__file__
assert x.grad.isfinite().all() and torch_opaque.fallback_counts() == {{}}
assert torch_opaque.stats()["kernels_loaded"] > 0  # which came with the package
torch_opaque.export(torch.sin, (torch.ones(3),), "sine.so")  # what it links came with the package
print("ran on", x.device, torch.__version__)
"""


def run(*command, cwd=None, timeout=600, **environment) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory, request):
    """What git tracks or would, so that building leaves nothing in the tree."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folder = tmp_path_factory.mktemp("sources")
    for name in run("git", "ls-files", "-co", "--exclude-standard", cwd=root).splitlines():
        if os.path.isfile(os.path.join(root, name)):
            os.makedirs(folder / os.path.dirname(name), exist_ok=True)
            shutil.copy(os.path.join(root, name), folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(sources, tmp_path_factory):
    """The path of the archive."""
    folder = tmp_path_factory.mktemp("dist")
    text = "import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-c", text, folder, cwd=sources).split()[-1]
    return folder / name


def package_of(folder, version: str):
    """A torch package of that version with headers and libraries and without CMake files, as a CUDA build is without a toolkit."""
    real = os.path.dirname(torch.__file__)
    (folder / "torch").mkdir()
    for name in ("include", "lib"):
        os.symlink(os.path.join(real, name), folder / "torch" / name)
    (folder / "torch" / "__init__.py").write_text("raise ImportError('libcudart')\n")
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    return folder


# ---- beside another PyTorch


def test_configures_beside_a_torch_without_cmake_files(sources, tmp_path):
    """And without importing it."""
    other = package_of(tmp_path, "2.99.1+cu999")
    command = ["cmake", "-S", sources, "-B", tmp_path / "out", "-G", "Ninja", "-DOPAQUE_TESTS=OFF"]
    options = [f"-DPython3_EXECUTABLE={sys.executable}", f"-DOPAQUE_PACKAGE={tmp_path}"]
    said = run(*command, *options, PYTHONPATH=str(other))
    assert f"PyTorch 2.99.1+cu999 in {other}/torch" in said
    assert (tmp_path / "_built.py").read_text().startswith('TORCH = "2.99.1+cu999"')
    build = (tmp_path / "out" / "build.ninja").read_text()
    assert f"{other}/torch/lib/libtorch_cpu.so" in build and "cuda" not in build.lower()


def test_metadata_pins_the_minor_version(root, tmp_path):
    text = "import torch_package as p; print(p.dynamic_metadata({}, {}), p.get_requires_for_dynamic_metadata({}))"
    path = f"{package_of(tmp_path, '2.99.1+cu999')}:{root}/cmake"
    printed = run(sys.executable, "-c", text, PYTHONPATH=path)
    assert printed == "{'dependencies': ['torch==2.99.*']} []\n"


def test_a_build_of_its_own_environment_takes_the_torch_beside_which_it_installs(root, tmp_path):
    """As pip isolates it, what is installed is not on the path; where there is no torch, one is asked for."""
    text = "import sys; sys.path[:] = [sys.argv[1], *(p for p in sys.path if 'site-packages' not in p)]\n"
    text += "import torch_package as p; print(p.folder(), p.get_requires_for_dynamic_metadata({}))"
    isolated = ("-I", "-c", text, f"{root}/cmake")
    assert run(sys.executable, *isolated) == f"{os.path.dirname(torch.__file__)} []\n"
    venv.create(tmp_path / "empty")
    assert run(tmp_path / "empty/bin/python", *isolated) == " ['torch>=2.13,<2.15']\n"


def test_another_torch_is_an_import_error_that_says_what_to_type(run_python):
    text = """
import sys, types, warnings
sys.modules["torch_opaque._built"] = types.SimpleNamespace(TORCH="2.99.1+cu999")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
assert torch.ones(2).sum() == 2
print(*(w.message for w in caught))
assert "torch_opaque._C" not in sys.modules
import torch_opaque
try:
    torch_opaque.graph
except ImportError as error:
    print("ImportError", error)
"""
    printed = run_python(text).stdout.splitlines()
    assert len(printed) == 2 and printed[1].startswith("ImportError")
    for line in printed:
        assert f"built against PyTorch 2.99, and this is {torch.__version__}" in line
        assert "pip install 'torch==2.99.*'" in line and "pip install --force-reinstall" in line
    direct = "import sys, types\nsys.modules['torch_opaque._built'] = types.SimpleNamespace(TORCH='2.99.1')\nimport torch_opaque"
    result = run_python(direct, check=False, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "ImportError: torch_opaque was built against PyTorch 2.99" in result.stderr


@full
def test_builds_against_a_second_torch(sources, tmp_path):
    """Headers and libraries of a wheel as pip has it, without what it depends on: a CUDA build cannot even be imported here."""
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, f"torch=={SECOND_TORCH}", timeout=3600)  # fmt: skip
    command = ["cmake", "-S", sources, "-B", tmp_path / "out", "-G", "Ninja", "-DOPAQUE_TESTS=OFF"]
    package = tmp_path / "package" / "torch_opaque"
    shutil.copytree(sources / "python" / "torch_opaque", package)
    options = [f"-DPython3_EXECUTABLE={sys.executable}", f"-DOPAQUE_PACKAGE={package}"]
    run(*command, *options, "-DOPAQUE_REPORT=OFF", PYTHONPATH=str(site))
    run("cmake", "--build", tmp_path / "out", "--target", "_C", timeout=5400, PYTHONPATH=str(site))
    assert (package / "_C.so").exists()
    text = "import torch_opaque"
    kept = dict(PYTHONPATH=str(package.parent), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    done = subprocess.run([sys.executable, "-c", text], env=os.environ | kept, capture_output=True)
    assert f"built against PyTorch {SECOND_TORCH.rpartition('.')[0]}" in done.stderr.decode()


# ---- sdist and wheel


def test_kernels_are_made_for_an_installation(sources, root, tmp_path):
    """As pip has it built: the extension is not beside the package's sources. Without a PyTorch that can be imported there are none."""
    common = sources / "python" / "torch_opaque" / "common.py"
    programs = common.read_text()
    common.write_text("import torch\n(torch.rand(8, device='opaque') + 1).cpu()\n")
    options = [f"-DPython3_EXECUTABLE={sys.executable}", "-DSKBUILD=ON", "-DOPAQUE_TESTS=OFF"]
    run("cmake", "-S", sources, "-B", tmp_path / "out", "-G", "Ninja", *options)
    stamp = "registration/kernels.stamp"
    command = run("ninja", "-C", tmp_path / "out", "-t", "commands", stamp).splitlines()[-1]
    shutil.copy(os.path.join(root, "python/torch_opaque/_C.so"), tmp_path / "out/registration")
    kernels = tmp_path / "out/registration/kernels"
    isolated = tmp_path / "isolated"  # as pip's environment is
    isolated.mkdir()
    (isolated / "sitecustomize.py").write_text(
        "import sys\nsys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
    )
    run("sh", "-c", command, cwd=tmp_path / "out", PYTHONPATH=str(isolated))
    assert len(list(kernels.iterdir())) > 0
    none = run("sh", "-c", command, cwd=tmp_path / "out", PYTHONPATH=str(package_of(tmp_path, "2.99.1")))  # fmt: skip
    assert "no kernels come with this package: libcudart" in none and not list(kernels.iterdir())
    common.write_text(programs)


def test_the_sdist_has_what_a_build_needs(sources, sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("graph", "registration", "exported", "include/opaque", "cmake", "python/torch_opaque", "web/src"):  # fmt: skip
        files = {
            f"{folder}/{p.name}"
            for p in (sources / folder).iterdir()
            if p.is_file() and not p.name.startswith("_built")
        }
        assert files <= names, files - names
    assert not any(name.endswith((".so", ".pyc")) or "node_modules" in name for name in names)


@full
def test_pip_installs_the_sdist_into_an_empty_environment(sdist, tmp_path):
    """sdist to wheel to package, in the environment that pip makes for the build; then a program."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    (tmp_path / "constraints").write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
    run(python, "-m", "pip", "install", "-q", sdist, timeout=5400, PIP_CONSTRAINT=str(tmp_path / "constraints"))  # fmt: skip
    text = PROGRAM.format(prefix=str(tmp_path / "env"))
    assert f"ran on opaque:0 {torch.__version__}" in run(
        python, "-c", text, cwd=tmp_path, OPAQUE_CACHE=str(tmp_path / "none")
    )


@full
def test_pip_installs_the_sources_beside_a_torch(sources, tmp_path):
    """`pip install .`, as README has it: against the torch of that environment, which is not on the path of pip's build."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    paths = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = run(python, "-c", paths).strip()
    with open(os.path.join(site, "beside.pth"), "w") as file:
        file.write(run(sys.executable, "-c", paths))
    os.symlink(os.path.dirname(torch.__file__), os.path.join(site, "torch"))
    run(python, "-m", "pip", "install", "-q", ".", cwd=sources, timeout=5400)
    text = PROGRAM.format(prefix=str(tmp_path / "env"))
    assert "ran on opaque:0" in run(
        python, "-c", text, cwd=tmp_path, OPAQUE_CACHE=str(tmp_path / "none")
    )


# ---- the C library


def test_cmake_installs_the_core(root, tmp_path):
    """And a program finds it, as docs/c_api.md has it."""
    build = os.path.join(root, "build")
    run("cmake", "--install", build, "--prefix", tmp_path / "to", "--component", "development")
    assert (tmp_path / "to/bin/opq-opt").exists() and (tmp_path / "to/include/opaque").is_dir()
    shutil.copy(os.path.join(root, "examples/plain.c"), tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(plain LANGUAGES C CXX)\nadd_executable(plain plain.c)\n"
        "find_package(Opaque REQUIRED)\ntarget_link_libraries(plain PRIVATE Opaque::opaque)\n"
        "set_target_properties(plain PROPERTIES LINKER_LANGUAGE CXX)\n"
    )
    run("cmake", "-S", ".", "-B", "out", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={tmp_path}/to", cwd=tmp_path)  # fmt: skip
    run("cmake", "--build", "out", cwd=tmp_path)
    assert "reference evaluator: yes" in run(tmp_path / "out/plain")


@full
def test_the_core_builds_without_a_warning_at_the_highest_optimization(sources, tmp_path):
    command = ["cmake", "-S", sources, "-B", tmp_path, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    run(*command, "-DOPAQUE_TORCH=OFF", "-DOPAQUE_WERROR=ON")
    run("cmake", "--build", tmp_path, timeout=3600)


def test_warnings_are_errors_under_dev_alone(root):
    """Another compiler has other warnings, and an installation must not fail for them."""
    for name in run("git", "ls-files", "*CMakeLists.txt", "*.cmake", cwd=root).splitlines():
        with open(os.path.join(root, name)) as file:
            wanted = 1 if name == "CMakeLists.txt" else 0
            assert file.read().count("-Werror") == wanted, name
    with open(os.path.join(root, "dev")) as file:
        assert "-DOPAQUE_WERROR=ON" in file.read()
