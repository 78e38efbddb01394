"""Valid webhooks, and the events that are delivered to each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import EVENT_TYPES, EVENT_WEBHOOK_TEST, verdict_events
from crawler_lifecycle.features.webhooks.domain.definition import (
    ALERTS,
    FILTERS,
    WebhookSpec,
    check_webhook_name,
    event_facts,
)

URL = "https://hooks.example.com/crawls"
WORDS = st.sampled_from("abc")


def spec(**fields: Any) -> WebhookSpec:
    return WebhookSpec(**{"url": URL, "secrets": ["env:CRAWL_HOOK"], **fields})


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"url": "http://hooks.example.com/"}, "with crawlctl dev, such as http://127.0.0.1:9000/"),
        ({"url": "http://127.0.0.1:9/"}, "give a port from 1024 to 65535"),
        ({"url": "https://"}, "url"),
        ({"url": "ftp://hooks.example.com/"}, "url"),
        ({"url": "https://ann:secret@hooks.example.com/"}, "signed"),
        ({"url": "https://hooks.example.com/#x"}, "#"),
        ({"url": "https://hooks.example.com:99999/"}, "url"),
        ({"url": "https://hooks..example.com/"}, "url"),
        ({"url": f"https://{'a' * 64}.example.com/"}, "url"),
        ({"url": "https://hööks.example.com/"}, "xn--"),
        ({"url": "https://hooks.example.com/\r\nX: y"}, "plain"),
        ({"url": "https://h/" + "x" * 2000}, "2000"),
        ({"secrets": []}, "one reference"),
        ({"secrets": ["env:A", "env:A"]}, "different"),
        ({"secrets": ["env:A", "env:B", "env:C"]}, "one reference"),
        ({"secrets": ["whsec_c2VjcmV0"]}, "env:NAME"),
        ({"events": ["run.begun"]}, "run.ended"),
        ({"events": ["*"]}, "run.ended"),
        ({"tags": [""]}, "tags"),
        ({"flows": ["x"] * 101}, "flows"),
        ({"kind": "pager"}, "slack"),
        ({"kind": "slack"}, "not signed"),
        ({"kind": "email", "secrets": [], "url": "https://hooks.example.com/"}, "ops@example.com"),
        (
            {"kind": "email", "secrets": [], "url": "a@b.example\r\nBcc: c@d.example"},
            "ops@example.com",
        ),
        ({"kind": "email", "secrets": [], "url": "env:CRAWL_HOOK"}, "ops@example.com"),
        ({"kind": "email", "secrets": [], "url": ",".join(["a@b.example"] * 21)}, "1 to 20"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word) as refused:
        spec(**fields)
    assert "secret@" not in str(refused.value)
    assert "c2VjcmV0" not in str(refused.value), (
        "what stands in place of a reference may be the secret"
    )


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 81, "a\n", "new", None])
def test_a_name_is_a_word(name: object) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        check_webhook_name(name)


def test_it_is_read_as_it_was_written() -> None:
    one = spec(events=["run.*", "correction.made"], tags=["nightly"])
    assert WebhookSpec.read(one.document()) == one
    assert WebhookSpec.read(spec().document()) == spec()
    mail = spec(url="mailto:a@b.example, c+d@e.example", kind="email", secrets=[])
    assert WebhookSpec.read(mail.document()).recipients == ["a@b.example", "c+d@e.example"]
    with pytest.raises(InvalidRequest, match="definition"):
        WebhookSpec.read({**one.document(), "colour": "red"})


def test_kinds_of_events_and_single_ones() -> None:
    assert set(spec().types) == EVENT_TYPES
    assert spec(events=["graph.*", "run.ended"]).types == [
        "graph.changed",
        "graph.ended",
        "run.ended",
    ]
    assert not spec().fits(EVENT_WEBHOOK_TEST, {}), "that is for the webhook that is tried alone"


@given(
    filters=st.fixed_dictionaries(
        {name: st.lists(WORDS, max_size=2, unique=True) for name in FILTERS}
    ),
    facts=st.fixed_dictionaries(
        {
            fact: st.lists(WORDS, max_size=2) if fact == "tags" else st.none() | WORDS
            for fact in FILTERS.values()
        }
    ),
)
def test_an_event_fits_when_each_filter_has_a_value_of_it(
    filters: dict[str, list[str]], facts: dict[str, Any]
) -> None:
    def has(wanted: list[str], value: Any) -> bool:
        if not wanted:
            return True
        return bool(set(wanted) & set(value if isinstance(value, list) else [value]))

    expected = all(has(filters[name], facts[fact]) for name, fact in FILTERS.items())
    assert spec(**filters).fits("run.ended", facts) is expected


@pytest.mark.parametrize(("kind", "events", "attention", "told"), [
    ("webhook", [], "empty", ["run.empty", "run.attention", "run.ended"]),
    ("email", list(ALERTS), "empty", []),
    ("email", list(ALERTS), None, []),
    ("email", ["run.*"], "empty", ["run.empty"]),
    ("email", ["run.*"], "dropped", ["run.dropped"]),
    ("email", ["run.*"], "failed", ["run.attention"]),
    ("email", ["run.*"], None, ["run.ended"]),
    ("email", ["run.ended"], "empty", ["run.ended"]),
    ("email", ["run.attention"], "empty", ["run.attention"]),
    ("email", ["run.attention", "run.dropped"], "empty", ["run.attention"]),
    ("email", ["run.empty"], "failed", []),
])  # fmt: skip
def test_people_are_told_of_a_verdict_once(
    kind: str, events: list[str], attention: str | None, told: list[str]
) -> None:
    made = (
        spec(events=events)
        if kind == "webhook"
        else spec(events=events, kind=kind, url="a@b.example", secrets=[])
    )
    facts = event_facts({"status": "COMPLETED", "attention": attention}, None)
    assert [type for type in verdict_events(attention) if made.fits(type, facts)] == told
    assert made.fits("run.blocked", facts) is ("run.blocked" in made.types)


def test_facts_are_of_the_run_and_of_the_moment() -> None:
    body = {"crawler": "books", "status": "FAILED", "outcome": None, "pages": 3}
    run = {"crawler": "books", "flow_id": "f", "tags": ["a"]}
    assert event_facts(body, run) == {
        "crawler": "books",
        "status": "FAILED",
        "flow_id": "f",
        "tags": ["a"],
    }
    assert event_facts({"state": "completed"}, None) == {"status": "completed"}
