"""The timeline of a run: an entry for each change or event, with a sentence for people.

The entries come from five tables. There can be many transitions and corrections, so they are read
in pages by their numbers. The other tables have only a few rows for each attempt. A page merges all
entries by time, and its token has a position in each source.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel

from crawler_lifecycle.domain.audits.corrections import MEANINGS, SOURCES
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.cursors import decode_positions, encode
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.ports.runs import RunRow, TransitionRow
from crawler_lifecycle.store.events import EventStore
from crawler_lifecycle.store.runs.completion import ExportStore
from crawler_lifecycle.store.runs.corrections import CorrectionStore
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader

LIST = "timeline"
TEXT_MAX = 500
_MEANINGS = {kind.value: meaning for kind, meaning in MEANINGS.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Kind = Literal["attempt", "status", "task", "correction", "stop", "export", "delivery", "poll"]


class TimelineEntry(BaseModel):
    """One entry.

    ``key`` never changes, even if an export or delivery is retried. Entries of the kinds
    ``attempt``, ``status`` and ``task`` are changes of status, with the columns of
    ``status_transition``. All others have the row of their table in ``record``.
    """

    key: str
    at: datetime
    kind: Kind
    text: str
    attempt: int
    task_id: int | None = None
    seq: int | None = None
    from_status: str | None = None
    to_status: str | None = None
    cluster_time: datetime | None = None
    committed_at: datetime | None = None
    lag_ms: int | None = None
    source: str | None = None
    evidence: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None


class TimelinePage(BaseModel):
    """A page of the timeline of a run and its tasks, oldest entries first."""

    timeline: list[TimelineEntry]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class _Positions:
    """The last position in each source: the numbers of a transition and of a correction, and a rank
    among the other tables.
    """

    seq: int = 0
    correction: int = 0
    rest: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Timeline:
    """The history of a run, from all its records."""

    runs: RunReader
    tasks: TaskReader
    corrections: CorrectionStore
    exports: ExportStore
    events: EventStore

    def page(self, run: RunRow, token: str | None, size: int) -> TimelinePage:
        """Return the page after ``token``. Raises ``Problem`` 422 for the page token of another
        list.
        """
        n = decode_positions(LIST, token, 5)
        begin = _Positions() if n is None else _Positions(n[0], n[1], (n[2], n[3], n[4]))
        found = list(self._merged(run, begin, size + 1))
        entries = [entry for entry, _ in found[:size]]
        if len(found) <= size:
            return TimelinePage(timeline=entries, next_page_token=None)
        last = found[size - 1][1]
        return TimelinePage(
            timeline=entries, next_page_token=encode(LIST, last.seq, last.correction, *last.rest)
        )

    def _merged(
        self, run: RunRow, positions: _Positions, count: int
    ) -> Iterator[tuple[TimelineEntry, _Positions]]:
        """Yield the next entries by time, each with the positions after it.

        Entries of one source keep their order.
        """
        transitions = self.runs.transitions(run.run_id, positions.seq, count)
        corrections = self.corrections.list_corrections(run.run_id, positions.correction, count)
        rest = [item for item in self._rest(run) if item[0] > positions.rest]
        task_ids = {row.task_id for row in transitions} | {row.task_id for row in corrections}
        indexes = self.tasks.task_indexes([id_ for id_ in task_ids if id_ is not None])
        merged: Iterator[tuple[datetime, str, Any, TimelineEntry]] = heapq.merge(
            (
                (row.committed_at, "seq", row.seq, _of_transition(row, indexes))
                for row in transitions
            ),
            (
                (row.created_at, "correction", row.id, _of_correction(row, indexes))
                for row in corrections
            ),
            ((entry.at, "rest", rank, entry) for rank, entry in rest),
            key=lambda one: one[0],
        )
        for _, source, position, entry in itertools.islice(merged, count):
            positions = replace(positions, **{source: position})
            yield entry, positions

    def _rest(self, run: RunRow) -> list[tuple[tuple[int, int, int], TimelineEntry]]:
        entries = [
            *((1, _id(row), _of_stop(row)) for row in self.runs.cancellations(run.run_id)),
            *((2, _id(row), _of_export(row)) for row in self.exports.list_exports(run.run_id)),
            *(
                (3, n, _of_delivery(row, run))
                for n, row in enumerate(self.events.deliveries(run.run_id, keyed=True))
            ),
            *((4, run.attempt, entry) for entry in _of_failing_polls(run)),
        ]
        ranked = [
            (((entry.at - _EPOCH) // timedelta(microseconds=1), kind, n), entry)
            for kind, n, entry in entries
        ]
        return sorted(ranked, key=lambda item: item[0])


# --- sentences ------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    """Return the text as one line.

    Control characters, which may come from a crawler, become spaces.
    """
    line = " ".join(printable(text).split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"


def _span(ms: int) -> str:
    seconds = ms / 1000
    if seconds < 1:
        return f"{ms} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def task_name(task_id: int, indexes: Mapping[int, int]) -> str:
    """Return the display name of a task: its number in the run, and its id."""
    return (
        f"task {indexes[task_id]} (id {task_id})"
        if task_id in indexes
        else f"the task with id {task_id}"
    )


def _of_transition(row: TransitionRow, indexes: Mapping[int, int]) -> TimelineEntry:
    kind: Kind
    if row.task_id is not None:
        kind = "task"
        sentence = _task_text(row, task_name(row.task_id, indexes))
    elif row.from_status is None or row.source == "resume":
        kind = "attempt"
        sentence = _attempt_text(row)
    else:
        kind = "status"
        sentence = _status_text(row)
    return TimelineEntry(
        key=f"transition:{row.seq}",
        at=row.committed_at,
        kind=kind,
        text=_sentence(sentence + _late(row)),
        **{name: value for name, value in asdict(row).items() if name != "run_id"},
    )


def _late(row: TransitionRow) -> str:
    worth = row.lag_ms is not None and row.lag_ms >= 1000
    return (
        f"; recorded {_span(row.lag_ms)} after it happened"
        if worth and row.lag_ms is not None
        else ""
    )


def _attempt_text(row: TransitionRow) -> str:
    if row.from_status is None:
        tasks = row.evidence.get("tasks")
        trigger = row.evidence.get("trigger")
        many = (
            ""
            if not isinstance(tasks, int)
            else " with 1 task"
            if tasks == 1
            else f" with {tasks} tasks"
        )
        return f"Requested{many}{f' ({trigger})' if trigger else ''}"
    return f"Attempt {row.attempt} began; the previous one was {row.from_status}"


def _status_text(row: TransitionRow) -> str:
    evidence = row.evidence
    if row.to_status == RunStatus.PROCESSING:
        return "Started: its main task is running"
    if row.to_status == RunStatus.STOPPING:
        return (
            f"Being stopped by a limit: {evidence['limit']}"
            if evidence.get("limit")
            else "Being stopped"
        )
    if row.to_status in (RunStatus.COMPLETED, RunStatus.FAILED):
        outcome = evidence.get("outcome")
        cause = evidence.get("cause")
        ended = f"Ended {row.to_status}{f', {outcome}' if outcome else ''}"
        return f"{ended}: {cause}" if cause else ended
    return f"{row.from_status} became {row.to_status}"


def _task_text(row: TransitionRow, name: str) -> str:
    evidence = row.evidence
    if "retry" in evidence:
        more = f" with {evidence['memory']} of memory" if evidence.get("memory") else ""
        number = f"{evidence['retry']} of {evidence.get('of')}"
        when = evidence.get("not_before")
        why = f"the previous try ended as {evidence.get('after')}"
        return (
            f"{name[0].upper()}{name[1:]} is tried again ({number}){more}, not before {when}: {why}"
        )
    end = evidence.get("end")
    details = _end_words(end) if isinstance(end, Mapping) else []
    if evidence.get("reason"):
        details.append(str(evidence["reason"]))
    if row.to_status == "PENDING" and evidence.get("name"):
        details.insert(0, f"deployed as {evidence['name']}")
    return (
        f"{name[0].upper()}{name[1:]} became "
        f"{row.to_status}{': ' + ', '.join(details) if details else ''}"
    )


_END_WORDS = {
    "finish_reason": "it reported {}",
    "reason": "{}",
    "exit_code": "exit {}",
    "signal": "signal {}",
    "message": "{}",
}


def _end_words(end: Mapping[str, Any]) -> list[str]:
    known = {name: end.get(name) for name in _END_WORDS}
    if known["reason"] in ("Completed", "Error"):
        del known["reason"]
    said = {
        name: value for name, value in known.items() if value or (name, value) == ("exit_code", 0)
    }
    return [_END_WORDS[name].format(value) for name, value in said.items()]


def _of_correction(row: CorrectionRow, indexes: Mapping[int, int]) -> TimelineEntry:
    who = "the run" if row.task_id is None else task_name(row.task_id, indexes)
    wrong_for = "" if row.lag_ms is None else f", for {_span(row.lag_ms)}"
    kind = _MEANINGS.get(row.kind, f"{row.kind}.")
    found_by = SOURCES.get(row.found_by, row.found_by)
    text = (
        f"Corrected: {who} was recorded as {row.believed} but was {row.truth}{wrong_for}. {kind} "
    )
    text += f"It was found by {found_by}."
    return TimelineEntry(
        key=f"correction:{row.id}", at=row.created_at, kind="correction", text=_sentence(text),
        attempt=row.attempt, task_id=row.task_id, record=_record(asdict(row)),
    )  # fmt: skip


def _of_stop(row: Mapping[str, Any]) -> TimelineEntry:
    who = row.get("requested_by") or "Somebody"
    force = " by force" if row.get("force") else ""
    reason = row.get("reason")
    acted = "" if row.get("acted_at") else "; not carried out yet"
    text = f"{who} requested a stop{force}{f': {reason}' if reason else ''}{acted}"
    return _entry("stop", _id(row), row["requested_at"], row, text)


def _of_export(row: Mapping[str, Any]) -> TimelineEntry:
    status = row.get("status")
    error = row.get("error")
    if row.get("url"):
        size = f"{row.get('files') or 0:,} files, {row.get('bytes') or 0:,} bytes"
        text = f"Supporting files archived: {size}, {row['url']}"
    elif status == "empty":
        text = "There are no supporting files to archive"
    else:
        text = f"Export of the supporting files: {status}{f', {error}' if error else ''}"
    return _entry("export", _id(row), row["at"], row, text)


def _of_delivery(row: Mapping[str, Any], run: RunRow) -> TimelineEntry:
    sink = row.get("sink")
    tries = row.get("tries")
    error = row.get("error")
    if row.get("status") == "delivered":
        text = f"{row['type']} was delivered to {sink}"
    elif row.get("status") == "pending":
        text = f"{row['type']} is waiting for delivery"
    else:
        text = (
            f"{row['type']} could not be delivered to {sink} ({tries} "
            f"tries){f': {error}' if error else ''}"
        )
    # An undelivered event has no time of its own, so it appears at the end of the run, or at the
    # run's last change.
    at = row.get("delivered_at") or run.ended_at or run.updated_at
    return _entry("delivery", f"{row['seq']}:{sink}", at, row, text)


def _entry(
    kind: Kind, key: object, at: datetime, row: Mapping[str, Any], text: str
) -> TimelineEntry:
    return TimelineEntry(
        key=f"{kind}:{key}",
        at=at,
        kind=kind,
        attempt=row["attempt"],
        record=_record(row),
        text=_sentence(text),
    )


def _of_failing_polls(run: RunRow) -> Iterator[TimelineEntry]:
    """Yield an entry while polls of the run fail. It has the time of the first failure."""
    since = run.look_error_since
    error = run.look_error
    if since is None or error is None or run.status in (RunStatus.COMPLETED, RunStatus.FAILED):
        return
    yield TimelineEntry(
        key=f"poll:{run.attempt}:{since.isoformat()}", at=since, kind="poll", attempt=run.attempt,
        text=_sentence(f"Polls have failed since then, so newer changes are not known: {error}"),
        record={"poll_error": error, "verified_at": run.verified_at},
    )  # fmt: skip


def _id(row: Mapping[str, Any]) -> int:
    return int(row["id"])


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row without its id and the id of its run."""
    return {name: value for name, value in row.items() if name not in ("id", "run_id")}
