"""Finds everything that is untrue of the managers of a graph that has ended, by the journals of
their crawlers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState
from tools.soak.checks import CLOCK_S
from tools.soak.graph_records import GraphCase
from tools.soak.graph_steps import WINDOW
from tools.soak.journal import Process
from tools.soak.manager_judge import most_at_once


def jobs_of(spec: StepSpec) -> int:
    """Return how many jobs the manager of this step has."""
    argv = spec.job["options"]["argv"]
    return int(argv[argv.index("--jobs") + 1])


def managers(case: GraphCase) -> Iterator[str]:
    """Check that a step has one manager, which ended as the step reports, and that each of its jobs
    ended once.
    """
    steps = {
        path: row for path, row in case.rows.items() if case.specs[path].kind is StepKind.MANAGER
    }
    if len(case.managers) > len(steps):
        yield f"{len(case.managers)} managers of {len(steps)} steps"
    for path, row in steps.items():
        manager = case.managers.get(row["run_id"])
        if manager is None:
            if row["run_id"] is not None or row["state"] == StepState.COMPLETED:
                yield f"{path} has the manager {row['run_id']}, which does not belong to it"
            continue
        told = f"{manager['status']} ({manager['outcome']})"
        if manager["status"] not in ("COMPLETED", "FAILED"):
            yield f"it has ended, and the manager of {path} is {told}"
        right = StepState.COMPLETED if manager["status"] == "COMPLETED" else StepState.DISCARDED
        if row["state"] not in (right, StepState.CANCELLED):
            yield f"{path} is {row['state']}, its manager is {told}"
        yield from _jobs(case, path, manager["processes"])


def _jobs(case: GraphCase, path: str, crawls: list[Process]) -> Iterator[str]:
    if (most := most_at_once(crawls)) > WINDOW:
        yield f"{most} crawls of the manager of {path} executed at once, and its window is {WINDOW}"
    good = Counter(
        int(crawl.args["number"]) for crawl in crawls if crawl.end and crawl.end.get("code") == 0
    )
    jobs = range(jobs_of(case.specs[path]))
    if again := sorted(number for number, times in good.items() if times > 1 or number not in jobs):
        yield (
            f"the manager of {path} executed these again after a success, or without a reason: {again}"
        )
    # A retry does not begin a job again that was once stopped.
    if (
        case.completed(path)
        and not (case.stopped(path) or case.restarted)
        and (lost := sorted({*jobs} - good.keys()))
    ):
        yield f"the manager of {path} is completed and lost these: {lost}"
    for one, other in pairwise(sorted(crawls, key=lambda crawl: (crawl.run_id, crawl.begin))):
        if one.run_id == other.run_id and other.begin < one.last - CLOCK_S:
            yield f"a run of the manager of {path} executed twice at the same time: {one}; {other}"
