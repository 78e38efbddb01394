"""Calls of users' code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One execution of a step's function, as the process that calls it needs it."""

    function: str
    """``module:qualname``."""
    style: str
    """How it is called (``domain.graph.spec.StepSpec.job``)."""
    graph: str
    """The key of its graph."""
    job: Mapping[str, Any]
    """The step, as ``graphs.job.Job.of`` reads it."""
    limit_s: float
    """Seconds that it may take."""
    graft: bool = False
    given: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]] = ()
    """For a cascade: contexts from the outermost graph inwards (``path`` is empty), then what its dependencies
    recorded, each behind its ``path``: names below the level of the step."""


@dataclass(frozen=True, slots=True)
class FunctionReply:
    """How a function ended that was executed to its end."""

    kind: str
    """``done``; ``value``: with a result; ``cancel``: it returned ``Cancel``; ``snooze``: it returned ``Snooze``."""
    result: Sequence[bytes] | None = None
    """Encoded and packed (``domain.values``)."""
    result_bytes: int = 0
    reason: str | None = None
    seconds: float = 0.0


class WorkerLeaves(Exception):
    """This worker ends, and with it its processes; that says nothing about what they were called for."""


class PlanFailed(Exception):
    """Users' code could not do what it was asked to. The text says what and where, and the cure where there is one."""

    def __init__(
        self,
        text: str,
        *,
        item_id: int | None = None,
        lives: bool = False,
        for_good: bool = False,
        missing: bool = False,
        struck: bool = False,
    ) -> None:
        """``item_id``: the job whose hooks were at work. ``lives``: its process is still there. ``for_good``: another
        try leads to the same until the code or the options change. ``missing``: the class could not be loaded on this
        worker; another one may have it. ``struck``: its process was ended from outside (SIGKILL, SIGTERM)."""
        super().__init__(text)
        self.item_id, self.lives, self.for_good, self.missing = item_id, lives, for_good, missing
        self.struck = struck
