"""The hook of the documentation's site: the page of the API, links that leave ``docs/``, and what
Markdown needs.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import logging
import re
from pathlib import Path

import pytest

from crawler_lifecycle import managers
from crawler_lifecycle.managers import CrawlManager, GeneratorCrawlManager
from tools import docs_site

DOCUMENT = json.loads((docs_site.ROOT / "docs" / "openapi.json").read_text())


def test_the_page_of_the_api_has_every_operation_value_and_field() -> None:
    page = "\n".join(docs_site.api(DOCUMENT))
    said = [(method, one) for path in DOCUMENT["paths"].values() for method, one in path.items()]
    assert [
        one for method, one in said if f"\n### {method.upper()}: {one['operationId']}\n" not in page
    ] == []
    schemas = DOCUMENT["components"]["schemas"]
    assert [name for name in schemas if f"\n### {name}\n" not in page] == []
    names = {name for schema in schemas.values() for name in schema.get("properties", {})}
    assert [name for name in names if f"\n| `{name}` | " not in page] == []
    assert "Role: `operate`" in page


def test_no_text_of_the_document_can_break_a_table() -> None:
    assert docs_site.cell("a | b\n\nc") == "a \\| b c"
    row = "\n".join(
        docs_site.fields({"properties": {"a": {"type": "string", "description": "x\n| y"}}})
    )
    assert "| `a` | string, optional | x \\| y |" in row


def test_links_out_of_the_folder_become_paths_and_dead_ones_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "[README](../README.md), [the map](../CONTRIBUTING.md#the-map-in-ten-lines), [here](web-ui.md)"
    wanted = "README (`README.md`), the map (`CONTRIBUTING.md`), [here](web-ui.md)"
    assert docs_site.outside(text, "a.md") == wanted
    with caplog.at_level(logging.WARNING):
        docs_site.outside("[gone](../gone.md)", "a.md")
    assert caplog.messages == ["a.md links to gone.md, which does not exist"]


def test_lists_and_tables_after_a_paragraph_and_fences_with_words() -> None:
    text = "Words:\n- one\n- two\n\n```json pattern\n- {}\n```\nWords\n| a |\n|---|\n| b |"
    wanted = "Words:\n\n- one\n- two\n\n```json\n- {}\n```\nWords\n\n| a |\n|---|\n| b |"
    assert "\n".join(docs_site.parted(text)) == wanted


@pytest.mark.parametrize(
    ("html", "told"),
    [
        (
            '<script src="https://cdn.example/a.js">',
            ["p.md loads https://cdn.example/a.js from another server"],
        ),
        (
            "<link rel=stylesheet href=//cdn.example/a.css>",
            ["p.md loads //cdn.example/a.css from another server"],
        ),
        ('<a href="https://example.com">x</a><img src="pictures/a.webp">', []),
    ],
)
def test_what_a_page_would_ask_another_server_for_is_told(
    html: str, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Page:
        class file:
            src_path = "p.md"

    with caplog.at_level(logging.WARNING):
        docs_site.on_post_page(html, Page)
    assert caplog.messages == told


def test_every_page_is_in_the_navigation() -> None:
    named = (docs_site.ROOT / "mkdocs.yml").read_text()
    pages = [page.name for page in Path(docs_site.ROOT / "docs").glob("*.md")]
    assert [page for page in pages if f": {page}\n" not in named] == []


def test_the_page_of_python_has_the_types_that_overrides_need() -> None:
    page = (docs_site.ROOT / "docs" / "python.md").read_text()
    methods = [
        method
        for cls in (CrawlManager, GeneratorCrawlManager)
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    ]
    needed = {
        name
        for method in methods
        for name in re.findall(r"\w*JobParams", " ".join(map(str, method.__annotations__.values())))
    }
    assert {"FullJobParams", "JobParams"} <= needed
    assert [
        name for name in sorted(needed) if f"::: crawler_lifecycle.managers.{name}\n" not in page
    ] == []
    assert needed <= set(managers.__all__)


def test_a_wheel_leaves_the_site_alone_and_a_download_is_no_new_file_of_the_clone() -> None:
    """``make site`` writes into ``dist/``, like ``make wheel``."""
    makefile = (docs_site.ROOT / "Makefile").read_text()
    recipe = makefile.partition("\nwheel:")[2].partition("\n\n")[0]
    assert re.search(r"rm -r?f dist( |$)", recipe) is None
    name = "run-7-attempt-1-supporting-files.zip"
    rules = (docs_site.ROOT / ".gitignore").read_text().split()
    assert [rule for rule in rules if fnmatch.fnmatchcase(name, rule)] != []
