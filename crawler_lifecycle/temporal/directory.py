"""The port ``WorkflowDirectory`` for activities in threads, which calls ``Workflows`` on the
client's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from crawler_lifecycle.ports.runs import Owner

from .client import Workflows

P = ParamSpec("P")
T = TypeVar("T")


def _asked(
    question: Callable[Concatenate[Workflows, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[TemporalDirectory, P], T]:
    """Return a method that calls ``Workflows`` on the event loop, and waits in its own thread for
    the response.
    """

    def ask(self: TemporalDirectory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run_coroutine_threadsafe(
            question(self.workflows, *args, **kwargs), self.loop
        ).result()

    return ask


@dataclass
class TemporalDirectory:
    """Implements the port with the methods of ``Workflows``.

    Calls from the event loop's own thread would block it.
    """

    loop: asyncio.AbstractEventLoop
    workflows: Workflows

    state = _asked(Workflows.state)
    open_runs = _asked(Workflows.open_runs)
    confirm = _asked(Workflows.confirm)
    highest_run = _asked(Workflows.highest_run)
    of_run = _asked(Workflows.of_run)
    ended_runs = _asked(Workflows.ended_runs)
    record = _asked(Workflows.record)
    begin = _asked(Workflows.start)
    has_begun = _asked(Workflows.has_begun)
    begin_for = _asked(Workflows.start_for)
    wake = _asked(Workflows.wake)
    stop = _asked(Workflows.stop)
    hurry = _asked(Workflows.hurry)
    deliver_again = _asked(Workflows.export_again)
    delete_executions = _asked(Workflows.delete_executions)
    deliver_event = _asked(Workflows.deliver_event)
    end = _asked(Workflows.end)

    def is_open(self, owner: Owner) -> bool:
        return self.state(owner.workflow_id, owner.first_run_id).open
