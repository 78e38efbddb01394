"""What the record says about deployed code: the codes of tasks and runs, canaries and their events,
and what a sampler saw of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

Rows = list[tuple[Any, ...]]
Ask = Callable[[str], Rows]

#: The crawler whose code is the package of the same name, and the crawler of an entry in the
#: database.
PACKAGE, ENTRY = "deployed", "edition"
#: A package of a Scrapy project. Its spider, and so its only entry, is named after the version.
SPIDERS = "shelf"
#: After each such number of samples, the sampler also reads what is recorded about code.
EVERY = 4
_OPEN = "status NOT IN ('COMPLETED', 'FAILED')"
_TASKS = (
    "SELECT t.run_id, t.task_index, t.attempt, t.run_attempt, t.status, t.code_digest, "
    "t.code_version FROM task_history t JOIN run_history r ON r.run_id = t.run_id "
    f"WHERE r.crawler = '{PACKAGE}'"
)
_RUNS = f"SELECT run_id, request_id, crawler, request FROM run_history WHERE crawler IN ('{PACKAGE}', '{ENTRY}')"
_CANARIES = (
    "SELECT canary_id, canary_uid, new_version, share, state, asked, given, ended_by FROM canary"
)
_STATES = "SELECT canary_id, state FROM canary"
_CODES = (
    "SELECT DISTINCT c.run_id, c.code_digest FROM run_code c JOIN run_history r "
    f"ON r.run_id = c.run_id WHERE r.crawler = '{PACKAGE}' AND r.{_OPEN}"
)
_NO_CURRENT = (
    "SELECT p.name, p.current FROM package p LEFT JOIN package_version v "
    "ON v.package = p.name AND v.version = p.current WHERE v.version_id IS NULL"
)


@dataclass(frozen=True)
class CodeTask:
    """A recorded task of a deployed crawler."""

    name: tuple[int, int, int]
    run_attempt: int
    status: str
    digest: str | None
    version: str | None


@dataclass(frozen=True)
class CodeRun:
    """A recorded run of a crawler that has versions."""

    run_id: int
    key: str
    crawler: str
    version: str | None
    digest: str | None


@dataclass(frozen=True)
class Canary:
    """A recorded canary."""

    canary_id: int
    uid: str
    version: str
    share: float
    state: str
    asked: int
    given: int
    ended_by: str | None


@dataclass
class CodeRecord:
    """What is recorded about code after everything has ended."""

    tasks: list[CodeTask] = field(default_factory=list)
    runs: list[CodeRun] = field(default_factory=list)
    canaries: list[Canary] = field(default_factory=list)
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each event about a canary is recorded, by type and uid of the canary."""
    spiders: tuple[str | None, list[str]] = (None, [])
    """The current version of the Scrapy project, and the names of its entries."""
    editions: dict[str, str] = field(default_factory=dict)
    """The edition of each version of the entry."""
    ended: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When each canary was last seen open, and first seen ended."""
    seen: list[str] = field(default_factory=list)
    """What must never be recorded, and was seen, as sentences."""


def read_code(ask: Ask) -> CodeRecord:
    """Read the record. ``ask`` returns the rows of a statement."""
    found = CodeRecord()
    for run_id, index, attempt, *more in ask(_TASKS):
        found.tasks.append(CodeTask((run_id, index, attempt), *more))
    for run_id, key, crawler, text in ask(_RUNS):
        request = json.loads(text)
        code = request.get("version"), request.get("code")
        found.runs.append(CodeRun(run_id, key, crawler, *code))
    found.canaries = [Canary(*row) for row in ask(_CANARIES)]
    events = ask("SELECT type, subject_uid FROM outbox_event WHERE type LIKE 'canary.%'")
    found.events = Counter((kind, uid) for kind, uid in events)
    for number, text in ask(
        f"SELECT number, document FROM catalogue_change WHERE name = '{ENTRY}'"
    ):
        found.editions[str(number)] = json.loads(text)["args"]["edition"]["default"]
    current = ask(f"SELECT p.current FROM package p WHERE p.name = '{SPIDERS}'")
    entries = ask(f"SELECT name FROM catalogue_entry WHERE package = '{SPIDERS}' ORDER BY name")
    found.spiders = (current[0][0] if current else None, [name for (name,) in entries])
    found.seen = [
        f"package {name} has the current version {version}, which does not exist"
        for name, version in ask(_NO_CURRENT)
    ]
    return found


class CodeWatch:
    """Watches the record and the code store while everything executes."""

    def __init__(self, store: Path, record: Ask) -> None:
        """``store`` is the folder with the zips, and ``record`` returns the rows of a statement."""
        self.store, self.record = store, record
        self.ended: dict[int, tuple[float, float]] = {}
        self.seen: list[str] = []
        self._samples = 0
        self._open: dict[int, float] = {}
        self._states: dict[int, str] = {}
        self._missing: set[tuple[int, str]] = set()

    def turn(self, at: float, heard: Callable[[Callable[[], Rows]], Rows]) -> None:
        """Take every ``EVERY``-th sample. ``heard`` returns what a reader returns, or no rows while
        the database is down.
        """
        self._samples += 1
        if self._samples % EVERY:
            return
        states, lost, codes = (
            heard(partial(self.record, sql)) for sql in (_STATES, _NO_CURRENT, _CODES)
        )
        self.saw_states(at, states)
        for name, version in lost:
            self.seen.append(f"package {name} had the current version {version} without a row")
        self.saw_codes(codes)

    def saw_states(self, at: float, rows: Iterable[tuple[Any, ...]]) -> None:
        """Remember the states of canaries at a moment. An end is final."""
        for canary_id, state in rows:
            before = self._states.get(canary_id, "open")
            if state == "open":
                self._open[canary_id] = at
            elif before == "open":
                self.ended[canary_id] = (self._open.get(canary_id, 0.0), at)
            if before not in ("open", state):
                self.seen.append(f"canary {canary_id} was {before} and is {state}")
            self._states[canary_id] = state

    def saw_codes(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Check that the code of each open run is stored. What is missing twice in a row is a
        violation, because a run can end between two reads.
        """
        missing = {
            (run_id, digest)
            for run_id, digest in rows
            if not (self.store / f"{digest.removeprefix('sha256:')}.zip").exists()
        }
        for run_id, digest in sorted(missing & self._missing):
            text = f"run {run_id} is open, and its code {digest} was removed"
            self.seen += [text] if text not in self.seen else []
        self._missing = missing
