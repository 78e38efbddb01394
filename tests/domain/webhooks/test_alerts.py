"""Alerts: what people are told, escaped for each service and within its limits."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from crawler_lifecycle.domain.names import EVENT_TYPES
from crawler_lifecycle.features.webhooks.domain.alerts import alert_of, message
from crawler_lifecycle.features.webhooks.domain.definition import ALERTS

ENDED: dict[str, Any] = {
    **{
        "run_id": 7,
        "project": "default",
        "crawler": "services",
        "status": "FAILED",
        "outcome": "partial",
    },
    **{
        "cause": "1 of 4 tasks did not succeed; ValueError: no price",
        "tasks": {"SUCCEEDED": 3, "FAILED": 1},
    },
    **{"pages": 1830, "items": 912, "errors": 4},
}
HOSTILE = "<!channel> @everyone <https://a.example|b> *b* _i_ ```code``` [x](https://a.example)\r\nBcc: a@b \u202e\0"


def test_it_names_the_run_its_end_the_cause_the_counts_and_the_page() -> None:
    alert = alert_of("run.ended", "runs/7", ENDED, "https://crawls.example.com/")
    assert alert.title == "Run 7 of services: FAILED (partial)"
    assert alert.cause == "1 of 4 tasks did not succeed; ValueError: no price"
    assert alert.line == "Tasks: 3 SUCCEEDED, 1 FAILED · Pages: 1,830 · Items: 912 · Errors: 4"
    assert (alert.link, alert.bad) == ("https://crawls.example.com/runs/7", True)
    assert alert_of("run.ended", "runs/7", ENDED, None).link is None


@pytest.mark.parametrize(
    ("type", "subject", "body", "title", "path"),
    [
        (
            "graph.ended",
            "graphs/a b/ü",
            {"key": "a b/ü", "state": "completed"},
            "Graph a b/ü: completed",
            "a%20b%2F%C3%BC",
        ),
        (
            "manager.ended",
            "managers/3",
            {"name": "m", "status": "COMPLETED"},
            "Manager m: COMPLETED",
            "3",
        ),
        (
            "run.started",
            "runs/7",
            {"run_id": 7, "crawler": "c", "started": False},
            "Run 7 of c: not started",
            "7",
        ),
        (
            "schedule.missed",
            "schedules/n",
            {"name": "n", "reason": "late"},
            "Schedule n: nothing started at a due time",
            "n",
        ),
        ("webhook.test", "webhooks/1", {"name": "ops"}, "Webhook ops: this is a test", "ops"),
    ],
)
def test_each_subject_has_its_words_and_its_page(
    type: str, subject: str, body: dict[str, Any], title: str, path: str
) -> None:
    alert = alert_of(type, subject, body, "http://h")
    assert (alert.title, alert.link) == (title, f"http://h/{subject.partition('/')[0]}/{path}")


def test_a_correction_says_what_was_believed_and_what_was_true() -> None:
    body = {
        "run_id": 7,
        "crawler": "c",
        "corrections": [{"believed": "RUNNING", "truth": "FAILED"}],
    }
    assert (
        alert_of("correction.made", "runs/7", body, None).cause
        == "The recorded status was RUNNING, but the true one was FAILED."
    )


@pytest.mark.parametrize(("type", "attention", "words", "bad"), [
    ("run.empty", "empty", "it found nothing", True),
    ("run.dropped", "dropped", "it found less than usual", True),
    ("run.attention", "coverage", "COMPLETED (coverage)", True),
    ("run.ended", "coverage", "COMPLETED (coverage)", True),
    ("run.ended", None, "COMPLETED (coverage)", False),  # the crawler's own word
])  # fmt: skip
def test_a_run_that_brought_too_little_looks_bad(
    type: str, attention: str | None, words: str, bad: bool
) -> None:
    body = {**ENDED, "status": "COMPLETED", "outcome": "coverage", "attention": attention}
    alert = alert_of(type, "runs/7", body, None)
    assert (alert.title.partition(": ")[2], alert.bad, alert.cause) == (words, bad, ENDED["cause"])


def test_every_event_has_an_alert_and_alerts_without_a_choice_have_events() -> None:
    for type in EVENT_TYPES - {"incident.opened", "incident.grew", "incident.closed"}:
        assert alert_of(type, "runs/7", {"run_id": 7, "crawler": "c"}, None).title.startswith(
            "Run 7 of c: "
        )
    assert ALERTS == ("incident.*",)


INCIDENT = {
    "kind": "crawler_failing",
    "subject": "crawlers/shop-437",
    "sentence": "shop-437 fails",
    "level": "bad",
    "cause": "PriceError: no price",
    "count": 12,
    "assignee": "anna",
}


@pytest.mark.parametrize(("type", "more", "title", "line", "bad"), [
    ("incident.opened", {}, "shop-437 fails", "Count: 12 · Taken by: anna", True),
    ("incident.grew", {}, "shop-437 fails, and increasingly often", "Count: 12 · Taken by: anna", True),
    ("incident.closed", {"closed_by": "recovered", "duration_s": 5400}, "shop-437 fails: it is over",
     "Count: 12 · Taken by: anna · Lasted: 1:30:00", False),
    ("incident.closed", {"closed_by": "bob", "duration_s": 60, "assignee": None},
     "shop-437 fails: it is over", "Count: 12 · Lasted: 0:01:00 · Closed by: bob", False),
])  # fmt: skip
def test_an_incident_is_a_message_about_its_subject(
    type: str, more: dict[str, Any], title: str, line: str, bad: bool
) -> None:
    alert = alert_of(type, "incidents/3", {**INCIDENT, **more}, "https://crawls.example/")
    assert (alert.title, alert.cause, alert.line) == (title, INCIDENT["cause"], line)
    assert (alert.link, alert.bad) == ("https://crawls.example/incidents/3", bad)


def texts(form: Any) -> list[str]:
    """Return every text in a message that a service may interpret."""
    if isinstance(form, dict):
        return [
            text
            for name, one in form.items()
            if name not in ("$schema", "url")
            for text in texts(one)
        ]
    if isinstance(form, list):
        return [text for one in form for text in texts(one)]
    return [form] if isinstance(form, str) else []


def test_texts_of_crawlers_are_quoted() -> None:
    alert = alert_of("run.ended", "runs/7", {**ENDED, "outcome": HOSTILE, "cause": HOSTILE}, None)
    assert all(text.isprintable() for text in (alert.title, alert.cause, alert.line)), (
        "no header gets a second line"
    )
    for text in texts(message("slack", alert)):
        assert "<" not in text
        assert "```" not in text.removeprefix("```").removesuffix("```")
    assert all(block["text"]["verbatim"] for block in message("slack", alert)["blocks"])
    assert message("slack", alert_of("run.ended", "runs/7", ENDED, "http://h"))["blocks"][-1][
        "text"
    ]["text"].startswith("<http://h/")
    [card] = message("teams", alert)["attachments"]
    assert {one["type"] for one in card["content"]["body"]} == {"RichTextBlock"}, (
        "the block without marks and mentions"
    )
    told = message("discord", alert)
    assert told["allowed_mentions"] == {"parse": []}
    assert "content" not in told
    said = re.sub(r"\\[^0-9A-Za-z]", "", told["embeds"][0]["description"])
    assert not set(said) & set("*_~`|<>[]()@#"), "each mark is quoted"


@pytest.mark.parametrize("character", ["x", "&", "*", "😀", "ü"])
def test_every_message_fits_its_service(character: str) -> None:
    long = character * 300_000
    body = {**ENDED, "outcome": long, "cause": long, "tasks": {long: 1}, "project": long}
    alert = alert_of("run.ended", "runs/7", body, "https://crawls.example.com")
    assert len(json.dumps(message("teams", alert), ensure_ascii=False).encode()) < 28 * 1024
    assert all(len(block["text"]["text"]) <= 3000 for block in message("slack", alert)["blocks"])
    [embed] = message("discord", alert)["embeds"]
    assert len(embed["title"]) <= 256
    assert len(embed["description"]) <= 4096
    assert len(embed["footer"]["text"]) <= 2048
    assert not [text for text in texts(message("discord", alert)) if text.endswith("\\…")]
    ends = [text.rstrip("`*")[-6:] for text in texts(message("slack", alert))]
    assert not [end for end in ends if "&" in end and ";" not in end.rpartition("&")[2]], (
        "no quoted form is cut"
    )
