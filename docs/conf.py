"""How Sphinx builds these pages: `./run docs`."""

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "kGymSuite"
author = "the authors of kGymSuite"
version = release = version_of("kgymsuite")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_made", "reference"]
html_theme = "furo"
html_title = "kGymSuite"
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
nitpicky = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "fieldlist"]

autodoc_typehints = "description"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True


def setup(app: Sphinx) -> None:
    """Write the parts of the pages that come from the code before the pages are read."""
    app.connect("builder-inited", _write)
    app.connect("source-read", _include)


def _include(_: Sphinx, __: str, source: list[str]) -> None:
    """Include what a link alone on its line leads to: a web page of the repository only links."""
    from reference import PAGES  # noqa: PLC0415

    made = {f"../{name}": part for part, name in PAGES.items()}
    source[0] = re.sub(
        r"(?m)^\[[^]\n]+\]\(((?:reference|\.\.)/\w+\.md)\)$",
        lambda link: f"```{{include}} _made/{made.get(link[1], link[1].rpartition('/')[2])}\n```",
        source[0],
    )


def _write(app: Sphinx) -> None:
    from reference import write  # noqa: PLC0415 - it imports the whole command line

    write(Path(app.srcdir) / "_made")
