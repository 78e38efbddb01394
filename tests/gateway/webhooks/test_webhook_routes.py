"""Routes of webhooks: definitions, commands, deliveries."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.features.webhooks.ports import DeliveryAttempt
from tests.gateway.gateway_harness import Harness
from tests.support.hostile_addresses import HOSTILE

PATH = "/v1/webhooks/shop"
HOOK: dict[str, Any] = {
    "url": "https://hooks.example.com/x?y=1",
    "secrets": ["env:CRAWL_HOOK"],
    "events": ["run.*"],
}


def ok(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_webhook_from_its_making_to_its_deletion(harness: Harness) -> None:
    with harness.client() as client:
        made = ok(client.put(PATH, json={**HOOK, "requested_by": "ann"}))
        assert (made["state"], made["revision"], made["requested_by"], made["note"]) == (
            "active",
            1,
            "ann",
            None,
        )
        assert made["definition"] == HOOK
        assert ok(client.put(PATH, json=HOOK))["revision"] == 1
        assert ok(client.put(PATH, json={**HOOK, "tags": ["nightly"]}))["revision"] == 2
        assert [one["name"] for one in ok(client.get("/v1/webhooks"))["webhooks"]] == ["shop"]
        paused = ok(
            client.post(f"{PATH}/pause", json={"reason": "a migration", "requested_by": "ann"})
        )
        assert (paused["state"], paused["pause_reason"]) == ("paused", "paused by ann: a migration")
        assert ok(client.post(f"{PATH}/pause"))["note"] == "The webhook was already paused."
        assert ok(client.put(PATH, json=HOOK))["note"] == "The webhook is paused: resume it."
        assert "paused" in ok(client.post(f"{PATH}/test"), 202)["note"]
        assert ok(client.post(f"{PATH}/resume", json={"skip": True}))["state"] == "active"
        assert ok(client.post(f"{PATH}/resume"))["note"] == "The webhook was not paused."
        assert ok(client.post(f"{PATH}/test"), 202)["note"] is None
        ok(client.delete(PATH))
        for answer in (client.get(PATH), client.delete(PATH), client.post(f"{PATH}/test")):
            assert ok(answer, 404)["code"] == "webhook_not_found"
    assert ("shop", True) in harness.workflows.webhooks, "its workflow is woken at each change"


def test_deliveries_are_listed_the_latest_first(harness: Harness) -> None:
    with harness.client() as client:
        ok(client.put(PATH, json=HOOK))
        seqs = [ok(client.post(f"{PATH}/test"), 202)["seq"] for _ in range(5)]
        row = harness.store.webhooks.follow_webhook("shop", "f")
        assert row is not None
        tried = [
            DeliveryAttempt(seq, "the receiver returned 500: no" if seq == seqs[2] else None)
            for seq in seqs
        ]
        harness.store.webhooks.note_tries(row.webhook_id, "f", tried, seqs[1], settled=False)
        first = ok(client.get(f"{PATH}/deliveries", params={"page_size": 3}))
        rest = ok(
            client.get(
                f"{PATH}/deliveries",
                params={"page_size": 3, "page_token": first["next_page_token"]},
            )
        )
        assert [one["seq"] for one in first["deliveries"] + rest["deliveries"]] == seqs[::-1]
        [failed] = ok(client.get(f"{PATH}/deliveries", params={"status": "failed"}))["deliveries"]
        assert (failed["seq"], failed["error"], failed["tries"]) == (
            seqs[2],
            "the receiver returned 500: no",
            1,
        )
        found = ok(client.get(PATH))
        assert (found["state"], found["error"], found["through_seq"]) == (
            "failing",
            failed["error"],
            seqs[1],
        )
        assert 'lifecycle_webhooks{project="*",state="failing"} 1.0' in client.get("/metrics").text
        assert ok(client.post(f"{PATH}/resume", json={"skip_seq": seqs[2]}))["state"] == "active"
        [left] = ok(client.get(f"{PATH}/deliveries", params={"status": "skipped"}))["deliveries"]
        assert left["seq"] == seqs[2]
        assert (
            "no failed event has this number"
            in ok(client.post(f"{PATH}/resume", json={"skip_seq": 7}), 422)["detail"]
        )


def test_the_address_of_a_chat_is_shown_without_its_end_and_that_form_keeps_it(
    harness: Harness,
) -> None:
    chat = {
        "kind": "teams",
        "url": "https://x.example.com:443/workflows/1?sig=hunter2",
        "events": ["run.ended"],
    }
    with harness.client() as client:
        ok(client.put(PATH, json=chat))
        for answer in (client.get(PATH), client.get("/v1/webhooks"), client.put(PATH, json=chat)):
            assert ok(answer)
            assert "hunter2" not in answer.text
        shown = ok(client.get(PATH))["definition"]
        assert shown["url"] == "https://x.example.com:443/…"
        changed = ok(client.put(PATH, json={**shown, "tags": ["a"]}))
        assert changed["revision"] == 2
        row = harness.store.webhooks.get("shop")
        assert row is not None
        assert row.definition["url"] == chat["url"]
        for other in (
            {**shown, "kind": "slack"},
            {**shown, "kind": "webhook", "secrets": ["env:CRAWL_HOOK"]},
        ):
            answer = client.put(PATH, json=other)
            assert (answer.status_code, "hunter2" in answer.text) == (422, False), (
                "of another kind it would be shown"
            )
        hidden = client.put(PATH, json={"kind": "slack", "url": "http://hooks.example.com/hunter2"})
        assert (hidden.status_code, "hunter2" in hidden.text) == (422, False)
        named = ok(client.put(PATH, json={"kind": "slack", "url": "env:CRAWL_HOOK_CHAT"}))
        assert named["definition"]["url"] == "env:CRAWL_HOOK_CHAT"
        assert named["definition"]["events"] == ["incident.*"]
        assert (
            client.put(PATH, json={"kind": "slack", "url": "env:AWS_SECRET_ACCESS_KEY"}).status_code
            == 422
        )


def test_a_test_that_was_taken_says_what_the_receiver_answered(harness: Harness) -> None:
    with harness.client() as client:
        ok(client.put(PATH, json={"kind": "email", "url": "ops@example.com"}))
        seq = ok(client.post(f"{PATH}/test"), 202)["seq"]
        row = harness.store.webhooks.follow_webhook("shop", "f")
        assert row is not None
        harness.store.webhooks.note_tries(
            row.webhook_id, "f", [DeliveryAttempt(seq, answer="250 queued")], seq, settled=True
        )
        [told] = ok(client.get(f"{PATH}/deliveries"))["deliveries"]
        assert (told["status"], told["error"]) == ("delivered", "250 queued")


def test_what_cannot_be_is_refused_by_name(harness: Harness) -> None:
    for change, word in [
        ({"url": "http://127.0.0.1/"}, "https"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"secrets": ["hunter2"]}, "env:NAME"),
        ({"secrets": []}, "secrets"),
        ({"events": ["run.begun"]}, "run.ended"),
        ({"colour": "red"}, "colour"),
        ({"tags": ["x"] * 101}, "tags"),
    ]:
        with harness.client() as client:
            answer = client.put(PATH, json={**HOOK, **change})
            assert answer.status_code == 422, change
            assert word in answer.text
            assert "hunter2" not in answer.text
            assert ok(client.get("/v1/webhooks"))["webhooks"] == []


def test_where_none_may_lead_none_is_made_and_none_led_later(harness: Harness) -> None:
    with harness.client() as client:
        taken = [
            url for url in HOSTILE if client.put(PATH, json={**HOOK, "url": url}).status_code != 422
        ]
        assert taken == []
        ok(client.put(PATH, json=HOOK))
        taken = [
            url for url in HOSTILE if client.put(PATH, json={**HOOK, "url": url}).status_code != 422
        ]
        assert taken == []
        refused = client.put(PATH, json={**HOOK, "secrets": ["env:AWS_SECRET_ACCESS_KEY"]})
        assert refused.status_code == 422
        assert "AWS_SECRET_ACCESS_KEY" in refused.text
        assert "LIFECYCLE_WEBHOOKS__ENV_PREFIX" in refused.text


def test_on_a_developers_machine_http_is_allowed(harness: Harness) -> None:
    with harness.client(harness.new_app(webhook_rules=WebhookRules(loopback=True))) as client:
        ok(client.put(PATH, json={**HOOK, "url": "http://localhost:9000/"}))
        assert client.put(PATH, json={**HOOK, "url": "http://example.com/"}).status_code == 422


def test_while_temporal_is_away_it_is_recorded_and_told_later(harness: Harness) -> None:
    harness.workflows.down = True
    with harness.client() as client:
        assert "role audit" in ok(client.put(PATH, json=HOOK))["note"]
        assert "role audit" in ok(client.post(f"{PATH}/test"), 202)["note"]
