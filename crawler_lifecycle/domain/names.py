"""Every name that people outside may type, store or search for.

Changing one of these is a change of contract: schedulers start the workflow type, operators send the signals, saved
views in the Temporal UI use the search attributes, reports join on the names of cluster objects.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run_ref import RunRef

LIFECYCLE_WORKFLOW = "CrawlerLifecycleWorkflow"
#: Sends an ended run's deliveries again; started by a person, hours or months after the run.
EXPORT_WORKFLOW = "RunExportWorkflow"
#: Deletes what a run brought, and leaves a stub of it.
DELETION_WORKFLOW = "RunDeletionWorkflow"
#: Delivers the end of a manager or a graph, which waits for no bus.
EVENT_WORKFLOW = "CrawlEventWorkflow"
#: Compares database, cluster and Temporal.
AUDIT_WORKFLOW = "CrawlAuditWorkflow"
#: The Temporal Schedule that starts it, and the id of the workflow of an audit on demand.
AUDIT_SCHEDULE = "crawl-audit"
#: Keeps a stream of runs going (``domain/managers/manager.py``).
MANAGER_WORKFLOW = "CrawlManagerWorkflow"
#: Keeps a graph going (``domain/graph``), and makes one call of its functions that is not to end with an execution.
GRAPH_WORKFLOW, GRAPH_BATCH_WORKFLOW = "GraphWorkflow", "GraphBatchWorkflow"

#: Decides about one due time of a schedule, and begins its target (``domain/schedules``).
DUE_WORKFLOW = "CrawlDueWorkflow"
#: Delivers events to one webhook (``domain/webhooks``).
WEBHOOK_WORKFLOW = "CrawlWebhookWorkflow"

#: Where the page has the form that makes a schedule or a webhook, so that none of them has this name.
NAME_OF_FORM = "new"

#: Workflows, database and notification steps.
QUEUE_MAIN = "crawler-lifecycle"
#: Deployments and looks: everything that may hang on a slow cluster.
QUEUE_CLUSTER = "crawler-lifecycle-cluster"
#: Everything from a stop to the proof that nothing runs, so that a stop never waits behind a hanging look.
QUEUE_CONTROL = "crawler-lifecycle-control"
#: Zip and upload.
QUEUE_EXPORT = "crawler-lifecycle-export"
#: Audits: workflow and activities, with threads and connections of their own, so that they never delay a run.
QUEUE_AUDIT = "crawler-lifecycle-audit"
#: Users' code: one cycle of a manager. A worker that holds a manager's process serves ``plans_queue`` as well.
QUEUE_PLANS = "crawler-lifecycle-plans"
#: Functions of graphs, beside them: a cycle of a manager never waits behind hundreds of functions.
QUEUE_FUNCTIONS = "crawler-lifecycle-plans-functions"
#: Deliveries to webhooks: what leaves for addresses that people name, leaves from the workers of this queue alone.
QUEUE_WEBHOOKS = "crawler-lifecycle-webhooks"

SIGNAL_STOP = "stop"
SIGNAL_FORCE_STOP = "force_stop"
SIGNAL_LOOK_NOW = "look_now"
SIGNAL_RUN_ENDED = "run_ended"
SIGNAL_MANAGER_ENDED = "manager_ended"
SIGNAL_GRAPH_ENDED = "graph_ended"
#: Notifies a graph that a call in a workflow of its own has returned (its number).
SIGNAL_BATCH_ENDED = "batch_ended"
#: Makes the workflow of a manager, a graph or a webhook read its rows now; it carries no data.
SIGNAL_WAKE = "wake"
#: To a manager: the worker that holds its object shuts down, and another worker has to build it again.
SIGNAL_MOVED = "moved"
#: Nobody can send it: so many more signals that nobody knows came in the same step of the workflow (its payload).
SIGNAL_MORE = ""
QUERY_STATUS = "status"
QUERY_RECORD = "record"
UPDATE_ADD_TASKS = "add_tasks"
UPDATE_ADD_JOB = "add_job"
UPDATE_CANCEL_STEPS, UPDATE_RETRY_STEPS, UPDATE_APPEND_STEPS = "cancel_steps", "retry_steps", "append_steps"

#: Search attribute name -> indexed type, as the operator service and `temporal operator search-attribute` spell it.
_KEYWORDS = ("RunUid", "Crawler", "Trigger", "Stage", "Status", "Outcome", "Flow", "Parent", "Name")
SEARCH_ATTRIBUTES = {"CrawlRunId": "Int", **{f"Crawl{name}": "Keyword" for name in _KEYWORDS}}

#: The history property under which the id of the owning workflow is kept.
PROPERTY_WORKFLOW_ID = "workflow_id"
#: The one that says since when an attempt's files are given up or gone (``crawlctl cluster tidy``).
PROPERTY_FILES_REMOVED = "files_removed"
#: The one that says up to which event, and when, rows of an attempt were removed (``crawlctl db prune``).
PROPERTY_PRUNED = "pruned"
#: The chain of executions that owned an attempt before another execution took it over.
PROPERTY_FORMER_OWNER = "former_owner"

EVENT_RUN_STARTED = "run.started"
EVENT_RUN_CHANGED = "run.changed"
EVENT_RUN_STOPPED = "run.stopped"
#: The state of a run between its deployment and the first check.
WAITING_FOR_START = "the main task's start"

EVENT_RUN_ENDED = "run.ended"
EVENT_MANAGER_CHANGED = "manager.changed"
EVENT_MANAGER_ENDED = "manager.ended"
EVENT_GRAPH_CHANGED = "graph.changed"
EVENT_GRAPH_ENDED = "graph.ended"
EVENT_SCHEDULE_MISSED = "schedule.missed"
EVENT_SCHEDULE_SKIPPED = "schedule.skipped"
#: A recorded status was untrue; the look at a run is overdue; its workflow cannot go on.
EVENT_CORRECTION_MADE, EVENT_RUN_STALE, EVENT_RUN_BLOCKED = "correction.made", "run.stale", "run.blocked"
#: A webhook was paused, by a person or after failed deliveries; events that it had not received were removed.
EVENT_WEBHOOK_PAUSED, EVENT_WEBHOOK_MISSED = "webhook.paused", "webhook.missed"
#: A person tries a webhook; for that one alone.
EVENT_WEBHOOK_TEST = "webhook.test"
#: The events that webhooks may receive.
EVENT_TYPES = frozenset(
    {
        *(EVENT_RUN_STARTED, EVENT_RUN_CHANGED, EVENT_RUN_STOPPED, EVENT_RUN_ENDED, EVENT_RUN_STALE, EVENT_RUN_BLOCKED),
        *(EVENT_MANAGER_CHANGED, EVENT_MANAGER_ENDED, EVENT_GRAPH_CHANGED, EVENT_GRAPH_ENDED),
        *(EVENT_CORRECTION_MADE, EVENT_WEBHOOK_PAUSED, EVENT_WEBHOOK_MISSED),
        *(EVENT_SCHEDULE_MISSED, EVENT_SCHEDULE_SKIPPED),
    }
)
#: Events that happen at most once in an attempt; their id needs no sequence number.
EVENTS_ONCE = frozenset({EVENT_RUN_STARTED, EVENT_RUN_STOPPED, EVENT_RUN_ENDED, EVENT_MANAGER_ENDED, EVENT_GRAPH_ENDED})

#: The highest run number that is accepted from outside of the database. A thousand new runs a second reach it after 31
#: years. Foreign names that are numbers (a time in milliseconds, a row of nines) are above it: otherwise one such
#: folder would use up all remaining numbers.
RUN_NUMBER_MAX = 10**12

CRAWLER_NAME = re.compile(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?")
REQUEST_ID_MAX = 120
TASKS_PER_RUN_MAX = 100_000


def workflow_id(crawler: str, request_id: str) -> str:
    """The workflow id of a run that we start ourselves: ``crawl/<crawler>/<request_id>``."""
    return f"crawl/{crawler}/{request_id}"


def request_of_workflow(workflow_id: str) -> str | None:
    """The request id of a run that we started ourselves, by its ``workflow_id``; ``None`` for any other id."""
    kind, _, rest = workflow_id.partition("/")
    request_id = rest.partition("/")[2]
    return request_id if kind == "crawl" and request_id else None


def attempt_workflow_id(crawler: str, request_id: str, attempt: int) -> str:
    """The workflow id of one attempt of a run, where the plain one may still be taken by an earlier attempt."""
    return f"{workflow_id(crawler, request_id)}/{attempt}"


def uid_workflow_id(workflow_id: str, run_uid: str) -> str:
    """The workflow id of a run where another run of the same request works under ``workflow_id``."""
    return f"{workflow_id}/{run_uid[:8]}"


def plans_queue(worker_id: str) -> str:
    """The task queue of one worker process of the role ``plans``: calls go where the user's object lives."""
    return f"{QUEUE_PLANS}/{worker_id}"


def functions_queue(pool: str | None) -> str:
    """The task queue of a pool of workers that call functions; ``None``: of the common one."""
    return QUEUE_FUNCTIONS if pool is None else f"{QUEUE_PLANS}-{pool}"


def pool_of(queue: str) -> str | None:
    """The pool of such a task queue."""
    return None if queue == QUEUE_FUNCTIONS else queue.removeprefix(f"{QUEUE_PLANS}-")


def graph_workflow_id(key: str) -> str:
    """The workflow id of a graph, which is also the ``parent`` of its runs."""
    return f"graph/{key}"


def graph_key_of(workflow_id: str) -> str | None:
    """The key that such a workflow id names; ``None`` for any other."""
    kind, _, key = workflow_id.partition("/")
    return key if kind == "graph" and key else None


def graph_batch_workflow_id(key: str, batch: int) -> str:
    """The workflow id of one call of a graph's functions, where that has a workflow of its own."""
    return f"graph-batch/{key}/{batch}"


def export_workflow_id(run: RunRef, attempt: int) -> str:
    """The workflow id under which an attempt's deliveries are sent again: one at a time."""
    return f"crawl-export/{run}/{attempt}"


def deletion_workflow_id(run: RunRef) -> str:
    """The workflow id under which what a run brought is deleted. It names no search attribute of the run: it goes on
    until nothing is found that does."""
    return f"crawl-delete/{run}"


def ended_key(kind: str, id: int, uid: str, attempt: int) -> str:
    """The id of the event that a manager or a graph (``kind``) has ended: once in an attempt."""
    return f"{kind}s/{id}-{uid}/{attempt}/{kind}.ended"


def event_workflow_id(key: str) -> str:
    """The workflow id under which the event of this id is delivered."""
    return f"crawl-export/{key}"


def cluster_name(run_id: int, index: int, attempt: int) -> str:
    """The name of a task on its cluster, the same for every retry of its deployment.

    A DNS-1123 label of at most 52 characters, so that Kubernetes can add its suffix for the pod (63 in all).
    """
    return f"crawl-{run_id}-{index}-{attempt}"


def run_number(name: str) -> int:
    """The number of a run that a folder or the first part of a key is named after; 0 for any other name.

    A number above ``RUN_NUMBER_MAX`` is no run's.
    """
    digits = re.match(r"[1-9][0-9]{0,12}(?![^-])", name, re.ASCII)
    number = int(digits.group()) if digits is not None else 0
    return number if number <= RUN_NUMBER_MAX else 0


def request_fingerprint(text: str) -> str:
    """A short, stable fingerprint of a request's canonical text, used to tell a repeat from a different request."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def event_key(run: RunRef, attempt: int, type: str) -> str:
    """The stable id of an event that happens once in an attempt. Receivers recognise repeated deliveries by it, so it
    names one run.
    """
    return f"{run}/{attempt}/{type}"


def run_subject(run_id: int) -> str:
    """The subject that an event about a run names."""
    return f"runs/{run_id}"


def manager_subject(manager_id: int) -> str:
    """The subject that an event about a manager names."""
    return f"managers/{manager_id}"


def graph_subject(key: str) -> str:
    """The subject that an event about a graph names."""
    return f"graphs/{key}"


def archive_key(run: RunRef, attempt: int) -> str:
    """The location of an attempt's supporting files, below the archive's root; no other run uses this name."""
    return f"{run}/{attempt}/supporting-files.zip"


def files_prefix(index: int, attempt: int) -> str:
    """The folder of a task's supporting files inside of an archive."""
    return f"task-{index}" + (f"-attempt-{attempt}" if attempt > 1 else "")


def bundle_key(run: RunRef, index: int, attempt: int, name: str) -> str:
    """The key of an object of a task's pod, below the prefix of ``LIFECYCLE_CLUSTER__FILES_URL``."""
    return f"{run}/{index}/{attempt}/{name}"


def schedule_subject(name: str) -> str:
    """The subject that an event about a schedule names."""
    return f"schedules/{name}"
