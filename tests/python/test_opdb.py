"""tests/opdb/sweep.py against what is expected of it.

expected.csv lists the entries that do not pass, with the reason; it may only shrink. strict.txt lists the entries with a gradient
that pass both ways without one extern call; it may only grow. An entry that does better than listed fails the test too: list it.
Of entries with more than 6 samples 6 are run; all with --full, and of the entries in expected.csv always.
`./dev python tests/python/test_opdb.py` rewrites both and keeps the reasons.
"""

import csv
import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "opdb"
sys.path.insert(0, str(FOLDER))

import sweep  # noqa: E402

FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))
JOBS = int(os.environ.get("OPAQUE_TEST_JOBS", len(os.sched_getaffinity(0))))


def expected() -> dict:
    """{entry: (forward, backward, reason)}"""
    with open(FOLDER / "expected.csv", newline="") as file:
        return {
            row["op"]: (row["forward"], row["backward"], row["reason"])
            for row in csv.DictReader(file)
        }


def strict_entries() -> list:
    return (FOLDER / "strict.txt").read_text().split()


def passes(row) -> bool:
    return row[0] == "ok" and row[1] in ("ok", "-")


def test_every_reason_is_given():
    assert all(reason for _, _, reason in expected().values())
    assert set(expected()) <= set(sweep.entries())


def rounded() -> set:
    """Entries whose gradients differ from the CPU's by rounding, or do not: that depends on the machine's CPU kernels."""
    return {name for name, row in expected().items() if row[2].startswith("rounding")}


@pytest.fixture(scope="module")
def rows() -> dict:
    names = sweep.entries()
    few = {} if FULL else {name: 6 for name in names if name not in expected()}
    return sweep.sweep(names, JOBS, samples=few)


def native(row) -> bool:
    return row[:2] == ("ok", "ok") and not row[3]


def test_values_and_gradients(rows):
    listed, wrong = expected(), []
    for name, row in rows.items():
        want = listed.get(
            name, ("ok", row[1] if row[1] != "error" and row[1] != "wrong" else "ok")
        )[:2]
        if row[:2] != want and not (name in rounded() and row[:2] == ("ok", "ok")):
            wrong.append(f"{name}: {row[:2]}, expected {want}: {row[2]}")
    assert not wrong, "\n".join(wrong)


def test_without_extern_calls(rows):
    listed = set(strict_entries())
    rows = {n: r for n, r in rows.items() if n not in rounded()}
    lost = [f"{n}: {r}" for n, r in rows.items() if n in listed and not native(r)]
    found = [n for n, r in rows.items() if FULL and n not in listed and native(r)]
    assert not lost and not found, f"no longer: {lost}; newly, to be listed in strict.txt: {found}"


def test_floors():
    """What the two files promise: no wrong value, 99 % of the values, 98 % of the gradients, 150 entries without a fallback."""
    rows = expected().values()
    total = len(sweep.entries())
    assert sum(r[0] != "ok" for r in rows if r[0] != "-") <= 0.01 * total
    assert sum(r[1] in ("wrong", "error") for r in rows) <= 0.02 * len(strict_entries())
    assert not any("crash" in r or "hang" in r for r in rows)
    assert len(strict_entries()) >= 150


def rewrite() -> None:
    old, names = expected(), sweep.entries()
    rows = sweep.sweep(names, jobs=JOBS)
    with open(FOLDER / "expected.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["op", "forward", "backward", "reason"])
        for name, row in rows.items():
            if not passes(row):
                writer.writerow([name, *row[:2], old.get(name, ("", "", ""))[2]])
    good = [n for n, r in rows.items() if native(r)]
    (FOLDER / "strict.txt").write_text("\n".join(good) + "\n")


if __name__ == "__main__":
    sys.exit(rewrite())


pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(3600)]
