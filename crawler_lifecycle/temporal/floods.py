"""Very many signals in one step of a workflow, made few before its code sees them.

The SDK gives one step two seconds, and each signal a task of its own: thousands of them, which anybody may send, would
fail the step again and again, and a stop would wait behind them. Nothing that a signal says is lost.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import (
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from crawler_lifecycle.domain import names
from crawler_lifecycle.workflows.state import HEARD_MAX

#: Fewer jobs than that are no flood.
FEW = 50
#: Of signals that say nothing but their name one is handed on; of those that say the same in their payload so many,
#: which is one more than are logged of stops.
_WAKING = frozenset(
    {
        *(names.SIGNAL_LOOK_NOW, names.SIGNAL_WAKE, names.SIGNAL_MOVED),
        *(names.SIGNAL_RUN_ENDED, names.SIGNAL_MANAGER_ENDED, names.SIGNAL_GRAPH_ENDED),
    }
)
_SAYING = frozenset({names.SIGNAL_STOP, names.SIGNAL_FORCE_STOP, names.SIGNAL_BATCH_ENDED})
_SAME_MAX = HEARD_MAX + 1


class FewSignals(UnsandboxedWorkflowRunner):
    """The runner of our workflows. The same is left out when a step is replayed: it depends on the step alone."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """A workflow whose steps are made small."""
        return cast(WorkflowInstance, _Small(super().create_instance(det)))


class _Few:
    """A step with fewer jobs. Not a copy of the message, which would cost more than what it saves."""

    def __init__(self, act: WorkflowActivation, jobs: list[WorkflowActivationJob]) -> None:
        self._act, self.jobs = act, jobs

    def __getattr__(self, name: str) -> object:
        return getattr(self._act, name)


class _Small:
    """A workflow whose steps are made small, and which is in all else the one inside of it."""

    def __init__(self, inside: WorkflowInstance) -> None:
        self._inside = inside

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._inside.activate(thinned(act))

    def __getattr__(self, name: str) -> object:
        return getattr(self._inside, name)


def thinned(act: WorkflowActivation) -> WorkflowActivation:
    """The same step. Of signals that nobody knows it has the first, and how many more there are (``SIGNAL_MORE``)."""
    if len(act.jobs) < FEW:
        return act
    seen, left_out, kept, last = Counter[tuple[object, ...]](), 0, [], None
    for job in act.jobs:
        key = _says(job.signal_workflow) if job.HasField("signal_workflow") else None
        seen[key or ()] += 1
        if key is None or seen[key] <= (_SAME_MAX if len(key) > 1 else 1):
            kept.append(job)
        elif not key[0]:
            left_out, last = left_out + 1, job
    if last is not None:
        said = [Payload(metadata={"encoding": b"json/plain"}, data=str(left_out).encode())]
        event_id = last.signal_workflow.originating_event_id
        more = SignalWorkflow(signal_name=names.SIGNAL_MORE, input=said, originating_event_id=event_id)
        kept.append(WorkflowActivationJob(signal_workflow=more))
    return cast(WorkflowActivation, _Few(act, kept))


def _says(signal: SignalWorkflow) -> tuple[object, ...]:
    """What tells this signal from others: nothing for one that nobody knows."""
    name = signal.signal_name
    if name in _SAYING:
        return name, *((bytes(one.metadata.get("encoding", b"")), one.data) for one in signal.input)
    return (name if name in _WAKING else "",)
