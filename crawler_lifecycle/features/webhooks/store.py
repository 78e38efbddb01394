"""The table of webhooks, their definitions, and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    String,
    UniqueConstraint,
    func,
    select,
    update,
)

from crawler_lifecycle.domain.bounds import ID_MAX, refusal
from crawler_lifecycle.domain.errors import Fenced, NotInThisState
from crawler_lifecycle.domain.names import (
    EVENT_WEBHOOK_MISSED,
    EVENT_WEBHOOK_PAUSED,
    EVENT_WEBHOOK_TEST,
)
from crawler_lifecycle.domain.projects import ALL
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.store.base.named import Change, NamedPart
from crawler_lifecycle.store.base.outbox import (
    facts,
    insert_event,
    outbox_counter,
    outbox_delivery,
    outbox_event,
    record_tries,
)
from crawler_lifecycle.store.base.rows import (
    Row,
    change_row,
    definition_of,
    made,
)
from crawler_lifecycle.store.columns import (
    Json,
    Long,
    UtcTime,
    Words,
    counted_key,
    new_table,
    project_column,
    required,
)
from crawler_lifecycle.store.retention.parts import FeatureRetention
from crawler_lifecycle.store.runs.tables import run_history, run_tag

from .domain.definition import (
    WebhookSpec,
    event_facts,
    webhook_sink,
    webhook_subject,
)
from .ports import DeliveryAttempt, WaitingEvents, WebhookDelivery, WebhookRow

webhook = new_table(
    "webhook",
    counted_key("webhook_id"),
    required("webhook_uid", String(32)),
    required("name", String(80)),
    # The project whose events it gets; ``*`` stands for all projects.
    project_column(),
    # Each new definition increases it by 1.
    required("revision", Integer),
    required("definition", Json),
    Column("requested_by", Words(255)),
    # Every event up to this number was delivered or skipped, or does not match the filters.
    required("through_seq", BigInteger),
    # The workflow execution that delivers now. No other execution may record deliveries.
    Column("follower", String(64)),
    # Since when a delivery has been failing, and the reason.
    Column("failing_since", UtcTime),
    Column("error", Long),
    Column("delivered_at", UtcTime),
    Column("paused_at", UtcTime),
    Column("pause_reason", Long),
    required("created_at", UtcTime),
    required("updated_at", UtcTime),
    Column("deleted_at", UtcTime),
    UniqueConstraint("name"),
    Index(None, "project", "webhook_id"),
)

_DELIVERY = tuple(WebhookDelivery.__dataclass_fields__)
RETENTION = FeatureRetention(sinks=(webhook_sink(""),))
_w = webhook.c
_e = outbox_event.c
_d = outbox_delivery.c
#: The maximum number of event numbers that one call of ``waiting_events`` examines.
_WINDOW = 1000
#: Types of events about the webhook itself, which it gets even if its filters exclude them.
_ITS_OWN = frozenset({EVENT_WEBHOOK_TEST, EVENT_WEBHOOK_MISSED})
#: The maximum number of characters of the reason in the event about a pause.
_REASON_MAX = 500


def spec_of(row: Row) -> WebhookSpec:
    """Return the definition in a row. Raises ``RowUnreadable``."""
    return definition_of(webhook, row, WebhookSpec.read)


class WebhookStore(NamedPart[WebhookRow]):
    """Webhooks: definitions, pending events, and deliveries.

    Each writing method locks the row of the webhook first. A new webhook gets only future events,
    and so does one that was deleted and created again.
    """

    table = webhook
    kind = WebhookRow
    otherwise = ALL

    # --- definitions ---

    def _defined(
        self, conn: Connection, found: dict[Any, Any] | None, now: datetime, *, anew: bool
    ) -> Change:
        # The current deliverer has the old definition, so it may no longer deliver.
        new: dict[str, Any] = dict.fromkeys(("failing_since", "error", "follower"))
        if anew:
            new |= {"through_seq": _newest(conn), "webhook_uid": self.new_uid(), "created_at": now}
            new |= dict.fromkeys(("paused_at", "pause_reason", "delivered_at"))
        return new, ()

    def _deleted(self, conn: Connection, row: dict[Any, Any], now: datetime) -> Change:
        return {"follower": None}, ()

    def pause(
        self, name: str, reason: str | None, *, skip: bool = False, skip_seq: int | None = None
    ) -> WebhookRow:
        """Pause the webhook for this reason and record an event. ``None`` as the reason resumes it.

        With ``skip``, no event up to now is delivered. ``skip_seq`` is the number of a failed event
        that is no longer delivered. Raises ``RunNotFound``, and ``InvalidRequest`` if no delivery
        of ``skip_seq`` failed.
        """
        with self._db.writing() as conn:
            row = self._needed(conn, name)
            now = self._clock()
            if (row["paused_at"] is None) == (reason is None) and not skip and skip_seq is None:
                return made(WebhookRow, row)
            new: dict[str, Any] = {
                "pause_reason": reason,
                "paused_at": None if reason is None else now,
                "updated_at": now,
            }
            if reason is None:
                new |= {"failing_since": None, "error": None}
            if skip:
                new |= {"through_seq": _newest(conn), "follower": None}
            elif skip_seq is not None:
                _skip(conn, row, skip_seq)
                new["follower"] = None
            change_row(conn, webhook, row, new)
            if reason is not None:
                more = {"reason": reason[:_REASON_MAX], **facts(row, "failing_since")}
                _append(conn, row, EVENT_WEBHOOK_PAUSED, now, more)
            return made(WebhookRow, {**row, **new})

    def test_webhook(self, name: str, requested_by: str | None, seen: int | None = None) -> Event:
        """Append a test event, which only this webhook gets. Raises ``RunNotFound``.

        ``seen`` is the newest event that the caller has seen. Raises ``NotInThisState`` if a later
        test event exists.
        """
        with self._db.writing() as conn:
            row = self._needed(conn, name)
            subject = webhook_subject(row["webhook_id"])
            tests = select(_e.seq).where(
                _e.subject == subject, _e.seq > (seen or 0), _e.type == EVENT_WEBHOOK_TEST
            )
            if seen is not None and conn.execute(tests.limit(1)).one_or_none() is not None:
                text = (
                    f"Webhook {name!r} was not tested: somebody tested it after you loaded it. "
                    "Load it again."
                )
                raise NotInThisState(text)
            return _append(
                conn, row, EVENT_WEBHOOK_TEST, self._clock(), {"requested_by": requested_by}
            )

    # --- deliveries ---

    def follow_webhook(self, name: str, follower: str) -> WebhookRow | None:
        """Make ``follower`` the deliverer of the webhook. A second call changes nothing.

        Return ``None`` if the webhook does not exist. Raises ``RowUnreadable`` if a manual edit
        made the definition invalid.
        """
        with self._db.writing() as conn:
            row = self._locked(conn, name)
            if row is None:
                return None
            spec_of(row)
            # A restored database can have fewer events than before.
            new = {"follower": follower, "through_seq": min(row["through_seq"], _newest(conn))}
            change_row(conn, webhook, row, new)
            return made(WebhookRow, {**row, **new})

    def waiting_events(
        self, webhook_id: int, follower: str, spec: WebhookSpec, after_seq: int, limit: int
    ) -> WaitingEvents:
        """Return the next events to deliver after ``after_seq``. At most ``limit`` events are
        examined.

        Raises ``Fenced`` if the webhook now has another deliverer, or was deleted.
        """
        over = _d.status.in_(("delivered", "skipped"))
        taken = select(_d.id).where(_d.seq == _e.seq, _d.sink == webhook_sink(webhook_id), over)
        wanted = _e.type.in_(sorted({*spec.types, *_ITS_OWN}))
        query = select(outbox_event).where(
            _e.seq > after_seq, wanted, ~taken.correlate(outbox_event).exists()
        )
        with self._db.reading() as conn:
            mine = select(_w.follower, _w.paused_at, _w.project).where(_w.webhook_id == webhook_id)
            row = conn.execute(mine).one_or_none()
            if row is None or row.follower != follower:
                raise _fenced(webhook_id)
            if row.paused_at is not None:
                return WaitingEvents([], after_seq, paused=True)
            # Read this first, so that later events are left to the next call.
            newest = _newest(conn)
            if newest < after_seq:  # the database was restored to an older state
                raise _fenced(webhook_id)
            until = min(newest, after_seq + _WINDOW)
            if until <= after_seq:
                return WaitingEvents([], after_seq)
            # Reading skips removed events; an event reports them later.
            if until < newest:
                first = conn.execute(
                    select(func.min(_e.seq)).where(_e.seq > after_seq)
                ).scalar_one()
                until = newest if first is None else min(newest, first - 1 + _WINDOW)
            rows = (
                conn.execute(query.where(_e.seq <= until).order_by(_e.seq).limit(limit))
                .mappings()
                .all()
            )
            runs = _runs(
                conn, sorted({row["run_id"] for row in rows if row["run_id"] is not None}), spec
            )
        events = [made(Event, row) for row in rows]
        own = webhook_subject(webhook_id)
        chosen = [
            event
            for event in events
            if (event.type in _ITS_OWN and event.subject == own)
            or (
                row.project in (ALL, event.body.get("project"))
                and spec.fits(event.type, event_facts(event.body, runs.get(event.run_id or 0)))
            )
        ]
        full = len(events) == limit
        return WaitingEvents(chosen, events[-1].seq if full else until, more=full or until < newest)

    def note_tries(
        self,
        webhook_id: int,
        follower: str,
        tried: Sequence[DeliveryAttempt],
        through_seq: int,
        *,
        settled: bool,
    ) -> WebhookRow:
        """Record tries, and the number ``through_seq`` up to which every event is settled.

        ``settled`` is true if no failed event is waiting for another try. Raises ``Fenced`` if the
        webhook now has another deliverer, or was deleted.
        """
        with self._db.writing() as conn:
            query = select(webhook).where(_w.webhook_id == webhook_id).with_for_update()
            row = conn.execute(query).mappings().one_or_none()
            if row is None or row["follower"] != follower:
                raise _fenced(webhook_id)
            now = self._clock()
            errors = [attempt.error for attempt in tried if attempt.error is not None]
            if tried:  # only the last of several tries of one event is recorded
                answers = {attempt.seq: attempt.answer for attempt in tried}
                record_tries(
                    conn,
                    webhook_sink(webhook_id),
                    {attempt.seq: attempt.error for attempt in tried},
                    now,
                    answers,
                )
            new = {"through_seq": max(row["through_seq"], through_seq)}
            if len(errors) < len(tried):
                new["delivered_at"] = now
            moved = new["through_seq"] > row["through_seq"]
            if settled:
                new |= {"failing_since": None, "error": None}
            elif errors or row["failing_since"] is not None:
                # A webhook that makes progress is healthy, even if some deliveries fail.
                since = None if moved else row["failing_since"]
                new |= {
                    "failing_since": since or now,
                    "error": errors[-1] if errors else row["error"],
                }
            if any(row[name] != value for name, value in new.items()):
                change_row(conn, webhook, row, new)
            if moved:
                _report_missed(conn, row, new["through_seq"], now)
            return made(WebhookRow, {**row, **new})

    def list_webhook_deliveries(
        self,
        webhook_id: int,
        before_seq: int | None = None,
        limit: int = 100,
        status: str | None = None,
    ) -> list[WebhookDelivery]:
        """Return the deliveries of a webhook, with the latest event first.

        ``status`` limits them to one status.
        """
        query = select(*((_d if name in _d else _e)[name] for name in _DELIVERY))
        query = query.join_from(outbox_delivery, outbox_event, _e.seq == _d.seq)
        query = query.where(_d.sink == webhook_sink(webhook_id))
        if before_seq is not None:
            query = query.where(_d.seq < before_seq)
        if status is not None:
            query = query.where(_d.status == status)
        return [
            WebhookDelivery(**row) for row in self._rows(query.order_by(_d.seq.desc()).limit(limit))
        ]


def _fenced(webhook_id: int) -> Fenced:
    return Fenced(f"Webhook {webhook_id} now has another deliverer, or was deleted")


def _newest(conn: Connection) -> int:
    """Return the number of the newest event."""
    return int(conn.execute(select(outbox_counter.c.seq)).scalar_one())


def _skip(conn: Connection, row: Row, seq: int) -> None:
    """Mark a failed event as skipped, so that it is no longer delivered.

    Raises ``InvalidRequest``.
    """
    mine = (_d.seq == seq, _d.sink == webhook_sink(row["webhook_id"]), _d.status == "failed")
    skip = update(outbox_delivery).where(*mine).values(status="skipped")
    if not 0 < seq <= ID_MAX or not conn.execute(skip).rowcount:
        fix = (
            f"crawlctl webhook deliveries {row['name']} --status failed lists the events that "
            "can be skipped"
        )
        raise refusal("skip_seq", seq, f"no failed event has this number; {fix}")


def _append(
    conn: Connection, row: Row, type: str, now: datetime, more: Mapping[str, object]
) -> Event:
    """Append an event about a webhook. This must be the last statement of the transaction."""
    body = {"webhook_id": row["webhook_id"], "name": row["name"], "project": row["project"], **more}
    return insert_event(
        conn, now, type, webhook_subject(row["webhook_id"]), row["webhook_uid"], body
    )


def _report_missed(conn: Connection, row: Row, through_seq: int, now: datetime) -> None:
    """Append an event if events between the old and the new position of the webhook have been
    removed.
    """
    after = row["through_seq"]
    query = select(func.count()).where(_e.seq > after, _e.seq <= through_seq)
    missed = through_seq - after - conn.execute(query.select_from(outbox_event)).scalar_one()
    if missed > 0:
        # Most of the removed events may belong to other projects.
        events = missed if row["project"] == ALL else None
        more = {"events": events, "after_seq": after, "through_seq": through_seq}
        _append(conn, row, EVENT_WEBHOOK_MISSED, now, more)


def _runs(
    conn: Connection, run_ids: Sequence[int], spec: WebhookSpec
) -> dict[int, dict[str, object]]:
    """Return the facts about these runs that filters need and that events do not contain."""
    if not run_ids or not (spec.crawlers or spec.flows or spec.tags):
        return {}
    r = run_history.c
    t = run_tag.c
    found: dict[int, dict[str, object]] = {}
    for run_id, crawler, flow in conn.execute(
        select(r.run_id, r.crawler, r.flow_id).where(r.run_id.in_(run_ids))
    ):
        found[run_id] = {"crawler": crawler, "flow_id": flow, "tags": []}
    if spec.tags:
        for run_id, tag in conn.execute(select(t.run_id, t.tag).where(t.run_id.in_(run_ids))):
            tags: Any = found[run_id]["tags"]
            tags.append(tag)
    return found
