"""Lists with 513 crawlers and hostile texts: they fit every window, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.store.store import open_store
from tests.gateway.gateway_harness import Clock, Harness
from tests.gateway.served import served_in_thread
from tests.gateway.ui.fleet_scene import fill_fleet
from tests.support.databases import make_tables
from tests.ui.browser import Visitor

WORD = "W" * 800
WIDTHS = (360, 480, 768, 1024, 1440, 1920)
#: The page of every list, and one of each subject. The run has tasks.
PAGES = (
    "/",
    "/incidents",
    "/incidents/1",
    "/runs",
    "/runs?status=FAILED&search=W",
    "/managers",
    "/graphs",
    "/schedules",
    "/webhooks",
    "/pools",
    "/sites",
    "/corrections",
    "/audit",
    "/access",
    "/runs/1/tasks",
    "/runs/1/files",
    "/runs/1",
    "/runs/1/timeline",
    "/runs/1/request",
    "/runs/1?compare=2",
    "/crawlers/shop-437",
    "/crawlers/shop-437/runs",
    "/crawlers/shop-437/failures",
    "/managers/1",
    f"/graphs/{WORD[:100]}",
    f"/schedules/{WORD[:60]}",
    f"/webhooks/{WORD[:60]}",
    f"/webhooks/{WORD[:60]}/deliveries",
    f"/sites/{WORD[:60].lower()}.example",
    f"/sites/{WORD[:60].lower()}.example/blocks",
    f"/search?q={WORD[:60]}",
    "/parts",
)
#: Cells and items of the page whose visible content overlaps the next one, and whether the page is
#: wider than its window.
FAULTS = """() => {
  const found = [...document.querySelectorAll("main tr, .incidents li, .top li a")].flatMap((row) => {
    const cells = [...row.children].filter((cell) => cell.getClientRects().length);
    return cells.slice(0, -1).filter((cell, n) => {
      const next = cells[n + 1].getBoundingClientRect(), own = cell.getBoundingClientRect();
      if (next.top >= own.bottom - 1) return false;
      const clipped = getComputedStyle(cell).overflowX === "hidden";
      const inner = clipped ? [] : [...cell.children].map((one) => one.getBoundingClientRect().right);
      return Math.max(own.right, ...inner) > next.left + 1;
    }).map((cell) => `${row.id} ${cell.className} ${cell.textContent.slice(0, 20)}`);
  });
  const wide = document.documentElement.scrollWidth > innerWidth;
  return wide ? [...found, `the page is ${document.documentElement.scrollWidth} wide`] : found;
}"""


def fill_lists(harness: Harness) -> None:
    """Record something with a long word in every list."""
    with harness.client() as client:
        step = {"path": "walk", "kind": "crawl", "job": {"crawler": "plain"}}
        hook = {"url": f"https://hooks.example.com/{WORD}", "secrets": ["env:CRAWL_HOOK"]}
        due = {"run": {"crawler": "plain", "args": {"site": WORD}}, "every_s": 3600}
        tasks = [{"args": {"site": WORD}}] * 2
        for method, path, body in (
            ("POST", "runs", {"crawler": "plain", "tags": [WORD[:200]], "tasks": tasks}),
            ("POST", "managers", {"crawler": "plain", "flow_id": "f", "tags": [WORD[:200]]}),
            ("POST", "graphs", {"id": WORD[:100], "name": WORD[:100], "steps": [step]}),
            ("PUT", f"schedules/{WORD[:60]}", due),
            ("PUT", f"webhooks/{WORD[:60]}", hook),
            ("PUT", f"sites/{WORD[:60]}.example", {"hours": "22:00-06:00 Europe/Berlin"}),
            ("POST", f"sites/{WORD[:60]}.example/close", {"for_s": 600, "reason": WORD[:200]}),
            ("POST", f"schedules/{WORD[:60]}/pause", {"reason": WORD}),
            ("POST", f"webhooks/{WORD[:60]}/pause", {"reason": WORD}),
        ):
            answer = client.request(method, f"/v1/{path}", json=body)
            assert answer.is_success, answer.text
    correction = Correction(CorrectionKind.LATE, "LOST", "W" * 20, evidence={"word": WORD})
    harness.store.corrections.record_corrections(1, [correction])


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway with 513 crawlers, in its own thread."""
    clock = Clock()
    store = open_store(
        make_tables(f"sqlite:///{tmp_path_factory.mktemp('fleet')}/runs.db"),
        pool_size=30,
        clock=clock,
    )
    harness = Harness(store, clock)
    fill_lists(harness)
    fill_fleet(harness)
    with served_in_thread(harness.new_app()) as address:
        yield address
    store.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overlaps_and_nothing_is_wider_than_its_window(
    browser: Browser, origin: str, scheme: str
) -> None:
    visitor = Visitor(browser, origin, {"color_scheme": scheme})
    page = visitor.open("/healthz")
    for path in PAGES:
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(FAULTS) == [], f"{path} at {width} pixels"
    page.goto("/")
    expect(page.get_by_role("row").nth(100)).to_be_attached()
    page.set_viewport_size({"width": 1440, "height": 900})
    expect(page.get_by_role("row", name="shop-437")).to_be_in_viewport()
    visitor.poll(page)
    page.keyboard.press("f")
    page.keyboard.type("shop-511")
    expect(page.get_by_text("1 crawler", exact=True)).to_be_visible()
    visitor.leave()


def test_an_incident_is_muted_on_the_first_page(browser: Browser, origin: str) -> None:
    visitor = Visitor(browser, origin)
    page = visitor.open("/")
    line = page.locator(".incidents li").filter(has_text="shop-437 fails")
    line.get_by_text("More: shop-437 fails").click()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(FAULTS) == [], f"at {width} pixels"
    visitor.poll(page)
    line.get_by_role("button", name="Mute for 1 h").click()
    expect(page.get_by_text("muted, ends in")).to_be_visible()
    visitor.poll(page)
    page.get_by_label("Mute until (UTC)").fill("2020-01-01T00:00")
    with visitor.expecting("422"):
        page.get_by_role("button", name="Mute", exact=True).click()
        expect(page.get_by_text("give a later time").first).to_be_visible()
    expect(page.get_by_label("Mute until (UTC)")).to_have_value("2020-01-01T00:00")
    visitor.poll(page)
    page.goto("/incidents?show=muted")
    expect(page.get_by_role("link", name="shop-437 fails", exact=True)).to_be_visible()
    visitor.leave()
