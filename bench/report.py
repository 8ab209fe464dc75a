"""Results as lines for a terminal and as RESULTS.md.

A result is what measure.py found of a row, with "cpu" and "threads":

    {"name", "engines": {name: {"first", "min", "median", "samples", "difference", "wrong"}}, "notes": [[engine, word, reason]],
     "least": seconds of the roofline or None}        of a plan {"name", "plan": seconds}, of a row without result {"name", "crash": why}

A table in RESULTS.md is kept as its cells, dictionaries of text, so that rows measured now can be put among those of before.
"""

import math
import re

from engines import PEERS
from registry import ROWS

COLUMNS = ("row", "ratio", "to", "opaque", *PEERS, "roofline", "first call", "difference")


def rounded(number, digits=3):
    """With so many significant digits, without an exponent."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    places = digits - 1 - math.floor(math.log10(abs(number)))
    return f"{round(number, places):.{max(0, places)}f}"


def microseconds(cell):
    return f"{rounded(cell['min'] * 1e6)} ({rounded(cell['median'] * 1e6)})"


def ratios(result):
    """{peer: its median / the median of opaque}: above 1 opaque is faster. Of those that are right."""
    engines = result.get("engines", {})
    if "opaque" not in engines:
        return {}
    own = engines["opaque"]["median"]
    right = {peer for peer in PEERS if peer in engines and not engines[peer].get("wrong")}
    return {peer: engines[peer]["median"] / own for peer in PEERS if peer in right}


def problem(result):
    """Why the row failed, or None."""
    row = ROWS[result["name"]]
    if "crash" in result:
        return result["crash"]
    if "plan" in result:
        seconds = result["plan"]
        return None if seconds is not None and seconds <= row.ceiling else "above its ceiling"
    failures = {name: reason for name, word, reason in result["notes"] if word == "failed"}
    if "opaque" not in result["engines"]:
        return failures.get("opaque", "did not run")
    if result["engines"]["opaque"].get("wrong"):
        return "WRONG"
    ratio = ratios(result).get("eager")
    return "below its floor" if row.floor and ratio is not None and ratio < row.floor else None


def peer_cell(result, peer):
    cell = result["engines"].get(peer)
    if cell:
        return microseconds(cell) + (" wrong" if cell.get("wrong") else "")
    for name, word, reason in result["notes"]:
        if name == peer and word == "failed":
            late = re.search(r"over [\d.]+ s", reason)
            return late[0] if late else "failed"
    return "-"


def cells(result):
    """A result as texts, {column: text}."""
    if "engines" not in result:
        return {**dict.fromkeys(COLUMNS, "-"), "row": result["name"], "ratio": "0", "to": "crashed"}
    found, engines = ratios(result), result["engines"]
    best = min(found, key=found.get, default=None)
    own = engines.get("opaque")
    first = " / ".join(
        rounded(engines[name]["first"], 2) if name in engines else "-"
        for name in ("opaque", *PEERS)
    )
    return {
        "row": result["name"],
        "ratio": rounded(found[best]) if best else "0",
        "to": best or "-",
        **{name: peer_cell(result, name) for name in ("opaque", *PEERS)},
        "roofline": f"{result['least'] / own['min']:.0%}" if own and result["least"] else "-",
        "first call": first,
        "difference": f"{own['difference']:.1e}" if own and "difference" in own else "-",
    }


# ---- lines


def heading(peers):
    columns = "".join(f"{peer + ' us':>21} {'ratio':>7}" for peer in peers)
    return f"{'row':34} {'opaque us':>21}{columns} {'floor':>6} {'roof':>5}  difference"


def line(result, peers):
    row, texts, wrong = ROWS[result["name"]], cells(result), problem(result)
    end = f"  {wrong}" if wrong else ""
    if "plan" in result:
        planned = "new kernels in each run" if result["plan"] is None else f"{result['plan']:.3f} s"
        return f"{row.name:34} {'planned in ' + planned:>21} ceiling {row.ceiling:g}{end}"
    if "crash" in result:
        return f"{row.name:34} {end}"
    found = ratios(result)
    columns = "".join(
        f"{texts[peer]:>21} {rounded(found[peer]) + 'x' if peer in found else '-':>7}"
        for peer in peers
    )
    notes = "".join(
        f"\n    {n} failed: {why}" for n, word, why in result["notes"] if word == "failed"
    )
    return (
        f"{row.name:34} {texts['opaque']:>21}{columns} {row.floor or '-':>6} {texts['roofline']:>5}"
        f"  {texts['difference']}{end}{notes}"
    )


# ---- RESULTS.md

_INTRODUCTION = """\
Programs that change (`dynamic_`) and first calls in new processes (`first_`) first, then losses: `ratio` is the median of the fastest
peer, named beside it, divided by the median of opaque; below 1 opaque is slower.

Each row ran in a process of its own, pinned to as many processors as it has threads. The engines took turns call by call, after a first
call each whose seconds (opaque / eager / inductor / inductor-max / jax) are apart: there is what was compiled. Times are microseconds,
minimum (median), of one thread the time it had the processor, else what a clock shows; results were held until they were there.
`difference` is the largest from eager in f64 or, in rows of integers and of one call, from eager; `wrong` are results farther away than
rounding explains. `roofline` is the share of what the processor can do, measured in the same process before and after: operations at its
peak of fused multiply-adds, bytes at the speed of adding arrays of that size, functions not counted; a program that reads more arrays at
once than an addition can be above it. `-` was not asked for, not written or without meaning: inductor-max (max-autotune and freezing) is
run where there are weights. Of rows of kind `once` in bench/rows/ the first call is the time. The machine was not idle: read ratios."""


def section(cpu, threads):
    return f"{cpu}, {threads} thread{'s' if threads > 1 else ''}"


def order(texts):
    """Programs that change and first calls before all others."""
    return not texts["row"].startswith(("dynamic_", "first_")), float(texts["ratio"]), texts["row"]


def table(rows):
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row[c] for c in COLUMNS)} |" for row in sorted(rows, key=order)]
    return "\n".join(lines)


def command(sections):
    """What measures all of it."""
    rows = [row for part in sections.values() for row in part]
    titles = [re.match(r"(\w+), (\d+)", title).groups() for title in sections]
    options = {
        "vs": [peer for peer in PEERS if any(row[peer] != "-" for row in rows)],
        "cpu": dict.fromkeys(cpu for cpu, _ in titles),
        "threads": dict.fromkeys(threads for _, threads in titles),
    }
    return "./dev bench --write " + " ".join(f"--{k} {','.join(v)}" for k, v in options.items())


def render(machine, sections):
    """RESULTS.md: `machine` is a line, `sections` {title: [texts]}."""
    parts = [f"# Results\n\n{machine}\n\nMade by `{command(sections)}`.\n\n{_INTRODUCTION}"]
    for title, rows in sections.items():
        lost = sum(float(row["ratio"]) < 1 for row in rows)
        parts.append(f"## {title}\n\n{len(rows)} rows, {lost} lost.\n\n{table(rows)}")
    return "\n\n".join(parts) + "\n"


def parse(text):
    """(machine, {title: [texts]}) of a RESULTS.md."""
    machine = text.split("\n")[2] if text.startswith("# Results\n") else ""
    sections = {}
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        rows = [line.strip("| ").split(" | ") for line in part.split("\n") if line.startswith("| ")]
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in rows[1:]]
        sections[part.split("\n")[0]] = rows
    return machine, sections


def merged(before, results):
    """Sections with `results` in the place of older rows of the same name."""
    sections = {title: {row["row"]: row for row in rows} for title, rows in before.items()}
    for result in results:
        if "plan" not in result:
            title = section(result["cpu"], result["threads"])
            sections.setdefault(title, {})[result["name"]] = cells(result)
    return {title: list(rows.values()) for title, rows in sections.items()}
