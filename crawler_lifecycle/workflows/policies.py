"""The table with the queue, the timeouts and the retries of each activity.

All retries are defined here. Activities that use the database or the cluster are retried forever,
because an outage of our infrastructure must not fail a run. Errors that are not retried have their
own types (``domain.errors``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypedDict, Unpack

from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityConfig

from crawler_lifecycle.domain.code import INSPECTION_S
from crawler_lifecycle.domain.errors import not_retryable
from crawler_lifecycle.domain.names import (
    QUEUE_AUDIT,
    QUEUE_CLUSTER,
    QUEUE_CONTROL,
    QUEUE_EXPORT,
    QUEUE_FUNCTIONS,
    QUEUE_MAIN,
    QUEUE_USER_CODE,
    QUEUE_WEBHOOKS,
)
from crawler_lifecycle.domain.run import DELIVERY_S


def _retry(first_s: float, most_s: float, *, factor: float = 2.0, tries: int = 0) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=timedelta(seconds=first_s),
        backoff_coefficient=factor,
        maximum_interval=timedelta(seconds=most_s),
        maximum_attempts=tries,
        non_retryable_error_types=not_retryable(),
    )


#: Priorities of activities on one task queue. Stops come first. Then come statuses and verdicts
#: after a noticed change, then further steps of runs that have begun, and finally starts and
#: planned polls. Workflow tasks of cached workflows have no priority.
FIRST = 1
CHANGED = 2
TURN = 3
LATER = 4
#: The fairness key of planned polls. A server that supports fairness keys lets starts of a crawler
#: take turns with all polls together, so that neither starves the other. Other servers process them
#: in order of arrival. No crawler has this name.
POLLS = "(polls)"


@dataclass(frozen=True, slots=True)
class Policy:
    """Options of one kind of activity.

    Times are in seconds: ``try_s`` is for one try, and ``total_s`` for all tries.
    """

    queue: str
    try_s: float
    retry: RetryPolicy
    heartbeat_s: float | None = None
    total_s: float | None = None
    beaten: bool = False
    """True if the worker sends the heartbeats, because the activity itself does not."""
    turn: int = TURN
    """Its priority, from 1 (first) to 5, when more activities wait than a worker has slots for."""


#: Seconds without a heartbeat after which a worker counts as dead. The activity is then retried on
#: another worker.
DEAD_S = 9.0
#: Longer than the database's own timeouts (5 s to connect, 10 s to respond), so that those expire
#: first.
DATABASE = Policy(QUEUE_MAIN, 16, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
CREATE = replace(DATABASE, turn=LATER)
COMPARE = replace(DATABASE, turn=CHANGED)
#: A deployment call expires after 25 s, and a try should not take much longer.
DEPLOY = Policy(QUEUE_CLUSTER, 40, _retry(5, 60), heartbeat_s=DEAD_S, turn=LATER)
START_CHECK = Policy(QUEUE_CLUSTER, 60, _retry(6, 60, factor=1.5), heartbeat_s=DEAD_S, turn=LATER)
POLL = Policy(QUEUE_CLUSTER, 180, _retry(2, 60), heartbeat_s=DEAD_S, turn=CHANGED)
#: A push is optional, so the run continues after three tries. With the time limit of each
#: (``PUSH_S``), they take less than 5 s. There is no limit for all tries together, because the
#: restart of a worker must not lose the event in the outbox.
PUSH = Policy(QUEUE_MAIN, 5, _retry(0.25, 0.5, tries=3))
PUSHES_AGAIN = Policy(QUEUE_MAIN, 60, _retry(1, 5, tries=3))
EVENT = Policy(QUEUE_MAIN, 30, _retry(1, 900), total_s=DELIVERY_S)
ARCHIVE = Policy(QUEUE_EXPORT, 6 * 3600, _retry(2, 900), heartbeat_s=30, total_s=DELIVERY_S)
#: A deletion is tried until it is done. It can be large, with the rows of 100,000 tasks and many
#: archives.
DELETE = Policy(QUEUE_MAIN, 3600, _retry(1, 300), heartbeat_s=30)
DELETE_FILES = replace(DELETE, queue=QUEUE_EXPORT)
STOP = Policy(QUEUE_CONTROL, 60, _retry(1, 15), heartbeat_s=DEAD_S, turn=FIRST)
RECORD_STOP = Policy(
    QUEUE_CONTROL, 16, _retry(0.5, 15), heartbeat_s=DEAD_S, beaten=True, turn=FIRST
)

#: After five tries, the audit reports that a page could not be compared. The next audit compares it
#: again.
AUDIT = Policy(QUEUE_AUDIT, 600, _retry(1, 30, tries=5), heartbeat_s=30)
CLOSE_AUDIT = Policy(QUEUE_AUDIT, 16, _retry(1, 30))

#: A few statements, and calls to Temporal and the scheduler service. The retries also implement the
#: wait for the verdict of a previous target, so this wait adds no events to the history.
BEGIN_DUE = Policy(QUEUE_MAIN, 60, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True, turn=FIRST)
#: A pass of 20 s over the picked runs, followed by a call to the database and one to Temporal,
#: either of which can hang.
BEGIN_RUNS = Policy(QUEUE_MAIN, 60, _retry(1, 30), heartbeat_s=DEAD_S)
#: Longer than user code may take in one cycle: begin (a hook), read pages (30 s and one page), and
#: one cycle.
CYCLE = Policy(QUEUE_USER_CODE, 1800, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
#: A batch begins functions for a few seconds. The last function may take a minute (``SHORT_S``),
#: and needs some time to end. A call that may take longer has its own limit
#: (``features/graphs/workflows/graph.py``).
BATCH = Policy(QUEUE_FUNCTIONS, 180, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
#: Reading and writing a graph of 20,000 steps takes a few seconds.
GRAPH = Policy(QUEUE_MAIN, 60, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
STOP_GRAPH = Policy(QUEUE_CONTROL, 60, _retry(0.5, 15), heartbeat_s=DEAD_S, beaten=True, turn=FIRST)

#: Longer than one shift (``activities.webhooks.SHIFT_S``) and its last delivery. A receiver that is
#: down is tried once a minute.
FOLLOW = Policy(QUEUE_WEBHOOKS, 960, _retry(1, 60), heartbeat_s=DEAD_S)

#: Longer than the import of a project may take. Nobody waits longer for it.
INSPECT = Policy(
    QUEUE_USER_CODE, 60, _retry(1, 5), heartbeat_s=DEAD_S, total_s=INSPECTION_S, beaten=True
)

#: The activities of each policy.
_USERS: tuple[tuple[Policy, str], ...] = (
    (CREATE, "create_history_id"),
    (
        DATABASE,
        "add_workflow_id update_run_started add_tasks requeue_ended_tasks retry_ended_tasks "
        "open_manager note_manager add_manager_jobs end_manager",
    ),
    (
        COMPARE,
        "get_active_running_tasks reconcile_tasks sync_statuses count_alive_tasks "
        "update_run_status",
    ),
    (DEPLOY, "run_scheduled_crawler run_onetime_crawler deploy_queued_tasks"),
    (START_CHECK, "get_main_job_status"),
    (PUSH, "signal_pusher_started signal_pusher_changed signal_pusher_stopped"),
    (POLL, "get_history_statuses_to_sync get_bulk_task_history_data"),
    (RECORD_STOP, "record_stop cancel_queued_tasks add_cancellation_log_to_db record_manager_stop"),
    (STOP, "k8_stop_task k8_stop_pod stop_manager_runs stop_graph_runs stop_previous_due"),
    (EVENT, "initiate_export_signal deliver_event"),
    (ARCHIVE, "export_supporting_files"),
    (DELETE, "delete_run_texts delete_run_histories"),
    (DELETE_FILES, "delete_run_files"),
    (PUSHES_AGAIN, "resend_pushes"),
    (AUDIT, "audit_cluster audit_runs audit_parents audit_schedules audit_workflows audit_ended"),
    (CLOSE_AUDIT, "close_audit"),
    (CYCLE, "run_manager_cycle"),
    (BEGIN_RUNS, "begin_manager_runs closed_graph_batches begin_graph_runs"),
    (BATCH, "run_graph_batch"),
    (GRAPH, "open_graph advance_graph command_graph end_graph"),
    (STOP_GRAPH, "record_graph_stop"),
    (BEGIN_DUE, "decide_due begin_due"),
    (FOLLOW, "follow_webhook"),
    (INSPECT, "inspect_package"),
)
POLICIES: dict[str, Policy] = {name: policy for policy, names in _USERS for name in names.split()}


class Options(TypedDict, total=False):
    """Options of one call, in addition to the policy."""

    control: bool
    """True to use the control queue. All activities from a stop to its proof use it, so that a stop
    never waits behind a poll that hangs.
    """
    planned: bool
    """True for a part of a planned poll, which may wait."""
    summary: str | None
    queue: str | None
    """The queue of one worker. There is only one try, because the worker may be dead."""
    taken_s: float | None
    """The number of seconds within which a worker must take each try."""


def config(name: str, **options: Unpack[Options]) -> ActivityConfig:
    """Return Temporal's options for the call of an activity."""
    policy = POLICIES[name]
    queue = options.get("queue")
    found = ActivityConfig(
        task_queue=QUEUE_CONTROL if options.get("control") else queue or policy.queue,
        start_to_close_timeout=timedelta(seconds=policy.try_s),
        retry_policy=policy.retry if queue is None else RetryPolicy(maximum_attempts=1),
        priority=Priority(priority_key=policy.turn),  # by default, that of the workflow
    )
    if options.get("planned"):
        found["priority"] = Priority(priority_key=LATER, fairness_key=POLLS)
    if policy.heartbeat_s is not None:
        found["heartbeat_timeout"] = timedelta(seconds=policy.heartbeat_s)
    if policy.total_s is not None:
        found["schedule_to_close_timeout"] = timedelta(seconds=policy.total_s)
    if (taken_s := options.get("taken_s")) is not None:
        found["schedule_to_start_timeout"] = timedelta(seconds=taken_s)
    if (summary := options.get("summary")) is not None:
        found["summary"] = summary
    return found
