"""How the documentation is built: ``tox run -e docs``, or ``sphinx-build -W -c docs . somewhere``."""

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
# What stands beside a distribution's code is a page too: a link to it leads there, here as in the repository.
include_patterns = ["*.md", "docs/**.md", "plugins/*/README.md"]
exclude_patterns = [".*", "docs/examples"]
root_doc = "docs/index"
html_theme = "furo"
html_title = "txnframework"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f5bb7", "color-brand-content": "#2f5bb7"},
    "dark_css_variables": {"color-brand-primary": "#8fb0f5", "color-brand-content": "#8fb0f5"},
}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes_action = "qe"  # quotes and ellipses; the dashes of --options stay
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
