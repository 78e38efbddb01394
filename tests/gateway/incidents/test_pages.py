"""The web pages of incidents."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.features import FEATURES, INCIDENT_KINDS
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys

from .test_routes import HOSTILE, opened

PAGE = {"Accept": "text/html", "Origin": "http://127.0.0.1:8500"}
KEY = "0" * 32


def press(client: TestClient, incident: int, do: str, **fields: Any) -> Any:
    """Submit a form of the page."""
    data = {"key": KEY, "do": do, **fields}
    return client.post(f"/incidents/{incident}", data=data, headers=PAGE, follow_redirects=False)


def shown(client: TestClient, path: str) -> str:
    answer = client.get(path, headers=PAGE)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_each_kind_begins_with_a_noun_of_a_search_of_its_feature() -> None:
    for feature in FEATURES:
        for kind in feature.kinds:
            noun = kind.name.partition("_")[0]
            searched = feature.conditions.keys() | {"crawler", "part", "worker", "workflow"}
            assert noun in searched
            assert kind.words("x").strip("{}")
    assert len(INCIDENT_KINDS) == 21


def test_a_page_shows_the_incident_and_what_can_be_done(
    harness: Harness, client: TestClient
) -> None:
    [id] = opened(harness, "shop/437", run_id=7)
    text = shown(client, f"/incidents/{id}")
    assert "<h1>shop/437 fails</h1>" in text
    assert 'href="/crawlers/shop%2F437"' in text
    assert 'href="/runs/7"' in text
    assert "/runs/new?like=7" in text
    assert "Reported as opened" in text
    assert "Assign to me" not in text, "an open gateway does not know who I am"


def test_forms_mute_assign_comment_and_close(harness: Harness, client: TestClient) -> None:
    [id] = opened(harness, "shop")
    store = harness.store.incidents

    def row() -> Any:
        return store.get_incident(id)

    answer = press(client, id, "mute", for_s="3600")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/incidents/{id}")
    assert row().muted_until == harness.clock.now + timedelta(hours=1)
    press(client, id, "mute", until="2027-01-01T00:00")
    assert row().muted_until.isoformat() == "2027-01-01T00:00:00+00:00"
    assert "muted, ends" in shown(client, f"/incidents/{id}")
    assert "shop fails" in shown(client, "/incidents?show=muted")
    assert "shop fails" not in shown(client, "/incidents")
    press(client, id, "unmute")
    assert row().muted_until is None
    press(client, id, "assign", assignee="anna")
    press(client, id, "comment", comment=HOSTILE)
    assert (row().assignee, row().comment) == ("anna", HOSTILE)
    assert "<script>alert" not in shown(client, f"/incidents/{id}")
    assert "shop fails" in shown(client, "/incidents?assignee=anna")
    assert "shop fails" not in shown(client, "/incidents?assignee=bob")
    press(client, id, "assign", assignee="")
    press(client, id, "comment", comment="")
    assert (row().assignee, row().comment) == (None, None)
    press(client, id, "close")
    assert row().closed_by == "a person"
    text = shown(client, f"/incidents/{id}")
    assert "by a person" in text
    assert 'value="close"' not in text
    assert "shop fails" in shown(client, "/incidents?show=closed")


def test_the_list_is_searched_filtered_sorted_and_saved(
    harness: Harness, client: TestClient
) -> None:
    assert "Nothing needs attention." in shown(client, "/incidents")
    for run_id, crawler in ((9_999, "shop-b"), (10_000, "shop-a")):
        opened(harness, crawler, run_id=run_id)

    def found(query: str) -> list[str]:
        answer = client.get(f"/incidents?format=csv{query}")
        return [line.partition(" fails")[0] for line in answer.text.splitlines()[1:]]

    assert found("") == ["shop-a", "shop-b"], "the newest first"
    assert found("&sort=-incident") == ["shop-b", "shop-a"]
    assert found("&sort=last_run") == ["shop-b", "shop-a"]
    assert found("&search=SHOP-B") == found("&search=9999") == ["shop-b"]
    assert found("&kind=crawler_failing&page_size=1&sort=incident") == ["shop-a", "shop-b"]
    assert found("&kind=pool_full") == []
    text = shown(client, "/incidents?page_size=1&kind=crawler_failing")
    assert "page_token=" in text
    assert '<span class="flag bad">crawler_failing</span>' in text
    assert "Kind: <span>crawler_failing" in text
    assert client.get("/incidents?sort=nothing", headers=PAGE).status_code == 422


def test_selected_incidents_are_muted_and_closed_together(
    harness: Harness, client: TestClient
) -> None:
    for crawler in ("a", "b", "c"):
        opened(harness, crawler)
    store = harness.store.incidents

    def press_all(do: str, *chosen: str, key: str = KEY) -> str:
        data = {"key": key, "do": do, "stay": "true", "incident": chosen, "for_s": "3600"}
        answer = client.post("/incidents", data=data, headers=PAGE)
        assert answer.status_code == 200, answer.text
        return answer.text

    text = shown(client, "/incidents?all=true")
    values = re.findall(r'name="incident" value="([^"]+)" [^>]*checked', text)
    assert len(values) == 3
    assert 'value="mine"' not in text, "an open gateway does not know who I am"
    assert 'name="reason"' not in text
    muted_until = harness.clock.now + timedelta(hours=1)
    text = press_all("mute", *values[:2])
    assert text.count("No messages are sent about it until then.") == 2
    rows = store.list_incidents()
    assert [row.muted_until for row in rows] == [muted_until, muted_until, None]
    store.change_incident(rows[0].incident_id, muted_until=None)
    press_all("mute", *values[:2])
    assert store.list_incidents()[0].muted_until is None, "the same form does nothing twice"
    text = press_all("close", values[0], "999.1", f"{rows[1].incident_id}.7")
    assert [row.state for row in store.list_incidents(state="all")] == ["closed", "open", "open"]
    assert "the form showed attempt 7" in text
    assert "999" in text
    text = shown(client, "/incidents?show=closed")
    assert "Closed by" in text
    assert 'id="selection"' not in text


@pytest.mark.parametrize(
    ("do", "fields", "field", "words"),
    [
        ("mute", {}, "until", "missing; choose a duration, or give a time"),
        ("mute", {"until": "tomorrow"}, "until", "tomorrow"),
        ("mute", {"until": "2020-01-01T00:00"}, "until", "is in the past; give a later time"),
        ("mute", {"for_s": "-1"}, "for_s", "greater than 0"),
        ("assign", {"assignee": "a" * 101}, "assignee", "100"),
        ("comment", {"comment": "c" * 1001}, "comment", "1000"),
    ],
)
def test_an_error_is_at_its_field(
    harness: Harness, client: TestClient, do: str, fields: dict[str, str], field: str, words: str
) -> None:
    [id] = opened(harness, "shop")
    answer = press(client, id, do, **fields)
    assert answer.status_code == 422
    found = re.search(f'id="wrong-{field}">([^<]*)', answer.text)
    assert found is not None, answer.text
    assert words in found[1]


def test_a_fix_is_a_button(harness: Harness, client: TestClient) -> None:
    now = harness.clock.now
    acts = {
        "schedule_paused": ("schedules/nightly", "resume"),
        "webhook_paused": ("webhooks/chat", "resume"),
        "webhook_failing": ("webhooks/chat", "again"),
        "graph_failed": ("graphs/shop 1", "retry"),
    }
    found = [
        IncidentCondition(kind, subject, "default", "boom", now, now)
        for kind, (subject, _) in acts.items()
    ]
    harness.store.incidents.record_conditions(found, lambda row: False)
    fleet = shown(client, "/")
    for row in harness.store.incidents.list_incidents():
        subject, act = acts[row.kind]
        button = (
            rf'<form method="post" action="/{subject.replace(" ", "%20")}">'
            rf'<input type="hidden" name="key" value="[0-9a-f]+">'
            rf'<button class="button" name="do" value="{act}">'
        )
        assert re.search(button, shown(client, f"/incidents/{row.incident_id}"))
        assert re.search(button, fleet)


def test_the_page_keeps_the_rights_and_the_log_of_the_api(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path, "a", "b")
    app = harness.new_app(entrance=keys.entrance(quota=None))
    [id] = opened(harness, "shop", project="a")
    path = f"/incidents/{id}"
    with harness.client(app) as client:

        def page(who: str) -> Any:
            return client.get(path, headers={**PAGE, **keys.headers(who)})

        def send(who: str, do: str) -> Any:
            data = {"key": KEY, "do": do}
            headers = {**PAGE, **keys.headers(who)}
            return client.post(path, data=data, headers=headers, follow_redirects=False)

        assert page("b-admin").status_code == 404
        assert send("a-read", "close").status_code == 403
        assert send("b-admin", "close").status_code == 404
        assert 'value="close"' not in page("a-read").text
        assert "Your role, read, can read incidents" in page("a-read").text
        assert "Assign to me" in page("a-operate").text
        listed = client.get("/incidents", headers={**PAGE, **keys.headers("a-operate")}).text
        assert 'value="mine">Assign to me' in listed
        listed = client.get("/incidents", headers={**PAGE, **keys.headers("a-read")}).text
        assert "shop fails" in listed
        assert 'id="selection"' not in listed
        assert send("a-operate", "mine").status_code == 303
        assert send("a-operate", "close").status_code == 303
        assert "by the-a-operate" in page("a-read").text
    log = harness.store.access.list_access(operation="pressIncident", caller="the-a-operate")
    assert [(row.kind, row.subject, row.verb, row.outcome) for row in log] == [
        ("incident", str(id), "Close", "done"),
        ("incident", str(id), "Assign to me", "done"),
    ]
    with harness.client(app) as client:
        text = client.get(path, headers={**PAGE, **keys.headers("a-admin")}).text
        assert "Assign to me, by the-a-operate" in text
