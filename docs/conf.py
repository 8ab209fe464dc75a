"""The site: `./dev docs` builds it into build/site/. Nothing of it is loaded from a network, neither now nor by who reads it."""

import os
import re
import sys

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Text

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import generated  # noqa: E402

project = "torch_opaque"
author = "torch_opaque contributors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.graphviz"]
highlight_language = "text"
smartquotes = False  # what is shown is what is printed
myst_heading_anchors = 4
autodoc_member_order = "bysource"
graphviz_output_format = "svg"
graphviz_dot_args = [
    "-Efontname=monospace",
    "-Gfontname=monospace",
    "-Nfontsize=11",
    "-Efontsize=10",
    "-Gfontsize=11",
]
html_theme = "furo"
html_title = "torch_opaque"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


class IrLexer(RegexLexer):
    """The text IR and kernels as text (docs/ir.md)."""

    name = "ir"
    tokens = {
        "root": [
            (r"#.*", Comment),
            (r"\b(graph|kernel|output|over|out|own|local|in)\b", Keyword),
            (r"\b(parallel|each|vector|serial|lanes|column|chain|pairs|load|store)\b", Keyword),
            (r"%\d+|@[\w.-]+", Name.Variable),
            (r"\b(bool|u8|i8|i16|i32|i64|f16|bf16|f32|f64|raw\d+)\b(\[[\d,]*\])?", Keyword.Type),
            (r"-?\b0x[\da-fp.+-]+|-?\b\d+\b", Number),
            (r"\w+", Text),
            (r"\s+|.", Text),
        ]
    }


def _replace(app, name: str, source: list) -> None:
    source[0] = re.sub(
        r"<!-- generated: (\w+)((?: \S+)*) -->",
        lambda match: getattr(generated, match[1])(*match[2].split()),
        source[0],
    )


def _docstring(app, what, name, object, options, lines: list) -> None:
    lines[:] = generated.rst_of("\n".join(lines)).split("\n") + [""]


def setup(app):
    app.add_lexer("ir", IrLexer)
    app.connect("source-read", _replace)
    app.connect("autodoc-process-docstring", _docstring)
