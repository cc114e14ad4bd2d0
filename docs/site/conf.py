"""Sphinx's settings: `make docs` reads them."""

from docs.site.navigation import ROOT
from sruserve import __version__

project = "sruserve"
author = "The sruserve authors"
release = version = __version__
html_title = f"sruserve {release}"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.site.docstrings", "docs.site.errors"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # excerpts of JSON have an ellipsis
default_role = "py:obj"  # names in docstrings are in backticks
autodoc_type_aliases = {name: f"sruserve.api.inputs.{name}" for name in ("One", "Several")}
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 72
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_logo = html_favicon = str(ROOT / "sruserve/server/http/page/icon.svg")
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
