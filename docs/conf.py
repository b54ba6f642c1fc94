"""How the documentation is built: ``tox run -e docs``, or ``sphinx-build -W docs somewhere``."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "txnframework"
author = "the txnframework authors"
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = version_of("txnframework")

extensions = [
    "myst_parser",
    "repoze.sphinx.autointerface",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_click",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["examples"]
root_doc = "index"
html_theme = "furo"
html_title = "txnframework"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes_action = "qe"  # quotes and ellipses; the dashes of --options stay
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# Links to files outside of docs/ are for readers of the repository; a test follows every one of them.
suppress_warnings = ["myst.xref_missing"]
