"""Graphs: the names for users to import.

The import loads no third-party packages. The HTTP client is loaded when a gateway is first used.
``graphs.oban`` and ``graphs.chancy`` offer the names of Oban Pro and Chancy. ``graphs.testing``
executes graphs in memory.
"""

from .fanning import fan_out
from .job import Cancel, Job, Record, Snooze, current_job
from .jobs import NewJob, approval, crawl, manager, worker
from .platform import PlatformUnavailable
from .workflow import Graph, Status, Workflow

__all__ = [
    "Cancel",
    "Graph",
    "Job",
    "NewJob",
    "PlatformUnavailable",
    "Record",
    "Snooze",
    "Status",
    "Workflow",
    "approval",
    "crawl",
    "current_job",
    "fan_out",
    "manager",
    "worker",
]
