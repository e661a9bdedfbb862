"""How Sphinx makes the site of these pages: ``make docs``. Paths are those of the repository."""

project = "commtrace"
author = "the commtrace authors"
copyright = author  # noqa: A001 - Sphinx's name for it

extensions = ["myst_parser"]
include_patterns = [
    "docs/**.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "traces/README.md",
]
exclude_patterns = [".*", "out", "build", "dist"]
root_doc = "docs/index"
templates_path = ["templates"]
nitpicky = True
highlight_language = "text"
myst_heading_anchors = 4

html_theme = "furo"
html_title = "commtrace"
html_additional_pages = {"index": "to-first-page.html"}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # it would fetch each page, which no file may
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
