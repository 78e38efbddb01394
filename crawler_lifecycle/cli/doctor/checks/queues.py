"""Lines about our task queues: whether somebody works on each, and what to start where nobody does."""

from __future__ import annotations

from crawler_lifecycle.cli.doctor.line import Line
from crawler_lifecycle.compose import SERVED_BY
from crawler_lifecycle.domain import names
from crawler_lifecycle.temporal.operator.queue_findings import judged
from crawler_lifecycle.temporal.operator.server import Server
from crawler_lifecycle.temporal.operator.task_queues import Queue

from .clock import clock_line


async def check_queues(server: Server, unreachable: str) -> list[Line]:
    """A line for each task queue of ours. ``unreachable`` is the cure where the server does not answer."""
    queues = await server.task_queues([names.QUEUE_MAIN], list(SERVED_BY))
    lines = [queue_line(queue, unreachable) for queue in queues]
    ahead_s = max(queue.ahead_s for queue in queues)
    return [*lines, clock_line("Temporal", ahead_s, 0.0)] if ahead_s > 0 else lines


def queue_line(queue: Queue, unreachable: str = "") -> Line:
    """Whether somebody works on a task queue."""
    found = judged(queue, SERVED_BY[queue.name], unreachable)
    return Line("workers", found.level, found.text, found.cure)
