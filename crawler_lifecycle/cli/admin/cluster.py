"""``crawlctl cluster release``: removes our finalizer from pods.

It needs the Kubernetes cluster, but no service.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli import cluster_access, output
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.output import emit, moment, show_rows, span
from crawler_lifecycle.cli.problems import Exit, WrongUsage
from crawler_lifecycle.cli.session import command, say
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.subjects import Column, Document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.clusters.kubernetes.client.objects import Pod

#: The number of parallel patches, and the maximum number of tries for a pod while the server asks
#: us to wait.
THREADS = 8
TRIES = 5
#: Seconds to wait if the server asks us to wait but states no time.
PAUSE_S = 1.0
#: The number of pods between two progress messages.
PROGRESS_EVERY = 1000


def _state(row: Document) -> str:
    """Describe the state of a pod."""
    words = [str(row["phase"])]
    for name, verb in (("ended_at", "ended"), ("deleted_at", "being deleted since")):
        if (at := moment(row.get(name))) is not None:
            seconds = max(0.0, (output.now() - at).total_seconds())
            words.append(f"{verb} {span(seconds)}" + (" ago" if verb == "ended" else ""))
    return ", ".join(words)


def _became(row: Document) -> str | None:
    return row["trouble"] or {None: None, True: "released", False: "already gone"}[row["released"]]


PODS = (
    Column("Pod", "pod"),
    Column("Run", "run_id", right=True),
    Column("Task", "task", right=True),
    Column("Attempt", "attempt", right=True, wide=True),
    Column("State", _state),
    Column("Node", "node", wide=True),
    Column("Release", _became),
)


def release(
    *,
    run: int | None = None,
    everything: Annotated[bool, Parameter(name="--all")] = False,
    yes: bool = False,
    namespace: str | None = None,
    kubeconfig: Path | None = None,
    context: str | None = None,
) -> int:
    """Remove our finalizer from pods, so that the cluster can delete them.

    Works without our services.

    The finalizer keeps a pod until its end is recorded in the database. If nothing will record the
    end any more (our services are removed, or the namespace is being deleted), an administrator
    removes the finalizer. Without --yes nothing is changed. If the end of a pod was not recorded
    before, it can no longer be read, and the task becomes LOST.

    Parameters
    ----------
    run
        only pods of this run, in any state
    everything
        also executing pods; default: pods that have ended or are being deleted
    yes
        remove the finalizers; without --yes the pods are only listed
    namespace
        namespace of the crawls; default: from the settings
    kubeconfig
        kubeconfig of the cluster; default: that of kubectl
    context
        context of the kubeconfig; default: the current context
    """
    if run is not None and everything:
        raise WrongUsage(
            "--run and --all cannot be combined", why="--run already includes all its pods"
        )
    place = ClusterAccess(kubeconfig, context, namespace)
    with closing(cluster_access.connect(place.settings())) as api:
        rows = _listed(api, run, everything)
        if not rows:
            # This raises an error if the namespace does not exist. The list of pods in such a
            # namespace would be empty, too.
            cluster_access.namespace_phase(api)
        if yes:
            _release(api, rows)
    documents = [row.document() for row in rows]
    done = sum(row.released is True for row in rows)
    failed = sum(row.trouble is not None for row in rows)
    document = {
        "namespace": api.namespace,
        "server": api.host,
        "released": done,
        "failed": failed,
        "pods": documents,
    }
    emit(
        document,
        names=[row.pod.metadata.name for row in rows],
        table=lambda: show_rows(
            documents, PODS, empty=f"no pod in {api.namespace} is waiting for our finalizer"
        ),
        rows=documents,
    )
    _summarise(api, rows, yes=yes, again=_again(run, everything, place))
    return _code(rows)


@dataclass
class _Row:
    """A pod, and the result of its release."""

    pod: Pod
    waits: bool
    released: bool | None = None
    trouble: str | None = None
    status: int | None = None

    def document(self) -> Document:
        """Return the document for all output formats."""
        from crawler_lifecycle.clusters.kubernetes.polls.listing import numbers_of
        from crawler_lifecycle.clusters.kubernetes.polls.predicates import ended_at

        pod = self.pod
        meta = self.pod.metadata
        times = {"ended_at": ended_at(pod), "deleted_at": meta.deletion_timestamp}
        return {
            "pod": meta.name,
            **dict(zip(("run_id", "task", "attempt"), numbers_of(meta), strict=True)),
            "phase": pod.status.phase or "Unknown",
            "node": pod.spec.node_name,
            **{
                name: at.isoformat().replace("+00:00", "Z") if at else None
                for name, at in times.items()
            },
            "released": self.released,
            "trouble": self.trouble,
        }


def _listed(api: Api, run: int | None, everything: bool) -> list[_Row]:
    from crawler_lifecycle.clusters.kubernetes.jobs import finalizers

    try:
        found = finalizers.list_held(api, run_id=run)
    except ClusterUnavailable as error:
        raise cluster_access.failed(error) from None
    rows = [_Row(pod, waits=finalizers.waits(pod)) for pod in found]
    return [row for row in rows if run is not None or everything or row.waits]


def _release(api: Api, rows: Sequence[_Row]) -> None:
    """Release every pod. An error for one pod does not affect the others."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="release") as threads:
        for count, _ in enumerate(threads.map(lambda row: _release_one(api, row), rows), 1):
            if count % PROGRESS_EVERY == 0 and count < len(rows):
                say(f"{count:,} of {len(rows):,} pods …")


def _release_one(api: Api, row: _Row) -> None:
    from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
    from crawler_lifecycle.clusters.kubernetes.jobs import finalizers

    for left in reversed(range(TRIES)):
        try:
            row.released = finalizers.remove_finalizer(api, row.pod)
        except ClusterUnavailable as error:
            row.trouble = str(error)
            row.status = error.status if isinstance(error, ApiError) else None
            if left == 0 or row.status in (400, 401, 403, 422):
                return
            wait_s = error.retry_after_s if isinstance(error, ApiError) else None
            time.sleep(wait_s or PAUSE_S)
        else:
            row.trouble = row.status = None
            return


def _again(run: int | None, everything: bool, place: ClusterAccess) -> str:
    """Return the same command line with ``--yes``."""
    options = {
        "run": run,
        "namespace": place.namespace,
        "kubeconfig": place.kubeconfig,
        "context": place.context,
    }
    return command("cluster release", **options, all=everything, yes=True)


def _summarise(api: Api, rows: Sequence[_Row], *, yes: bool, again: str) -> None:
    if not rows:
        return
    if not yes:
        running = sum(not row.waits for row in rows)
        if running:
            say(f"{running:,} of them are still executing: a release may lose their results")
        say(f"{count(len(rows), 'pod')} in {api.namespace} on {api.host}; nothing was changed")
        say(f"next: {again}")
        return
    done = sum(row.released is True for row in rows)
    gone = sum(row.released is False for row in rows)
    left = len(rows) - done - gone
    say(
        f"released {done:,}, already gone {gone:,}, left {left:,}, in {api.namespace} on {api.host}"
    )
    if left:
        say(f"next: {again}")


def _code(rows: Sequence[_Row]) -> int:
    statuses = {row.status for row in rows if row.trouble is not None}
    if not any(row.trouble for row in rows):
        return Exit.DONE
    if statuses & {401, 403}:
        return Exit.NOT_AUTHORISED
    return Exit.UNREACHABLE if None in statuses else Exit.ERROR
