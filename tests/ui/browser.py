"""A real Chromium, which records everything that no page of ours may do: write to the console,
break the content security policy, contact another host, hold two streams, or be inaccessible by the
rules of axe-core.

A ``Visitor`` is one browser profile; its verdict is checked at the end of a journey.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    expect,
    sync_playwright,
)

#: Far longer than anything takes that works.
PATIENCE_MS = 100_000
NETWORK_CHANGES_MAX = 10
#: Nothing leaves this machine, whatever a page requests: no other name has an address.
ARGUMENTS = ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"]
#: Violated policies are also reported on the console, but not all of them in every browser.
TELL_VIOLATIONS = """
document.addEventListener('securitypolicyviolation', event =>
  console.error(`policy: ${event.violatedDirective} refused ${event.blockedURI} in ${event.sourceFile}`))
"""
#: Chromium reports this if somebody types into a field before the page gives it the focus.
FASTER = "Autofocus processing was blocked because a document already has a focused element."
#: Tells a page that its tab has gone behind another one, or come back.
SET_HIDDEN = """
hidden => {
  if (document.hidden === hidden) return;
  Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
  Object.defineProperty(document, 'visibilityState', {value: hidden ? 'hidden' : 'visible', configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
}
"""
#: axe-core's findings, in few words. Rules of every level and its best practices, so that "nothing"
#: means nothing.
RUN_AXE = """
async () => (await axe.run(document, {resultTypes: ['violations']})).violations.flatMap(rule =>
  rule.nodes.map(node => `${rule.id} (${rule.help}): ${node.html.slice(0, 200)} ${node.any.map(a => a.message)}`))
"""
#: What extends beyond the right edge, so that the whole page would have to be scrolled sideways.
TOO_WIDE = """
() => {
  if (document.documentElement.scrollWidth <= document.documentElement.clientWidth) return [];
  const scrolls = e => e && e !== document.body &&
    (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
  return [...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
    && !scrolls(e.parentElement)).slice(0, 5).map(e => e.outerHTML.slice(0, 160));
}
"""


def executable() -> str:
    """Return Debian's Chromium without its windows, which load their own pages and take as long as
    ours.

    Without it, the tests are skipped with a message, and fail where ``CI`` is ``true``.
    """
    found = shutil.which("chromium-headless-shell")
    if found is None:
        reason = "chromium-headless-shell is not installed; `make test-deps` does that"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser. It has no display, and needs none."""
    path = executable()
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


# Logging out ends the streams of a session, which an open page notices before its redirect arrives.
LOGGING_OUT = ("Clear-Site-Data", r"htmx:sse:error: The connection has ended\.")


@dataclass
class Visitor:
    """One browser profile at one address: its cookies, its tabs, and the errors in them."""

    browser: Browser
    origin: str
    options: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expected: list[re.Pattern[str]] = []
        self._streams: dict[Page, set[Request]] = {}

    @cached_property
    def context(self) -> BrowserContext:
        """The profile, made at its first use."""
        made = self.browser.new_context(base_url=self.origin, **self.options)
        made.set_default_timeout(PATIENCE_MS)
        made.add_init_script(TELL_VIOLATIONS)
        made.on("console", self._spoken)
        made.on("weberror", lambda event: self._fault(f"error: {event.error}"))
        made.on("request", self._asked)
        made.on("requestfinished", self._over)
        made.on("requestfailed", self._over)
        return made

    @property
    def scripted(self) -> bool:
        return bool(self.options.get("java_script_enabled", True))

    def open(self, path: str = "/") -> Page:
        """Open a new tab at this address, in front of the others."""
        page = self.context.new_page()
        self.show(page)
        # Chromium ends its requests whenever an interface of this machine appears or disappears,
        # like those of containers.
        for _ in range(NETWORK_CHANGES_MAX):
            try:
                page.goto(path)
            except Error as error:
                if "ERR_NETWORK_CHANGED" not in error.message:
                    raise
            else:
                return page
        raise AssertionError("the network of this machine does not come to rest")

    def show(self, page: Page) -> None:
        """Bring a tab to the front.

        Without a display, Chromium considers each tab visible, so the state is set here.
        """
        for other in self.context.pages:
            other.evaluate(SET_HIDDEN, other is not page)

    @property
    def streams(self) -> int:
        """Return the open streams of all tabs."""
        # The tool reports them only while it is called.
        self.context.pages[0].wait_for_timeout(50)
        return sum(map(len, self._streams.values()))

    @contextmanager
    def expecting(self, *patterns: str) -> Iterator[None]:
        """Expect these errors: browsers log every error response and every failed connection."""
        self._expected = [re.compile(pattern) for pattern in patterns]
        try:
            yield
        finally:
            self._expected = []

    def poll(self, page: Page) -> None:
        """Let axe-core judge the page in its present state, and check that it fits its window."""
        if page.evaluate("typeof axe") == "undefined":
            page.evaluate(_axe())
        where = page.url.removeprefix(self.origin)
        self.faults += [f"{where}: axe: {found}" for found in page.evaluate(RUN_AXE)]
        self.faults += [f"{where}: too wide: {found}" for found in page.evaluate(TOO_WIDE)]

    def leave(self) -> None:
        """Let axe-core judge what is still open, each address once, and close it.

        Raises an error with what was recorded.
        """
        if self.scripted:
            for page in {page.url: page for page in self.context.pages}.values():
                if page.url.startswith(self.origin):
                    self.poll(page)
        self.context.close()
        self.answer()

    def answer(self) -> None:
        """Raise an error with what was recorded, once."""
        noted, self.faults = self.faults, []
        assert not noted, "\n".join(dict.fromkeys(noted))

    def _spoken(self, message: ConsoleMessage) -> None:
        if message.text.startswith(FASTER):
            return
        place = message.location.get("url", "").removeprefix(self.origin)
        self._fault(f"console {message.type}: {message.text} ({place})")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", "blob:")):
            self._fault(f"a request to {request.url}")
        if request.is_navigation_request():
            with suppress(Error):  # a new tab, which has no page yet
                self._streams.pop(request.frame.page, None)
        elif request.url.startswith(f"{self.origin}/page/events"):
            streams = self._streams.setdefault(request.frame.page, set())
            streams.add(request)
            if len(streams) > 1:
                self._fault(f"{len(streams)} streams at once")

    def _over(self, request: Request) -> None:
        if request.url.startswith(f"{self.origin}/page/events"):
            self._streams.get(request.frame.page, set()).discard(request)

    def _fault(self, text: str) -> None:
        meant = any(pattern.search(text) for pattern in self._expected)
        if not meant and "ERR_NETWORK_CHANGED" not in text:
            self.faults.append(text)


def _axe() -> str:
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
