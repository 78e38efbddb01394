"""Limits the signals in one step of a workflow by dropping most of a flood before the workflow's
code sees it.

The SDK allows two seconds for a step, and creates a task for each signal. Anybody can send
thousands of signals. They would fail the step repeatedly and delay a stop. A signal is only dropped
if the kept signals have the same effect.
"""

from __future__ import annotations

import re
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
from crawler_lifecycle.features.graphs.workflows.graph_state import ANSWERED_MAX
from crawler_lifecycle.workflows.state import HEARD_MAX

#: A step with fewer jobs is not a flood.
FEW = 50
#: Signals without content. The workflow's code gets one of each.
WAKING = (
    names.SIGNAL_POLL_NOW,
    names.SIGNAL_LOOK_NOW,
    names.SIGNAL_WAKE,
    names.SIGNAL_MOVED,
    names.SIGNAL_RUN_ENDED,
    names.SIGNAL_MANAGER_ENDED,
    names.SIGNAL_GRAPH_ENDED,
)
#: Other signals that are kept. Of stops, these are the first of each kind (``_ASKS``) and the
#: ``_NEWEST`` latest ones, one more than a run records. Of ended batches, these are the first
#: ``_OLDEST`` ones, one more than a graph remembers.
_STOPS = frozenset({names.SIGNAL_STOP, names.SIGNAL_FORCE_STOP})
_NEWEST = HEARD_MAX + 1
_OLDEST = ANSWERED_MAX + 1
#: Fields of a stop that make it stronger.
_ASKS = re.compile(rb'"(force|leave)"\s*:\s*true')


class FewSignals(UnsandboxedWorkflowRunner):
    """The runner of our workflows.

    A replay drops the same signals, because the choice depends only on the step.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a workflow whose steps get fewer signals."""
        return cast(WorkflowInstance, _Small(super().create_instance(det)))


class _Few:
    """A step with fewer jobs.

    It wraps the message, because copying it would cost more time than this saves.
    """

    def __init__(self, act: WorkflowActivation, jobs: list[WorkflowActivationJob]) -> None:
        self._act = act
        self.jobs = jobs

    def __getattr__(self, name: str) -> object:
        return getattr(self._act, name)


class _Small:
    """A workflow whose steps get fewer signals.

    It passes everything else on to the workflow ``inside``.
    """

    def __init__(self, inside: WorkflowInstance) -> None:
        self._inside = inside

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._inside.activate(thinned(act))

    def __getattr__(self, name: str) -> object:
        return getattr(self._inside, name)


def thinned(act: WorkflowActivation) -> WorkflowActivation:
    """Return the step without the dropped signals.

    The first signal with an unknown name is kept, and ``SIGNAL_MORE`` is added with the number of
    the others.
    """
    if len(act.jobs) < FEW:
        return act
    asks = [
        _asks(job.signal_workflow) if job.HasField("signal_workflow") else None for job in act.jobs
    ]
    stops = sum(ask is not None and ask[0] in _STOPS for ask in asks)
    seen = Counter[tuple[object, ...]]()
    left_out = 0
    kept = []
    last = None
    for job, ask in zip(act.jobs, asks, strict=True):
        seen[ask or ()] += 1
        stop = ask is not None and ask[0] in _STOPS
        most = _OLDEST if ask is not None and ask[0] == names.SIGNAL_BATCH_ENDED else 1
        if ask is None or seen[ask] <= most or (stop and stops <= _NEWEST):
            kept.append(job)
        elif not ask[0]:
            left_out, last = left_out + 1, job
        stops -= stop
    if last is not None:
        number = [Payload(metadata={"encoding": b"json/plain"}, data=str(left_out).encode())]
        event_id = last.signal_workflow.originating_event_id
        more = SignalWorkflow(
            signal_name=names.SIGNAL_MORE, input=number, originating_event_id=event_id
        )
        kept.append(WorkflowActivationJob(signal_workflow=more))
    return cast(WorkflowActivation, _Few(act, kept))


def _asks(signal: SignalWorkflow) -> tuple[object, ...]:
    """Return a key that signals of the same kind share.

    All signals with unknown names share the empty name.
    """
    name = signal.signal_name
    if name in _STOPS:
        return name, *(
            found
            for payload in signal.input[:1]
            for found in sorted(set(_ASKS.findall(payload.data)))
        )
    return (name if name in WAKING or name == names.SIGNAL_BATCH_ENDED else "",)
