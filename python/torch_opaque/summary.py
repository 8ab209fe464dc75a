"""What explain() prints: equal things once with their number, the dearest first."""

import re
from collections import defaultdict

KERNELS, EDGES, KEEPERS, MODULES = 12, 7, 4, 7  # rows shown of each table
_NEAR = 0.2, 0.25  # shares of a time within which others are like it: at least, at most


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: "12.3 us", "4.56 ms", "1.20 s"."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.2f} us"


def bytes_text(count: int) -> str:
    """Decimal units, as in GB/s: "512 B", "1.50 MB"."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def run_text(run: dict) -> str:
    """Why a run had to be planned, and what it compiled."""
    if run["why"] is None:
        return "the plan was there"
    return f"planned, {run['compiled']} of {run['kernels']} kernels compiled: {run['why']}"


_PLANNED = {
    "set_plan": "OPAQUE_TIERS is off",
    "mode": "planned(), unfused() or eager() is on",
    "whole": "what is fused decides how f16 and bf16 are rounded, or an extern call and its results stand apart",
}


def unwatched_text(run: dict) -> str:
    """What runs of its graph do when nobody looks, and why."""
    tier = run["unwatched"]
    kind, count = tier["kind"], tier["runs_in_pieces"]
    ran = f"{count} run{'' if count == 1 else 's'} in pieces" if count else ""
    if kind == "plan":
        return f"unwatched: it runs by its plan{ran and f', after {ran}'}"
    if kind == "pieces":
        each, price = seconds_text(tier["each_seconds"]), seconds_text(tier["price_seconds"])
        return (
            f"planned to be looked at; unwatched: {ran or 'no run yet, the first ones are in pieces'}, each about {each} dearer than by a plan, "
            f"which is made when they have cost {price}, as much as planning {tier['ops']} ops takes, or earlier in a loop; what has to be compiled for it must pay, too"
        )
    if kind == "background":
        return f"planned to be looked at; unwatched: {ran}, while a thread in the background makes its plan"
    if kind == "set_pieces":
        return "planned to be looked at; unwatched: it runs in pieces, because of OPAQUE_TIERS"
    return f"unwatched: it is planned before it runs, because {_PLANNED[kind]}"


def table(header: tuple, rows: list) -> str:
    """Columns as wide as their widest cell, the first left-aligned. Columns without a word are left out."""
    cells = [tuple(map(str, row)) for row in [header, *rows]]
    shown = [i for i in range(len(header)) if any(row[i] for row in cells[1:])] or [0]
    widths = {i: max(len(row[i]) for row in cells) for i in shown}
    lines = []
    for row in cells:
        line = "  ".join(
            row[i].ljust(widths[i]) if i in (0, len(row) - 1) else row[i].rjust(widths[i])
            for i in shown
        )
        lines.append(line.rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def fold(names: list) -> str:
    """One name for several: components that differ are "*". "h.0.attn", "h.1.attn" -> "h.*.attn"."""
    parts = [name.split(".") for name in dict.fromkeys(names)]
    if len({len(p) for p in parts}) > 1:
        return "*"
    return ".".join(p[0] if len(set(p)) == 1 else "*" for p in zip(*parts, strict=True))


def pattern(name: str) -> str:
    """Layers are equal but for their number: "h.3.attn" -> "h.*.attn"."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _times(count: int) -> str:
    return f" x {count}" if count > 1 else ""


def _grouped(items, key) -> list:
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else ""


def _rest(groups: list, most: int, seconds: float, whole: float) -> str:
    return f"... {len(groups) - most} more rows: {seconds_text(seconds)}, {_share(seconds, whole)}"


def _sum(launches: list, key: str):
    return sum(launch[key] for launch in launches)


def rate(launches: list) -> str:
    """GFLOP/s where arithmetic is the work, else GB/s."""
    seconds, flops = _sum(launches, "seconds"), _sum(launches, "flops")
    moved = _sum(launches, "bytes_read") + _sum(launches, "bytes_written")
    if seconds <= 0:
        return ""
    if flops > 8 * moved:
        return f"{flops / seconds / 1e9:.3g} GFLOP/s"
    return f"{moved / seconds / 1e9:.3g} GB/s"


def products_of(nodes) -> str | None:
    """What the machine may have faster instructions for: a key of its "products"."""
    for node in nodes:
        if node.op == "matmul" and (node.attrs.get("pairs") or node.dtype == "i32"):
            return {0: "i8", 1: "pairs", 16: "pairs16"}[node.attrs.get("pairs", 0)]
    return None


def roof_seconds(launch: dict, machine: dict, products: str | None = None) -> float:
    """The least time in which the machine can move its bytes, at the rate of what fits where they fit, and do its arithmetic, `products` by
    instructions that do several multiply-adds in place of one."""
    moved = launch["bytes_read"] + launch["bytes_written"]
    fits = [r for size, r in machine["bandwidth"] if moved <= size] or [machine["bandwidth"][-1][1]]
    return max(
        moved / fits[0],
        launch["flops"] / machine["flops_per_second"] / machine["products"].get(products, 1),
    )


def _roof(launches: list) -> str:
    """Their share of what the roofline allows; calls of other libraries have none."""
    seconds = _sum(launches, "seconds")
    if seconds <= 0 or any(launch.get("roof_seconds") is None for launch in launches):
        return ""
    return _share(_sum(launches, "roof_seconds"), seconds)


def _spread(launches: list) -> str:
    """How far they are from their median in half of the runs."""
    seconds = _sum(launches, "seconds")
    if seconds <= 0 or not all(
        "low" in launch and launch["low"] < launch["high"] for launch in launches
    ):
        return ""
    share = 50 * (_sum(launches, "high") - _sum(launches, "low")) / seconds
    return f"{share:.0f}%" if share < 1000 else ">999%"


def _moved(launches: list) -> int:
    return _sum(launches, "bytes_read") + _sum(launches, "bytes_written")


def by_time(groups: list) -> list:
    """Lists of launches, the dearest first. Those that the runs do not tell apart, because their times are nearly the same for what they spread, stand by what
    they move, which is the same in each run."""

    def near(group) -> float:
        lost = sum(launch["seconds"] - launch.get("low", launch["seconds"]) for launch in group)
        return min(max(_NEAR[0], lost / (_sum(group, "seconds") or 1)), _NEAR[1])

    found, ordered = sorted(groups, key=lambda g: -_sum(g, "seconds")), []
    while found:
        least = (1 - near(found[0])) * _sum(found[0], "seconds")
        count = sum(_sum(g, "seconds") >= least for g in found)
        alike = sorted(
            found[:count], key=lambda g: (-_moved(g), -_sum(g, "flops"), groups.index(g))
        )
        ordered, found = ordered + alike, found[count:]
    return ordered


def _first(names: list, most: int) -> str:
    return " ".join(names[:most]) + (" ..." if len(names) > most else "")


def _lines(launches: list) -> str:
    lines = list(dict.fromkeys(x for launch in launches for x in launch["lines"].split()))
    libraries = list(dict.fromkeys(x for launch in launches for x in launch["libraries"]))
    return " via ".join(filter(None, (_first(lines, 3), _first(libraries, 2))))


def _kernel_row(group: list, whole: float) -> tuple:
    seconds, first = _sum(group, "seconds"), group[0]
    name = first["name"] if len(group) == 1 else re.sub(r"_\d+$", "", first["name"])
    compiled = _sum(group, "compile_seconds")
    return (
        name + (" (extern)" if first["kind"] == "extern" else "") + _times(_sum(group, "rows")),
        first["shape"],
        seconds_text(seconds),
        _spread(group),
        _share(seconds, whole),
        bytes_text(_moved(group)),
        rate(group),
        _roof(group),
        f"compiled {seconds_text(compiled)}" if any(k["fresh"] for k in group) else "cached",
        fold([k["module"] for k in group]),
        _lines(group),
    )


def kernel_table(launches: list) -> str:
    """A row for launches of one name, shape and place in a layer; by time."""

    def key(launch):
        return re.sub(r"_\d+$", "", launch["name"]), launch["shape"], pattern(launch["module"])

    whole = _sum(launches, "seconds")
    groups = by_time(_grouped(launches, key))
    header = (
        "kernel",
        "shape",
        "time",
        "+-",
        "share",
        "bytes",
        "rate",
        "of roof",
        "cache",
        "module",
        "source",
    )
    text = table(header, [_kernel_row(group, whole) for group in groups[:KERNELS]])
    if len(groups) > KERNELS:
        rest = sum(_sum(group, "seconds") for group in groups[KERNELS:])
        text += "\n" + _rest(groups, KERNELS, rest, whole)
    return text


def totals(launches: list, key: str, most: int) -> str:
    """Time and bytes by `key` of the launches, equal layers as one where there are more than `most`; empty where all have one."""
    whole = _sum(launches, "seconds")
    few = len({launch[key] for launch in launches}) <= most
    groups = _grouped(launches, lambda launch: launch[key] if few else pattern(launch[key]))
    groups.sort(key=lambda g: -_sum(g, "seconds"))
    if len(groups) < 2:
        return ""
    rows = [
        (
            fold([launch[key] for launch in group]) or "(none)",
            _sum(group, "rows"),
            seconds_text(_sum(group, "seconds")),
            _share(_sum(group, "seconds"), whole),
            bytes_text(_sum(group, "bytes_read") + _sum(group, "bytes_written")),
        )
        for group in groups[:most]
    ]
    text = table((key, "kernels", "time", "share", "bytes"), rows)
    if len(groups) > most:
        rest = sum(_sum(group, "seconds") for group in groups[most:])
        text += "\n" + _rest(groups, most, rest, whole)
    return text


def distinct(edges: list) -> list:
    """One edge of each value and kernel that reads it."""
    return list({(e.producer.id, id(e.consumer.kernel)): e for e in edges}.values())


def _edge_kind(edge) -> tuple:
    modules = pattern(edge.producer.module), pattern(edge.consumer.module)
    return (edge.ends, modules, edge.refusal, edge.producer.place)


def _saved(edges: list) -> int:
    return sum(e.saves for e in edges)


def _edge_groups(edges: list) -> list:
    """Those of one kind and place; first those that one can do something about, and of these what fusing would save the most bytes of."""

    def rank(group):
        saved = _saved(group)
        return not (group[0].acts and saved), -saved

    return sorted(_grouped(distinct(edges), _edge_kind), key=rank)


def ranked(edges: list) -> list:
    """Edges in the order of their groups; behind them those of a value that a kernel reads for another op as well."""
    rank = {_edge_kind(group[0]): i for i, group in enumerate(_edge_groups(edges))}
    return sorted(edges, key=lambda e: (rank.get(_edge_kind(e), len(rank)), -e.saves))


def edge_lines(edges: list) -> str:
    """A line for edges of one kind and place."""
    groups = _edge_groups(edges)
    lines = []
    for group in groups[:EDGES]:
        edge = group[0]
        ends = [e.producer.module for e in group], [e.consumer.module for e in group]
        places = dict.fromkeys(filter(None, map(fold, ends)))
        where = " at ".join(filter(None, (" -> ".join(places), edge.producer.place)))
        lines.append(
            f"  {' -> '.join(edge.ends)}{_times(len(group))}: {edge.refusal} ({edge.reason}); "
            f"would save {bytes_text(_saved(group))}{where and ', '}{where}"
        )
    if len(groups) > EDGES:
        rest = bytes_text(sum(map(_saved, groups[EDGES:])))
        lines.append(f"  ... {len(groups) - EDGES} more kinds: {rest}")
    remedies = {group[0].refusal: group[0].remedy for group in groups[:EDGES]}
    if any(remedies.values()):
        lines.append("what can be done:")
        lines += [f"  {refusal}: {remedy}" for refusal, remedy in remedies.items()]
    return "\n".join(lines)


def keeper_table(keepers: list) -> str:
    """(what keeps it, type, bytes): a row for equal ones, those of equal layers too; by bytes."""
    groups = _grouped(keepers, lambda keeper: (pattern(keeper[0]), keeper[1]))
    sizes = [sum(size for _, _, size in group) for group in groups]
    rows = [
        (fold([what for what, _, _ in group]) + _times(len(group)), group[0][1], size)
        for group, size in zip(groups, sizes, strict=True)
    ]
    rows.sort(key=lambda row: -row[2])
    shown = [(what, kind, bytes_text(size)) for what, kind, size in rows[:KEEPERS]]
    text = table(("kept by", "value", "bytes"), shown)
    if len(rows) > KEEPERS:
        text += f"\n... {len(rows) - KEEPERS} more rows: {bytes_text(sum(r[2] for r in rows[KEEPERS:]))}"
    return text
