"""No part of the web UI is unused: each template, macro, filter and style."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from crawler_lifecycle import gateway
from crawler_lifecycle.gateway.ui.parts import rendering

PACKAGE = Path(gateway.__file__).parents[1]
UI = PACKAGE / "gateway" / "ui"
TEMPLATES = {path.name: path.read_text() for path in (UI / "templates").glob("*.html")}
SCRIPTS = [path.read_text() for path in (UI / "assets").glob("*.js")]
CODE = [
    path.read_text()
    for folder in ("gateway", "features", "domain")
    for path in (PACKAGE / folder).rglob("*.py")
]
SUBJECTS = (PACKAGE / "subjects.py").read_text()
PAGES = "\n".join([*TEMPLATES.values(), *SCRIPTS])
WRITTEN = "\n".join([PAGES, SUBJECTS, *CODE])
#: The beginnings of classes that are composed, such as ``is-run``.
PUT_TOGETHER = ("leaves-", "is-", "of-")


def test_each_template_is_rendered_and_each_macro_and_filter_is_used() -> None:
    rendered = set(re.findall(r"[\w-]+\.html", WRITTEN))
    tabs = {name for name in TEMPLATES if name.startswith("crawler_")}
    assert TEMPLATES.keys() - tabs <= rendered
    words = Counter(re.findall(r"\w+", PAGES))
    macros = {name for text in TEMPLATES.values() for name in re.findall(r"{% macro (\w+)", text)}
    assert {name for name in macros if words[name] < 2} == set()
    source = Path(rendering.__file__).read_text().partition("made.filters |= {")[2]
    filters = re.findall(r'^ {8}"(\w+)":', source, re.MULTILINE)
    assert len(filters) > 20
    assert {name for name in filters if not words[name]} == set()


def test_each_class_and_id_of_the_style_sheet_is_used() -> None:
    sheet = re.sub(r"/\*.*?\*/", "", (UI / "assets" / "page.css").read_text(), flags=re.DOTALL)
    selectors = re.findall(r"[^{};]+(?=\{)", sheet)
    names = {name for text in selectors for name in re.findall(r"[.#]([a-z][\w-]*)", text)}
    assert len(names) > 100
    # A state with several words, such as "brings less", has hyphens in its class.
    states = {re.sub("[ _]", "-", text) for text in re.findall(r'"([a-z]+[ _][a-z]+)"', WRITTEN)}
    statuses = {text.lower() for text in re.findall(r'"([A-Z]+)"', WRITTEN)}
    used = states | statuses | set(re.findall(r"[\w-]+", WRITTEN))
    assert {name for name in names - used if not name.startswith(PUT_TOGETHER)} == set()
