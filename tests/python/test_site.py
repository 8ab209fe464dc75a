"""The site of docs/: built without a warning, every link inside it leads somewhere, nothing is loaded from elsewhere, and it has all
that its tables promise."""

import html.parser
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch_opaque
from torch_opaque import _C, settings

LOADED = {"script": "src", "img": "src", "object": "data", "link": "href", "iframe": "src"}


class Page(html.parser.HTMLParser):
    """Anchors, links and loaded files of a page, its text, and that of each section."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.loaded, self.text = set(), [], [], ""
        self.sections, self._open = {}, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "section":
            self._open.append(attributes.get("id"))
        if attributes.get(LOADED.get(tag)):
            self.loaded.append(attributes[LOADED[tag]])

    def handle_endtag(self, tag):
        if tag == "section":
            self._open.pop()

    def handle_data(self, data):
        self.text += data
        for name in self._open:
            self.sections[name] = self.sections.get(name, "") + data


pytestmark = pytest.mark.unchanged_folders(
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "dev",
    "include",
    "python",
    "bench/RESULTS.md",
    "registration",
)


@pytest.fixture(scope="module")
def site():
    """./dev docs, from nothing."""
    root = Path(__file__).parents[2]
    for name in ("site", "site-doctrees"):
        shutil.rmtree(root / "build" / name, ignore_errors=True)
    result = subprocess.run([root / "dev", "docs"], capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0 and not result.stderr, result.stderr
    return root / "build" / "site"


@pytest.fixture(scope="module")
def pages(site):
    """{path in the site: Page}"""
    return {str(path.relative_to(site)): Page(path) for path in site.rglob("*.html")}


def test_links_lead_somewhere(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path)))
            path = path if parts.path else name
            anchor = unquote(parts.fragment)
            if not (site / path).is_file() or (
                anchor and path in pages and anchor not in pages[path].ids
            ):
                broken.append(f"{name}: {link}")
    assert len(pages) > 10 and not broken, "\n".join(broken)


def test_search_works_from_a_file(site, browser):
    page = browser.new_page()
    page.goto(f"file://{site}/search.html?q=fusion")
    page.wait_for_selector("ul.search li a")
    page.wait_for_function("document.querySelector('.search-summary').innerText.includes('found')")
    names = {
        row.get_attribute("href").split("#")[0] for row in page.query_selector_all("ul.search li a")
    }
    assert {"architecture.html", "tutorials/look.html"} <= names
    page.close()


def test_nothing_is_loaded_from_elsewhere(site, pages):
    foreign = [link for page in pages.values() for link in page.loaded if urlsplit(link).netloc]
    for path in site.rglob("*.css"):
        foreign += re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\s]*", path.read_text())
    assert not foreign


def test_no_path_of_the_machine(site, root):
    named = [
        path
        for path in site.rglob("*")
        if path.suffix in (".html", ".js", ".svg") and root in path.read_text()
    ]
    assert not named


def test_python_interface_is_whole(pages):
    wanted = {f"torch_opaque.{name}" for name in torch_opaque.__all__}
    wanted |= {"torch.opaque.synchronize", "torch.backends.opaque.fusion"}
    wanted |= {"torch_opaque.graphs.Graph.find", "torch_opaque.graphs.Kernel.text"}
    assert wanted <= pages["python_api.html"].ids


def test_c_interface_is_whole(root, pages):
    with open(os.path.join(root, "include/opaque/opaque.h")) as file:
        text = file.read()
    functions = re.findall(r"^OPQ_API .*?(opq_\w+)\(", text, re.M)
    types = re.findall(r"^(?:typedef[^;{]*|\}) (opq_\w+);", text, re.M)
    page = pages["c_api.html"]
    assert len(functions) > 40 and len(types) > 15
    assert {f"c.{name}" for name in functions + types} <= page.ids
    for comment in re.findall(r"^/\* (\w[^\n*]+)", text[text.index("typedef") :], re.M):
        assert re.sub(r"`", "", comment).strip()[:40] in page.text, comment


def test_tables_are_whole(root, pages):
    environment = pages["environment.html"].text
    assert all(row.name in environment and row.text in environment for row in settings.SETTINGS)
    coverage = pages["coverage.html"].text
    assert all(row["name"] in coverage for row in _C.op_table())
    with open(os.path.join(root, "bench/RESULTS.md")) as file:
        rows = re.findall(r"^\| (\w+_\w+) ", file.read(), re.M)
    assert len(rows) > 90 and all(name in pages["benchmarks.html"].text for name in rows)


def test_coverage_agrees_with_the_dispatcher(pages):
    names = ("native-aten-functions", "through-cpu-kernels", "made-of-others")
    native, cpu, made = (set(pages["coverage.html"].sections[name].split()) for name in names)
    assert {"add", "relu", "cumsum", "convolution", "where", "sort", "nonzero"} <= native
    assert {"mode", "linalg_qr", "special_bessel_j0"} <= cpu
    assert {"matmul", "softmax", "einsum"} <= made


def test_graphs_are_pictures(site, pages):
    drawn = [link for link in pages["tutorials/look.html"].loaded if link.endswith(".svg")]
    assert drawn
    for link in drawn:
        assert "<svg" in (site / "tutorials" / link).read_text()
