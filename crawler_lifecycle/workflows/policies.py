"""One table: queue, timeouts and retries of each activity.

Retries live here and nowhere else. Database and cluster steps are tried for ever, because an outage of our own
infrastructure must never fail a run; what no retry can mend is told apart by its type (``domain.errors``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityConfig

from crawler_lifecycle.domain.errors import not_retryable
from crawler_lifecycle.domain.names import (
    QUEUE_AUDIT,
    QUEUE_CLUSTER,
    QUEUE_CONTROL,
    QUEUE_EXPORT,
    QUEUE_FUNCTIONS,
    QUEUE_MAIN,
    QUEUE_PLANS,
    QUEUE_WEBHOOKS,
)


def _retry(first_s: float, most_s: float, *, factor: float = 2.0, tries: int = 0) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=timedelta(seconds=first_s),
        backoff_coefficient=factor,
        maximum_interval=timedelta(seconds=most_s),
        maximum_attempts=tries,
        non_retryable_error_types=not_retryable(),
    )


#: Turns of activities that wait on one task queue: what ends crawls; looks and everything else; what brings a run on
#: that has begun; new runs. Steps of workflows that a worker remembers know no turns.
FIRST, TURN, GOING_ON, NEW = 1, 3, 4, 5


@dataclass(frozen=True, slots=True)
class Policy:
    """How one kind of activity is called. Times in seconds; ``total_s`` spans all tries."""

    queue: str
    try_s: float
    retry: RetryPolicy
    heartbeat_s: float | None = None
    total_s: float | None = None
    beaten: bool = False
    """Whether the worker beats for it, because the activity itself does not."""
    turn: int = TURN
    """When its turn comes where more wait than a worker has places for: 1 (first) to 5."""


#: Seconds without a sign of life after which a worker is taken for dead and the step is done again elsewhere.
DEAD_S = 9.0
#: Above the database's own timeouts (5 s to connect, 10 s to answer), so that those speak first.
DATABASE = Policy(QUEUE_MAIN, 16, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
CREATE, BEGUN = replace(DATABASE, turn=NEW), replace(DATABASE, turn=GOING_ON)
#: A deployment call is void after 25 s; its try may not outlive that by much.
DEPLOY = Policy(QUEUE_CLUSTER, 40, _retry(5, 60), heartbeat_s=DEAD_S, turn=GOING_ON)
START_CHECK = Policy(QUEUE_CLUSTER, 60, _retry(6, 60, factor=1.5), heartbeat_s=DEAD_S, turn=GOING_ON)
LOOK = Policy(QUEUE_CLUSTER, 180, _retry(2, 60), heartbeat_s=DEAD_S)
#: A push is a courtesy: three tries, which with the client's own time limit (1.4 s) take less than 5 s in all, and the
#: run goes on. No limit from scheduling on: a worker that restarts meanwhile must not lose the event in the outbox.
PUSH = Policy(QUEUE_MAIN, 5, _retry(0.25, 0.5, tries=3))
PUSHES_AGAIN = Policy(QUEUE_MAIN, 60, _retry(1, 5, tries=3))
EVENT = Policy(QUEUE_MAIN, 30, _retry(1, 900), total_s=24 * 3600)
ARCHIVE = Policy(QUEUE_EXPORT, 6 * 3600, _retry(2, 900), heartbeat_s=30, total_s=24 * 3600)
STOP = Policy(QUEUE_CONTROL, 60, _retry(1, 15), heartbeat_s=DEAD_S, turn=FIRST)
RECORD_STOP = Policy(QUEUE_CONTROL, 16, _retry(0.5, 15), heartbeat_s=DEAD_S, beaten=True, turn=FIRST)

#: A page that cannot be compared is told in the report; the next audit finds the same.
AUDIT = Policy(QUEUE_AUDIT, 600, _retry(1, 30, tries=5), heartbeat_s=30)
CLOSE_AUDIT = Policy(QUEUE_AUDIT, 16, _retry(1, 30))

#: A few statements, and a call of Temporal and of the scheduler service. A wait for a verdict costs no history: it is
#: tried again until that is there.
BEGIN_DUE = Policy(QUEUE_MAIN, 60, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
#: A pass of 20 s over what was picked, and a call of the database and of Temporal that hangs at its end.
BEGIN_RUNS = Policy(QUEUE_MAIN, 60, _retry(1, 30), heartbeat_s=DEAD_S)
#: Above everything that users' code may take in one cycle: begin (a hook), read pages (30 s and one page), one cycle.
CYCLE = Policy(QUEUE_PLANS, 1800, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
#: A batch of functions: it calls for some seconds, what it began last may take a minute (``SHORT_S``), and is asked to
#: end for a while. One that may take longer gets its own time (``graph_calls.py``).
BATCH = Policy(QUEUE_FUNCTIONS, 180, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
#: A graph of 20,000 steps is read and written in some seconds.
GRAPH = Policy(QUEUE_MAIN, 60, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)
STOP_GRAPH = Policy(QUEUE_CONTROL, 60, _retry(0.5, 15), heartbeat_s=DEAD_S, beaten=True, turn=FIRST)

#: Above one shift (``activities.webhooks.SHIFT_S``) and what is under way at its end. A receiver that is down is tried
#: once a minute.
FOLLOW = Policy(QUEUE_WEBHOOKS, 960, _retry(1, 60), heartbeat_s=DEAD_S)

POLICIES: dict[str, Policy] = {
    "create_history_id": CREATE,
    "add_workflow_id": BEGUN,
    "add_tasks": DATABASE,
    "run_scheduled_crawler": DEPLOY,
    "run_onetime_crawler": DEPLOY,
    "deploy_queued_tasks": DEPLOY,
    "requeue_ended_tasks": DATABASE,
    "get_main_job_status": START_CHECK,
    "update_run_started": BEGUN,
    "signal_pusher_started": PUSH,
    "get_active_running_tasks": DATABASE,
    "get_history_statuses_to_sync": LOOK,
    "get_bulk_task_history_data": LOOK,
    "reconcile_tasks": DATABASE,
    "sync_statuses": DATABASE,
    "signal_pusher_changed": PUSH,
    "count_alive_tasks": DATABASE,
    "record_stop": RECORD_STOP,
    "cancel_queued_tasks": RECORD_STOP,
    "k8_stop_task": STOP,
    "k8_stop_pod": STOP,
    "add_cancellation_log_to_db": RECORD_STOP,
    "signal_pusher_stopped": PUSH,
    "update_run_status": DATABASE,
    "initiate_export_signal": EVENT,
    "deliver_event": EVENT,
    "export_supporting_files": ARCHIVE,
    "resend_pushes": PUSHES_AGAIN,
    "audit_cluster": AUDIT,
    "audit_runs": AUDIT,
    "audit_managers": AUDIT,
    "audit_graphs": AUDIT,
    "audit_schedules": AUDIT,
    "audit_due": AUDIT,
    "audit_webhooks": AUDIT,
    "audit_workflows": AUDIT,
    "audit_ended": AUDIT,
    "close_audit": CLOSE_AUDIT,
    "run_manager_cycle": CYCLE,
    "open_manager": DATABASE,
    "begin_manager_runs": BEGIN_RUNS,
    "note_manager": DATABASE,
    "add_manager_jobs": DATABASE,
    "record_manager_stop": RECORD_STOP,
    "stop_manager_runs": STOP,
    "end_manager": DATABASE,
    "run_graph_batch": BATCH,
    "open_graph": GRAPH,
    "advance_graph": GRAPH,
    "command_graph": GRAPH,
    "closed_graph_batches": BEGIN_RUNS,
    "begin_graph_runs": BEGIN_RUNS,
    "record_graph_stop": STOP_GRAPH,
    "stop_graph_runs": STOP,
    "end_graph": GRAPH,
    "decide_due": BEGIN_DUE,
    "stop_previous_due": STOP,
    "begin_due": BEGIN_DUE,
    "follow_webhook": FOLLOW,
}


def config(
    name: str,
    *,
    control: bool = False,
    summary: str | None = None,
    queue: str | None = None,
    taken_s: float | None = None,
) -> ActivityConfig:
    """The call options of an activity. ``control`` moves it to the control queue: from a stop to its proof everything
    runs there, so that a stop never waits behind looks that hang. ``queue`` is that of one worker: it gets one try,
    because a second one would wait for a worker that may be dead. ``taken_s`` are the seconds within which a worker
    must take each try."""
    policy = POLICIES[name]
    options = ActivityConfig(
        task_queue=QUEUE_CONTROL if control else queue or policy.queue,
        start_to_close_timeout=timedelta(seconds=policy.try_s),
        retry_policy=policy.retry if queue is None else RetryPolicy(maximum_attempts=1),
    )
    if policy.turn != TURN:
        options["priority"] = Priority(priority_key=policy.turn)
    if policy.heartbeat_s is not None:
        options["heartbeat_timeout"] = timedelta(seconds=policy.heartbeat_s)
    if policy.total_s is not None:
        options["schedule_to_close_timeout"] = timedelta(seconds=policy.total_s)
    if taken_s is not None:
        options["schedule_to_start_timeout"] = timedelta(seconds=taken_s)
    if summary is not None:
        options["summary"] = summary
    return options
