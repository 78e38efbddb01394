"""Queries of incidents, and of the runs that they are derived from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal

from sqlalchemy import func, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.conditions import Key
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.names import EVENT_INCIDENT_OPENED, EVENT_RUN_ENDED
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.outbox import outbox_event
from crawler_lifecycle.store.base.rows import made, seen, wanted
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.runs.newest import newest_of_all, newest_of_each
from crawler_lifecycle.store.runs.tables import OVER_RUNS, run_history

from ..domain.crawlers import JudgedRun
from ..domain.rules import key_of
from .tables import incident

_i = incident.c
_r = run_history.c
#: The maximum number of events about ended runs that are read at once.
EVENTS_MAX = 5_000
#: The columns of a ``JudgedRun``.
_ENDED = [_r[name] for name in JudgedRun._fields]

Crawler = tuple[str, str]
"""The project and the name of a crawler."""
State = Literal["open", "closed", "all"]


class IncidentReader(StorePart):
    """The reading methods of ``IncidentStore``. A caller with one project sees only the incidents
    of that project."""

    def get_incident(self, incident_id: int) -> IncidentRow | None:
        """Return the incident with this number."""
        if not 0 < incident_id <= ID_MAX:
            return None
        rows = self._rows(select(incident).where(_i.incident_id == incident_id, *seen(incident)))
        return made(IncidentRow, rows[0]) if rows else None

    def open_incidents(self, limit: int) -> list[IncidentRow]:
        """Return open incidents: bad ones first, and among incidents of equal level the one with
        the newest occurrence first.
        """
        query = select(incident).where(_i.state == "open", *seen(incident, leads=True))
        query = query.order_by(_i.level, _i.last_at.desc()).limit(limit)
        return self._made(IncidentRow, query)

    def open_counts(self, *, heard: bool = False) -> Mapping[str, int]:
        """Return how many incidents of each kind are open, or only those that are not muted."""
        mine = [_i.state == "open", *seen(incident, leads=True)]
        if heard:
            mine.append(func.coalesce(_i.muted_until <= self._clock(), True))
        query = select(_i.kind, func.count().label("incidents")).where(*mine).group_by(_i.kind)
        return {row["kind"]: row["incidents"] for row in self._rows(query)}

    def list_incidents(
        self,
        before_id: int | None = None,
        limit: int = 50,
        *,
        state: State = "open",
        kind: str | None = None,
        subject: str | None = None,
        assignee: str | None = None,
        muted: bool | None = None,
    ) -> list[IncidentRow]:
        """Return the incidents that match all given filters, newest first."""
        query = select(incident).where(
            *wanted((_i.kind, kind), (_i.subject, subject), (_i.assignee, assignee)),
            *seen(incident, leads=True),
        )
        if state != "all":
            query = query.where(_i.state == state)
        if before_id is not None:
            query = query.where(_i.incident_id < before_id)
        if muted is not None:
            is_muted = func.coalesce(_i.muted_until > self._clock(), False)
            query = query.where(is_muted == muted)
        query = query.order_by(_i.incident_id.desc()).limit(limit)
        return self._made(IncidentRow, query)

    def incident_events(self, row: IncidentRow, limit: int) -> list[Mapping[str, Any]]:
        """Return the ``type``, ``created_at`` and ``body`` of the last events about an incident,
        newest first.
        """
        e = outbox_event.c
        mine = (e.subject == f"incidents/{row.incident_id}", e.subject_uid == row.incident_uid)
        query = select(e.type, e.created_at, e.body).where(*mine)
        return list(self._rows(query.order_by(e.seq.desc()).limit(limit)))

    def opened_since(self, at: datetime, rows: Collection[IncidentRow]) -> set[int]:
        """Return the numbers of those of these incidents whose opening was reported after this
        time.
        """
        e = outbox_event.c
        query = select(e.subject, e.subject_uid)
        query = query.where(e.type == EVENT_INCIDENT_OPENED, e.created_at > at)
        subjects = [f"incidents/{row.incident_id}" for row in rows]
        with self._db.reading() as conn:
            uids = {row["subject_uid"] for row in rows_in(conn, query, e.subject, subjects)}
        return {row.incident_id for row in rows if row.incident_uid in uids}

    def closed_last(self, subjects: Collection[str]) -> dict[Key, IncidentRow]:
        """Return, for each cause of these subjects, the incident that was closed last."""
        with self._db.reading() as conn:
            rows = rows_in(conn, select(incident), _i.subject, subjects)
        closed = [made(IncidentRow, row) for row in rows if row["state"] == "closed"]
        return {key_of(row): row for row in sorted(closed, key=lambda row: row.incident_id)}

    # --- the data that incidents are derived from ---

    def crawlers_ended_after(self, seq: int) -> tuple[Counter[Crawler], int]:
        """Return how many runs of each crawler ended after this event, and the newest event about
        such an end.
        """
        e = outbox_event.c
        events = select(e.seq, _r.project, _r.crawler).join(run_history, _r.run_id == e.run_id)
        ended = events.where(e.seq > seq, e.type == EVENT_RUN_ENDED)
        rows = self._rows(ended.order_by(e.seq).limit(EVENTS_MAX))
        crawlers = Counter((row["project"], row["crawler"]) for row in rows)
        return crawlers, max((row["seq"] for row in rows), default=seq)

    def all_crawlers(self) -> list[Crawler]:
        """Return all crawlers that have runs."""
        with self._db.reading() as conn:
            page = newest_of_all(conn)
            rows = conn.execute(
                select(_r.project, _r.crawler).join(page, page.c.run_id == _r.run_id)
            )
            return sorted((project, crawler) for project, crawler in rows)

    def ended_runs(
        self, crawlers: Collection[Crawler], limit: int
    ) -> dict[Crawler, list[JudgedRun]]:
        """Return the ended runs of these crawlers (1 to 200) with the highest numbers, at most
        ``limit`` in each status of each crawler, with the newest end first.
        """
        found: dict[Crawler, list[JudgedRun]] = {crawler: [] for crawler in crawlers}
        groups = [
            {"project": project, "crawler": crawler, "status": status}
            for project, crawler in crawlers
            for status in OVER_RUNS
        ]
        page = newest_of_each(groups, limit)
        query = select(_r.project, _r.crawler, *_ENDED).join(page, page.c.run_id == _r.run_id)
        with self._db.reading() as conn:
            for project, crawler, *values in conn.execute(query):
                found[project, crawler].append(JudgedRun(*values))
        for runs in found.values():
            runs.sort(key=attrgetter("ended_at", "run_id"), reverse=True)
        return found
