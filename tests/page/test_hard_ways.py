"""The page for those who have no JavaScript, no mouse, no right, or a gateway that goes away."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.world import World, until
from tests.page.browser import Visitor
from tests.page.conftest import Visits
from tests.page.people import Guarded, guarded, now, number, row, start


def test_without_javascript_runs_are_read_started_stopped_and_resumed(world: World, visits: Visits) -> None:
    page = visits(str(world.stack.addresses["gateway"]), java_script_enabled=False).open("/runs/new?crawler=plain")
    page.get_by_label("max_pages").fill("100000")
    page.get_by_label("delay").fill("5")
    page.get_by_role("button", name="Start", exact=True).click()
    run_id = number(page)
    until(lambda: world.tasks(run_id).get("RUNNING"), "a crawler that runs")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("main").get_by_role("status")).to_contain_text("1 carried out")
    until(lambda: world.status(run_id) == "FAILED", "the end")
    page.goto("/?status=FAILED")
    expect(row(page, run_id)).to_contain_text("cancelled")
    page.get_by_role("link", name=str(run_id), exact=True).click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("main").get_by_role("status")).to_contain_text("1 carried out")


def test_by_keyboard_alone_a_run_is_found_and_stopped(world: World, visitor: Visitor) -> None:
    run_id = start(world)
    page = visitor.open("/")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    reach(page, f"#run-{run_id} a")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/runs/{run_id}$"))
    reach(page, "input[name=reason]")
    page.keyboard.type("from the keyboard")
    expect(now(page)).to_contain_text("PROCESSING")
    expect(page.locator(":focus")).to_have_value("from the keyboard")
    reach(page, "button[value=stop]")
    page.keyboard.press("Enter")
    expect(page.get_by_role("main").get_by_role("status")).to_contain_text("1 carried out")
    assert world.gateway.run(run_id)["stop"]["reason"] == "from the keyboard"


def reach(page: Page, selector: str) -> None:
    """Press the tabulator until this has the focus, which must then be seen."""
    for _ in range(80):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            break
        page.keyboard.press("Tab")
    focused = page.locator(f":focus:is({selector})")
    expect(focused).to_be_in_viewport()
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") != "none", "the focus cannot be seen"


def test_a_gateway_that_is_killed_is_told_about_and_the_page_goes_on(world: World, visitor: Visitor) -> None:
    run_id = start(world)
    listed = visitor.open("/")
    expect(row(listed, run_id)).to_contain_text("PROCESSING")
    old = listed.get_by_text("no updates arrive")
    with visitor.expecting("ERR_", "Failed to load resource", "htmx:sse:error"):
        gateway = world.freeze("gateway")
        expect(old).to_be_visible()
        os.kill(gateway, signal.SIGKILL)
        world.stack.wait_healthy("gateway")
        world.gateway.stop(run_id, reason="after the accident")
        expect(row(listed, run_id)).to_contain_text("FAILED")
        expect(old).to_be_hidden()


def test_gateways_of_two_builds_do_not_let_a_page_begin_anew_for_ever(visitor: Visitor) -> None:
    """During a rollout the page comes from one of them and its stream from the other."""
    hello = json.dumps({"now": datetime.now(UTC).isoformat(), "build": "another"})
    events = {"content_type": "text/event-stream", "body": f"event: hello\ndata: {hello}\n\n"}
    visitor.context.route("**/page/events?*", lambda route: route.fulfill(**events))
    expect(visitor.open("/").get_by_text("This page is out of date")).to_be_visible()


@pytest.fixture(scope="module")
def gate(stack: World) -> Iterator[Guarded]:
    with guarded(stack) as gateway:
        yield gateway


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_the_login_leads_back_shows_what_a_role_may_do_and_ends(world: World, visits: Visits, gate: Guarded) -> None:
    run_id = start(world)
    visitor = visits(gate.url)
    page = visitor.open(f"/runs/{run_id}")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    with visitor.expecting("401"):
        log_in(page, "not a token")
        expect(page.get_by_role("alert")).to_contain_text("unknown or has expired")
    visitor.look(page)
    log_in(page, gate.tokens["read"])
    expect(page).to_have_url(f"{gate.url}/runs/{run_id}")
    expect(now(page)).to_contain_text("PROCESSING")
    expect(page.get_by_role("button", name=re.compile("Stop|Check now"))).to_have_count(0)
    expect(page.get_by_role("link", name="Start a run")).to_have_count(0)
    (cookie,) = visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert gate.tokens["read"] not in cookie["value"]
    with visitor.expecting("Clear-Site-Data"):
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto("/")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert not visitor.context.cookies()


def test_a_login_that_ended_in_the_middle_of_a_form_loses_nothing(world: World, visits: Visits, gate: Guarded) -> None:
    visitor = visits(gate.url)
    page = visitor.open("/login?next=/schedules/new")
    log_in(page, gate.tokens["admin"])
    page.get_by_label("Name", exact=True).fill("typed")
    page.get_by_label("Crawler").fill("plain")
    page.get_by_label("Or seconds between two due times").fill("3600")
    page.get_by_label("Paused").check()
    visitor.context.clear_cookies()
    with visitor.expecting("401"):
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("your login has ended")
    visitor.look(page)
    with visitor.context.expect_page() as opened:
        page.get_by_role("link", name="Log in in another tab").click()
    log_in(opened.value, gate.tokens["admin"])
    expect(opened.value.get_by_role("heading", level=1)).to_contain_text("Runs")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Schedule typed")


def test_a_token_that_is_taken_back_ends_a_login_that_is_open(world: World, visits: Visits, gate: Guarded) -> None:
    run_id = start(world)
    visitor = visits(gate.url)
    page = visitor.open("/login")
    log_in(page, gate.tokens["operate"])
    page.goto(f"/runs/{run_id}")
    expect(now(page)).to_contain_text("PROCESSING")
    with visitor.expecting("401", "htmx:sse:error"):
        gate.take_back("operate")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
