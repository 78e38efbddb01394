"""What the folders of a run's tasks say about it, for a database that lost its rows."""

from __future__ import annotations

import json
from pathlib import Path

from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRecord
from crawler_lifecycle.runner.held import NotOurs

from . import folder as files
from .inventory import numbers


def task_records(tasks: Path, run: RunRef) -> list[TaskRecord]:
    """The latest attempt of each index of this very run. Raises ``OSError``."""
    if not run.owns(files.owner(str(tasks), run.run_id)):
        return []
    top = tasks / str(run.run_id)
    found = []
    for index in numbers(top):
        records = (_record(top / str(index) / str(attempt)) for attempt in reversed(numbers(top / str(index))))
        latest = next((one for one in records if one is not None), None)
        if latest is not None:
            found.append(latest)
    return found


def _record(folder: Path) -> TaskRecord | None:
    """What its spec says; ``None`` without one that can be read."""
    try:
        spec = files.read(files.held(str(folder)), files.SPEC)
        contract = (spec or {}).get("contract")
        if spec is None or not isinstance(contract, dict):
            return None
        record = spec.get("record")
        return TaskRecord(
            index=int(contract["CRAWL_TASK_INDEX"]),
            attempt=int(contract["CRAWL_ATTEMPT"]),
            task_id=int(contract["CRAWL_TASK_ID"]),
            crawler=str(contract["CRAWL_CRAWLER"]),
            args=json.loads(contract["CRAWL_ARGS"]),
            settings=json.loads(contract["CRAWL_SETTINGS"]),
            name=str(spec["name"]),
            uid=str(spec["uid"]),
            record=record if isinstance(record, dict) else {},
        )
    except (files.Garbage, NotOurs, FileNotFoundError, KeyError, TypeError, ValueError, RecursionError):
        return None
