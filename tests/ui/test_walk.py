"""What an operator does whom an alert wakes at three in the morning: with a mouse, on a phone, only
by keyboard.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from crawler_lifecycle.features.webhooks.domain.alerts import alert_of
from tests.e2e.harness import QUICK, Harness, until
from tests.ui.conftest import Visits
from tests.ui.people import now, number, reach, row, start

REFUSED = "Connection refused"
#: The minimum width and height of a touch target, and how far it extends around the middle of a
#: link or button.
THUMB = 44
REACH = """
e => {
  const box = e.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  const far = (right, down) => {
    let n = 0;
    while (n < 50 && e.contains(document.elementFromPoint(x + right * n, y + down * n))) n += 1;
    return n;
  };
  return [far(1, 0) + far(-1, 0), far(0, 1) + far(0, -1)];
}
"""
#: A slow phone far from a mast: milliseconds until a response begins, and bytes per second.
SLOW = {"offline": False, "latency": 300, "downloadThroughput": 60_000, "uploadThroughput": 20_000}
Press = Callable[[Locator], None]


class Site(ThreadingHTTPServer):
    """A site with one page, which refuses connections until it is repaired."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            ("127.0.0.1", 0),
            partial(SimpleHTTPRequestHandler, directory=folder),
            bind_and_activate=False,
        )
        self.server_bind()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever)

    def mend(self) -> None:
        self.server_activate()
        self._thread.start()

    def end(self) -> None:
        if self._thread.ident:
            self.shutdown()
            self._thread.join()
        self.server_close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.end()


def by_mouse(target: Locator) -> None:
    target.click()


def by_keyboard(target: Locator) -> None:
    reach(target)
    target.press("Enter")


def by_thumb(target: Locator) -> None:
    target.scroll_into_view_if_needed()
    hit = target.evaluate(REACH)
    assert min(hit) >= THUMB, f"{target}: {hit}"
    target.tap()


def crawler_row(page: Page) -> Locator:
    """Return the row of the crawler on the first page."""
    name = page.get_by_role("link", name="plain", exact=True)
    return page.get_by_role("row").filter(has=name)


def found_out(page: Page, press: Press, harness: Harness, run_id: int, origin: str) -> None:
    """Go from the alert to the first page, to the crawler and the run, to the log line with the
    reason, and back to the run.
    """
    alert = alert_of("run.ended", f"runs/{run_id}", harness.gateway.run(run_id), origin)
    assert (alert.bad, REFUSED in alert.cause) == (True, True)
    page.goto(str(alert.link))
    expect(now(page)).to_contain_text("failed")
    press(page.get_by_role("banner").get_by_role("link", name="crawler-lifecycle"))
    expect(crawler_row(page)).to_contain_text("fail")
    press(crawler_row(page).get_by_role("link", name="plain", exact=True))
    press(page.get_by_role("navigation", name="Tabs").get_by_role("link", name="Failures"))
    failures = page.get_by_role("region", name="Why runs failed", exact=True)
    expect(failures).to_contain_text(REFUSED)
    press(failures.get_by_role("link", name=str(run_id), exact=True).last)
    expect(now(page)).to_contain_text(re.compile(f"error: <urlopen .*{REFUSED}"))
    press(page.get_by_role("link", name="at its last error"))
    error = page.get_by_role("log").locator(".error")
    expect(error).to_contain_text(REFUSED)
    expect(error).to_be_in_viewport()
    press(page.get_by_role("link", name="Overview"))
    expect(page).to_have_url(re.compile(rf"/runs/{run_id}$"))


def failed(harness: Harness, site: Site, **more: str) -> int:
    run_id = start(harness, args={"site": site.url, "max_pages": "1", **more}, tags=["nightly"])
    until(lambda: harness.status(run_id) == "FAILED", "its end")
    return run_id


def carried_out(page: Page) -> None:
    """Check that the page reports success."""
    expect(page.get_by_role("status", name="Result")).to_contain_text("1 of 1 carried out")


def all_well(page: Page, press: Press, run_id: int) -> None:
    """Check that the run is good now, and that the crawler no longer fails."""
    expect(now(page)).to_contain_text("done")
    press(page.get_by_role("banner").get_by_role("link", name="crawler-lifecycle"))
    expect(crawler_row(page)).not_to_contain_text(re.compile(r"fails|failed last"))
    page.goto("/runs")
    expect(row(page, run_id)).to_contain_text("done")


def test_on_a_slow_phone_a_run_is_resumed_when_its_site_is_back(
    harness: Harness, visits: Visits, site: Site
) -> None:
    run_id = failed(harness, site)
    origin = str(harness.stack.addresses["gateway"])
    visitor = visits(origin, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = visitor.open("/")
    phone = visitor.context.new_cdp_session(page)
    phone.send("Network.emulateNetworkConditions", SLOW)
    phone.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    found_out(page, by_thumb, harness, run_id, origin)
    site.mend()
    by_thumb(page.get_by_role("button", name="Resume"))
    carried_out(page)
    expect(page.get_by_role("heading", level=1)).to_contain_text("attempt 2")
    all_well(page, by_thumb, run_id)


def test_a_run_is_started_again_with_other_arguments(
    harness: Harness, visits: Visits, site: Site
) -> None:
    run_id = failed(harness, site)
    origin = str(harness.stack.addresses["gateway"])
    page = visits(origin, viewport={"width": 820, "height": 1180}).open("/")
    found_out(page, by_mouse, harness, run_id, origin)
    by_mouse(page.get_by_role("link", name="Run again with changes"))
    expect(page.get_by_label("max_pages")).to_have_value("1")
    expect(page.get_by_label("Tags")).to_have_value("nightly")
    address = page.get_by_role("textbox", name="site", exact=True)
    expect(address).to_have_value(site.url)
    address.fill(str(harness.stack.addresses["site"]))
    by_mouse(page.get_by_role("button", name="Start", exact=True))
    second = number(page)
    page.go_back()
    by_mouse(page.get_by_role("button", name="Start", exact=True))
    assert number(page) == second, "one form is one run"
    request = harness.gateway.run(second)["request"]
    assert (request["args"]["max_pages"], request["tags"]) == ("1", ["nightly"])
    all_well(page, by_mouse, second)


def test_by_keyboard_alone_a_schedule_is_paused_until_its_site_is_back(
    harness: Harness, visits: Visits, site: Site
) -> None:
    definition = {
        "run": {"crawler": "plain", "args": {"site": site.url, "max_pages": "1"}, **QUICK}
    }
    harness.gateway.put("/v1/schedules/by-night", {**definition, "cron": "0 3 * * *"})
    harness.gateway.post("/v1/schedules/by-night/trigger", {})
    lines = lambda: harness.gateway.get("/v1/schedules/by-night/firings")["firings"]  # noqa: E731
    until(lambda: [one for one in lines() if one["status"] == "FAILED"], "its end")
    [run_id] = [int(one["target_id"]) for one in lines()]
    origin = str(harness.stack.addresses["gateway"])
    page = visits(origin, viewport={"width": 1440, "height": 900}).open("/")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    found_out(page, by_keyboard, harness, run_id, origin)
    by_keyboard(page.get_by_role("link", name="by-night"))
    reach(page.get_by_label("Reason"))
    page.keyboard.type("the shop is down")
    by_keyboard(page.get_by_role("button", name="Pause"))
    carried_out(page)
    expect(page.get_by_role("main")).to_contain_text(
        re.compile("Paused .* ago: .*the shop is down")
    )
    site.mend()
    page.goto(f"/runs/{run_id}")
    by_keyboard(page.get_by_role("button", name="Resume"))
    carried_out(page)
    all_well(page, by_keyboard, run_id)
