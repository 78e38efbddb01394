"""Labels, annotations and the finalizer by which our objects are known. A change of one loses live objects.

The identity labels stand on the Job and, through its template, on its pod, and never change: an object whose labels
stop matching a selector is reported as deleted to whoever watches.
"""

from __future__ import annotations

DOMAIN = "crawler-lifecycle"

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "crawler-lifecycle"

RUN = f"{DOMAIN}/run"
#: Whose of the runs that ever had this number: an object without it, or with another one, is none of ours.
RUN_UID = f"{DOMAIN}/run-uid"
ATTEMPT = f"{DOMAIN}/attempt"
#: The index of the task within its run.
TASK = f"{DOMAIN}/task"
TASK_ID = f"{DOMAIN}/task-id"
CRAWLER = f"{DOMAIN}/crawler"
TRIGGER = f"{DOMAIN}/trigger"
#: Put on Job and pod when the end was committed: looks leave them out from then on, people still find them.
SETTLED = f"{DOMAIN}/settled"

#: Annotation: what the Job was made from, so that an object under the name is adopted only if it is the same.
SPEC_HASH = f"{DOMAIN}/spec-hash"

#: Annotation of Job and pod: "false" where no runner of ours is around the crawler, so that exit 0 alone means the end
#: of a crawl. Anything else, also nothing: it was there, and its silence means something.
RUNNER = f"{DOMAIN}/runner"

#: Annotation of the Job: what the run's row says (``domain.adoption``), for a database that loses it.
RECORD = f"{DOMAIN}/record"

#: Annotation of the namespace, by a person: uids of those that are gone for good, with all that ran in them.
REPLACES = f"{DOMAIN}/replaces"

#: On the pod: its final status stays readable until the end was committed. Without it, exit code and summary of a
#: stopped pod are visible for less than half a second.
FINALIZER = f"{DOMAIN}/end-not-recorded"

#: Label of a Job: the queue (of Kueue) in which it waits for capacity.
QUEUE = "kueue.x-k8s.io/queue-name"

#: The name of the crawler's container in the pod.
CONTAINER = "crawler"


def of_run(run_id: int, *, settled: bool | None = False) -> str:
    """The selector of a run's objects: those that are not settled, those that are (``True``), or all (``None``)."""
    return f"{ours(settled=settled)},{RUN}={run_id}"


def ours(*, settled: bool | None = False) -> str:
    """The selector of everything of ours."""
    mark = {None: "", False: f",!{SETTLED}", True: f",{SETTLED}"}[settled]
    return f"{MANAGED_BY}={MANAGER}{mark}"
