"""Breaks single conditions of the sources and reports which of these mutants no test notices.

    .venv/bin/python tests/mutate.py                        40 mutants of each folder of the C core
    .venv/bin/python tests/mutate.py --folders fusion --count 100 --seed 2
    .venv/bin/python tests/mutate.py --python               survivors, and mutants of registration/, also against pytest

A mutant is one token-level change: a comparison or a logical operator becomes its neighbour, a condition is negated
or constant, a small number is one more, a statement, a jump or the check of a status is dropped. Which ones are tried
depends on the seed alone. Each is built in a copy of the tree (one per job, in a temporary folder), the core alone
and with LLVM as a shared library, because relinking the static one costs more than all the rest. Tests run one by
one, those of the mutant's own folder first, and stop at the first that fails, hangs or runs out of memory: the fast
ones for every mutant, the slow ones for who survives them, then all with ASan and UBSan, which see what a wrong size
of an allocation does. A run that was stopped goes on where it was if it is given the same --log, also after the code
has changed; with --count 0 it judges only what is in the log, with --again the survivors in it from the start.

tests/mutants.csv holds the survivors that were looked at: file, change, reason. They are found by their text, not by
their line, so the table stays valid while code moves, and are not judged again. The exit status is 1 if a survivor is
not in it.
"""

import argparse
import csv
import dataclasses
import functools
import itertools
import json
import os
import queue
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from run import c_tests

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXPLAINED = os.path.join(ROOT, "tests", "mutants.csv")
CORE = ["graph", "fusion", "codegen_llvm", "runtime", "opaque"]
# The files that break first, then the rest of those that take seconds.
PYTHON_TESTS = [
    "ops_basic tensor extern equivalence errors inspect",
    "numbers dtypes random_dtypes random_nets random_aliasing random_threads random_tools distributed modules optim "
    "sparse memory memory_identity overlap sharing printing checkpoint default_dtype division device limits ops_table",
]
# Where the tests of a folder are, if not in a folder of the same name.
TESTS_OF = {"codegen_llvm": "codegen"}
FAST_SECONDS = 1.5
MEMORY = 12 << 30  # bytes of address space that a test may use
BUILD_SECONDS = 900

# ---- where to break what


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    operator: str
    start: int
    end: int
    text: str  # what stands there instead of start..end
    before: str  # the line, stripped, as it is and as it becomes
    after: str

    def key(self) -> tuple:
        return self.file, self.before, self.after


_HIDDEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*",
    re.S | re.M,
)
_NEIGHBOUR = {
    " == ": " != ",
    " != ": " == ",
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " && ": " || ",
    " || ": " && ",
}
_ARITHMETIC = {" + ": " - ", " - ": " + ", " * ": " + "}


def visible(text: str) -> str:
    """The text with comments, strings, characters and preprocessor lines blanked, at the same offsets."""
    return _HIDDEN.sub(lambda found: re.sub(r"[^\n]", "\x00", found.group()), text)


def closing(code: str, at: int) -> int:
    """The index of the parenthesis that closes the one at `at`; -1 if there is none."""
    depth = 0
    for i in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return -1


def changes(code: str, text: str):
    """(operator, start, end, replacement) of every place of a file."""
    for found in re.finditer(r" (?:==|!=|<=|>=|<|>|&&|\|\|) ", code):
        yield "neighbour", found.start(), found.end(), _NEIGHBOUR[found.group()]
    for found in re.finditer(r" [-+*] ", code):
        yield "arithmetic", found.start(), found.end(), _ARITHMETIC[found.group()]
    for found in re.finditer(r" [-+] 1\b(?!\.)", code):
        yield "drop term", found.start(), found.end(), ""
    for found in re.finditer(r"!(?=[\w(])", code):
        yield "drop not", found.start(), found.end(), ""
    for found in re.finditer(r"(?<=[ (,])([0-4])(?=[,;) ])", code):
        yield "one more", found.start(), found.end(), str(int(found.group()) + 1)
    for found in re.finditer(r"\b(if|while) \(", code):
        start, end = found.end(), closing(code, found.end() - 1)
        condition = text[start:end]
        yield "never", start, end, f"({condition}) && 0"
        if found.group(1) == "if":
            yield "always", start, end, f"({condition}) || 1"
            yield "negate", start, end, f"!({condition})"
    for found in re.finditer(r"\bOPQ_TRY\(", code):
        end = closing(code, found.end() - 1)
        yield "unchecked", found.start(), end + 1, f"(void)!({text[found.end() : end]})"
    for found in re.finditer(r"^ +((?:continue|break);)$", code, re.M):
        yield "drop jump", found.start(1), found.end(1), ";"
    for found in re.finditer(
        r"^ {4,}(?!return\b|OPQ_TRY|goto\b)((?:[\w>.\[\]*-]+ (?:[-+|&]?=) [^;{}\n]*|\w+\([^;{}\n]*\));)$",
        code,
        re.M,
    ):
        yield "drop statement", found.start(1), found.end(1), ";"


@functools.cache
def mutants_of(file: str) -> list:
    with open(os.path.join(ROOT, file)) as source:
        text = source.read()
    made = []
    for operator, start, end, new in changes(visible(text), text):
        first = text.rfind("\n", 0, start) + 1
        last = text.find("\n", end)
        before = " ".join(text[first:last].split())
        after = " ".join((text[first:start] + new + text[end:last]).split())
        line = text.count("\n", 0, start) + 1
        made.append(Mutant(file, line, operator, start, end, new, before, after))
    return made


def found_again(row: dict):
    """The mutant of a line of the log, where it is now; None if its line is no longer there."""
    key = row["file"], row["before"], row["after"]
    if not os.path.exists(os.path.join(ROOT, row["file"])):
        return None
    same = [m for m in mutants_of(row["file"]) if m.key() == key]
    return min(same, key=lambda m: abs(m.line - row["line"]), default=None)


def choose(folder: str, count: int, seed: int) -> list:
    """The same number of each operator, as far as there are so many places for it."""
    ending = ".cpp" if folder == "registration" else ".c"
    files = sorted(f for f in os.listdir(os.path.join(ROOT, folder)) if f.endswith(ending))
    of = {}
    for mutant in (m for f in files for m in mutants_of(f"{folder}/{f}")):
        of.setdefault(mutant.operator, []).append(mutant)
    for operator, mutants in of.items():
        random.Random(f"{seed} {folder} {operator}").shuffle(mutants)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*(of[o] for o in sorted(of))))
    return list(itertools.islice(filter(None, turns), count))


# ---- a copy of the tree, its build and its tests


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@dataclasses.dataclass
class Test:
    name: str
    target: str
    command: list
    environment: dict
    folder: str
    seconds: float = 0.0


class Tree:
    """A copy of what git tracks, with its build."""

    def __init__(self, folder: str, kind: str):
        self.root, self.build = folder, os.path.join(folder, "build")
        files = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for file in files.stdout.split("\n"):
            if file and os.path.isfile(os.path.join(ROOT, file)):
                os.makedirs(os.path.dirname(os.path.join(folder, file)), exist_ok=True)
                shutil.copy(os.path.join(ROOT, file), os.path.join(folder, file))
        self._adapt()
        self.kind = kind  # "core", "sanitized" or "torch"
        self._configure()
        if not self.make(jobs=4):
            sys.exit(f"mutate: the tree does not build\n{self.last_output[-3000:]}")
        self.tests = [] if kind == "torch" else self._list_tests()

    def _adapt(self):
        """LLVM shared; and no search for new files, which would cost more than most builds here."""
        for folder, _, files in os.walk(self.root):
            if "CMakeLists.txt" not in files:
                continue
            path = os.path.join(folder, "CMakeLists.txt")
            with open(path) as file:
                text = file.read()
            if folder == self.root and "opq_fusion ${opaque_llvm}" not in text:
                sys.exit("mutate: CMakeLists.txt no longer links ${opaque_llvm} where it did")
            text = text.replace("opq_fusion ${opaque_llvm}", "opq_fusion LLVM").replace(
                "CONFIGURE_DEPENDS", ""
            )
            with open(path, "w") as file:
                file.write(text)

    def _configure(self):
        command = ["cmake", "-S", self.root, "-B", self.build, "-G", "Ninja"]
        command += [f"-DOPAQUE_TORCH={'ON' if self.kind == 'torch' else 'OFF'}"]
        command += [f"-DOPAQUE_SANITIZE={'ON' if self.kind == 'sanitized' else 'OFF'}"]
        if self.kind == "torch":
            command += [f"-DPython3_EXECUTABLE={sys.executable}", "-DOPAQUE_TESTS=OFF"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def make(self, *targets: str, jobs: int = 1) -> bool:
        command = ["ninja", f"-j{jobs}", "-C", self.build, *targets]
        # The second copy of the tree, and that of the next run, find the objects of the first.
        environment = dict(os.environ, CCACHE_BASEDIR=self.root, CCACHE_NOHASHDIR="1")
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS
        )
        self.last_output = done.stdout
        return done.returncode == 0

    def _list_tests(self) -> list:
        tests = []
        for name, command, environment, _ in c_tests(self.build):
            target = os.path.relpath(command[0], self.build)
            folder = target.split("/")[1] if target.startswith("tests/") else ""
            tests.append(Test(name, target, command, environment, folder))
        return tests

    def run(self, test: Test, seconds: float) -> str:
        """'' if it passed, else how it ended."""
        environment = dict(os.environ, **test.environment)
        try:
            done = subprocess.run(
                test.command,
                env=environment,
                cwd=self.build,
                timeout=seconds,
                capture_output=True,
                preexec_fn=limited if self.kind == "core" else None,  # ASan maps far more
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        self.last_output = done.stderr.decode(errors="replace")
        return "" if done.returncode == 0 else "test"

    def measure(self, known: dict):
        """How long each test takes without a change; `known` are times of a run that this one goes on with."""
        if all(test.name in known for test in self.tests):
            for test in self.tests:
                test.seconds = known[test.name]
            return
        for test in self.tests:
            start = time.monotonic()
            if self.run(test, 600):
                sys.exit(
                    f"mutate: {test.name} fails without any change\n{self.last_output[-3000:]}"
                )
            test.seconds = time.monotonic() - start
        print("tests: " + ", ".join(f"{t.name} {t.seconds:.1f}" for t in self.tests), flush=True)

    def python(self, files: str, seconds: float) -> str:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            *(f"tests/python/test_{name}.py" for name in files.split()),
        ]
        environment = dict(os.environ, PYTHONPATH=os.path.join(self.root, "python"))
        try:
            done = subprocess.run(
                command, env=environment, cwd=self.root, timeout=seconds, capture_output=True
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        return "" if done.returncode == 0 else "test"


# ---- one mutant


class Broken:
    """The mutant in place, and the file as it was afterwards."""

    def __init__(self, tree: Tree, mutant: Mutant):
        self.path, self.mutant = os.path.join(tree.root, mutant.file), mutant

    def __enter__(self):
        with open(self.path) as file:
            self.text = file.read()
        m = self.mutant
        with open(self.path, "w") as file:
            file.write(self.text[: m.start] + m.text + self.text[m.end :])

    def __exit__(self, *_):
        with open(self.path, "w") as file:
            file.write(self.text)


def judge(tree: Tree, mutant: Mutant, tests: list) -> tuple:
    """(how it ended, by which test): compile, test, timeout or survived."""
    folder = mutant.file.split("/")[0]
    own = TESTS_OF.get(folder, folder)
    with Broken(tree, mutant):
        if tree.kind == "torch":
            if not tree.make():
                return "compile", ""
            for files in PYTHON_TESTS:
                end = tree.python(files, 900)
                if end:
                    return end, "pytest"
            return "survived", ""
        if not tree.make(f"libopq_{folder}.a"):
            return "compile", ""
        for part in [[t for t in tests if t.folder == own], [t for t in tests if t.folder != own]]:
            if part and not tree.make(*{t.target for t in part}):
                return "compile", ""
            for test in sorted(part, key=lambda t: t.seconds):
                end = tree.run(test, 60 + 20 * test.seconds)
                if end:
                    return end, test.name
    return "survived", ""


class Session:
    """Results so far, by mutant; also in the log."""

    def __init__(self, options, log):
        self.options, self.results, self.explained = options, {}, explained()
        self.deadline = time.monotonic() + options.minutes * 60
        if os.path.exists(options.log):
            with open(options.log) as before:
                for row in map(json.loads, before):
                    mutant = found_again(row)
                    anew = options.again and row["end"] == "survived"
                    if mutant:
                        self.results[mutant] = row["end"], row["by"], "" if anew else row["stage"]
        self.log = log

    def keep(self, mutant: Mutant, end: str, by: str, stage: str):
        self.results[mutant] = end, by, stage
        row = dict(dataclasses.asdict(mutant), end=end, by=by, stage=stage)
        print(json.dumps(row), file=self.log, flush=True)

    def work(self, tree: Tree, todo: queue.Queue, stage: str, tests: list):
        while time.monotonic() < self.deadline:
            try:
                mutant = todo.get_nowait()
            except queue.Empty:
                return
            self.keep(mutant, *judge(tree, mutant, tests), stage)

    def run(self, mutants: list, kind: str, stages: list):
        """The stages, one after the other, for those that survived the one before."""
        with tempfile.TemporaryDirectory(prefix="mutate.") as scratch:
            trees = [
                Tree(os.path.join(scratch, str(job)), kind) for job in range(self.options.jobs)
            ]
            times = self.options.log + "." + kind
            known = {}
            if os.path.exists(times):
                with open(times) as file:
                    known = json.load(file)
            trees[0].measure(known)
            if self.options.log != os.devnull:
                with open(times, "w") as file:
                    json.dump({t.name: t.seconds for t in trees[0].tests}, file)
            for stage in stages:
                todo, threads = queue.Queue(), []
                for mutant in mutants:
                    if self.is_open(mutant, stage):
                        todo.put(mutant)
                tests = [
                    t
                    for t in trees[0].tests
                    if stage not in ("fast", "slow") or is_fast(t) == (stage == "fast")
                ]
                for tree in trees:
                    # A test of another tree is the same program under another root.
                    own = [t for t in tree.tests if t.name in {x.name for x in tests}]
                    for test in own:
                        test.seconds = next(x.seconds for x in tests if x.name == test.name)
                    threads.append(
                        threading.Thread(target=self.work, args=(tree, todo, stage, own))
                    )
                    threads[-1].start()
                for thread in threads:
                    thread.join()

    def is_open(self, mutant: Mutant, stage: str) -> bool:
        """Has it survived all stages before this one, and not been through this one?"""
        end, _, last = self.results.get(mutant, ("survived", "", ""))
        if end != "survived" or mutant.key() in self.explained:
            return False
        if last == "":
            return stage == ("torch" if mutant.file.startswith("registration/") else STAGES[0])
        return STAGES.index(last) < STAGES.index(stage)


STAGES = ["fast", "slow", "sanitized", "torch"]


def is_fast(test: Test) -> bool:
    return test.seconds < FAST_SECONDS


# ---- the report


def explained() -> dict:
    if not os.path.exists(EXPLAINED):
        return {}
    with open(EXPLAINED, newline="") as file:
        return {(r["file"], r["before"], r["after"]): r["reason"] for r in csv.DictReader(file)}


def report(session: Session) -> int:
    """Prints the table and the survivors; how many nobody has explained."""
    results = [(m, end, stage) for m, (end, _, stage) in session.results.items()]
    known, columns = explained(), ["compile", "test", "timeout", "survived"]
    print(
        f"\n{'folder':14}{'mutants':>9}"
        + "".join(f"{c:>10}" for c in columns)
        + f"{'explained':>11}"
    )
    for folder in dict.fromkeys(m.file.split("/")[0] for m, _, _ in results):
        rows = [(m, end) for m, end, _ in results if m.file.startswith(folder + "/")]
        counts = [sum(end == c for _, end in rows) for c in columns]
        fine = sum(end == "survived" and m.key() in known for m, end in rows)
        print(f"{folder:14}{len(rows):9}" + "".join(f"{n:10}" for n in counts) + f"{fine:11}")
    open_ones = 0
    for m, end, stage in sorted(results, key=lambda r: (r[0].file, r[0].line)):
        if end == "survived":
            print(
                f"\n{m.file}:{m.line}: {m.operator}, tests up to: {stage}\n- {m.before}\n+ {m.after}"
            )
            print(f"  {known.get(m.key(), 'NOT EXPLAINED')}")
            open_ones += m.key() not in known
    return open_ones


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folders", default=",".join(CORE))
    parser.add_argument("--count", type=int, default=40, help="mutants of each folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="start no mutant after this time"
    )
    parser.add_argument(
        "--python", action="store_true", help="judge survivors by Python tests as well"
    )
    parser.add_argument("--again", action="store_true", help="judge the log's survivors anew")
    parser.add_argument("--log", default=os.devnull, help="a line of JSON for each result")
    options = parser.parse_args()
    folders = options.folders.split(",")
    chosen = {folder: choose(folder, options.count, options.seed) for folder in folders}
    # One of each folder in turn, so that a run that ends early has seen them all.
    turns = [(turn, m) for f in folders for turn, m in enumerate(chosen[f])]
    turns.sort(key=lambda pair: pair[0])
    with open(options.log, "a") as log:
        session = Session(options, log)
        mutants = list(dict.fromkeys([m for _, m in turns] + list(session.results)))
        mutants = [m for m in mutants if m.file.split("/")[0] in folders]
        core = [m for m in mutants if m.file.split("/")[0] in CORE]
        if core:
            session.run(core, "core", ["fast", "slow"])
        if any(session.is_open(m, "sanitized") for m in core):
            session.run(core, "sanitized", ["sanitized"])
        if options.python:
            session.run(mutants, "torch", ["torch"])
    return int(report(session) > 0)


if __name__ == "__main__":
    sys.exit(main())
