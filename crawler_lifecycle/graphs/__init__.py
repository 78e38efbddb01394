"""Graphs: what users import. Nothing beside the standard library is loaded before a gateway is asked.

``graphs.oban`` and ``graphs.chancy`` have the same under the names of Oban Pro and Chancy; ``graphs.testing`` runs it
in memory.
"""

from .fanning import fan_out
from .job import Cancel, Job, Record, Snooze, current_job
from .jobs import NewJob, crawl, manager, worker
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
    "crawl",
    "current_job",
    "fan_out",
    "manager",
    "worker",
]
