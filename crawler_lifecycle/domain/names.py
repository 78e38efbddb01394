"""Names that other programs and people use: workflows, queues, signals, search attributes, events
and objects. Users depend on these names, so a change breaks their work: schedulers start the
workflow type. Operators send the signals. Saved views in the Temporal UI use the search attributes.
Reports join on the names of cluster objects.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run_ref import RunRef

LIFECYCLE_WORKFLOW = "CrawlerLifecycleWorkflow"
#: Repeats an ended run's deliveries. A person starts this workflow, hours or months after the run
#: has ended.
EXPORT_WORKFLOW = "RunExportWorkflow"
#: Deletes the data of a run, but not the run's row.
DELETION_WORKFLOW = "RunDeletionWorkflow"
#: Delivers the event about the end of a manager or a graph. The manager or graph does not wait for
#: the delivery.
EVENT_WORKFLOW = "CrawlEventWorkflow"
#: Compares the database, the cluster and Temporal.
AUDIT_WORKFLOW = "CrawlAuditWorkflow"
#: The id of the Temporal Schedule that starts audits, and of the workflow for an audit on demand.
AUDIT_SCHEDULE = "crawl-audit"
#: Starts the runs of a manager, one after another (``features/managers``).
MANAGER_WORKFLOW = "CrawlManagerWorkflow"
#: Workflows that execute a graph (``features/graphs``) and one call of the graph's functions.
GRAPH_WORKFLOW = "GraphWorkflow"
GRAPH_BATCH_WORKFLOW = "GraphBatchWorkflow"

#: Decides about one due time of a schedule, and begins the schedule's target
#: (``features/schedules``).
DUE_WORKFLOW = "CrawlDueWorkflow"
#: Delivers events to one webhook (``features/webhooks``).
INSPECTION_WORKFLOW = "PackageInspectionWorkflow"
WEBHOOK_WORKFLOW = "CrawlWebhookWorkflow"

#: The header in all answers from the services that a ``crawlctl dev`` started, with the id and the
#: folder of that ``crawlctl dev`` (``dev_json.identity``).
STACK_HEADER = "Crawlctl-Stack"

#: The name that the web UI uses in the path of the form for a new schedule or webhook. So no
#: schedule or webhook may have this name.
NAME_OF_FORM = "new"

#: For workflows, and for activities that use the database or send notifications.
QUEUE_MAIN = "crawler-lifecycle"
#: For deployments and polls, which can hang on a slow cluster.
QUEUE_CLUSTER = "crawler-lifecycle-cluster"
#: For the activities from a stop to the proof that nothing is running, so that a stop never waits
#: behind a poll that hangs.
QUEUE_CONTROL = "crawler-lifecycle-control"
#: For the export of archives, that is, zipping and uploading.
QUEUE_EXPORT = "crawler-lifecycle-export"
#: For audits, both workflow and activities. Audits have their own threads and connections, so they
#: never delay a run.
QUEUE_AUDIT = "crawler-lifecycle-audit"
#: For user code: cycles of managers. A worker that has a manager's process serves
#: ``user_code_queue`` in addition.
QUEUE_USER_CODE = "crawler-lifecycle-plans"
#: For functions of graphs, so that a cycle of a manager never waits behind hundreds of functions.
QUEUE_FUNCTIONS = "crawler-lifecycle-plans-functions"
#: For deliveries to webhooks. Only workers of this queue call addresses given by users.
QUEUE_WEBHOOKS = "crawler-lifecycle-webhooks"

SIGNAL_STOP = "stop"
SIGNAL_FORCE_STOP = "force_stop"
SIGNAL_POLL_NOW = "poll_now"
#: The former name of this signal. Our services still send the former name, because the workflows of
#: earlier builds handle only that name.
SIGNAL_LOOK_NOW = "look_now"
SIGNAL_PLACE_FREE = "place_free"
SIGNAL_RUN_ENDED = "run_ended"
SIGNAL_MANAGER_ENDED = "manager_ended"
SIGNAL_GRAPH_ENDED = "graph_ended"
#: Notifies a graph that a call in its own workflow has returned. The payload is the number of the
#: call.
SIGNAL_BATCH_ENDED = "batch_ended"
#: Makes the workflow of a manager, a graph or a webhook read its rows now. The signal has no
#: payload.
SIGNAL_WAKE = "wake"
#: Notifies a manager that the worker with its object is shutting down. Another worker has to build
#: the object again.
SIGNAL_MOVED = "moved"
#: An internal signal that cannot be sent from outside. The payload is the number of further unknown
#: signals in the same step of the workflow.
SIGNAL_MORE = ""
QUERY_STATUS = "status"
QUERY_RECORD = "record"
UPDATE_ADD_TASKS = "add_tasks"
UPDATE_ADD_JOB = "add_job"
UPDATE_CANCEL_STEPS = "cancel_steps"
UPDATE_RETRY_STEPS = "retry_steps"
UPDATE_APPEND_STEPS = "append_steps"

#: Search attributes with their indexed types, as the operator service and `temporal operator
#: search-attribute` spell them.
_KEYWORDS = ("RunUid", "Crawler", "Trigger", "Stage", "Status", "Outcome", "Flow", "Parent", "Name")
SEARCH_ATTRIBUTES = {"CrawlRunId": "Int", **{f"Crawl{name}": "Keyword" for name in _KEYWORDS}}

#: The history property that contains the id of the owning workflow.
PROPERTY_WORKFLOW_ID = "workflow_id"
#: The history property that contains the time at which the removal of an attempt's files began
#: (``crawlctl cluster gc``).
PROPERTY_FILES_REMOVED = "files_removed"
#: The history property that contains the last removed event of an attempt and the time of the
#: removal (``crawlctl db prune``).
PROPERTY_PRUNED = "pruned"
#: The history property that contains the chain of executions that owned an attempt before a
#: takeover.
PROPERTY_FORMER_OWNER = "former_owner"

EVENT_RUN_STARTED = "run.started"
EVENT_RUN_CHANGED = "run.changed"
EVENT_RUN_STOPPED = "run.stopped"
#: The value of ``waiting_for`` while a run is waiting for the start of its main task.
WAITING_FOR_START = "the main task's start"

EVENT_RUN_ENDED = "run.ended"
#: A run ended and needs attention, produced nothing, or produced less than usual.
EVENT_RUN_ATTENTION = "run.attention"
EVENT_RUN_EMPTY = "run.empty"
EVENT_RUN_DROPPED = "run.dropped"
EVENT_MANAGER_CHANGED = "manager.changed"
EVENT_MANAGER_ENDED = "manager.ended"
EVENT_GRAPH_CHANGED = "graph.changed"
EVENT_GRAPH_ENDED = "graph.ended"
EVENT_SCHEDULE_MISSED = "schedule.missed"
EVENT_SCHEDULE_SKIPPED = "schedule.skipped"
#: A recorded status was wrong, the poll of a run is overdue, or the workflow of a run cannot
#: continue.
EVENT_CORRECTION_MADE = "correction.made"
EVENT_RUN_STALE = "run.stale"
EVENT_RUN_BLOCKED = "run.blocked"
#: A webhook was paused (by a person, or after failed deliveries), or events were removed before a
#: webhook received them.
EVENT_WEBHOOK_PAUSED = "webhook.paused"
EVENT_WEBHOOK_MISSED = "webhook.missed"
#: A person tests a webhook. Only this webhook receives the event.
EVENT_WEBHOOK_TEST = "webhook.test"
#: An incident began; its problem occurs ten times as often as before; the incident ended.
EVENT_INCIDENT_OPENED = "incident.opened"
EVENT_INCIDENT_GREW = "incident.grew"
EVENT_INCIDENT_CLOSED = "incident.closed"
#: A canary ended: its new version became the current one, or did not.
EVENT_CANARY_ACCEPTED = "canary.accepted"
EVENT_CANARY_REJECTED = "canary.rejected"
#: The events that webhooks may receive.
EVENT_TYPES = frozenset(
    {
        EVENT_RUN_STARTED,
        EVENT_RUN_CHANGED,
        EVENT_RUN_STOPPED,
        EVENT_RUN_ENDED,
        EVENT_RUN_STALE,
        EVENT_RUN_BLOCKED,
        EVENT_RUN_ATTENTION,
        EVENT_RUN_EMPTY,
        EVENT_RUN_DROPPED,
        EVENT_MANAGER_CHANGED,
        EVENT_MANAGER_ENDED,
        EVENT_GRAPH_CHANGED,
        EVENT_GRAPH_ENDED,
        EVENT_CORRECTION_MADE,
        EVENT_WEBHOOK_PAUSED,
        EVENT_WEBHOOK_MISSED,
        EVENT_SCHEDULE_MISSED,
        EVENT_SCHEDULE_SKIPPED,
        EVENT_INCIDENT_OPENED,
        EVENT_INCIDENT_GREW,
        EVENT_INCIDENT_CLOSED,
        EVENT_CANARY_ACCEPTED,
        EVENT_CANARY_REJECTED,
    }
)
#: Events that occur at most once per attempt. Their ids need no sequence number.
EVENTS_ONCE = frozenset(
    {
        EVENT_RUN_STARTED,
        EVENT_RUN_STOPPED,
        EVENT_RUN_ENDED,
        EVENT_MANAGER_ENDED,
        EVENT_GRAPH_ENDED,
        EVENT_RUN_ATTENTION,
        EVENT_RUN_EMPTY,
        EVENT_RUN_DROPPED,
    }
)

#: The highest run number that is accepted from outside the database. A thousand new runs per second
#: reach this number after 31 years. A foreign folder may have a larger number as its name, such as
#: a time in milliseconds. New run numbers must not continue from such a number.
RUN_NUMBER_MAX = 10**12

CRAWLER_NAME = re.compile(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?")
REQUEST_ID_MAX = 120
TASKS_PER_RUN_MAX = 100_000
#: The maximum length, in bytes, of fairness keys that a Temporal server accepts.
FAIRNESS_BYTES_MAX = 64


def workflow_id(crawler: str, request_id: str) -> str:
    """Return the workflow id of a run that we start ourselves: ``crawl/<crawler>/<request_id>``."""
    return f"crawl/{crawler}/{request_id}"


def request_of_workflow(workflow_id: str) -> str | None:
    """Return the request id in an id that ``workflow_id`` returned, and ``None`` for any other
    id."""
    kind, _, rest = workflow_id.partition("/")
    request_id = rest.partition("/")[2]
    return request_id if kind == "crawl" and request_id else None


def attempt_workflow_id(crawler: str, request_id: str, attempt: int) -> str:
    """Return the workflow id for this attempt. It differs from ``workflow_id``, which an earlier
    attempt may still use.
    """
    return f"{workflow_id(crawler, request_id)}/{attempt}"


def uid_workflow_id(workflow_id: str, run_uid: str) -> str:
    """Return the workflow id of a run if another run with the same request id already uses
    ``workflow_id``.
    """
    return f"{workflow_id}/{run_uid[:8]}"


def fairness_key(whose: str) -> str:
    """Return the key by which a fair task queue alternates, with at most ``FAIRNESS_BYTES_MAX``
    bytes.
    """
    return whose.encode()[:FAIRNESS_BYTES_MAX].decode(errors="ignore")


def user_code_queue(worker_id: str) -> str:
    """Return the task queue of the worker process (in the role ``user-code``) that holds the user's
    object.
    """
    return f"{QUEUE_USER_CODE}/{worker_id}"


def functions_queue(pool: str | None) -> str:
    """Return the task queue for a pool of workers for functions. If ``pool`` is ``None``, return
    the queue for the common pool.
    """
    return QUEUE_FUNCTIONS if pool is None else f"{QUEUE_USER_CODE}-{pool}"


def pool_of(queue: str) -> str | None:
    """Return the pool in a name that ``functions_queue`` returned, or ``None`` for the common
    pool.
    """
    return None if queue == QUEUE_FUNCTIONS else queue.removeprefix(f"{QUEUE_USER_CODE}-")


def manager_workflow_id(name: str, flow_id: str) -> str:
    """Return the workflow id of a manager, which is the ``parent`` of the manager's runs."""
    return f"manager/{name}/{flow_id}"


def names_of_workflow(workflow_id: str) -> tuple[str, str] | None:
    """Return the name and the flow id in a manager's workflow id, or ``None`` for any other id."""
    kind, _, rest = workflow_id.partition("/")
    name, _, flow_id = rest.partition("/")
    return (name, flow_id) if kind == "manager" and name and flow_id else None


def graph_workflow_id(key: str) -> str:
    """Return the workflow id of a graph, which is the ``parent`` of the graph's runs."""
    return f"graph/{key}"


def graph_key_of(workflow_id: str) -> str | None:
    """Return the key of the graph in a graph's workflow id, or ``None`` for any other id."""
    kind, _, key = workflow_id.partition("/")
    return key if kind == "graph" and key else None


def graph_batch_workflow_id(key: str, batch: int) -> str:
    """Return the id of the workflow that executes one call of a graph's functions."""
    return f"graph-batch/{key}/{batch}"


def export_workflow_id(run: RunRef, attempt: int) -> str:
    """Return the id of the workflow that repeats an attempt's deliveries.

    Only one such workflow can be open at a time.
    """
    return f"crawl-export/{run}/{attempt}"


def deletion_workflow_id(run: RunRef) -> str:
    """Return the id of the workflow that deletes a run's data. This workflow does not have the
    run's search attributes, because it deletes every workflow with those search attributes.
    """
    return f"crawl-delete/{run}"


def ended_key(kind: str, id: int, uid: str, attempt: int) -> str:
    """Return the id of the event about the end of a manager or a graph (``kind``), which occurs
    once per attempt.
    """
    return f"{kind}s/{id}-{uid}/{attempt}/{kind}.ended"


def event_workflow_id(key: str) -> str:
    """Return the id of the workflow that delivers the event with this id."""
    return f"crawl-export/{key}"


def cluster_name(run_id: int, index: int, attempt: int) -> str:
    """Return the name of a task on its cluster, which is the same for every retry of its
    deployment.

    It is a DNS-1123 label of at most 52 characters, because Kubernetes adds a suffix for the pod
    (63 characters in all).
    """
    return f"crawl-{run_id}-{index}-{attempt}"


def run_number(name: str) -> int:
    """Return the run number at the beginning of a folder's name or a key, or 0 if there is no run
    number. A number above ``RUN_NUMBER_MAX`` is not a run number.
    """
    digits = re.match(r"[1-9][0-9]{0,12}(?![^-])", name, re.ASCII)
    number = int(digits.group()) if digits is not None else 0
    return number if number <= RUN_NUMBER_MAX else 0


def request_fingerprint(text: str) -> str:
    """Return a short, stable hash of a request's canonical text. A repeated request has the same
    hash.
    """
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def event_key(run: RunRef, attempt: int, type: str) -> str:
    """Return the stable id of an event that occurs once per attempt.

    Receivers recognise repeated deliveries by this id, so it contains the unique name of the run.
    """
    return f"{run}/{attempt}/{type}"


def verdict_events(attention: object) -> list[str]:
    """Return the types of the events about a verdict, with the most specific type first.

    ``attention`` is the reason why the run needs attention (``Verdict.attention``).
    """
    types = [f"run.{attention}", EVENT_RUN_ATTENTION] if attention else []
    return [type for type in (*types, EVENT_RUN_ENDED) if type in EVENT_TYPES]


def run_subject(run_id: int) -> str:
    """Return the subject of an event about a run."""
    return f"runs/{run_id}"


def manager_subject(manager_id: int) -> str:
    """Return the subject of an event about a manager."""
    return f"managers/{manager_id}"


def graph_subject(key: str) -> str:
    """Return the subject of an event about a graph."""
    return f"graphs/{key}"


def archive_key(run: RunRef, attempt: int) -> str:
    """Return the path of an attempt's archive below the archive's root.

    No other run uses this path.
    """
    return f"{run}/{attempt}/supporting-files.zip"


def files_prefix(index: int, attempt: int) -> str:
    """Return the folder of a task's supporting files inside an archive."""
    return f"task-{index}" + (f"-attempt-{attempt}" if attempt > 1 else "")


def bundle_key(run: RunRef, index: int, attempt: int, name: str) -> str:
    """Return the key of an object that a task's pod stores, below the prefix in
    ``LIFECYCLE_CLUSTER__FILES_URL``.
    """
    return f"{run}/{index}/{attempt}/{name}"


def schedule_subject(name: str) -> str:
    """Return the subject of an event about a schedule."""
    return f"schedules/{name}"
