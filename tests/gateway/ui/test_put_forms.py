"""The forms of schedules and webhooks: the rules of the API, messages next to the fields, and no
input is lost.
"""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.features.webhooks.domain.definition import ALERTS
from tests.gateway.gateway_harness import Harness

FORM = {
    "name": "nightly",
    "kind": "run",
    "crawler": "plain",
    "cron": "30 2 * * *",
    "time_zone": "Europe/Berlin",
}
HOOK = {
    "name": "shop",
    "url": "https://hooks.example.com/x",
    "secret": "env:CRAWL_HOOK",
    "events": ["run.ended", "graph.*"],
}


class Filled(HTMLParser):
    """What a browser would send from the form of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.form: dict[str, Any] = {}
        self._area: str | None = None
        self._options: list[str] = []
        self._select: str | None = None
        self.feed(text.partition("<main")[2])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name"), given.get("value") or ""
        if tag == "textarea" and name:
            self._area = name
            self.form[name] = ""
        elif tag == "select":
            self._select = name
        elif (
            tag == "option"
            and self._select
            and (self._select not in self.form or "selected" in given)
        ):
            self.form[self._select] = value
        elif (
            tag == "input"
            and name
            and (given.get("type") not in ("radio", "checkbox") or "checked" in given)
        ):
            if given.get("type") == "checkbox":
                self.form.setdefault(name, []).append(value)
            else:
                self.form[name] = re.sub("[\r\n]", "", value)

    def handle_data(self, data: str) -> None:
        if self._area:
            self.form[self._area] += data.replace("\n", "\r\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._area:
            self.form[self._area] = self.form[self._area].removeprefix("\r\n")
            self._area = None
        elif tag == "select":
            self._select = None


def filled(answer: Any) -> dict[str, Any]:
    return Filled(answer.text).form


def wrong(answer: Any) -> dict[str, str]:
    """Return the messages next to the fields."""
    found = re.findall(r'<span class="bad" id="wrong-([\w.]+)">(.*?)</span>', answer.text)
    return {name: html.unescape(text) for name, text in found}


def definition(harness: Harness, name: str = "nightly") -> dict[str, Any]:
    return dict(harness.schedule(name).definition)


DEFINITIONS: dict[str, dict[str, Any]] = {
    "plain": {"run": {"crawler": "plain"}, "every_s": 3600},
    "whole": {
        "run": {
            **{
                "crawler": "plain",
                "args": {"page": " 1=2 ", "site": ""},
                "settings": {"LOG_LEVEL": "INFO"},
            },
            **{
                "tags": ["a", "b c"],
                "tasks": [{"args": {"page": "7"}}],
                "limits": {"run_timeout_s": 60},
            },
        },
        **{
            "cron": "*/5  2-4 * * MON-FRI",
            "time_zone": "Europe/Berlin",
            "jitter_s": 20,
            "overlap": "stop_previous",
        },
        **{
            "start_at": "2026-11-20T00:00:00+00:00",
            "end_at": "2027-11-20T00:00:00+00:00",
            "catch_up_s": 60,
        },
        **{"excluded": ["2026-12-24", "2026-12-25"], "pause_after_failures": 3},
    },
    "no field says": {
        "run": {
            "crawler": "plain",
            "args": {"page": "two\nlines", "site": "x"},
            "tags": ["a, b", "c"],
        },
        **{"every_s": 60, "offset_s": 7},
    },
    "manager": {
        "manager": {
            "crawler": "plain",
            "name": "walks",
            "options": {"args": {"page": "a 'b' \" <c>"}},
        },
        "every_s": 60,
    },
    "graph": {
        "graph": {
            "name": "g",
            "steps": [{"path": "walk", "kind": "crawl", "job": {"crawler": "plain"}}],
        },
        "every_s": 60,
    },
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_form_that_is_sent_as_it_was_filled_in_changes_nothing(
    harness: Harness, browser: TestClient, name: str
) -> None:
    put = browser.put("/v1/schedules/nightly", json=DEFINITIONS[name])
    assert put.status_code == 200, put.text
    form = filled(browser.get("/schedules/new?name=nightly"))
    before = definition(harness)
    answer = browser.post("/schedules/new", data=form)
    assert answer.headers.get("location") == "/schedules/nightly", html.unescape(answer.text)
    changed = browser.post("/schedules/new", data=form | {"catch_up_s": "77"})
    assert changed.status_code == 303, html.unescape(changed.text)
    after = definition(harness)
    assert after.pop("catch_up_s") == 77
    before.pop("catch_up_s", None)
    assert after == before
    assert harness.schedule().revision == 2


def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_is_kept(
    harness: Harness, browser: TestClient
) -> None:
    for given, field, words in [
        ({"name": "a b"}, "name", "letters, digits"),
        ({"name": ""}, "name", "letters, digits"),
        ({"kind": ""}, "kind", "exactly one"),
        ({"crawler": ""}, "crawler", "missing"),
        ({"crawler": "plein"}, "crawler", "did you mean plain?"),
        ({"arg.nonsense": "1"}, "arg.nonsense", "unknown argument"),
        ({"request": "{"}, "request", "not valid JSON"),
        ({"request": "[]"}, "request", "one object"),
        ({"request": '{"a": NaN}'}, "request", "NaN"),
        ({"request": "[" * 100_000}, "request", "nested"),
        ({"request": '{"colour": 1}'}, "request", "unknown field"),
        ({"request": '{"crawler": "plain"}'}, "request", "the form has a field for it"),
        ({"request": '{"run_id": 7}'}, "request", "send POST /v1/runs/7/resume"),
        ({"request": '{"due_at": "2026-11-20T00:00:00Z"}'}, "request", "each due time has its own"),
        ({"cron": "61 2 * * *"}, "cron", "61"),
        ({"cron": ""}, "cron", "give either cron"),
        ({"every_s": "60"}, "cron", "not both"),
        ({"cron": "", "every_s": "soon"}, "every_s", "valid integer"),
        ({"cron": "", "every_s": "9" * 30}, "every_s", "integer"),
        ({"time_zone": "Mars/Base"}, "time_zone", "Mars"),
        ({"excluded": "2026-12-24\r\n24.12."}, "excluded", "24.12."),
        ({"cron": "* * * * * *"}, "cron", "five"),
        ({"end_at": "2027-03-28T02:30"}, "end_at", "does not exist in Europe/Berlin"),
        ({"end_at": "9999-12-31T23:59:59"}, "end_at", "9999"),
        ({"catch_up_s": "1"}, "catch_up_s", "10"),
        ({"jitter_s": "-1"}, "jitter_s", "-1"),
        ({"start_at": "0001-01-01T00:00"}, "start_at", "does not exist"),
        ({"start_at": "tomorrow"}, "start_at", "tomorrow"),
        ({"paused": "yes", "reason": "x" * 2001}, "reason", "2000"),
        ({"kind": "manager", "argv": "'"}, "argv", "quot"),
        ({"kind": "manager", "argv": "\\a" * 100_000}, "argv", "too many"),
        ({"kind": "manager", "target_name": "x"}, "plan", "give either plan"),
        ({"kind": "manager", "plan": "no.such:Class", "target_name": "a b"}, "target_name", "a b"),
        ({"kind": "graph", "request": '{"steps": [{"path": "a"}]}'}, "request", "kind"),
    ]:
        sent = {**FORM, "tags": "<kept>, b", **given}
        answer = browser.post("/schedules/new", data=sent)
        assert answer.status_code in (400, 409, 422), answer.headers
        assert words in wrong(answer).get(field, ""), html.unescape(
            answer.text.partition("<main")[2]
        )[:600]
        again = filled(answer)
        assert {
            name: value for name, value in sent.items() if value and again.get(name) != value
        } in (
            {},
            {"paused": "yes"},
        )
        assert harness.store.schedules.get("nightly") is None


def test_nothing_has_the_name_of_the_form_that_makes_it(
    harness: Harness, browser: TestClient
) -> None:
    assert browser.put("/v1/schedules/newer", json=DEFINITIONS["plain"]).status_code == 200
    for path, body in (
        ("schedules", DEFINITIONS["plain"]),
        ("webhooks", {"url": HOOK["url"], "secrets": ["env:CRAWL_HOOK"]}),
    ):
        answer = browser.put(f"/v1/{path}/new", json=body, headers={"Accept": "application/json"})
        detail = (
            f"name: 'new' is not allowed; /{path}/new is the page of the form; give another name"
        )
        assert (answer.status_code, answer.json()["detail"]) == (422, detail)
    answer = browser.post("/schedules/new", data={**FORM, "name": "new"})
    assert "give another name" in wrong(answer)["name"]


def test_a_form_writes_over_nothing_that_it_did_not_show(
    harness: Harness, browser: TestClient
) -> None:
    assert browser.post("/schedules/new", data=FORM).status_code == 303
    assert browser.post("/schedules/new", data=FORM).status_code == 303, "sent twice it is the same"
    taken = browser.post("/schedules/new", data={**FORM, "cron": "1 1 * * *"})
    assert "this name already exists" in wrong(taken)["name"]
    mine, other = (filled(browser.get("/schedules/new?name=nightly")) for _ in range(2))
    assert browser.post("/schedules/new", data=other | {"catch_up_s": "30"}).status_code == 303
    late = browser.post("/schedules/new", data=mine | {"jitter_s": "5"})
    assert (late.status_code, "somebody changed it" in late.text, filled(late)["jitter_s"]) == (
        409,
        True,
        "5",
    )
    browser.delete("/v1/schedules/nightly")
    late = browser.post("/schedules/new", data=mine)
    assert (late.status_code, "it was deleted" in late.text) == (409, True)
    assert definition(harness) == definition(harness) | {"catch_up_s": 30, "jitter_s": 0}


def test_a_schedule_is_made_paused_and_goes_on_when_the_form_says_so(
    harness: Harness, browser: TestClient
) -> None:
    browser.post("/schedules/new", data=FORM | {"paused": "yes", "reason": "the shop moves"})
    assert harness.schedule().pause_reason == "paused over HTTP: the shop moves"
    shown = filled(browser.get("/schedules/new?name=nightly"))
    assert browser.post("/schedules/new", data=shown).status_code == 303
    assert harness.schedule().paused_at is not None
    del shown["paused"]
    browser.post("/schedules/new", data=shown)
    row = harness.schedule()
    assert (row.paused_at, row.revision) == (None, 1)


def test_a_pause_that_the_form_did_not_show_stays(harness: Harness, browser: TestClient) -> None:
    browser.post("/schedules/new", data=FORM)
    shown = filled(browser.get("/schedules/new?name=nightly"))
    browser.post("/v1/schedules/nightly/pause", json={})
    assert browser.post("/schedules/new", data=shown | {"catch_up_s": "30"}).status_code == 303
    assert harness.schedule().paused_at is not None


def test_without_the_database_what_was_typed_stays(
    harness: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the database does not answer")

    monkeypatch.setattr(type(harness.store.schedules), "put", away)
    answer = browser.post("/schedules/new", data=FORM | {"arg.page": "7\r\n8"})
    assert (answer.status_code, "the database does not answer" in answer.text) == (503, True)
    assert filled(answer)["arg.page"] == "7\r\n8"


def test_a_webhook_is_made_changed_and_its_secret_rotated(
    harness: Harness, browser: TestClient
) -> None:
    assert browser.post("/webhooks/new", data=HOOK).headers.get("location") == "/webhooks/shop"
    shown = filled(browser.get("/webhooks/new?name=shop"))
    assert browser.post("/webhooks/new", data=shown).status_code == 303
    row = harness.webhook("shop")
    assert (row.revision, sorted(row.definition["events"])) == (1, ["graph.*", "run.ended"])
    browser.post(
        "/webhooks/new",
        data=shown | {"next_secret": "env:CRAWL_HOOK_NEXT", "statuses": "FAILED\r\nCOMPLETED"},
    )
    row = harness.webhook("shop")
    assert row.definition["secrets"] == ["env:CRAWL_HOOK", "env:CRAWL_HOOK_NEXT"]
    assert row.definition["statuses"] == ["FAILED", "COMPLETED"]
    stale = browser.post("/webhooks/new", data=shown | {"url": "https://other.example/x"})
    assert (stale.status_code, "somebody changed it" in stale.text) == (409, True)
    browser.post(
        "/webhooks/new", data=filled(browser.get("/webhooks/new?name=shop")) | {"paused": "yes"}
    )
    assert harness.webhook("shop").state == "paused"


def test_the_form_of_an_alert_does_not_show_its_secret_address_and_keeps_it(
    harness: Harness, browser: TestClient
) -> None:
    url = "https://hooks.slack.com/services/T0/B0/hunter2"
    made = {"name": "shop", "kind": "slack", "url": url}
    assert browser.post("/webhooks/new", data=made).headers.get("location") == "/webhooks/shop"
    assert harness.webhook("shop").definition == {
        "kind": "slack",
        "url": url,
        "events": list(ALERTS),
    }
    for page in ("/webhooks", "/webhooks/shop", "/webhooks/new?name=shop"):
        assert "hunter2" not in browser.get(page).text
    assert "<option selected>slack</option>" in browser.get("/webhooks/new?name=shop").text
    shown = filled(browser.get("/webhooks/new?name=shop")) | {"kind": "slack"}
    assert browser.post("/webhooks/new", data=shown).status_code == 303
    assert harness.webhook("shop").revision == 1
    assert browser.post("/webhooks/new", data=shown | {"statuses": "FAILED"}).status_code == 303
    assert (harness.webhook("shop").revision, harness.webhook("shop").definition["url"]) == (2, url)


def test_a_webhook_that_is_wrong_is_told_beside_its_field(
    harness: Harness, browser: TestClient
) -> None:
    for given, field, words in [
        ({"url": "http://169.254.169.254/"}, "url", "https"),
        ({"url": ""}, "url", "missing"),
        ({"secret": ""}, "secret", "give one reference"),
        ({"kind": "slack"}, "secret", "omit them"),
        ({"kind": "email", "secret": ""}, "url", "ops@example.com"),
        ({"kind": "pager"}, "kind", "slack"),
        ({"secret": "whsec_verysecret"}, "secret", "this is not a reference"),
        ({"next_secret": "env:CRAWL_HOOK"}, "secret", "two different references"),
        ({"events": "run.exploded"}, "events", "choose from"),
        ({"tags": "x" * 201}, "tags", "1 to 200"),
        ({"name": "-"}, "name", "letters"),
        ({"name": "new"}, "name", "'new' is not allowed; /webhooks/new is the page of the form"),
    ]:
        answer = browser.post("/webhooks/new", data={**HOOK, "flows": "<kept>", **given})
        assert answer.status_code == 422, given
        assert words in wrong(answer).get(field, ""), html.unescape(
            answer.text.partition("<main")[2]
        )[:600]
        assert filled(answer)["flows"] == "<kept>"
        assert "whsec_verysecret" not in answer.text
        assert harness.store.webhooks.get("shop") is None


def test_the_form_of_a_schedule_shows_its_next_times_and_the_typed_arguments_of_its_crawler(
    harness: Harness, browser: TestClient
) -> None:
    form = {**FORM, "show": "yes", "cron": "30 2 * 3 *", "time_zone": "Europe/Berlin"}
    page = browser.post("/schedules/new", data=form | {"arg.page": "7", "name": ""})
    assert (page.status_code, filled(page)["arg.page"]) == (200, "7")
    times = re.findall(r"<li>(\w+ 2027-03-\d\d [^<]*)</li>", page.text)
    assert times[0] == "Monday 2027-03-01 02:30:00 +0100", page.text
    assert len(times) == 5
    for given, sentence in [
        ({"start_at": "2027-03-27T00:00", "end_at": "2027-03-30T00:00"}, "03-29 02:30:00 +0200"),
        ({"cron": "* * * * * *"}, "cron: "),
        ({"cron": "0 0 31 2 *"}, "31"),
        ({"cron": "x" * 60_000}, "cron: "),
        ({"time_zone": "../etc"}, "time_zone: "),
        ({"end_at": "2001-01-01T00:00"}, "Nothing is due"),
        ({"start_at": "true"}, "start_at: "),
        ({"cron": ""}, "Enter a cron expression"),
        ({"crawler": "plian"}, "No crawler has this name; did you mean plain?"),
        ({"crawler": "<b>", "arg.<b>": "<b>"}, "No crawler has this name; known:"),
    ]:
        page = browser.post("/schedules/new", data=form | given)
        assert page.status_code == 200
        assert sentence in html.unescape(page.text.partition("<main")[2]), (given, page.text)
        assert "<b>" not in page.text.partition("<main")[2]
    assert harness.store.schedules.get("nightly") is None


def test_all_mistakes_of_a_form_are_shown_at_once_and_the_first_has_the_focus(
    harness: Harness, browser: TestClient
) -> None:
    given = {"crawler": "strict", "arg.nonsense": "x" * 60_000, "arg.depth": "deep"}
    schedule = browser.post(
        "/schedules/new", data={**FORM, **given, "name": "a b", "cron": "61 * * * *"}
    )
    assert wrong(schedule).keys() >= {"name", "arg.nonsense", "arg.depth", "cron"}
    run = {
        **given,
        "key": "0" * 32,
        "priority": "9",
        "settings": "LOG_LEVEL",
        "resources.memory": "much",
    }
    start = browser.post("/runs/new", data=run)
    told = {"arg.nonsense", "arg.depth", "arg.site", "priority", "settings", "resources.memory"}
    assert wrong(start).keys() >= told, wrong(start)
    for page, first in ((schedule, "name"), (start, "arg.site")):
        assert re.findall(r'id="f-([^"]+)"[^>]* autofocus', page.text) == [first]
    many = {f"arg.a{n}": "x" for n in range(400)}
    page = browser.post("/runs/new", data={"key": "0" * 32, "crawler": "plain", **many})
    assert (page.status_code, len(wrong(page))) == (422, 20)
    assert filled(page)["arg.a399"] == "x"
    assert harness.store.runs.list_runs() == []
