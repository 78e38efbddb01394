"""``python -m crawler_lifecycle.features.user_code.preview``: simulates a user's class for
``crawlctl manager plan``.

The module writes one JSON document to standard output. Output of the class goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from crawler_lifecycle.features.managers.domain.manager import JobState
from crawler_lifecycle.managers.testing import Record, Simulation

from . import loading

_OF_JOB = ("spider", "spider_args", "job_settings", "project_id")
_WAITS = (JobState.QUEUED, JobState.DELAYED, JobState.BUFFERED)


def main(words: Sequence[str]) -> int:
    """Write the preview of one class and return the exit code.

    ``words`` are the limit of jobs, the class and its options.
    """
    limit, plan, *argv = int(words[0]), *words[1:]
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: list[dict[str, Any]] = []
    try:
        simulation = Simulation(loading.load(plan), argv)
        simulation.buffer = limit
        simulation.read_clock = (
            time.monotonic
        )  # with a clock, the time for a slow source is limited
        record = simulation.run(until=lambda record: len(record.scheduled) >= limit)
        jobs = list(_jobs(simulation, limit))
        end = _end(record, limit)
    except (Exception, SystemExit) as error:
        end = {"error": f"{type(error).__name__}: {error}"[:4000]}
    with answer:
        json.dump({"jobs": jobs, "end": end}, answer)
    return 0


def _jobs(simulation: Simulation, limit: int) -> Iterator[dict[str, Any]]:
    """Yield scheduled jobs in order, then skipped items, then waiting jobs."""
    record = simulation.record
    for job in record.scheduled[:limit]:
        shown = {name: getattr(job, name) for name in ("seq", *_OF_JOB, "tags", "units")}
        why = f"try {job.retry + 1}" if job.retry else None
        yield {**shown, "what": "scheduled", "why": why}
    for position, why in record.skipped[:limit]:
        yield {"what": "left out", "position": position, "why": why}
    waits = record.waits[-1] if record.waits else "the limit of this preview is reached"
    if record.over:
        waits = "the manager ends before this job starts; with loop_mode 0 it has only one cycle"
    for row in [row for row in simulation.rows if row.state in _WAITS][:limit]:
        delayed = row.state is JobState.DELAYED
        why = "can_schedule_job_with_params returned False" if delayed else waits
        shown = {name: getattr(row.job, name) for name in _OF_JOB}
        yield {
            **shown,
            "seq": row.seq,
            "what": "waits",
            "position": row.position,
            "tags": row.job.tags,
            "why": why,
        }


def _end(record: Record, limit: int) -> dict[str, Any]:
    errors = "; ".join(record.errors[:5]) or None
    scheduled = min(len(record.scheduled), limit)
    counts = (
        f"{scheduled} scheduled, {len(record.skipped)} left out, at most {record.most_live} at once"
    )
    if not record.over:
        return {"text": f"{counts}; more would follow", "error": errors}
    how = "FAILED" if record.failed else "COMPLETED"
    return {"text": f"{counts}; the manager would be {how}, {record.close_reason}", "error": errors}


if __name__ == "__main__":
    # A module without a main guard must not parse the words as its options.
    given, sys.argv[1:] = sys.argv[1:], []
    raise SystemExit(main(given))
