"""The recorded conditions of Jobs and pods, read as a poll reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from crawler_lifecycle.clusters.kubernetes.client.objects import Event, Job, Pod, decode
from crawler_lifecycle.clusters.kubernetes.polls.reading import read_task
from crawler_lifecycle.domain.ends import Ends, reading
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import Observation, TaskState, TaskStatus, read_end, reconcile
from crawler_lifecycle.ports.runs import TaskRef

RECORDED = Path(__file__).parents[1] / "kubernetes" / "recorded"
DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "kubernetes-pending.md", DOCS / "kubernetes-outcomes.md")


@dataclass(frozen=True)
class Condition:
    """One recorded condition: the objects, what the database knows, and what a person expects."""

    name: str
    row: str
    source: str
    job: Job | None
    pods: list[Pod]
    events: list[Event] | None
    """``None``: they could not be read."""
    task: TaskRef
    stop: StopIntent | None
    now: datetime
    expected: Mapping[str, Any] | None

    def seen(self) -> Observation:
        return read_task(self.task, self.job, self.pods, self.events, self.now)

    def read(self) -> dict[str, Any]:
        """Return the result for a task that was not known to have begun, in the terms of
        ``expected``.
        """
        seen = self.seen()
        believed = TaskState(
            self.task.task_id,
            self.task.index,
            self.task.attempt,
            TaskStatus.QUEUED,
            self.now,
            self.task.uid,
            True,
        )
        how = reading(Ends("browsertrix"))
        change = reconcile(
            believed, seen, self.stop, due_at=self.now + timedelta(hours=1), ends=how
        )
        ending = read_end(seen.end, self.stop, how) if seen.end is not None else None
        found = {
            "phase": str(seen.phase),
            "status": str(change.after) if change is not None else "unchanged",
            "outcome": change.outcome if change is not None else None,
            "cause": change.cause if change is not None else None,
            "reason": seen.reason,
            "exit_code": seen.end.exit_code if seen.end is not None else None,
            "pages": seen.counters.pages,
            "retryable": ending.retryable if ending is not None else None,
        }
        return {key: value for key, value in found.items() if value is not None}


def load(path: Path) -> Condition:
    """One file."""
    return condition_of(json.loads(path.read_text()))


def condition_of(said: Mapping[str, Any]) -> Condition:
    """Return the contents of one file."""
    objects, task, stop = said["objects"], said["task"], said["stop"]
    return Condition(
        name=said["name"],
        row=said["row"],
        source=said["source"],
        job=decode(Job, _bytes(objects["job"], "Job")) if objects["job"] is not None else None,
        pods=[decode(Pod, _bytes(pod, "Pod")) for pod in objects["pods"]],
        events=None
        if objects["events"] is None
        else [decode(Event, _bytes(event, "Event")) for event in objects["events"]],
        task=TaskRef(1, 0, task.get("attempt", 1), task.get("uid"), task.get("stopping", False)),
        stop=StopIntent(moment(stop["requested_at"]), requested_by=stop["requested_by"])
        if stop
        else None,
        now=moment(said["now"]),
        expected=said["expected"],
    )


@dataclass(frozen=True)
class Row:
    """One line of the documentation's lists of conditions."""

    condition: str
    shows: str
    sentence: str
    """``…`` stands for whatever the cluster says there."""
    again: str


_COMMON = re.compile(r"These tasks are (\w+(?: `[^`]+`)?)(?:, and a retry (may|cannot) help)?\.")
_LINE = re.compile(r'- ([^":(]+?)(?: \(.+?\))?(?:: "([^"]+)")?', re.ASCII)
_CELLS = re.compile(
    r'\| ([^":(|]+?)(?: \(.+?\))? \| (?:"([^"]+)" )?\| (\w+(?: `[^`]+`)?) \| (?:(yes|no) )?\|',
    re.ASCII,
)


def rows() -> list[Row]:
    """Return all lines in order. A line has the status that the text above its list states for all."""
    found, common = [], ("", "")
    for line in "".join(page.read_text() for page in PAGES).splitlines():
        if said := _COMMON.match(line):
            common = said[1], {"may": "yes", "cannot": "no", None: ""}[said[2]]
        elif line.startswith("- "):
            parts = _LINE.fullmatch(line)
            assert parts, line
            found.append(Row(parts[1], common[0], parts[2] or "", common[1]))
        elif line.startswith("| ") and not line.startswith("| what happened |"):
            parts = _CELLS.fullmatch(line)
            assert parts, line
            found.append(Row(parts[1], parts[3], parts[2] or "", parts[4] or ""))
    return found


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _bytes(said: Mapping[str, Any], kind: str) -> bytes:
    return json.dumps({"kind": kind, **said}).encode()


#: All of them, in the order of their names.
CONDITIONS = [load(path) for path in sorted(RECORDED.glob("*.json"))]
