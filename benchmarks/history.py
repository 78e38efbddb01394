"""A run's history events and actions in Temporal, for a quiet day and for an hour of waiting for a
start.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from crawler_lifecycle.workflows import calls
from tests.support.fakes.cluster import Behaviour
from tests.support.temporal import temporal_server
from tests.support.testbed import WorkflowHarness, open_testbed

#: What Temporal Cloud counts as an action, by its event. Retries and heartbeats of activities are
#: actions without an event; the waiting benchmark therefore only counts events.
ACTIONS = (
    "WORKFLOW_EXECUTION_STARTED",
    "ACTIVITY_TASK_SCHEDULED",
    "TIMER_STARTED",
    "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES",
    "WORKFLOW_EXECUTION_SIGNALED",
    "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
    "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
)
_STARTED = "activity_task_started_event_attributes"


def _count(events: Sequence[HistoryEvent]) -> tuple[int, Counter[str]]:
    """Return the number of events, and of each kind, without the virtual clock's own events, which
    belong to the tests.
    """
    names = [EventType.Name(e.event_type).removeprefix("EVENT_TYPE_") for e in events]
    real = [name for name in names if "TIME_SKIPPING" not in name]
    return len(real), Counter(real)


def actions(events: Sequence[HistoryEvent]) -> int:
    """Return the billable actions of a history, without retries and heartbeats."""
    _, kinds = _count(events)
    return sum(kinds[name] for name in ACTIONS)


def retries(events: Sequence[HistoryEvent]) -> int:
    """Return how many more times activities were begun, which are actions, too, from those that
    have ended.
    """
    begun = (
        e.activity_task_started_event_attributes.attempt for e in events if e.HasField(_STARTED)
    )  # type: ignore[arg-type]
    return sum(attempt - 1 for attempt in begun)


async def main() -> None:
    """Print both figures."""
    logging.disable(logging.WARNING)
    # Each run as one execution. Otherwise it would continue as new, and the virtual clock would
    # skip hours if the server delays an execution for a second, as it does when they follow each
    # other within seconds of real time. They are replayed in the same way.
    with patch.object(calls, "HISTORY_MAX", 10_000):
        await _measure()


async def _measure() -> None:
    async with temporal_server(skipping=True) as env:
        for measure in (_quiet_day, _hour_of_waiting):
            with tempfile.TemporaryDirectory() as folder:
                async with open_testbed(env.client, Path(folder)) as testbed:
                    await measure(testbed)


async def _quiet_day(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = Behaviour(executes=24 * 3600)
    handle = await testbed.start({"crawler": "books"})
    await handle.result()
    [history] = await testbed.chain(handle)
    total, _ = _count(history.events)
    polls = (await testbed.events(handle)).count("get_history_statuses_to_sync")
    size = sum(e.ByteSize() for e in history.events)
    print(
        f"quiet run of 24 h: {polls} polls, {total} events (target: <= 2000), ",
        f"{actions(history.events)} actions (target: <= 330), ",
        sep="",
        end="",
    )
    print(
        f"{size / 1024:.0f} KiB; baseline, the polls' own two activities and timer: {polls * 3} "
        "actions"
    )


async def _hour_of_waiting(testbed: WorkflowHarness) -> None:
    async def events_after(hours: float) -> int:
        testbed.cluster.behaviour = Behaviour(waits=hours * 3600, executes=1)
        handle = await testbed.start({"crawler": "books"})
        await handle.result()
        return _count((await handle.fetch_history()).events)[0]

    none, one = await events_after(0), await events_after(1)
    print(
        f"an hour of waiting for a saturated cluster: {one - none} more events than no wait ",
        end="",
    )
    print(f"(target: <= 12; baseline without a wait: {none} events in all)")
