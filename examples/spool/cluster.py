"""The spool as a cluster: ``tasks/RUN/INDEX/ATTEMPT`` contains everything that is known about a
task.

A poll reads folders and locks, and remembers nothing, so any number of processes can use one spool
at the same time. The spool sets no memory limits, and trusts its crawlers not to write into their
own task's folder; ``clusters/local`` does better.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crawler_lifecycle import runner
from crawler_lifecycle.clusters.kind import ClusterKind, TaskEnvironment
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    DeploymentExpired,
    InvalidRequest,
    OtherPlace,
)
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import (
    LOG_TAIL_BYTES,
    Counters,
    End,
    Observation,
    Phase,
    log_tail,
    told_exit,
)
from crawler_lifecycle.ports.cluster import Changed
from crawler_lifecycle.ports.files import FileSource, LogPart
from crawler_lifecycle.ports.polls import Details, LiveCounters, ObserverHealth, Poll
from crawler_lifecycle.ports.protocols import TaskBundles
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask, TaskRecord, TaskRef
from crawler_lifecycle.process_contract import contract_of

from . import keeper

_RUNNER = str(Path(runner.__file__).parent)
#: The seconds that a kill may take, that the keeper of a task has for the kill, and between two
#: readings of an observer.
KILL_S, KEEPER_S, WATCH_S = 10.0, 2.0, 0.1


class SpoolKind(ClusterKind):
    """The kind for ``LIFECYCLE_CLUSTER__KIND=examples.spool.cluster:SpoolKind``, with the settings
    ``STATE_DIR`` and ``SLOTS``.
    """

    def deployer(self, task_environment: TaskEnvironment | None) -> Spool:
        return Spool(self.settings.state_dir, self.settings.slots, task_environment)

    def cluster(self) -> Spool:
        return Spool(self.settings.state_dir, self.settings.slots)

    def files(self, bundles: TaskBundles | None) -> Spool:
        return self.cluster()

    numbers = observer = logs = cluster


class Spool:
    """Implements ``Deployer``, ``Cluster``, ``TaskFiles``, ``TaskLogs``, ``Observer`` and
    ``KnowsRuns``.
    """

    kind = "spool"
    log_fades = False

    def __init__(
        self, root: Path, slots: int, task_environment: TaskEnvironment | None = None
    ) -> None:
        self._root, self._slots, self._task_environment = root.absolute(), slots, task_environment
        self._tasks = self._root / "tasks"
        self._health = ObserverHealth(False, "it does not watch")
        for name in ("tasks", "state", "slots"):
            (self._root / name).mkdir(parents=True, exist_ok=True)

    # --- Deployer

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        self.place([deployment.place] if deployment.place is not None else [])
        with self._reading():
            return [self._deploy(deployment, crawler, task) for task in deployment.tasks]

    def _deploy(
        self, deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask
    ) -> DeployedTask:
        name = _name(deployment.run, task.index, deployment.attempt)
        folder = self._folder(deployment.run, task.index, deployment.attempt)
        expired = DeploymentExpired(
            f"the deployment call expired at {deployment.expires_at.isoformat()}"
        )
        state = "existing"
        if not (folder / keeper.SPEC).exists():
            try:
                spec = self._spec(deployment, crawler, task, folder)
            except InvalidRequest as why:
                return DeployedTask(task.index, "refused", name, reason=str(why))
            if datetime.now(UTC) >= deployment.expires_at:
                raise expired
            (folder / "files").mkdir(parents=True, exist_ok=True)
            Path(spec["env"]["CRAWL_STATE_DIR"]).mkdir(parents=True, exist_ok=True)
            state = (
                "created" if _place_whole(folder / keeper.SPEC, json.dumps(spec)) else "existing"
            )
        if not (folder / keeper.BEGUN).exists():
            more = (
                {} if self._task_environment is None else self._task_environment(deployment, task)
            )
            secrets = {
                key: os.environ[text.removeprefix("env:")] for key, text in crawler.secrets.items()
            }
            passed = {key: os.environ[key] for key in {"PATH", "HOME", "LANG"} & set(os.environ)}
            command = [
                sys.executable,
                keeper.__file__,
                str(folder),
                str(deployment.expires_at.timestamp()),
            ]
            environment = {
                **passed,
                **crawler.env,
                **secrets,
                **more,
                "CRAWL_FILES_DIR": str(folder / "files"),
            }
            nothing = subprocess.DEVNULL
            code = subprocess.call(
                command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing, timeout=30
            )
            if code == keeper.EXPIRED:
                raise expired
            if code:
                raise ClusterUnavailable(f"the keeper of {folder} did not start (exit {code})")
        return DeployedTask(task.index, state, name, (_read(folder / keeper.SPEC) or {})["uid"])

    def _spec(
        self, deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask, folder: Path
    ) -> dict[str, Any]:
        """Return everything that the keeper needs. Raises ``InvalidRequest`` for a task that can
        never execute.
        """
        project = Path(crawler.project or ".").absolute()
        for key, text in crawler.secrets.items():
            if text.removeprefix("env:") not in os.environ:
                raise InvalidRequest(
                    f"secrets.{key}: {text!r} cannot be resolved here; give env:NAME"
                )
        if crawler.kind is CrawlerKind.SCRAPY:
            argv = ["scrapy", "--project", str(project), "--spider", crawler.spider_name]
        else:
            if (program := shutil.which(crawler.command[0])) is None:
                raise InvalidRequest(
                    f"command: {crawler.command[0]!r} is not an executable that can be found"
                )
            argv = ["command", "--", program, *crawler.command[1:]]
        env = contract_of(deployment, crawler, task) | {
            "CRAWL_FILES_DIR": str(folder / "files"),
            "CRAWL_STATE_DIR": str(self._root / "state" / str(deployment.run) / str(task.index)),
            "CRAWL_STATS_FILE": str(folder / "stats.json"),
            "CRAWL_SUMMARY_FILE": str(folder / "summary.json"),
            "CRAWL_LOG_FILE": str(folder / "log"),
        }
        return {
            "uid": str(uuid.uuid4()),
            "argv": [sys.executable, "-I", "-S", _RUNNER, *argv],
            "cwd": str(project),
            "env": env,
            "slots": self._slots,
            "slots_dir": str(self._root / "slots"),
            "record": dict(deployment.record),
        }

    # --- Cluster

    def place(self, beside: Collection[str] = ()) -> None:
        for other in beside:
            raise OtherPlace(
                f"this is a spool, and the place of the task is {other}: set "
                "LIFECYCLE_CLUSTER__KIND back"
            )

    def poll(self, run: RunRef, tasks: Sequence[TaskRef]) -> Poll:
        began, now = time.monotonic(), datetime.now(UTC)
        self.place([task.place for task in tasks if task.place is not None])
        with self._reading():
            alive = _processes()
            seen = [self._observe(run, task, now, alive) for task in tasks]
        return Poll(now, time.monotonic() - began, seen)

    def _observe(
        self, run: RunRef, task: TaskRef, now: datetime, alive: Collection[str]
    ) -> Observation:
        folder = self._folder(run, task.index, task.attempt)
        spec = _read(folder / keeper.SPEC)
        if spec is None and str(folder) in alive:
            raise ClusterUnavailable(f"{folder} was removed, and processes of it live")
        if spec is None or task.uid not in (None, spec["uid"]):
            phase = Phase.ABSENT if task.uid is None else Phase.GONE
            return Observation(task.index, task.attempt, phase, now)
        phase, end = self._phase(folder, alive)
        started, waiting = (
            _read(folder / keeper.STARTED) or {},
            _read(folder / keeper.WAITING) or {},
        )
        counters, at = _counters(folder)
        changed = {Phase.ENDED: end, Phase.EXECUTING: started}.get(phase, waiting)
        return Observation(
            *(task.index, task.attempt, phase, datetime.now(UTC)),
            name=_name(run, task.index, task.attempt),
            uid=spec["uid"],
            node=os.uname().nodename,
            reason=waiting.get("reason", "starting") if phase is Phase.WAITING else None,
            changed_at=bounds.moment(changed.get("at")) or now,
            started_at=bounds.moment(started.get("at")),
            counters=counters,
            progress_at=at,
            end=_end(end, _read(folder / "summary.json") or {}) if phase is Phase.ENDED else None,
        )

    def _phase(
        self, folder: Path, alive: Collection[str], again: bool = True
    ) -> tuple[Phase, dict[str, Any]]:
        """Return the state of a task, and its end if it has ended. ``alive`` was determined before
        the call.
        """
        if (end := _read(folder / keeper.END)) is not None:
            return Phase.ENDED, end
        if str(folder) in alive:
            return (Phase.EXECUTING if (folder / keeper.STARTED).exists() else Phase.WAITING), {}
        if not (folder / keeper.BEGUN).exists():
            return Phase.ABSENT, {}
        # The task may have begun after ``alive`` was determined.
        return self._phase(folder, _processes(), False) if again else (Phase.GONE, {})

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        found = []
        for task in tasks:
            folder = self._folder(run, task.index, task.attempt)
            with suppress(OSError):
                if (folder / keeper.SPEC).exists():
                    said = (_read(folder / "stats.json") or {}).get("scrapystats")
                    part = self.read(run, task, None, LOG_TAIL_BYTES)
                    tail = log_tail(part.data) if part is not None else None
                    statistics = None if said is None else bounds.statistics(said)
                    found.append(
                        Details(task.task_id, tail, _counters(folder)[0], statistics=statistics)
                    )
        return found

    def stop(self, run: RunRef, task: TaskRef) -> None:
        if (folder := self._ours(run, task)) is not None:
            keeper.create(folder / keeper.STOP)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        folder, began = self._ours(run, task), time.monotonic()
        if folder is None:
            return
        keeper.create(folder / keeper.KILL)
        while pids := _processes().get(str(folder)):
            if time.monotonic() > began + KILL_S:
                raise ClusterUnavailable(f"something of {folder} still runs after {KILL_S:g} s")
            # Its keeper is dead or hangs.
            for pid in pids if time.monotonic() > began + KEEPER_S else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _ours(self, run: RunRef, task: TaskRef) -> Path | None:
        """Return the folder of a task that can still be ended, or ``None`` if there is no such task
        or another object has its name.
        """
        self.place([task.place] if task.place is not None else [])
        with self._reading():
            folder = self._folder(run, task.index, task.attempt)
            spec = _read(folder / keeper.SPEC)
            over = spec is None or (folder / keeper.END).exists()
            return None if over or spec is None or task.uid not in (None, spec["uid"]) else folder

    def inventory(
        self,
        *,
        run_id: int | None = None,
        after: tuple[int, int, int] | None = None,
        limit: int = 500,
    ) -> list[ClusterTask]:
        found = []
        with self._reading():
            alive = _processes()
            for run, *key, folder in self._all():
                phase = self._phase(folder, alive)[0]
                if run_id in (None, run.run_id) and phase in (Phase.WAITING, Phase.EXECUTING):
                    spec, started = (
                        _read(folder / keeper.SPEC) or {},
                        _read(folder / keeper.STARTED) or {},
                    )
                    env, at = spec["env"], bounds.moment(started.get("at"))
                    task_id, node, executing = (
                        int(env["CRAWL_TASK_ID"]),
                        os.uname().nodename,
                        phase is Phase.EXECUTING,
                    )
                    found.append(
                        ClusterTask(
                            run.run_id, *key, executing, task_id, spec["uid"], at, node, run.uid
                        )
                    )
        return [task for task in found if after is None or task.key > after][:limit]

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        with self._reading():
            mine = (
                (index, attempt, at) for whose, index, attempt, at in self._all() if whose == run
            )
            latest = {
                index: (attempt, _read(at / keeper.SPEC) or {}) for index, attempt, at in mine
            }
        return [_record(run, index, attempt, spec) for index, (attempt, spec) in latest.items()]

    # --- TaskFiles, TaskLogs, KnowsRuns

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        with self._reading():
            found = [(t, self._folder(run, t.index, t.attempt) / "files") for t in tasks]
            return [
                FileSource(files_prefix(t.index, t.attempt), at, root=self._root)
                for t, at in found
                if at.is_dir()
            ]

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        folder = self._folder(run, task.index, task.attempt)
        with self._reading():
            over = self._phase(folder, _processes())[0] in (
                Phase.ENDED,
                Phase.GONE,
            )  # This is read first, so that later output is still read.
            try:
                handle = os.open(folder / "log", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return LogPart(b"", 0, True) if over else None
            with open(handle, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                place = max(0, size - limit) if after is None else after if after <= size else 0
                data = os.pread(file.fileno(), limit, place)
        return LogPart(data, place + len(data), over and place + len(data) >= size)

    def highest_run(self, above: int = 0) -> int:
        with self._reading():
            runs = map(RunRef.named, os.listdir(self._tasks))
            return max([above, *(run.run_id for run in runs if run is not None)])

    # --- Observer

    def watch(self, changed: Changed, over: threading.Event) -> None:
        """Compare all tasks with their previous states."""
        before: dict[tuple[RunRef, int, int], Phase] = {}
        while not over.is_set():
            try:
                with self._reading():
                    found = _processes()
                    now = {(*key,): self._phase(folder, found)[0] for *key, folder in self._all()}
            except ClusterUnavailable as error:
                self._health = ObserverHealth(False, str(error))
            else:
                self._health = ObserverHealth(
                    True, watched=sum(str(self._tasks) in one for one in found)
                )
                for key in {*before, *now}:
                    if before.get(key) is not now.get(key):
                        run, index, attempt = key
                        changed(run.run_id, datetime.now(UTC), frozenset({(index, attempt)}))
                before = now
            over.wait(WATCH_S)
        self._health = ObserverHealth(False, "it does not watch")

    def health(self) -> ObserverHealth:
        return self._health

    def counted(self) -> list[LiveCounters]:
        said = [
            (task, _counters(self._folder(task.run, task.index, task.attempt)))
            for task in self.inventory()
        ]
        return [
            LiveCounters(t.run, t.attempt, t.index, *counted)
            for t, counted in said
            if counted[0] != Counters()
        ]

    # --- folders

    def _folder(self, run: RunRef, index: int, attempt: int) -> Path:
        """Return the folder of a task.

        A number may be used again after a restore of the database, but never with the same uid.
        """
        return self._tasks / str(run) / str(index) / str(attempt)

    def _all(self) -> list[tuple[RunRef, int, int, Path]]:
        """Yield every task, in the order of run, index and attempt."""
        found = [path.parent for path in self._tasks.glob(f"*/*/*/{keeper.SPEC}")]
        named = [
            (RunRef.named(at.parts[-3]), int(at.parts[-2]), int(at.parts[-1]), at) for at in found
        ]
        ours = [(run, index, attempt, at) for run, index, attempt, at in named if run is not None]
        return sorted(ours, key=lambda one: (one[0].run_id, *one[1:3], one[0].uid))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise ``ClusterUnavailable`` for everything that cannot be read or written."""
        try:
            os.listdir(self._tasks)  # A disk that is not mounted must not look like an empty spool.
            yield
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise ClusterUnavailable(f"the spool {self._root} cannot be used: {error}") from error


def _place_whole(path: Path, text: str) -> bool:
    """Write a file that nobody ever sees incomplete, and return whether it is new."""
    fresh = path.with_name(f".{uuid.uuid4().hex}")
    fresh.write_text(text)
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if isinstance(found, dict) else None


def _processes() -> dict[str, list[int]]:
    """Return every process of a task, including its keeper, by the folder of the task, which all of
    them have in their environment.
    """
    found: dict[str, list[int]] = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            mine = re.search(
                rb"(?:^|\0)CRAWL_FILES_DIR=([^\0]*)/files\0",
                Path("/proc", entry, "environ").read_bytes(),
            )
            if mine is not None:
                found.setdefault(os.fsdecode(mine[1]), []).append(int(entry))
    return found


def _name(run: RunRef, index: int, attempt: int) -> str:
    return f"crawl-{run}-{index}-{attempt}"


def _record(run: RunRef, index: int, attempt: int, spec: dict[str, Any]) -> TaskRecord:
    env = spec["env"]
    args, settings = json.loads(env["CRAWL_ARGS"]), json.loads(env["CRAWL_SETTINGS"])
    name = _name(run, index, attempt)
    told = (int(env["CRAWL_TASK_ID"]), env["CRAWL_CRAWLER"], args, settings, name, spec["uid"])
    return TaskRecord(index, attempt, *told, record=spec["record"])


def _counters(folder: Path) -> tuple[Counters, datetime | None]:
    said = _read(folder / "stats.json") or {}
    counts = (bounds.count(said.get(name)) for name in ("pages", "items", "errors", "bytes"))
    return Counters(*counts), bounds.moment(said.get("updated_at"))


def _end(told: dict[str, Any], summary: dict[str, Any]) -> End:
    finish = bounds.words(summary.get("finish_reason"), 100)
    stopped = summary.get("told_to_stop") is True
    codes = (bounds.exit_code(summary.get(name)) for name in ("exit", "own_exit"))
    own, verdict = told_exit(told.get("exit_code"), *codes, stopped)
    return End(
        exit_code=own,
        verdict=verdict,
        told=stopped,
        signal=told.get("signal"),
        reason=told.get("reason"),
        message=told.get("message") or bounds.words(summary.get("message"), bounds.TEXT_MAX),
        finished_at=bounds.moment(told.get("at")),
        finish_reason=finish,
    )
