"""The cases of the activity that delivers to webhooks."""

from __future__ import annotations

from typing import Any

import pytest

from crawler_lifecycle.activities.audits.settling import AuditPage
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import EVENT_WEBHOOK_PAUSED
from crawler_lifecycle.features.webhooks.activities import FollowEnd
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.ports import ReceiverGone, WebhookOrder, WebhookRow
from tests.activities.cases import GONE, LATER_S, SEEN_AGAIN, Case
from tests.activities.cases import _nothing as _any
from tests.activities.harness import Harness

ORDER = WebhookOrder("shop")


def made(w: Harness) -> WebhookOrder:
    """A webhook, and a run whose events have not been delivered."""
    w.store.webhooks.new_uid = lambda: "uid-of-the-webhook"
    spec = WebhookSpec("https://hooks.example.com/", ["env:CRAWL_HOOK"], events=["run.*"])
    w.store.webhooks.put("shop", spec.document(), "ann")
    w.started()
    return ORDER


def row(w: Harness) -> WebhookRow:
    found: WebhookRow | None = w.store.webhooks.get("shop")
    assert found is not None
    return found


def _told(w: Harness, answer: Any) -> None:
    events = [one for one in w.store.events.events_after(0) if one.type.startswith("run.")]
    assert [one.seq for one in w.webhooks.sent] == [one.seq for one in events]
    assert len(events) > 2
    assert (answer.how, row(w).through_seq, row(w).failing_since) == (
        FollowEnd.ON,
        events[-1].seq,
        None,
    )


def _deleted(w: Harness) -> WebhookOrder:
    made(w)
    w.store.webhooks.delete("shop")
    return ORDER


def _paused(w: Harness) -> WebhookOrder:
    made(w)
    w.store.webhooks.pause("shop", "a migration")
    return ORDER


def _nothing(kind: FollowEnd) -> Any:
    def effect(w: Harness, answer: Any) -> None:
        assert (answer.how, w.webhooks.sent) == (kind, [])

    return effect


def _gone(w: Harness) -> WebhookOrder:
    w.webhooks.fails = ReceiverGone("410")
    return made(w)


def _pauses(w: Harness, answer: Any) -> None:
    assert (answer.how, row(w).pause_reason) == (FollowEnd.PAUSED, "410")
    assert [one.type for one in w.store.events.events_after(0)].count(EVENT_WEBHOOK_PAUSED) == 1


def _unfollowed(w: Harness) -> AuditPage:
    made(w)
    w.forward(LATER_S)
    return AuditPage(repair=True, what="webhook")


def _followed(w: Harness, part: Any) -> None:
    assert part.repaired == {"not_started": 1}
    assert w.directory.webhooks_begun == {"crawl-webhook/shop": "shop"}


WEBHOOKS = [
    Case(
        "audit_parents",
        "webhook: not followed",
        _unfollowed,
        _followed,
        renews=SEEN_AGAIN | GONE,
        same=_any,
    ),
    Case("follow_webhook", "news", made, _told),
    Case("follow_webhook", "deleted", _deleted, _nothing(FollowEnd.DELETED)),
    Case("follow_webhook", "paused", _paused, _nothing(FollowEnd.PAUSED)),
    Case("follow_webhook", "gone", _gone, _pauses),
]


def fails_for(w: Harness, seconds: float) -> Any:
    """Let one try after another fail. Return the last result."""
    w.webhooks.fails = NotDelivered("the receiver returned 503: closed")
    for _ in range(2):
        with pytest.raises(NotDelivered, match="503"):
            w.call("follow_webhook", ORDER)
        w.forward(seconds / 2)
    return w.call("follow_webhook", ORDER)
