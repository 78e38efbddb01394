"""``crawlctl cluster gc``: removes the files of runs that ended and were exported long ago."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.output import clean, emit, show_rows, span
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import command, load_settings, long_ago, say
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    InvalidRequest,
    NotDelivered,
    RowUnreadable,
    RunNotFound,
)
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.retention import RetainedRun, RetentionState, stand_of_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.subjects import Column, Document, at

from .services import database_errors

if TYPE_CHECKING:
    from crawler_lifecycle.ports.protocols import FilesPlace
    from crawler_lifecycle.settings import Settings
    from crawler_lifecycle.store.retention.file_retention import FileRetentionStore

DEFAULT_AGE = "14d"
#: The number of runs in one database query.
PAGE = 500
#: The number of runs between two progress messages.
PROGRESS_EVERY = 500


def _became(row: Document) -> str | None:
    return row["trouble"] or ("removed" if row["removed"] else None)


RUNS = (
    Column("Run", lambda row: row["name"] if row["run_id"] is None else row["run_id"], right=True),
    Column("Crawler", "crawler"),
    Column("Ended", at("ended_at")),
    Column("State", "state"),
    Column("Why", "why"),
    Column("Where", lambda row: ", ".join(row["where"]), wide=True),
    Column("Removal", _became),
)


def collect(
    *,
    older_than: str = DEFAULT_AGE,
    incomplete: bool = False,
    yes: bool = False,
) -> int:
    """Remove files of old runs from the shared volume and from object storage. Archives stay.

    The command removes files and saved state of runs that have ended and were exported, or had
    nothing to export. It keeps and lists the files of runs that are live, recent, not exported or
    not in the database. Without --yes nothing is changed. It can be called at any time, even twice
    at once. A run that is resumed later starts from the beginning, and its record shows this.

    Parameters
    ----------
    older_than
        only runs that ended and were exported longer ago than this; at least 12h
    incomplete
        also runs whose archive is incomplete, which crawlctl export RUN shows
    yes
        remove the files; without --yes the runs are only listed
    """
    from crawler_lifecycle.domain.retention import FILES
    from crawler_lifecycle.store.store import open_store

    settings = load_settings()
    places = _places(settings)
    (age_s, before) = long_ago(older_than, output.now(), FILES)
    with database_errors(), closing(open_store(settings.database.url, pool_size=1)) as store:
        store.health.ping()
        work = _Tidying(store.file_retention, before, incomplete)
        rows = work.find(places)
        troubles = work.remove(rows, places) if yes else []
    _show(rows, troubles, places, age_s)
    older = None if older_than == DEFAULT_AGE else older_than
    again = command("cluster gc", older_than=older, incomplete=incomplete, yes=True)
    _summarise(rows, troubles, yes=yes, again=again)
    return Exit.ERROR if troubles or any(row.trouble for row in rows) else Exit.DONE


def _places(settings: Settings) -> list[FilesPlace]:
    from crawler_lifecycle import compose
    from crawler_lifecycle.clusters.kind import kind_of

    if kind_of(settings.cluster).clears_itself:
        raise WrongUsage(
            "crawlctl cluster gc only removes files of crawl pods",
            "set LIFECYCLE_CLUSTER__KIND=kubernetes, and the other settings of the workers",
            why="the scheduler service removes the files of a local cluster automatically "
            "(LIFECYCLE_CLUSTER__KEEP_DAYS)",
        )
    try:
        found = compose.build_places(settings)
    except InvalidRequest as error:
        what, _, fix = str(error).rpartition("; ")
        raise WrongUsage(what, fix) from None
    if not found:
        raise WrongUsage(
            "LIFECYCLE_CLUSTER__VOLUME_PATH, LIFECYCLE_CLUSTER__FILES_URL: neither is set",
            "set the one that names where crawl pods write their files",
        )
    return found


@dataclass
class _Row:
    """The files of a run, and the result of their removal."""

    name: str
    places: list[FilesPlace] = field(default_factory=list)
    ref: RunRef | None = None
    run: RetainedRun | None = None
    stand: RetentionState | None = None
    why: str = ""
    removed: bool = False
    trouble: str | None = None

    @property
    def run_id(self) -> int | None:
        return self.ref.run_id if self.ref is not None else None

    def document(self) -> Document:
        """Return the document for all output formats."""
        ended = self.run.ended_at if self.run is not None else None
        return {
            "name": self.name,
            "run_id": self.run_id,
            "crawler": self.run.crawler if self.run is not None else None,
            "ended_at": ended.isoformat().replace("+00:00", "Z") if ended else None,
            "state": str(self.stand),
            "why": self.why,
            "where": [place.where for place in self.places],
            "removed": self.removed,
            "trouble": self.trouble,
        }


@dataclass
class _Tidying:
    """One call of ``crawlctl cluster gc``."""

    store: FileRetentionStore
    before: datetime
    incomplete: bool

    def find(self, places: Sequence[FilesPlace]) -> list[_Row]:
        """Return a row with the state of each run that has files in one of the locations."""
        rows: dict[str, _Row] = {}
        for place in places:
            for name in _names(place):
                rows.setdefault(name, _Row(name, ref=RunRef.named(name))).places.append(place)
        known = dict(self._known([row.run_id for row in rows.values() if row.run_id is not None]))
        for row in rows.values():
            self._judge(row, known)
        return sorted(
            rows.values(), key=lambda row: (row.run_id is None, row.run_id or 0, row.name)
        )

    def _known(self, run_ids: list[int]) -> Iterator[tuple[int, RetainedRun]]:
        run_ids.sort()
        for start in range(0, len(run_ids), PAGE):
            yield from (
                (run.run_id, run) for run in self.store.kept_runs(run_ids[start : start + PAGE])
            )

    def _judge(self, row: _Row, known: Mapping[int, RetainedRun]) -> None:
        found = known.get(row.ref.run_id) if row.ref is not None else None
        row.stand, row.why = stand_of_name(row.ref, found, self.before, incomplete=self.incomplete)
        if found is not None and row.ref is not None and row.ref.owns(found.run_uid):
            row.run = found

    def remove(self, rows: Sequence[_Row], places: Sequence[FilesPlace]) -> list[str]:
        """Remove the files of old runs, and finish the removals that earlier calls began.

        Return the errors from finishing these earlier removals.
        """
        due = [row for row in rows if row.stand is RetentionState.OLD]
        for done, row in enumerate(due, 1):
            self._remove(row, places)
            if done % PROGRESS_EVERY == 0 and done < len(due):
                say(f"{done:,} of {len(due):,} runs …")
        return [trouble for place in places for trouble in place.finish()]

    def _remove(self, row: _Row, places: Sequence[FilesPlace]) -> None:
        """Remove the files of one run from every location, because files may have been added since
        the locations were listed.
        """
        assert row.ref is not None  # a name that belongs to no run has no age
        run = row.ref
        run_id = row.ref.run_id

        def put_aside() -> None:
            for place in places:
                place.put_aside(run)

        try:
            released = self.store.give_up_files(
                run_id, self.before, put_aside, incomplete=self.incomplete
            )
            row.stand, attempt, last = released
            if row.stand is not RetentionState.OLD:
                row.why = "it has just changed"
                return
            for place in places:
                place.remove(run, last)
            self.store.note_files_removed(run_id, attempt)
            row.removed = True
        except (ClusterUnavailable, NotDelivered, RowUnreadable, RunNotFound) as error:
            row.trouble = str(error)


def _names(place: FilesPlace) -> set[str]:
    try:
        return place.runs()
    except (ClusterUnavailable, NotDelivered) as error:
        what, _, fix = str(error).rpartition("; ")
        raise CommandFailed(
            Exit.UNREACHABLE, f"{place.where} cannot be listed", what, fix
        ) from None


# --- for people -----------------------------------------------------------------------------------


def _show(
    rows: Sequence[_Row], troubles: Sequence[str], places: Sequence[FilesPlace], age_s: float
) -> None:
    """Print the rows.

    In tables, live, recent and empty runs are only counted, because there are so many of them.
    """
    quiet = (RetentionState.LIVE, RetentionState.RECENT, RetentionState.REMOVED)
    documents = [row.document() for row in rows]
    shown = [row.document() for row in rows if row.stand not in quiet or row.trouble]
    document = {
        "places": [place.where for place in places],
        "older_than_s": age_s,
        "states": _counts(rows),
        "removed": sum(row.removed for row in rows),
        "failed": sum(row.trouble is not None for row in rows) + len(troubles),
        "troubles": list(troubles),
        "runs": documents,
    }
    emit(
        document,
        names=[row.name for row in rows if row.stand is RetentionState.OLD],
        table=lambda: show_rows(
            shown, RUNS, empty=f"no run has left files for longer than {span(age_s)}"
        ),
        rows=documents,
    )


def _counts(rows: Sequence[_Row]) -> dict[str, int]:
    return {
        str(stand): count
        for stand in RetentionState
        if (count := sum(row.stand is stand for row in rows))
    }


def _summarise(rows: Sequence[_Row], troubles: Sequence[str], *, yes: bool, again: str) -> None:
    for trouble in troubles:
        say(f"not finished: {clean(trouble)}")
    counts = _counts(rows)
    states = ", ".join(f"{many:,} {state}" for state, many in counts.items())
    say(f"found {count(len(rows), 'run')}" + (f": {states}" if states else ""))
    if yes:
        failed = sum(row.trouble is not None for row in rows)
        say(f"removed {sum(row.removed for row in rows):,}, failed {failed:,}")
    elif counts.get("old"):
        say("nothing was changed")
        say(f"next: {again}")
