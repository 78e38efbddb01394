"""Everybody can use every page: light and wide, dark and 360 pixels narrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.harness import Harness
from tests.ui.browser import Visitor
from tests.ui.scene import PAGES, prepare


@pytest.fixture(scope="module")
def scene(stack: Harness) -> Mapping[str, object]:
    return prepare(stack)


#: Views that have another state here, and that other tests also pass to axe.
AGAIN = ("attention", "found", "again", "waiting", "killed")


@pytest.fixture(scope="module")
def tab(stack: Harness, browser: Browser) -> Iterator[tuple[Visitor, Page]]:
    """One tab for all pages, because starting a browser for each takes longer than axe."""
    visitor = Visitor(browser, str(stack.stack.addresses["gateway"]))
    yield visitor, visitor.open("/healthz")
    visitor.context.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in AGAIN)) for name in PAGES]
)
def test_axe_finds_nothing_and_it_fits_its_window(
    tab: tuple[Visitor, Page], scene: Mapping[str, object], name: str
) -> None:
    visitor, page = tab
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(PAGES[name].format(**scene))
    assert page.get_by_role("heading", level=1).count() == 1
    visitor.poll(page)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.set_viewport_size({"width": 360, "height": 740})
    visitor.poll(page)
    visitor.answer()
