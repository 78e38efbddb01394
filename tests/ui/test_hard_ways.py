"""The web UI without JavaScript, without a mouse, without rights, and with a gateway that goes
down.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.harness import Harness, until
from tests.ui.browser import LOGGING_OUT, Visitor
from tests.ui.conftest import Visits
from tests.ui.people import Guarded, guarded, now, number, row, start

#: Makes a browser without a shared worker for all windows, whose requests the tests could not
#: change.
ALONE = "delete window.SharedWorker"


def test_without_javascript_runs_are_read_started_stopped_and_resumed(
    harness: Harness, visits: Visits
) -> None:
    page = visits(str(harness.stack.addresses["gateway"]), java_script_enabled=False).open(
        "/runs/new"
    )
    page.get_by_label("Crawler", exact=True).fill("plain")
    page.get_by_role("button", name="Show arguments").click()
    page.get_by_label("max_pages").fill("100000")
    page.get_by_label("delay").fill("5")
    page.get_by_role("button", name="Start", exact=True).click()
    run_id = number(page)
    until(lambda: harness.tasks(run_id).get("RUNNING"), "a crawler that runs")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("status", name="Result")).to_contain_text("1 of 1 carried out")
    until(lambda: harness.status(run_id) == "FAILED", "the end")
    page.goto("/runs?status=FAILED")
    # The browser's own text search: the tool's search omits what is in <noscript>.
    assert "UTC, when this page was rendered." in page.locator("footer").inner_text()
    expect(row(page, run_id)).to_contain_text("cancelled")
    page.get_by_role("link", name=str(run_id), exact=True).click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status", name="Result")).to_contain_text("1 of 1 carried out")


def bar(page: Page) -> Locator:
    """Return the bar that says why a page may be old."""
    return page.locator("#bar")


def test_a_gateway_that_freezes_and_dies_is_told_in_a_bar_until_the_page_goes_on(
    harness: Harness, visitor: Visitor
) -> None:
    run_id = start(harness)
    listed = visitor.open("/")
    listed.set_viewport_size({"width": 800, "height": 300})
    expect(listed.get_by_role("row").filter(has_text="plain")).to_contain_text("running")
    expect(listed.locator("#fleet-summary")).to_contain_text("1 run live")
    listed.evaluate("scrollTo(0, document.body.scrollHeight)")
    with visitor.expecting("ERR_", "Failed to load resource", "htmx:sse:error"):
        gateway = harness.freeze("gateway")
        told = re.compile(r"^No news since \d\d:\d\d:\d\d UTC\. What you see may be old\.$")
        expect(listed.get_by_role("alert")).to_have_text(told)
        expect(bar(listed)).to_be_in_viewport()
        before = listed.locator("#fleet-summary").evaluate(
            "e => getComputedStyle(e, '::before').content"
        )
        assert before == '"When last heard: "'
        ages = listed.locator("time").all_inner_texts()
        listed.wait_for_timeout(1500)
        assert listed.locator("time").all_inner_texts() == ages, "ages go on as if they were fresh"
        visitor.poll(listed)
        listed.emulate_media(color_scheme="dark")
        visitor.poll(listed)
        os.kill(gateway, signal.SIGKILL)
        harness.stack.supervisor.wait_healthy(["gateway"])
        harness.gateway.stop(run_id, reason="after the accident")
        crawler = listed.get_by_role("row").filter(has_text="plain")
        expect(crawler).not_to_contain_text("running")
        expect(bar(listed)).to_be_hidden()


def test_the_bar_names_temporal_also_above_a_log(harness: Harness, visitor: Visitor) -> None:
    page = visitor.open(f"/runs/{start(harness)}/log")
    expect(page.locator("#log-now")).to_contain_text("RUNNING")
    harness.freeze("temporal")
    try:
        expect(bar(page)).to_contain_text(
            re.compile("^No news.*: Temporal does not answer. What you see may be old")
        )
    finally:
        harness.thaw("temporal")
    expect(bar(page)).to_be_hidden()


def test_a_first_connection_that_fails_is_tried_again(visitor: Visitor) -> None:
    visitor.context.add_init_script(ALONE)
    visitor.context.route("**/page/events?*", lambda route: route.abort())
    with visitor.expecting("ERR_", "htmx:error"):
        page = visitor.open("/runs")
        expect(bar(page)).to_contain_text("No news since")
        visitor.context.unroute("**/page/events?*")
        expect(bar(page)).to_be_hidden()


def test_a_wrong_clock_a_tab_behind_and_a_sleep_raise_no_bar_that_stays(visitor: Visitor) -> None:
    """The browser's clock is a day wrong; after a sleep it is right, and the other clocks stood
    still.
    """
    visitor.context.add_init_script(ALONE)
    visitor.context.add_init_script(
        "window.wrong = -86400e3; const real = Date.now; Date.now = () => real() + wrong;"
    )
    page = visitor.open("/runs")
    page.evaluate(
        "new MutationObserver(() => (window.raised ||= []).push(bar.textContent)).observe(bar, {childList: true})"
    )
    fresh = page.get_by_text(re.compile(r"^As of \d s ago$"))
    expect(fresh).to_be_visible()
    page.evaluate("wrong = 0")
    page.wait_for_function("() => window.raised && raised.length > 1")
    raised, went = page.evaluate("raised.splice(0)")
    assert re.fullmatch(r"No news since \d\d:\d\d:\d\d UTC\. What you see may be old\.", raised)
    assert not went
    visitor.show(visitor.context.new_page())
    page.wait_for_function("() => document.documentElement.matches('.stale')")
    visitor.show(page)
    expect(fresh).to_be_visible()
    assert not page.evaluate("raised.length"), "a tab that comes to the front raises no bar"
    tabs = [page, *(visitor.open("/managers") for _ in range(4))]
    for tab in tabs:
        visitor.show(tab)
        expect(tab.get_by_text(re.compile(r"^As of \d s ago$"))).to_be_visible()
    until(
        lambda: visitor.streams == 1,
        "one stream of five tabs: a browser has six connections for all of them",
    )


def test_a_tab_that_was_opened_behind_tells_its_age_at_once(visitor: Visitor) -> None:
    """Browsers paint nothing there, and a page begins with its first paint."""
    visitor.context.add_init_script(
        "window.held = []; window.requestAnimationFrame = (begin) => held.push(begin);"
    )
    page = visitor.open("/runs")
    page.wait_for_timeout(6000)
    told, bar = page.evaluate("""() => new Promise((done) => {
      held.splice(0).forEach((begin) => begin());
      setTimeout(() => done(['as-of', 'bar'].map((id) => document.getElementById(id).textContent)));
    })""")
    assert re.fullmatch(r"As of \d\d:\d\d:\d\d UTC", told), (
        "what is six seconds old does not poll fresh"
    )
    assert not bar, "a tab that comes to the front raises no bar"


def test_gateways_of_two_builds_do_not_let_a_page_begin_anew_for_ever(visitor: Visitor) -> None:
    """During a rollout, the page comes from one of them and its stream from the other."""
    hello = json.dumps({"now": datetime.now(UTC).isoformat(), "build": "another"})
    events = {"content_type": "text/event-stream", "body": f"event: hello\ndata: {hello}\n\n"}
    visitor.context.add_init_script(ALONE)
    visitor.context.route("**/page/events?*", lambda route: route.fulfill(**events))
    page = visitor.open("/runs")
    expect(page.get_by_text("This page is out of date")).to_be_visible()
    page.get_by_role("main").get_by_role(
        "searchbox"
    ).focus()  # the page does not reload while somebody types


@pytest.fixture(scope="module")
def gate(stack: Harness) -> Iterator[Guarded]:
    with guarded(stack) as gateway:
        yield gateway


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_the_login_leads_back_shows_what_a_role_may_do_and_ends(
    harness: Harness, visits: Visits, gate: Guarded
) -> None:
    run_id = start(harness)
    visitor = visits(gate.url)
    page = visitor.open(f"/runs/{run_id}")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    with visitor.expecting("401"):
        log_in(page, "not a token")
        expect(page.get_by_role("alert")).to_contain_text("unknown or has expired")
    visitor.poll(page)
    log_in(page, gate.tokens["read"])
    expect(page).to_have_url(f"{gate.url}/runs/{run_id}")
    expect(now(page)).to_contain_text("running")
    expect(page.get_by_role("button", name=re.compile("Stop|Check now"))).to_have_count(0)
    expect(page.get_by_role("link", name="Start a run")).to_have_count(0)
    (cookie,) = visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert gate.tokens["read"] not in cookie["value"]
    with visitor.expecting(*LOGGING_OUT):
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto("/runs")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert not visitor.context.cookies()


def test_a_login_that_ended_in_the_middle_of_a_form_loses_nothing(
    harness: Harness, visits: Visits, gate: Guarded
) -> None:
    visitor = visits(gate.url)
    page = visitor.open("/login?next=/schedules/new")
    log_in(page, gate.tokens["admin"])
    page.get_by_label("Name", exact=True).fill("typed")
    page.get_by_label("Crawler", exact=True).fill("plain")
    page.get_by_label("Or: seconds between two due times").fill("3600")
    expect(page.locator("#next")).to_contain_text("Next times in UTC")
    page.get_by_label("Paused").check()
    visitor.context.clear_cookies()
    with visitor.expecting("401"):
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("your session has ended")
    visitor.poll(page)
    with visitor.context.expect_page() as opened:
        page.get_by_role("link", name="Log in in another tab").click()
    log_in(opened.value, gate.tokens["admin"])
    expect(opened.value.get_by_role("heading", level=1)).to_contain_text("Fleet")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Schedule typed")


def test_a_token_that_is_taken_back_ends_a_login_that_is_open(
    harness: Harness, visits: Visits, gate: Guarded
) -> None:
    run_id = start(harness)
    visitor = visits(gate.url)
    page = visitor.open("/login")
    log_in(page, gate.tokens["operate"])
    page.goto(f"/runs/{run_id}")
    expect(now(page)).to_contain_text("running")
    with visitor.expecting("401", "htmx:sse:error"):
        gate.take_back("operate")
        expect(bar(page)).to_contain_text("Your session has ended")
        visitor.poll(page)
        with visitor.context.expect_page() as opened:
            page.get_by_role("link", name="Log in again").click()
        visitor.show(opened.value)
        log_in(opened.value, gate.tokens["admin"])
        expect(now(opened.value)).to_contain_text("running")
        visitor.show(page)
        expect(page.locator("html.stale")).to_have_count(0)
        expect(bar(page)).to_be_hidden()
