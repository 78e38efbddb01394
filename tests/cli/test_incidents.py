"""Listing incidents, and people's actions on them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import respx

from tests.cli.cli_support import Crawlctl

INCIDENT = {
    "incident_id": 12,
    "kind": "crawler_failing",
    "subject": "crawlers/shop",
    "project": "default",
    "level": "bad",
    "state": "open",
    "cause": "PriceError: no price\x1b[31m",
    "fix": "repair it",
    "count": 51,
    "first_run_id": 7,
    "last_run_id": 57,
    "opened_at": "2026-11-20T11:00:00Z",
    "last_at": "2026-11-20T11:59:00Z",
    "closed_at": None,
    "closed_by": None,
    "reopened": 0,
    "muted_until": None,
    "assignee": "anna",
    "comment": None,
}
AT = "/v1/incidents/12"


def body(route: respx.Route) -> Any:
    return json.loads(route.calls.last.request.content)


def test_a_list_shows_what_needs_somebody(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    page = {"incidents": [INCIDENT], "next_page_token": None}
    listed = gateway.get("/v1/incidents").respond(json=page)
    result = crawlctl("incidents")
    assert result.code == 0
    for text in ("12", "crawler_failing", "crawlers/shop", "51", "anna", "PriceError"):
        assert text in result.out
    assert "\x1b" not in result.out
    assert listed.calls.last.request.url.params["state"] == "open"
    words = ("--state", "all", "--kind", "crawler_failing", "--subject", "crawlers/shop")
    shown = crawlctl("incidents", *words, "--mine", "--muted", "-o", "json")
    assert shown.code == 0, shown.err
    assert shown.json["incidents"][0]["incident_id"] == 12
    sent = dict(listed.calls.last.request.url.params)
    assert sent["assignee"]
    assert {name: sent[name] for name in ("state", "kind", "subject", "muted")} == {
        "state": "all",
        "kind": "crawler_failing",
        "subject": "crawlers/shop",
        "muted": "true",
    }


def test_a_list_of_closed_ones_shows_who_closed_them(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    closed = {"state": "closed", "closed_at": "2026-11-20T11:59:30Z", "closed_by": "bob"}
    page = {"incidents": [{**INCIDENT, **closed}], "next_page_token": None}
    gateway.get("/v1/incidents").respond(json=page)
    shown = crawlctl("incidents", "--state", "closed").out
    assert all(text in shown for text in ("CLOSED BY", "bob")), shown
    assert "CLOSED" not in crawlctl("incidents").out


def test_an_empty_list_says_so(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/incidents").respond(json={"incidents": [], "next_page_token": None})
    assert "nothing needs attention" in crawlctl("incidents").err
    result = crawlctl("incidents", "--mine", "--assignee", "bob")
    assert (result.code, "--mine: not allowed with --assignee" in result.err) == (2, True)


def test_a_watch_prints_what_changes(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/incidents").respond(json={"incidents": [INCIDENT], "next_page_token": None})
    result = crawlctl("incidents", "--watch", "--timeout", "0.1")
    assert (result.code, "incident 12 crawler_failing" in result.out) == (7, True)


@pytest.mark.parametrize(
    ("words", "verb", "sent"),
    [
        (("mute", "12"), "mute", {"for_s": 86400}),
        (("mute", "12", "--time", "7d"), "mute", {"for_s": 604800}),
        (
            ("mute", "12", "--until", "2026-12-01T08:00:00Z"),
            "mute",
            {"until": "2026-12-01T08:00:00Z"},
        ),
        (("unmute", "12"), "mute", {}),
        (("assign", "12", "bob"), "assign", {"assignee": "bob"}),
        (("assign", "12", "--nobody"), "assign", {}),
        (("comment", "12", "a new layout"), "comment", {"comment": "a new layout"}),
        (("comment", "12", ""), "comment", {}),
        (("close", "12", "--by", "ann"), "close", {"requested_by": "ann"}),
    ],
)
def test_what_people_do_about_an_incident(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    words: tuple[str, ...],
    verb: str,
    sent: dict[str, object],
) -> None:
    asked = gateway.post(f"{AT}/{verb}").respond(json=INCIDENT)
    result = crawlctl("incident", *words)
    assert result.code == 0, result.err
    assert body(asked) == sent
    assert "PriceError" in result.out


def test_one_is_shown_with_its_fix(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get(AT).respond(json=INCIDENT)
    result = crawlctl("incident", "show", "12")
    assert "repair it" in result.out
    assert crawlctl("incident", "show", "12", "-o", "name").out == "12\n"
    assert crawlctl("incident", "mute", "12", "--time", "soon").code == 2
