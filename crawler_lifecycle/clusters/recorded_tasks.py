"""Records of tasks, read from the variables that the tasks got (``process_contract``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crawler_lifecycle.ports.runs import TaskRecord


def recorded_task(contract: Mapping[str, Any], record: object, **more: Any) -> TaskRecord:
    """Return the record of a task that has these variables. ``record`` is what was stored with it,
    which is left out if it is not a mapping, and ``more`` are its other fields.

    Raises ``KeyError``, ``TypeError``, ``ValueError`` and ``RecursionError`` for variables that are
    not ours.
    """
    return TaskRecord(
        index=int(contract["CRAWL_TASK_INDEX"]),
        attempt=int(contract["CRAWL_ATTEMPT"]),
        task_id=int(contract["CRAWL_TASK_ID"]),
        crawler=str(contract["CRAWL_CRAWLER"]),
        args=json.loads(contract["CRAWL_ARGS"]),
        settings=json.loads(contract["CRAWL_SETTINGS"]),
        record=record if isinstance(record, dict) else {},
        **more,
    )
