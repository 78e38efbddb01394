"""Outside services in memory: scheduler service, workflow directory, notifier, sink, archive,
catalogue.

Each behaves like its adapter (``tests/contracts/services`` runs the same tests over both), and
tests can make it fail.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.adapters.archive.limits import checked_key
from crawler_lifecycle.cloudevents import bus_text
from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.audits.audit import OpenWorkflow, WorkflowState
from crawler_lifecycle.domain.crawlers.crawler import (
    CrawlerDefinition,
    effective_args,
    effective_settings,
)
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    DeploymentExpired,
    DeploymentRefused,
    InvalidRequest,
    LifecycleError,
    MeantElsewhere,
    NotDelivered,
    OtherPlace,
    SchedulerUnavailable,
    TemporalUnavailable,
)
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.run import ExportResult, RunRequest, StopRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.features.graphs.domain.commands import GraphOrder
from crawler_lifecycle.features.managers.domain.manager import ManagerOrder
from crawler_lifecycle.features.schedules.ports import DueOrder
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.ports import WebhookOrder, WebhookSender
from crawler_lifecycle.ports.cluster import Deployer
from crawler_lifecycle.ports.files import FilePart, FilesMissing, FileSource
from crawler_lifecycle.ports.protocols import RowOrder
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, Event, Fence, Owner
from crawler_lifecycle.store.store import Store


class Faults:
    """Planned errors, in order: the next call raises each once."""

    def __init__(self) -> None:
        self._next: deque[LifecycleError] = deque()

    def add(self, error: LifecycleError, times: int = 1) -> None:
        """Let the next ``times`` calls fail."""
        self._next.extend([error] * times)

    def strike(self) -> None:
        """Raise the next planned error, if there is one."""
        if self._next:
            raise self._next.popleft()


class FakeCatalogue:
    """The port ``Catalogue`` over a list that a test may change."""

    problem: str | None = None

    def __init__(self, crawlers: Iterable[CrawlerDefinition] = ()) -> None:
        self.crawlers = {crawler.name: crawler for crawler in crawlers}

    def get(self, name: str) -> CrawlerDefinition | None:
        return self.crawlers.get(name)

    def all(self) -> list[CrawlerDefinition]:
        return list(self.crawlers.values())


def untried(store: Store) -> Policies:
    """Return policies that retry nothing."""
    return Policies(store.retries, FakeCatalogue(), Retries(max=0))


class FakeDeployer:
    """The port ``Deployer``: records what it created, and can lack slots for some tasks."""

    kind = "fake"

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.deployments: list[Deployment] = []
        self.created: dict[tuple[int, int, int], DeployedTask] = {}
        self.runs: dict[tuple[int, int, int], RunRef] = {}
        self.deferred: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.faults = Faults()
        self._clock = clock
        self._lock = threading.Lock()

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        with self._lock:
            self.faults.strike()
            self.deployments.append(deployment)
            return [self._deploy(deployment, task.index, task.attempt) for task in deployment.tasks]

    def _deploy(self, deployment: Deployment, index: int, attempt: int) -> DeployedTask:
        key = (deployment.run_id, attempt, index)
        name = cluster_name(deployment.run_id, index, attempt)
        if key in self.created:
            if self.runs[key] != deployment.run:
                foreign = deployment.run.foreign(f"the task {name}", self.runs[key].uid)
                return DeployedTask(index, "deferred", name, reason=foreign)
            return replace(self.created[key], state="existing")
        if index in self.refused:
            return DeployedTask(index, "refused", name, reason=self.refused[index])
        if index in self.deferred:
            return DeployedTask(index, "deferred", name, reason=self.deferred[index])
        if deployment.expires_at <= self._clock():
            raise DeploymentExpired(f"expires_at {deployment.expires_at.isoformat()} has passed")
        self.runs[key] = deployment.run
        self.created[key] = DeployedTask(index, "created", name, f"uid-{len(self.created) + 1}")
        return self.created[key]


class FakeScheduler:
    """The port ``SchedulerClient``: the scheduler service without HTTP.

    ``faults`` strike before anything happens; ``lost_answers`` calls take effect and then appear to
    have failed.
    """

    problem: str | None = None

    def __init__(
        self, crawlers: Iterable[CrawlerDefinition] = (), deployer: Deployer | None = None
    ) -> None:
        self.catalogue = FakeCatalogue(crawlers)
        self.deployer: Deployer = deployer or FakeDeployer()
        self.calls: list[Deployment] = []
        self.faults = Faults()
        self.lost_answers = 0
        self._lock = threading.Lock()

    def deploy(self, deployment: Deployment) -> list[DeployedTask]:
        with self._lock:
            self.calls.append(deployment)
            self.faults.strike()
        crawler = self.catalogue.get(deployment.crawler)
        if crawler is None:
            raise DeploymentRefused(f"crawler: {deployment.crawler!r} is unknown")
        try:
            answers = self.deployer.deploy(_merged(deployment, crawler), crawler)
        except InvalidRequest as error:
            raise DeploymentRefused(str(error)) from error
        except OtherPlace as error:
            raise MeantElsewhere(str(error)) from error
        except ClusterUnavailable as error:
            raise SchedulerUnavailable(str(error)) from error
        with self._lock:
            if self.lost_answers:
                self.lost_answers -= 1
                raise SchedulerUnavailable("the connection broke before the answer")
        return answers

    def crawlers(self) -> list[CrawlerDefinition]:
        self.faults.strike()
        return self.catalogue.all()


def _merged(deployment: Deployment, crawler: CrawlerDefinition) -> Deployment:
    tasks = [
        replace(t, args=effective_args(crawler, deployment.args, t.args)) for t in deployment.tasks
    ]
    return replace(
        deployment,
        tasks=tasks,
        settings=effective_settings(crawler, deployment.settings),
        resources=deployment.resources.over(crawler.resources),
    )


class FakeDirectory:
    """The port ``WorkflowDirectory`` over a set of open chains."""

    def __init__(self, *owners: Owner) -> None:
        self.open = set(owners)
        self.closed: dict[str, datetime] = {}
        self.workflows: list[OpenWorkflow] = []
        self.records: dict[str, WorkflowRecord] = {}
        self.begun: dict[str, tuple[RunRequest, bool]] = {}
        self.managers_begun: dict[str, int] = {}
        self.graphs_begun: dict[str, int] = {}
        self.due_begun: dict[str, DueOrder] = {}
        self.webhooks_begun: dict[str, str] = {}
        self.woken: list[str] = []
        self.stopped: dict[str, list[StopRequest]] = {}
        self.delivered: dict[Fence, tuple[bool, bool]] = {}
        self.events: set[str] = set()
        self.ended: dict[str, str] = {}
        self.hurried: list[Owner] = []
        self.lost: list[int] = []
        self.faults = Faults()

    def has_begun(self, workflow_id: str) -> None:
        """Nothing waits for its turn here."""

    def is_open(self, owner: Owner) -> bool:
        self.faults.strike()
        return owner in self.open

    def state(self, workflow_id: str, first_run_id: str | None = None) -> WorkflowState:
        self.faults.strike()
        opened = any(
            o.workflow_id == workflow_id and first_run_id in (None, o.first_run_id)
            for o in self.open
        )
        how = "terminated" if workflow_id in self.closed or first_run_id is not None else None
        return (
            WorkflowState(open=True)
            if opened
            else WorkflowState(False, self.closed.get(workflow_id), how)
        )

    def open_runs(
        self, after: str | None = None, limit: int = 100
    ) -> tuple[list[OpenWorkflow], str | None]:
        self.faults.strike()
        begin = int(after or 0)
        page = self.workflows[begin : begin + limit]
        return list(page), str(begin + limit) if len(self.workflows) > begin + limit else None

    def confirm(self, workflow: OpenWorkflow) -> OpenWorkflow | None:
        self.faults.strike()
        return workflow if workflow in self.workflows else None

    def begin(
        self, request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False
    ) -> None:
        self.faults.strike()
        self.begun[workflow_id] = (request, repair)

    def begin_for(self, order: RowOrder, workflow_id: str) -> None:
        self.faults.strike()
        match order:
            case ManagerOrder(manager_id):
                self.managers_begun[workflow_id] = manager_id
            case GraphOrder(graph_id):
                self.graphs_begun[workflow_id] = graph_id
            case DueOrder():
                self.due_begun[workflow_id] = order
            case WebhookOrder(name):
                self.webhooks_begun[workflow_id] = name

    def wake(self, workflow_id: str) -> bool:
        self.faults.strike()
        self.woken.append(workflow_id)
        return any(owner.workflow_id == workflow_id for owner in self.open)

    def stop(self, workflow_id: str, stop: StopRequest, *, run_uid: str | None = None) -> bool:
        self.faults.strike()
        if all(owner.workflow_id != workflow_id for owner in self.open):
            return False
        self.stopped.setdefault(workflow_id, []).append(stop)
        return True

    def delete_executions(self, run: RunRef, workflow_ids: Sequence[str]) -> int:
        self.faults.strike()
        mine = [one for one in self.workflows if one.run_uid == run.uid]
        self.workflows = [one for one in self.workflows if one not in mine]
        return len(mine)

    def hurry(self, owner: Owner) -> None:
        self.faults.strike()
        self.hurried.append(owner)

    def of_run(self, run: RunRef) -> OpenWorkflow | None:
        self.faults.strike()
        return next((one for one in self.workflows if one.run_uid == run.uid), None)

    def ended_runs(self) -> list[int]:
        self.faults.strike()
        return self.lost

    def record(self, workflow: OpenWorkflow) -> WorkflowRecord:
        self.faults.strike()
        if workflow.workflow_id not in self.records:
            raise TemporalUnavailable(f"workflow {workflow.workflow_id!r} does not answer")
        return self.records[workflow.workflow_id]

    def highest_run(self, above: int = 0) -> int:
        self.faults.strike()
        return max([above, *(w.run_id for w in self.workflows if w.run_id is not None)])

    def deliver_again(self, fence: Fence, *, event: bool, files: bool) -> None:
        self.faults.strike()
        self.delivered[fence] = (event, files)

    def deliver_event(self, key: str) -> None:
        self.faults.strike()
        self.events.add(key)

    def end(self, workflow: OpenWorkflow, reason: str) -> None:
        self.faults.strike()
        self.ended[workflow.workflow_id] = reason
        self.workflows = [one for one in self.workflows if one != workflow]


class FakeNotifier:
    """The port ``Notifier``: records what was pushed."""

    sends = True

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.pushed: list[Event] = []
        self.faults = Faults()

    def push(self, event: Event) -> None:
        self.faults.strike()
        _check_json(event)
        self.pushed.append(event)

    def check(self) -> str:
        self.faults.strike()
        return "into the memory of a test"


class FakeWebhooks:
    """``WebhookSenders`` that record deliveries, and fail as long as ``fails`` says, for one
    subject or for all.
    """

    def __init__(self) -> None:
        self.sent: list[Event] = []
        self.fails: Exception | None = None
        self.fails_for: str | None = None

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[WebhookSender]:
        """Itself."""
        yield self

    async def send(self, spec: WebhookSpec, event: Event) -> str:
        """See ``WebhookSender``."""
        if self.fails is not None and self.fails_for in (None, event.subject):
            raise self.fails
        self.sent.append(event)
        return "204"


class FakeSink:
    """The port ``EventSink``: records what was sent."""

    name = "fake"

    def __init__(self) -> None:
        self.sent: list[Event] = []
        self.faults = Faults()

    def send(self, event: Event) -> None:
        self.faults.strike()
        _check_json(event)
        self.sent.append(event)

    def check(self) -> str:
        self.faults.strike()
        return "into the memory of a test"


def _check_json(event: Event) -> None:
    try:
        bus_text(event)
    except (TypeError, ValueError) as error:
        raise NotDelivered(f"the event cannot be written: {error}") from error


def _contents(source: FileSource) -> list[tuple[str, bytes]]:
    """Return names and contents of a source's files. Raises ``FilesMissing``."""
    if source.missing is not None:
        raise FilesMissing(source.missing)
    if source.bundle is not None:
        with tarfile.open(fileobj=io.BytesIO(b"".join(source.bundle()))) as bundle:
            return [
                (m.name, file.read()) for m in bundle if (file := bundle.extractfile(m)) is not None
            ]
    assert source.folder is not None
    files = sorted(path for path in source.folder.rglob("*") if path.is_file())
    return [(str(path.relative_to(source.folder)), path.read_bytes()) for path in files]


class FakeArchive:
    """The port ``FileArchive`` in memory, which accepts only valid folders."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.faults = Faults()

    def store(
        self,
        key: str,
        sources: Sequence[FileSource],
        manifest: Mapping[str, object],
        progress: Callable[[int, int], None],
        *,
        files_max: int | None = None,
    ) -> ExportResult:
        self.faults.strike()
        url, target, size = f"memory:///{checked_key(key)}", io.BytesIO(), 0
        entries: list[dict[str, object]] = []
        skipped: list[dict[str, str]] = []
        lacking: list[str] = []
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for source in sources:
                try:
                    found = _contents(source)
                except FilesMissing as missing:
                    skipped.append({"name": source.prefix, "reason": str(missing)})
                    lacking.append(f"{source.prefix}: {missing}")
                    continue
                for path, content in found:
                    name = f"{source.prefix}/{path}".strip("/")
                    if files_max is not None and len(entries) >= files_max:
                        skipped.append(
                            {"name": name, "reason": f"over the limit of {files_max} files"}
                        )
                        continue
                    with archive.open(name, "w") as member:
                        member.write(content)
                    size += len(content)
                    digest = hashlib.sha256(content).hexdigest()
                    entries.append({"name": name, "size": len(content), "sha256": digest})
                    progress(len(entries), size)
            document = {
                **manifest,
                "files": entries,
                "skipped": skipped,
                "skipped_count": len(skipped),
            }
            with archive.open("manifest.json", "w") as member:
                member.write(json.dumps(document).encode())
        content = self.stored[url] = target.getvalue()
        note = (
            f"files of {len(lacking)} tasks are missing: {'; '.join(lacking)}" if lacking else None
        )
        return ExportResult(
            url, len(content), len(entries), hashlib.sha256(content).hexdigest(), note
        )

    def open(self, url: str) -> Iterator[bytes]:
        self.faults.strike()
        if url not in self.stored:
            raise NotDelivered(f"{url}: no such archive")
        return iter([self.stored[url]])

    def part(self, url: str, place: int, limit: int) -> FilePart:
        content = b"".join(self.open(url))
        return FilePart(content[place : place + limit], len(content))

    def remove(self, run: RunRef) -> None:
        self.faults.strike()
        for url in [one for one in self.stored if one.startswith(f"memory:///{run}/")]:
            del self.stored[url]

    def check(self) -> str:
        self.faults.strike()
        return "archives go to the memory of this process"
