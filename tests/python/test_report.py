"""to_html(): what the file holds, and the page in a browser. Times have a margin for a machine that does other things too."""

import base64
import json
import os
import re
import statistics
import sys
import time
import zlib

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from torch_opaque import report
from torch_opaque.summary import distinct

D = "opaque"
MARGIN = 6  # of the times asked for on a quiet machine


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def training_step(width=32):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(width), Layer(width)).to(D)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, width, device=D)

    def step():
        loss = model(x).softmax(-1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step().item()
    return step


COMPARISON = {
    "schema": "opaque.comparison",
    "version": 1,
    "rows": [
        {"mode": "eager", "seconds": 0.012, "low": 0.011, "high": 0.013, "max_difference": None},
        {"mode": "fused", "seconds": 0.004, "low": 0.0039, "high": 0.0041, "max_difference": 0.0},
    ],
    "notes": ["difference of nan"],
}
DIFFERENCE = {
    "totals": {"ops": [10, 12], "bytes": [2000, 3000], "seconds": [float("nan"), 0.002]},
    "added": [
        {
            "id": 3 + i,
            "text": f"%{3 + i} = tanh f32[2] %2  # a.py:3 in h.{i}",
            "line": "a.py:3",
            "module": f"h.{i}",
        }
        for i in range(2)
    ],
    "changed": [],
}


@pytest.fixture(scope="module")
def explanation():
    return torch_opaque.explain(training_step(), show=False)


@pytest.fixture(scope="module")
def file(explanation, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "step.html"
    explanation.to_html(path, comparison=COMPARISON, difference=DIFFERENCE)
    return path


def parts_of(path) -> dict:
    """What a report holds, by part."""
    found = re.findall(r'data-part="(\w+)">([^<]*)<', path.read_text())
    return {name: json.loads(zlib.decompress(base64.b64decode(text))) for name, text in found}


# ---- the file


def test_the_file_has_what_the_core_says(explanation, file):
    parts = parts_of(file)
    graph = explanation.graph
    for stage in ("recorded", "simplified", "fused"):
        assert parts[stage]["nodes"] == graph.stage(stage)._document["nodes"]
    rows = parts["report"]["kernels"]
    assert [k["name"] for k in rows] == [k.name for k in graph.kernels]
    assert [k["bytes_read"] for k in rows] == [k.bytes_read for k in graph.kernels]
    assert len(parts["report"]["edges"]) == len(distinct(graph.unfused)) > 0
    assert parts["report"]["run"]["kernels"] == explanation.kernels


def test_kernels_of_equal_loops_share_their_code(explanation, file):
    parts = parts_of(file)
    codes = [k["code"] for k in parts["report"]["kernels"] if k["code"] is not None]
    assert len(parts["code"]) == len(set(codes)) < len(codes)
    first = parts["report"]["kernels"][0]
    for stage, text in parts["code"][first["code"]].items():
        assert text == explanation.graph.kernels[0].text(stage)


def test_a_call_has_one_number_at_every_stage():
    x = torch.ones(4, 8).to(D)
    graph = torch_opaque.graph(lambda: torch.softmax(x * 2, -1))
    recorded = {
        n["op"]: n["call"] for n in graph._document["nodes"] if n["op"] not in ("input", "scalar")
    }
    fused = graph.stage("fused")._document["nodes"]
    assert recorded.keys() == {"mul", "softmax"} and len(set(recorded.values())) == 2
    assert {n["call"] for n in fused if n["op"] == "exp"} == {recorded["softmax"]}
    assert {n["call"] for n in fused if n["op"] == "mul"} == {recorded["mul"]}


def test_nodes_say_their_bytes():
    x = torch.ones(4, 8, dtype=torch.bfloat16).to(D)
    nodes = torch_opaque.graph(lambda: x.tanh().amax(1))._document["nodes"]
    assert {n["op"]: n["bytes"] for n in nodes} == {
        "input": 64,
        "tanh": 64,
        "amax": 8,
        "reshape": 8,
    }


def test_sources_are_excerpts(file):
    sources = parts_of(file)["report"]["sources"]
    runs = sources[__file__]
    with open(__file__) as text:
        lines = text.read().splitlines()
    for first, shown in runs:
        assert shown == lines[first - 1 : first - 1 + len(shown)]
    assert any("self.down(F.gelu" in line for _, shown in runs for line in shown)
    assert sum(len(shown) for _, shown in runs) < len(lines) / 2


def test_values_live_from_writer_to_last_reader(explanation, file):
    values = {node: (first, last) for node, first, last in parts_of(file)["report"]["values"]}
    graph = explanation.graph
    end = max(k.launch for k in graph.kernels)
    stored = [n for n in graph.nodes if n.stored and n.kernel]
    assert set(values) == {n.id for n in stored}
    for node in stored:
        first, last = values[node.id]
        readers = [u.kernel.launch for u in node.users if u.kernel and u.kernel is not node.kernel]
        assert first == node.kernel.launch <= last <= end
        assert last == end if node.output else all(r <= last for r in readers)


def test_a_graph_alone(tmp_path):
    x = torch.ones(4, 8).to(D)
    graph = torch_opaque.graph(lambda: torch.softmax(x * 2, -1))
    graph.to_html(tmp_path / "g.html")
    parts = parts_of(tmp_path / "g.html")
    assert parts["report"]["run"] is None and parts["code"]
    again = torch_opaque.graphs.Graph.from_json(graph.to_json())
    again.to_html(tmp_path / "again.html", title="<again> & again")
    parts = parts_of(tmp_path / "again.html")
    assert parts["report"]["stages"] == ["recorded"] and parts["report"]["kernels"] == []
    assert "<title>&lt;again&gt; &amp; again</title>" in (tmp_path / "again.html").read_text()


def test_extern_calls_have_no_code(tmp_path):
    x = torch.eye(4).to(D)
    torch_opaque.explain(lambda: torch.special.i0e(x) * 2, show=False).to_html(tmp_path / "e.html")
    kernels = parts_of(tmp_path / "e.html")["report"]["kernels"]
    assert {k["kind"]: k["code"] is None for k in kernels} == {"extern": True, "map": False}


def test_without_npm_there_is_a_word(explanation, tmp_path, monkeypatch):
    monkeypatch.setattr(report.resources, "files", lambda package: tmp_path)
    with pytest.raises(RuntimeError, match="built with npm"):
        explanation.to_html(tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_a_notebook_without_the_script_has_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(report.resources, "files", lambda package: tmp_path)
    x = torch.ones(4).to(D)
    text = torch_opaque.graph(lambda: x < 2)._repr_html_()
    assert text.startswith("<pre>") and "lt bool" in text and "<lambda>" not in text


def test_a_path_that_cannot_be_written(explanation, tmp_path):
    with pytest.raises(OSError):
        explanation.to_html(tmp_path / "absent" / "x.html")


# ---- the page


@pytest.fixture
def visit(browser):
    """Opens a report in a window of its own; at the end, nothing was written to the console and nothing asked for."""
    pages, said, asked = [], [], []

    def open_page(path, theme="light"):
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=theme)
        pages.append(page)
        page.set_default_timeout(20000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{path}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []
    assert [url for url in asked if not url.startswith("file://")] == []


def test_a_notebook_shows_the_report(browser, explanation, tmp_path):
    """Its cells are frames in a page that runs other scripts and lets them not reach it."""
    graph = torch_opaque.graph(lambda: torch.ones(4).to(D) < 2)
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    path = tmp_path / "cells.html"
    path.write_text(f"<body>{graph._repr_html_()}{explanation._repr_html_()}</body>")
    page.goto(f"file://{path}")
    for number in range(2):
        frame = page.frame_locator("iframe").nth(number)
        frame.locator("html[data-ready]").wait_for(timeout=20000)
        frame.locator("#tab-graph").click()
        frame.locator("#panel-graph").wait_for(state="visible", timeout=20000)
    page.close()
    assert errors == []


@pytest.fixture
def page(visit, file):
    return visit(file)


def wait_until(page, expression):
    """Asks again and again: the page's policy lets no text be run in it, as the browser's own waiting does."""
    end = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def in_pane(page, name):
    return page.locator(f".pane[data-pane={name}]")


def scroll_to(pane, row):
    """Rows out of sight are no elements."""
    pane.locator("[role=row]").first.wait_for()
    height = pane.locator("[role=row]").first.bounding_box()["height"]
    pane.locator(".table").evaluate("(e, top) => { e.scrollTop = top; }", max(0, row - 5) * height)


def tab(page, name):
    page.click(f"#tab-{name}")
    return page.locator(f"#panel-{name}")


def test_every_tab_shows_something(page):
    names = ["overview", "graph", "code", "roofline", "unfused", "memory", "compare", "diff"]
    assert [b.get_attribute("id") for b in page.locator("[role=tab]").all()] == [
        f"tab-{name}" for name in names
    ]
    for name in names:
        panel = tab(page, name)
        panel.wait_for(state="visible")
        assert page.locator("[role=tabpanel]:visible").count() == 1
        assert len(panel.inner_text()) > 20
    assert "null" not in page.locator("#panel-overview").inner_text()


def test_from_the_slow_op_to_its_assembly(page, explanation):
    """Two clicks; three are allowed."""
    page.locator("#panel-overview .table .row").first.click()
    page.click(".inspector button:text-is('Assembly')")
    pane = in_pane(page, "asm")
    pane.locator(
        ".row code", has_text="opq_kernel:"
    ).wait_for()  # it is scrolled there with a later frame
    number = page.evaluate("report.selection.kernel")
    slowest = max(explanation.kernels, key=lambda k: k["seconds"] / k["rows"])
    kernel = explanation.graph.kernels[number]
    assert kernel.kind == slowest["kind"] or len(explanation.kernels) > 1
    text = kernel.text("asm").splitlines()
    shown, first = pane.evaluate(  # of one frame
        """pane => [Array.from(pane.querySelectorAll(".row code"), code => code.textContent),
                    Number(pane.querySelector(".row .number").textContent) - 1]"""
    )
    assert shown == text[first : first + len(shown)] and len(shown) > 20
    assert any(line.startswith("opq_kernel") for line in shown)  # and not directives alone


def test_code_opens_on_the_dearest_kernel(page, explanation):
    tab(page, "code")
    in_pane(page, "asm").locator(".row code").first.wait_for()
    chosen = page.evaluate("report.model.kernels[report.selection.kernel].seconds")
    assert chosen == page.evaluate(
        "Math.max(...report.model.kernels.filter((k) => k.code !== null).map((k) => k.seconds))"
    )


def test_colours_say_how_near_the_roof_a_kernel_is(page, explanation):
    page.click("#panel-overview button[value=roof]")
    shares = page.locator("#panel-overview .cell.leaf[class*=kind-roof]")
    assert (
        shares.count() > 0 and "of the roof" in page.locator("#panel-overview .legend").inner_text()
    )
    tab(page, "graph")
    pressed = page.locator("#panel-graph button[value=roof]").get_attribute("aria-pressed")
    assert pressed == "true" and page.evaluate("report.tabs.get('graph').made.painter.byRoof")


def test_the_graph_begins_with_text_that_can_be_read(page):
    tab(page, "graph").locator("canvas").first.wait_for()
    wait_until(page, "report.tabs.get('graph').made.drawn !== undefined")
    assert page.evaluate("report.tabs.get('graph').made.view.scale") >= 0.8


def test_edges_say_what_can_be_done_and_have_room(page, explanation):
    page.set_viewport_size({"width": 1280, "height": 800})
    panel = tab(page, "unfused")
    panel.locator(".row").first.wait_for()
    remedies = {e.remedy for e in explanation.unfused}
    assert panel.locator(".row > :nth-child(7)").first.inner_text().strip() in remedies
    cut = """() => [...document.querySelectorAll('#panel-unfused .table .row > *')]
        .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"""
    assert page.evaluate(cut) == []


def test_a_selection_is_that_of_every_pane(page, explanation):
    tab(page, "code")
    page.click("#panel-code button:text-is('Recorded')")
    gelu = explanation.graph.stage("recorded").find("gelu*")[0]
    scroll_to(in_pane(page, "recorded"), gelu.id)
    in_pane(page, "recorded").locator(f"[data-index='{gelu.id}']").click()
    assert page.evaluate("report.selection.node") == gelu.id
    call = explanation.graph.stage("recorded")._document["nodes"][gelu.id]["call"]
    fused = in_pane(page, "fused").locator(".row.marked")
    fused.first.wait_for()
    shown = {int(row.get_attribute("data-index")) for row in fused.all()}
    nodes = explanation.graph._document["nodes"]
    assert shown and {nodes[i]["call"] for i in shown} == {call}
    assert "F.gelu(self.up" in in_pane(page, "source").locator(".row.marked").first.text_content()
    kernel = explanation.graph.kernels[page.evaluate("report.selection.kernel")]
    assert shown & {n.id for n in kernel.nodes}
    assert kernel.name in in_pane(page, "kernels").inner_text()
    # Back: a line of source selects the ops that it recorded.
    line = page.evaluate(
        "report.tabs.get('code').made.panes.get('source').lines.findIndex((row) => row.text?.includes('.square().mean()') && row.select)"
    )
    scroll_to(in_pane(page, "source"), line)
    in_pane(page, "source").locator(f"[data-index='{line}']").click()
    marked = in_pane(page, "recorded").locator(".row.marked")
    assert any("softmax" in text for text in marked.all_inner_texts())


def test_search(page):
    page.keyboard.press("/")
    page.keyboard.type("1.up.weight")
    options = page.locator("#found [role=option]")
    assert "1.up.weight" in options.first.inner_text()
    page.keyboard.press("ArrowDown")
    assert options.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert "1.up.weight" in page.locator(".inspector h2").first.inner_text()
    assert page.locator("#found").is_hidden()
    page.keyboard.press("Escape")
    assert page.locator(".search input").input_value() == ""
    page.keyboard.press("/")
    page.keyboard.type("no such thing")
    assert "nothing found" in page.locator("#found").inner_text()


def test_by_keyboard_alone(page):
    page.focus("#tab-overview")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-graph"
    page.locator(".outline [role=row]").first.wait_for()
    rows = int(page.locator(".outline [role=treegrid]").get_attribute("aria-rowcount"))
    page.focus(".outline [role=treegrid]")
    page.keyboard.press("Home")
    first = page.locator(".outline [role=row]").first
    assert first.get_attribute("aria-selected") == "true"
    assert first.get_attribute("aria-expanded") == "true"
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".outline [role=row][aria-expanded=false][aria-selected=true]")
    assert int(page.locator(".outline [role=treegrid]").get_attribute("aria-rowcount")) < rows
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".outline [role=row][aria-expanded=true][aria-selected=true]")
    page.focus(".drawing canvas")
    before = page.evaluate("report.tabs.get('graph').made.item.id")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("report.tabs.get('graph').made.item.id") != before
    page.focus("#tab-graph")
    page.keyboard.press("Home")
    page.focus("#panel-overview .table")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#panel-overview .row.selected").get_attribute("data-index") == "1"
    page.keyboard.press("Enter")
    assert page.locator("#panel-code").is_visible()
    page.keyboard.press("Escape")
    assert page.evaluate("report.selection.empty")


def test_roles_and_names(page):
    """Everything that can be operated has a name; tables say how long they are."""
    for name in ("overview", "graph", "code", "roofline", "unfused", "memory"):
        tab(page, name)
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, canvas:not([aria-hidden]), svg, [role=grid], [role=treegrid]")]
        .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.title)).length"""
    )
    assert nameless == 0
    for table in page.locator("[role=grid]").all():
        assert int(table.get_attribute("aria-rowcount")) >= 0


def test_the_treemap_zooms(page):
    cells = page.locator(".treemap .cell")
    cells.first.wait_for()
    page.locator(".treemap .cell.group").first.click(position={"x": 8, "y": 8})
    here = page.locator(".path [aria-current]")
    assert here.inner_text().startswith("forward") or here.inner_text().startswith("backward")
    page.focus(".treemap .cell")
    page.keyboard.press("Escape")
    assert here.inner_text().startswith("all")
    page.locator(".choice button:text-is('Bytes')").click()
    assert "B, 100%" in here.inner_text()


def test_depths_of_the_graph(page, explanation):
    panel = tab(page, "graph")
    panel.locator("button[value=op]").click()
    made = "report.tabs.get('graph').made"
    wait_until(page, f"{made}.busy.hidden && {made}.depth === 'op'")
    ops = [n for n in explanation.graph.nodes if n.kernel]
    shown = page.evaluate(f"{made}.outline.rows.filter((r) => r.node !== undefined).length")
    assert shown == len(ops)
    overlaps = page.evaluate(
        """() => {
          const inside = (a, p) => a.x >= 0 && a.y >= 0 && a.x + a.w <= p.w && a.y + a.h <= p.h;
          const apart = (a, b) => a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
          let bad = 0;
          const check = (group) => {
            group.children.forEach((a, i) => {
              bad += !inside(a, group);
              for (const b of group.children.slice(i + 1)) bad += !apart(a, b);
              if (a.open) check(a);
            });
          };
          check(report.tabs.get('graph').made.items.root);
          return bad;
        }"""
    )
    assert overlaps == 0
    panel.locator("button[value=recorded]").click()
    wait_until(page, f"{made}.stageName === 'recorded' && {made}.busy.hidden")
    recorded = explanation.graph.stage("recorded")
    ops = [n for n in recorded.nodes if n.op not in ("input", "scalar")]
    assert page.evaluate(f"{made}.items.root.ops") == len(ops)


def test_pan_zoom_and_click_in_the_drawing(page):
    tab(page, "graph")
    made = "report.tabs.get('graph').made"
    wait_until(page, f"{made}.drawn >= 0")
    box = page.locator(".drawing").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = page.evaluate(f"{made}.view")
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    wait_until(page, f"{made}.view.scale > {before['scale']}")
    before = page.evaluate(f"{made}.view")
    page.mouse.down()
    page.mouse.move(x + 60, y + 30, steps=3)
    page.mouse.up()
    after = page.evaluate(f"{made}.view")
    assert after["x"] < before["x"] and after["y"] < before["y"]
    assert page.evaluate("report.selection.empty")  # a drag selects nothing
    page.click("button[aria-label='Fit all']")
    # Each item is hit where it is drawn.
    place = page.evaluate(
        f"""() => {{
          const tab = {made}, item = tab.outline.rows.find((r) => !(r.open && r.children.length));
          let [x, y] = [0, 0];
          for (let i = item; i.parent; i = i.parent) [x, y] = [x + i.x, y + i.y];
          const {{ view }} = tab;
          return [(x + item.w / 2 - view.x) * view.scale, (y + item.h / 2 - view.y) * view.scale, item.id];
        }}"""
    )
    page.mouse.click(box["x"] + place[0], box["y"] + place[1])
    assert page.evaluate(f"{made}.item.id") == place[2]


def test_unfused_edges_by_what_they_cost(page, explanation):
    panel = tab(page, "unfused")
    edges = distinct(explanation.unfused)
    assert f"{len(edges)} unfused edge" in panel.inner_text()
    panel.locator("button:text-is('Each edge')").click()
    made = "report.tabs.get('unfused').made"
    saves = page.evaluate(f"{made}.table.rows.map((g) => g.saves)")
    first = sorted(edges, key=lambda e: (not (e.acts and e.saves), -e.saves))
    assert saves == [e.saves for e in first]  # what can be changed, and then by bytes
    panel.locator(".row").first.click()
    shown = page.locator(".inspector").inner_text()
    assert any(e.reason in shown for e in first if e.acts and e.saves == first[0].saves)


def test_memory_over_launches(page, explanation):
    panel = tab(page, "memory")
    live = page.evaluate("report.tabs.get('memory').made.live")
    graph = explanation.graph
    assert len(live) == max(k.launch for k in graph.kernels) + 1
    sizes = [n["bytes"] for n in graph._document["nodes"]]
    kept = {n.id for n in graph.outputs if n.kernel}
    assert live[-1] >= sum(sizes[i] for i in kept) > 0
    assert "Live in launch" in panel.inner_text() and "*.down.weight × 2" in panel.inner_text()
    panel.locator("input[type=range]").fill("1")
    assert "Live in launch 1:" in panel.inner_text()


def test_roofline(page, explanation):
    panel = tab(page, "roofline")
    dots = panel.locator("circle.point")
    drawn = [
        k
        for k in explanation.kernels
        if k["flops"] and k["seconds"] and k["bytes_read"] + k["bytes_written"]
    ]
    assert dots.count() == len(drawn) > 0
    assert panel.locator("line.roof").count() == len(explanation.machine["bandwidth"]) + 1
    panel.locator(".row").first.click()
    assert panel.locator("circle.point.selected").count() <= 1
    assert page.locator(".inspector .jumps").is_visible()


def test_the_overview_says_what_ran_unwatched(page, explanation):
    (line,) = explanation.unwatched
    assert line and line in tab(page, "overview").inner_text()


def test_compare_and_diff(page, visit, explanation, tmp_path):
    assert "12 ms" in tab(page, "compare").inner_text()
    panel = tab(page, "diff")
    panel.locator(".row").first.wait_for()  # tables draw their rows with the next frame
    text = panel.inner_text()
    assert "%3 = tanh f32[2] %2\n" in text and "\u00d7 2" in text and "h.*" in text
    assert "NaN" in text and "before" in text and "3 kB" in text and "1.50\u00d7" in text
    explanation.to_html(tmp_path / "x.html")
    other = visit(tmp_path / "x.html")
    assert other.locator("#tab-compare").count() == other.locator("#tab-diff").count() == 0


def test_compare_speaks_as_it_prints(visit, tmp_path):
    x = torch.randn(64, 64).to(D)
    comparison = torch_opaque.compare(lambda x: torch.softmax(x @ x, -1), x, repeat=2, show=False)
    torch_opaque.explain(lambda: x + 1, show=False).to_html(
        tmp_path / "c.html", comparison=comparison
    )
    page = visit(tmp_path / "c.html")
    panel = tab(page, "compare")
    text = panel.inner_text()
    printed = comparison.text().splitlines()
    assert panel.locator("table").first.locator("th").all_inner_texts() == re.split(
        "  +", printed[0]
    )
    for word in ("Time of a call", "median of a call", "interval of 95%", "from f64", "max diff:"):
        assert word in text
    assert "ratio" not in text and "_" not in text
    assert f"{comparison['eager'].ratio:.2f}\u00d7" in text
    cells = panel.locator("table tr", has_text="fused").last.locator("td").all_inner_texts()
    assert cells[0] == "fused" and cells[5] == str(comparison["fused"].kernels)


def graphs_that_differ():
    def graph(act):
        layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), act) for _ in range(4)]
        model = torch.nn.Sequential(*layers).to(D)
        return torch_opaque.graph(model, torch.ones(4, 8, device=D), stage="fused")

    return graph(torch.nn.ReLU()), graph(torch.nn.Tanh())


def test_the_page_of_a_difference(visit, explanation, tmp_path):
    """It is tabs of the report: counts first, then lists that fold, and both graphs with what is equal folded."""
    a, b = graphs_that_differ()
    found = torch_opaque.diff(a, b)
    found.to_html(tmp_path / "d.html", title="before & after")
    for theme in ("light", "dark"):
        page = visit(tmp_path / "d.html", theme)
        assert page.locator("[role=tab]").all_inner_texts() == ["Diff", "Side by side"]
        assert "before & after" in page.locator("h1").inner_text()
        cards = page.locator("#panel-diff .cards").inner_text().split("\n")
        assert str(len(found.changed)) in cards and "nodes changed" in cards
        assert page.evaluate("document.documentElement.scrollHeight") <= 900
    assert "\u2192 tanh" in page.locator("#panel-diff").inner_text()
    page.locator("summary:has-text('Changed')").click()
    assert page.locator("[aria-label='Changed']").is_hidden()
    panel = tab(page, "sides")
    panel.locator(".side.changed").first.wait_for()
    panel.locator("button:text-is('Everything')").click()
    table = panel.locator(".table")
    assert int(table.get_attribute("aria-rowcount")) == len(found.sides()) + 1
    panel.locator("button:text-is('Differences')").click()
    before = int(table.get_attribute("aria-rowcount"))
    assert before < len(found.sides())
    panel.locator(".side.equal").first.click()
    assert int(table.get_attribute("aria-rowcount")) > before
    explanation.to_html(tmp_path / "r.html", difference=found)
    page = visit(tmp_path / "r.html")
    assert page.locator("[role=tab]").all_inner_texts()[-2:] == ["Diff", "Side by side"]


def test_a_graph_without_a_plan(visit, tmp_path):
    x = torch.ones(4, 8).to(D)
    graph = torch_opaque.graph(lambda: torch.softmax(x * 2, -1))
    torch_opaque.graphs.Graph.from_json(graph.to_json()).to_html(tmp_path / "g.html")
    page = visit(tmp_path / "g.html")
    assert page.locator("[role=tab]").all_inner_texts() == ["Overview", "Graph", "Code"]
    assert "no plan" in page.locator("#panel-overview").inner_text()
    tab(page, "graph").locator(".outline .row:has-text('softmax')").click()
    assert "softmax" in page.locator(".inspector h2").inner_text()
    tab(page, "code")
    in_pane(page, "recorded").locator(".row.marked:has-text('softmax')").wait_for()


def rewritten(source, target, **change):
    """The report `source` with other parts: {name: function of what it says}."""
    text = source.read_text()
    for name, value in parts_of(source).items():
        if name in change:
            part = re.escape(f'data-part="{name}">')
            packed = base64.b64encode(zlib.compress(json.dumps(change[name](value)).encode()))
            text = re.sub(f"({part})[^<]*", lambda m, p=packed: m[1] + p.decode(), text)
    target.write_text(text)
    return target


def test_phases(visit, file, tmp_path):
    """A gradient is backward whether its forward node is in the graph or not, and the optimizer updates."""

    def flagged(stage):
        for node in stage["nodes"]:
            if node.pop("forward", None) is not None:
                node["backward"] = True
        return stage

    flags = rewritten(file, tmp_path / "flags.html", recorded=flagged, fused=flagged)
    kernels = "report.model.kernels.map((k) => report.model.phase(k))"
    phases = visit(file).evaluate(kernels)
    assert set(phases) >= {"forward", "backward"} and phases[0] == "forward"
    for path in (file, flags):
        page = visit(path)
        assert page.evaluate(kernels) == phases
        panel = tab(page, "graph")
        panel.locator("button[value=recorded]").click()
        made = "report.tabs.get('graph').made"
        wait_until(page, f"{made}.stageName === 'recorded' && {made}.busy.hidden")
        groups = f"Object.fromEntries({made}.items.root.children.map((c) => [c.name, c]))"
        ops = page.evaluate(f"Object.values({groups}).map((c) => [c.name, c.ops])")
        assert [name for name, _ in ops] == ["forward", "backward", "update"]
        assert "1" in page.evaluate(f"{groups}.backward.children.map((c) => c.name)")
        assert "addcdiv" in page.evaluate(f"{groups}.update.children.map((c) => c.name)")


def test_phases_of_a_part(visit, tmp_path):
    """The forward pass of the first layer ran before, because its result was read: what is left of it here is its gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(D)
    x = torch.randn(4, 8).to(D)

    def step():
        hidden = model[0](x)
        hidden.sum().item()
        loss = model[1](hidden).square().mean()
        model.zero_grad()
        loss.backward()
        return loss.item()

    first, second = torch_opaque.explain(step, show=False).parts
    kernels = "report.model.kernels.map((k) => [k.module, report.model.phase(k)])"
    second.to_html(tmp_path / "second.html")
    page = visit(tmp_path / "second.html")
    phases = page.evaluate(kernels)
    assert "this is part 2 of 2, because of item at test_report.py" in page.inner_text(
        "#panel-overview"
    )
    assert {phase for module, phase in phases if module == "0"} == {"backward"}
    assert {phase for module, phase in phases if module == "1"} == {"forward", "backward"}
    first.to_html(tmp_path / "first.html")
    phases = visit(tmp_path / "first.html").evaluate(kernels)
    assert {phase for _, phase in phases} <= {"", "forward"}


def test_times_of_a_cold_run_are_told(visit, tmp_path):
    x = torch.ones(31, 17).to(D)
    y = torch.softmax(x * 2, -1)
    words = "times of a cold run"
    for shown, there in ((y, True), (lambda: torch.softmax(x * 2, -1), False)):
        torch_opaque.explain(shown, show=False).to_html(tmp_path / "page.html")
        overview = visit(tmp_path / "page.html").inner_text("#panel-overview")
        assert (words in overview) == there


def test_nothing_left_to_run(visit, tmp_path):
    x = torch.ones(4, 8).to(D)
    torch.opaque.synchronize()
    torch_opaque.explain(x, show=False).to_html(tmp_path / "none.html")
    page = visit(tmp_path / "none.html")
    assert "Nothing was left to run" in page.locator("#panel-overview").inner_text()
    for button in page.locator("[role=tab]").all():
        button.click()
        text = page.locator("body").inner_text()
        assert "NaN" not in text and "no plan" not in text and "Infinity" not in text
    tab(page, "graph").locator(".busy:text-is('No ops: inputs are outputs as they are')").wait_for()


def test_what_has_no_code_is_a_sentence(visit, tmp_path):
    x = torch.eye(4).to(D)
    torch_opaque.explain(lambda: torch.special.i0e(x) * 2, show=False).to_html(tmp_path / "e.html")
    page = visit(tmp_path / "e.html")
    tab(page, "code")
    word = in_pane(page, "asm").locator(".note")
    extern = page.evaluate("report.model.kernels.findIndex((k) => k.kind === 'extern')")
    page.evaluate(f"report.selection.select({{ kernel: {extern} }})")
    word.locator("text=calls another library").wait_for()
    assert word.evaluate("(e) => e.scrollWidth <= e.clientWidth && !e.children.length")
    page.evaluate(f"report.selection.select({{ kernel: {1 - extern} }})")
    in_pane(page, "asm").locator(".row code").first.wait_for()
    assert word.is_hidden()


def test_themes(page, visit, file):
    def ground(p):
        return sum(
            map(
                int,
                re.findall(r"\d+", p.evaluate("getComputedStyle(document.body).backgroundColor")),
            )
        )

    assert ground(page) > 600 and ground(visit(file, "dark")) < 150
    button = page.locator(".top > button")
    button.click()
    button.click()
    assert button.get_attribute("aria-label") == "Theme: dark" and ground(page) < 150


def test_the_address_says_what_is_looked_at(page, visit, file):
    page.locator("#panel-overview .table .row").nth(1).click()
    tab(page, "code")
    fragment = page.evaluate("location.hash")
    assert re.fullmatch(r"#code/kernel/\d+", fragment)
    other = visit(f"{file}{fragment}")
    assert other.locator("#panel-code").is_visible()
    assert other.evaluate("report.selection.kernel") == int(fragment.split("/")[-1])


# ---- size and speed


def test_gpt2_step_is_small_and_opens_fast(visit, tmp_path, root):
    """The graph of twelve layers; how wide they are makes no node more."""
    sys.path.insert(0, os.path.join(root, "bench"))
    try:
        from rows.models import Gpt2
    finally:
        sys.path.pop(0)
    torch.manual_seed(0)
    model = Gpt2(width=48, heads=12, words=512, positions=32).to(D)
    optimizer = torch.optim.Adam(model.parameters())
    text = torch.randint(0, 512, (1, 16)).to(D)

    def step():
        F.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.opaque.synchronize()
    explanation = torch_opaque.explain(step, show=False)
    path = tmp_path / "gpt2.html"
    explanation.to_html(path)
    assert len(explanation.graph.nodes) > 5000
    assert os.path.getsize(path) < 5e6
    page = visit(path)
    opened = page.evaluate("performance.now()")
    assert opened < 2000 * MARGIN
    # Backward and forward are apart, and layers lie in their modules.
    made = "report.tabs.get('overview').made.treemap.root"
    assert set(page.evaluate(f"{made}.children.map((c) => c.name)")) >= {"forward", "backward"}


def test_ten_thousand_ops_scroll(visit, tmp_path):
    x = torch.ones(8, 8).to(D)

    def long(x):
        for _ in range(560):
            y = x
            for _ in range(8):
                y = y * 1.01 + x
            x = y / y.sum(-1, keepdim=True)
        return x

    graph = torch_opaque.graph(long, x)
    assert len(graph.stage("fused").nodes) > 10000
    graph.to_html(tmp_path / "big.html")
    assert os.path.getsize(tmp_path / "big.html") < 5e6
    page = visit(tmp_path / "big.html")
    assert page.evaluate("performance.now()") < 2000 * MARGIN
    panel = tab(page, "graph")
    panel.locator("button[value=op]").click()
    made = "report.tabs.get('graph').made"
    wait_until(page, f"{made}.depth === 'op' && {made}.busy.hidden && {made}.drawn >= 0")
    times = page.evaluate(
        f"""async () => {{
          const tab = {made}, times = [];
          tab.fit();
          for (let i = 0; i < 40; i++) {{
            i < 20 ? tab.zoom(0.8) : tab.zoom(1.25);
            await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
            times.push(tab.drawn);
          }}
          return times;
        }}"""
    )
    assert statistics.median(times) < 16
    tab(page, "code")
    rows = in_pane(page, "fused").locator(".row")
    rows.first.wait_for()
    scroll_to(in_pane(page, "fused"), 8000)
    wait_until(page, "document.querySelector('[data-pane=fused] .row').dataset.index > 7900")
    assert rows.count() < 120
