"""The start of tasks on the local cluster: the spec, the admission to the queue, and the
supervisor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.clusters.local.folders.reader import task_name, task_of, task_path
from crawler_lifecycle.clusters.local.folders.retention import exclusive
from crawler_lifecycle.clusters.local.processes.cgroup import Parent
from crawler_lifecycle.clusters.local.processes.crawl_user import RunAs, let_pass
from crawler_lifecycle.clusters.local.processes.identity import BOOT, Identity
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import ClusterUnavailable, DeploymentExpired, InvalidRequest
from crawler_lifecycle.domain.resources import parse_cpu, parse_memory
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask
from crawler_lifecycle.process_contract import contract_of
from crawler_lifecycle.runner.contract import PROXY, behind_proxy
from crawler_lifecycle.runner.safe_directory import NotOurs, SafeDirectory

from . import supervisor
from .folders import folder as files
from .processes import liveness_marks

#: The only variables of this process that a crawler gets.
PASSED_ON = (
    "HOME",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
)
#: The file for the messages of the supervisor itself.
SUPERVISOR_LOG = "supervisor.log"
LAUNCH_SECONDS = 30.0
#: The folder with the digests of the files of all projects.
CODES = "codes"
#: The folder with deployed code that tasks fetched.
CODE_CACHE = "code-cache"
#: Seconds for which a mark without a supervisor counts as a deployment in progress. After this
#: time, the deployment is considered dead.
STALE_MARK_SECONDS = 60.0

_ROOT = str(Path(__file__).resolve().parents[3])
#: The runner's folder. The runner is a separate program that is started by this path, as in a pod.
_RUNNER = str(Path(__file__).resolve().parents[2] / "runner")


class LaunchRefused(Exception):
    """A task that can never start here. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts tasks.

    Each task's folder and supervisor are created at most once, even with concurrent calls.
    """

    state: Path
    slots: int
    base_dir: Path
    python: str
    max_waiting: int
    clock: Clock
    environment: Mapping[str, str]
    task_environment: Callable[[Deployment, QueuedTask], Mapping[str, str]] | None
    groups: Callable[[], Parent | None]
    """Return the parent of the tasks' control groups, or ``None`` if none can be created."""
    run_as: RunAs | None
    """The user that runs crawlers; ``None`` for our own user."""

    def deploy(
        self, deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask
    ) -> DeployedTask:
        """Start one task. Raises ``DeploymentExpired`` and ``ClusterUnavailable``."""
        name = task_name(deployment.run, task.index, task.attempt)
        folder = task_path(self.state, deployment.run, task.index, task.attempt)
        try:
            if (begun := files.reported_beside(str(self.state), name).get("uid")) is not None:
                # The supervisor's report is valid even if the crawler changed the folder.
                return DeployedTask(task.index, "existing", name, str(begun))
            uid = self._existing_uid(folder)
            state = "existing"
            if uid is None:
                try:
                    spec = self._spec(deployment, crawler, task, folder, name)
                except (LaunchRefused, InvalidRequest) as why:
                    return DeployedTask(task.index, "refused", name, reason=str(why))
                state, reason = self._create(deployment, folder, name, spec)
                if state == "deferred":
                    return DeployedTask(task.index, "deferred", name, reason=reason)
                uid = self._existing_uid(folder)
            self._ensure_supervisor(folder, name, deployment, crawler, task, uid or "")
        except NotOurs as why:
            return DeployedTask(
                task.index, "refused", name, reason=f"Its folder cannot be created: {why}"
            )
        except OSError as error:
            raise ClusterUnavailable(
                f"the local cluster cannot write below {self.state}: {error}"
            ) from error
        return DeployedTask(task.index, state, name, uid or None)

    def _existing_uid(self, folder: Path) -> str | None:
        try:
            return _uid(folder)
        except files.Garbage:
            with exclusive(self.state):
                return self._set_aside(folder)

    @staticmethod
    def _set_aside(folder: Path) -> str | None:
        """Rename a spec that is garbage, unless another process has replaced it with a valid spec.

        Return the uid of a valid spec, an empty string for a task that has started, and otherwise
        ``None``.
        """
        try:
            return _uid(folder)
        except files.Garbage:
            if _began(folder):
                return ""
            files.held(folder).set_aside(files.SPEC)
            return None

    # --- creation

    def _create(
        self, deployment: Deployment, folder: Path, name: str, spec: files.Record
    ) -> tuple[str, str | None]:
        """Create the folder and the spec.

        Return ``created``, ``existing`` or ``deferred``, and the reason for a deferral.
        """
        with exclusive(self.state):
            live = os.listdir(self.state / liveness_marks.LIVE)
            # Less urgent tasks leave some positions free, so that urgent tasks can wait for the
            # next slot.
            most = max(1, self.max_waiting * (6 - deployment.priority) // 3)
            if 2 * len(live) >= most:
                # A run may have only as many waiting tasks as there are positions left, so that a
                # position remains for the next run.
                waiting = [
                    key[0]
                    for name in live
                    if (key := task_of(name)) is not None and self._waits(name)
                ]
                if len(waiting) + waiting.count(deployment.run) >= most:
                    return "deferred", f"{len(waiting)} tasks are already waiting for a slot"
            self._check_expiry(deployment.expires_at)
            # Never create the folder of all tasks. If it is missing, its disk is not mounted, and
            # with a new empty folder all runs would appear to be lost.
            held = SafeDirectory(str(self.state / "tasks"))
            for part in folder.parts[-3:]:
                held = held.make(part)
            held.make(files.FILES)
            if deployment.code is not None:
                held.make(files.CODE)
            _make_state(self.state, str(spec["state_dir"]))
            self._admit(folder, Path(str(spec["state_dir"])))
            liveness_marks.begin(str(self.state / liveness_marks.LIVE / name))
            return "created" if files.create(held, files.SPEC, spec) else "existing", None

    def _admit(self, folder: Path, state: Path) -> None:
        """Give the crawler's files to its user, if a user is set.

        Our files in the same folder keep their owner.
        """
        if self.run_as is not None:
            let_pass(folder.parents[1], folder.parent, state.parent)
            self.run_as.share(folder)
            places = [folder / files.FILES, folder / files.CODE, state]
            for place in places:
                if place.exists():
                    self.run_as.own(place)

    def _waits(self, name: str) -> bool:
        """Return whether a marked task is waiting for a slot, or for its supervisor."""
        try:
            if (key := task_of(name)) is None or files.reported_beside(str(self.state), name):
                return False
            folder = task_path(self.state, *key)
            if (folder / files.PROCESS).exists() or (folder / files.END).exists():
                return False
            record = files.read(files.held(folder), files.SUPERVISOR)
            if record is None:
                mark = self.state / liveness_marks.LIVE / name
                return self.clock().timestamp() - mark.stat().st_mtime < STALE_MARK_SECONDS
            return Identity.from_json(record).alive()
        except (ValueError, OSError, NotOurs):
            return False

    def _check_expiry(self, expires_at: datetime) -> None:
        if self.clock() >= expires_at:
            raise DeploymentExpired(f"the deployment call expired at {expires_at.isoformat()}")

    def _ensure_supervisor(
        self,
        folder: Path,
        name: str,
        deployment: Deployment,
        crawler: CrawlerDefinition,
        task: QueuedTask,
        uid: str,
    ) -> None:
        if _began(folder):
            return
        self._check_expiry(deployment.expires_at)
        environment = dict(self._passed_on())
        environment.update(self._secrets(crawler))
        if self.task_environment is not None:
            environment.update(self.task_environment(deployment, task))
        expires_at = str(deployment.expires_at.timestamp())
        command = [self.python, "-I", "-S", "-c", BOOT, _ROOT, str(folder), expires_at, uid]
        liveness_marks.begin(str(self.state / liveness_marks.LIVE / name))
        log = files.held(folder).new(SUPERVISOR_LOG)
        try:
            starter = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.state,
                start_new_session=True,
            )
        finally:
            os.close(log)
        with starter:
            try:
                answer = starter.wait(LAUNCH_SECONDS)
            except subprocess.TimeoutExpired:
                starter.kill()
                raise ClusterUnavailable(
                    f"the supervisor did not respond within {LAUNCH_SECONDS:g} s"
                ) from None
        if answer == supervisor.EXPIRED:
            raise DeploymentExpired(
                f"the deployment call expired at {deployment.expires_at.isoformat()}"
            )
        if answer not in (supervisor.TOOK_CHARGE, supervisor.NOT_NEEDED):
            said = files.held(folder).read(SUPERVISOR_LOG, files.FILE_MAX) or b""
            words = (
                said.decode("utf-8", "replace")[-500:]
                or f"its log is empty; is the disk of {self.state} full?"
            )
            raise ClusterUnavailable(f"the supervisor did not start (exit {answer}): {words}")

    # --- what to run

    def _passed_on(self) -> Mapping[str, str]:
        passed = {
            n: v for n, v in self.environment.items() if n in PASSED_ON or n.startswith("LC_")
        }
        own = str(Path(self.python).parent)
        passed["PATH"] = os.pathsep.join([own, passed.get("PATH", os.defpath)])
        return passed if self.run_as is None else passed | self.run_as.environment()

    def _secrets(self, crawler: CrawlerDefinition) -> dict[str, str]:
        """Return the values of the catalogue's ``env:NAME``.

        Raises ``LaunchRefused`` for an unknown variable.
        """
        values = {}
        for name, reference in crawler.secrets.items():
            source = reference.removeprefix("env:")
            if source == reference or source not in self.environment:
                raise LaunchRefused(
                    f"secrets.{name}: {reference!r} cannot be resolved here; "
                    "on the local cluster give 'env:NAME', a variable of the scheduler service"
                )
            values[name] = self.environment[source]
        return values

    def _spec(
        self,
        deployment: Deployment,
        crawler: CrawlerDefinition,
        task: QueuedTask,
        folder: Path,
        name: str,
    ) -> files.Record:
        """Return the spec, which contains all data that the supervisor needs.

        Raises ``LaunchRefused`` or ``InvalidRequest`` for a task that can never work.
        """
        contract = contract_of(deployment, crawler, task)
        resources = deployment.of(task).resources.over(crawler.resources)
        memory = parse_memory(resources.memory)
        cpu = parse_cpu(resources.cpu)
        groups = self.groups()
        code = deployment.code
        argv, cwd = self._argv(crawler, None if code is None else folder / files.CODE)
        self._secrets(crawler)
        state_dir = self.state / "state" / str(deployment.run) / str(task.index)
        contract |= {
            "CRAWL_FILES_DIR": str(folder / files.FILES),
            "CRAWL_STATE_DIR": str(state_dir),
            "CRAWL_STATS_FILE": str(folder / files.STATS),
            "CRAWL_SUMMARY_FILE": str(folder / files.SUMMARY),
        }
        if memory is not None:
            contract["CRAWL_MEMORY_LIMIT"] = str(memory)
        if code is not None:
            contract["CRAWL_CODE_DIR"] = str(cwd)
            # If crawlers have a user of their own, none may change what later crawls execute.
            if self.run_as is None:
                contract["CRAWL_CODE_CACHE"] = str(self.state / CODE_CACHE)
        return {
            "version": 1,
            "uid": str(uuid.uuid4()),
            "name": name,
            "argv": argv,
            "cwd": str(cwd),
            "project": None if crawler.project is None else str(cwd),
            "code": {"version": crawler.version, "commit": crawler.commit}
            if code is None
            else asdict(code),
            "codes_dir": str(self.state / CODES),
            "env": dict(crawler.env),
            "contract": contract,
            "record": dict(deployment.record),
            "state_dir": str(state_dir),
            "memory_limit": memory,
            "memory_text": resources.memory,
            "cpu_limit": cpu if groups is not None and groups.cpu else None,
            "cgroup": None if groups is None else groups.folder,
            "user": None if self.run_as is None else asdict(self.run_as),
            "code_dir": None if code is None else str(cwd),
            "stop_grace_s": deployment.limits.stop_grace_s,
            "run_timeout_s": deployment.limits.run_timeout_s,
            "slots": self.slots,
            "priority": deployment.priority,
            "slots_dir": str(self.state / "slots"),
            "started": str(self.state / files.STARTED / name),
            "live_mark": str(self.state / liveness_marks.LIVE / name),
            "created_at": self.clock().isoformat(),
        }

    def _argv(self, crawler: CrawlerDefinition, unpacked: Path | None) -> tuple[list[str], Path]:
        """Return the command line of the runner and the crawler, and the working directory.

        ``unpacked`` is the folder into which the runner unpacks a package. ``None`` means that the
        crawler executes the project folder of its entry. Raises ``LaunchRefused``.
        """
        if unpacked is None:
            cwd = self._project(crawler)
            project = str(cwd)
        else:
            cwd = unpacked
            project = crawler.project or "."
        wrapper = [self.python, "-I", "-S", _RUNNER]
        if crawler.kind is CrawlerKind.SCRAPY:
            return [*wrapper, "scrapy", "--project", project, "--spider", crawler.spider_name], cwd
        path = crawler.env.get("PATH") or self._passed_on()["PATH"]
        prefix = len(PROXY) if behind_proxy(crawler.command) else 0
        words = crawler.command[prefix:]
        if not words:
            raise LaunchRefused("command: no crawler is named after --; add its command")
        program = words[0]
        inside = "/" in program
        if inside and unpacked is not None:
            found: str | None = program  # it is not there yet
        else:
            found = shutil.which(str(cwd / program) if inside else program, path=path)
        if found is None:
            raise LaunchRefused(
                f"command: {program!r} is not an executable that can be found; give its path, or "
                "set PATH"
            )
        started = [*wrapper, "command", *([] if unpacked is None else ["--project", project])]
        return [*started, "--", *crawler.command[:prefix], found, *words[1:]], cwd

    def _project(self, crawler: CrawlerDefinition) -> Path:
        """Return the project folder of an entry. Raises ``LaunchRefused``."""
        if crawler.project is None and crawler.kind is CrawlerKind.SCRAPY:
            raise LaunchRefused(
                "project: missing; a crawler of kind 'scrapy' needs the folder of its project"
            )
        folder = (self.base_dir / (crawler.project or ".")).resolve()
        if not folder.is_dir():
            raise LaunchRefused(
                f"project: {crawler.project!r} is not a folder ({folder}); name an existing folder"
            )
        return folder


def _uid(folder: Path) -> str | None:
    """Return the uid in the spec; ``None`` if there is no spec.

    Raises ``folder.Garbage`` and ``OSError``.
    """
    try:
        spec = files.read(files.held(folder), files.SPEC)
    except (FileNotFoundError, NotOurs):
        return None
    return None if spec is None else str(spec.get("uid") or "")


def _began(folder: Path) -> bool:
    """Return whether a supervisor ever took charge of the task."""
    held = files.held(folder)
    return any(held.has(name) for name in (files.SUPERVISOR, files.PROCESS, files.END))


def _make_state(state: Path, folder: str) -> None:
    """Create the folder of saved state, which all attempts share.

    Links that earlier attempts created are not followed.
    """
    held = SafeDirectory(str(state))
    for part in os.path.relpath(folder, state).split(os.sep):
        held = held.make(part)
