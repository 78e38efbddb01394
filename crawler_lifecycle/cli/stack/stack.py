"""The embedded stack: the real Temporal server, database, services, worker and demonstration site."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli import cluster_access
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.machine import start_time
from crawler_lifecycle.cli.problems import CommandFailed, Exit

from . import processes, temporal_server
from .layout import Layout, examples_dir, write_crawlers, write_site_crawler
from .supervise import READY_S, Part, PartFailed, Supervisor

#: The order of the shutdown: each part ends before the parts that it needs.
LEAVING = (("worker",), ("gateway", "scheduler", "site"), ("temporal",))

#: Seconds for the gateway's answer about open runs, and for the proof that stopped runs have ended. A dead gateway
#: refuses at once; a slow one gets time, so that no crawl stays behind.
ASK_S, END_CRAWLS_S, PROOF_S = 10.0, 30.0, 60.0

OPEN_STATUSES = ("INITIALIZING", "PROCESSING", "STOPPING")


class Stack:
    """Everything in child processes below one state directory, as ``layout`` says.

    ``say`` gets one line for people per event; a part that does not answer for ``silent_s`` is replaced. Crawls are no
    children of ours: they outlive the stack, and the next one over the same directory goes on with them.
    """

    def __init__(
        self, layout: Layout, *, say: Callable[[str], None] = lambda line: None, silent_s: float | None = None
    ) -> None:
        self.layout = layout
        self.state_dir = layout.state_dir
        self._say = say
        #: True if the crawlers are those of the examples.
        self.has_examples = False
        self._lock: IO[str] | None = None
        #: The catalogues in use, as ``dev.json`` names them.
        self._chosen: dict[str, str | None] = {}
        self._supervisor = Supervisor(layout.logs, say=self._tell, changed=self._pids_changed, silent_s=silent_s)

    @property
    def addresses(self) -> dict[str, str | None]:
        """The addresses of ``dev.json``. Only after ``start``, as that chooses the ports."""
        return self.layout.addresses()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the parts that live now."""
        return self._supervisor.pids()

    def start(self) -> None:
        """Bring everything up and wait until it is ready.

        Raises ``CommandFailed`` when another process has this directory or the cluster cannot be used, ``PartFailed``
        when a part does not come up; then all started parts have been ended again.
        """
        self._take_lock()
        try:
            self._start()
        except BaseException:
            self._supervisor.hurry()
            self.stop()
            raise

    def _start(self) -> None:
        if self.layout.kubernetes is not None:
            cluster_access.check_namespace(cluster_access.connect(self.layout.kubernetes.settings()))
        before = self._before()
        self._end_leftovers(before)
        self.layout = plan = replace(self.layout, ports=self.layout.choose_ports(before, self._tell))
        (self.state_dir / "temporal.toml").write_text("")
        crawlers, more = self._catalogues()
        self._chosen = {"crawlers": str(crawlers), "more_crawlers": None if more is None else str(more)}
        env = plan.environment(crawlers, more)
        parts = plan.parts(env)
        # Everything but the Temporal server is slow because Python imports are, so nothing waits without need: services
        # find their database and each other when they are ready, and say so at their health addresses.
        migrations = self._start_migrations(env)
        try:
            self._start_temporal(parts.pop("temporal"))
            # No part may give out numbers before the upgrade knows the numbers of existing workflows and crawls.
            self._finish_migrations(migrations)
            self._supervisor.start(parts.values())
        finally:
            migrations.kill()
            migrations.wait()
        self._supervisor.wait_healthy()

    def stop(self, kill_crawls: bool = False) -> int | None:
        """End our parts in order. Returns how many runs continue without us (``None`` when this is unknown).

        With ``kill_crawls`` every open run is stopped by force first.
        """
        going_on = self._end_crawls() if kill_crawls else self._open_runs()
        for names in LEAVING:
            self._supervisor.stop(names)
        self._supervisor.close()
        self._write_dev_json()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        return None if going_on is None else len(going_on)

    def hurry(self) -> None:
        """End at once the parts that were already asked to end."""
        self._supervisor.hurry()

    def kill_part(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a part, and return its process id; it is restarted as after any other death."""
        return self._supervisor.kill(name, number)

    def wait_healthy(self, name: str | None = None, timeout_s: float = READY_S) -> None:
        """Return when this part (or every one) is ready. Raises ``PartFailed``."""
        self._supervisor.wait_healthy(None if name is None else (name,), timeout_s)

    def starts(self, name: str) -> int:
        """The number of starts of this part."""
        return self._supervisor.starts(name)

    # --- start ---------------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.layout.archive is None:  # without its folder it is away, and deletions wait
            (self.state_dir / "archive").mkdir(exist_ok=True)
        self._keep_others_out()
        lock = (self.state_dir / "dev.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip() or "unknown"
            lock.close()
            raise CommandFailed(
                Exit.NOT_IN_THIS_STATE,
                f"{self.state_dir} is in use by process {pid}",
                "one stack per state directory: two would run the same crawls twice",
                f"kill {pid}, or crawlctl dev --state-dir ANOTHER",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _keep_others_out(self) -> None:
        """Nobody else may write into our folder: its files name other files that we read and processes that we end."""
        found = self.state_dir.stat()
        if found.st_uid != os.geteuid():
            raise CommandFailed(
                Exit.NOT_IN_THIS_STATE,
                f"--state-dir {self.state_dir} belongs to uid {found.st_uid}, and this is uid {os.geteuid()}",
                "its owner could decide what we start and end",
                "crawlctl dev --state-dir ANOTHER",
            )
        if found.st_mode & 0o022:
            self.state_dir.chmod(found.st_mode & 0o7755)

    def _before(self) -> Mapping[str, object]:
        """The addresses that the last stack in this folder wrote; empty when there was none or its file is not
        valid.
        """
        try:
            found = dev_json.read(self.state_dir / dev_json.NAME)
        except dev_json.SetAside as aside:
            self._tell(str(aside))
            return {}
        return {} if found is None else found.known

    def _end_leftovers(self, before: Mapping[str, object]) -> None:
        """End parts of an earlier stack that was killed; the kernel should have, this is for when it did not."""
        pids, started = before.get("processes"), before.get("started")
        if not isinstance(pids, dict) or not isinstance(started, dict):
            return
        for name, pid in pids.items():
            if isinstance(pid, int) and start_time(pid) == started.get(name):
                self._tell(f"ending {name} (process {pid}), left over from a stack that was killed")
                processes.end_process(pid, started[name], 5.0)

    def _catalogues(self) -> tuple[Path, Path | None]:
        """The catalogue for our parts: the one that was chosen, the working directory's own, or the examples'.

        Where a folder of pages is served, its crawler takes the place of the examples, or stands beside the others.
        """
        plan = self.layout
        chosen = plan.crawlers or os.environ.get("LIFECYCLE_CRAWLERS")
        examples = examples_dir()
        file = Path(chosen or "crawlers.yaml").absolute()
        generic = self.state_dir / "site-crawler.yaml"
        if plan.site is not None:
            write_site_crawler(generic, plan.url("site"))
        more = os.environ.get("LIFECYCLE_MORE_CRAWLERS")
        if more and plan.site is not None:
            cure = "name the catalogue with --crawlers, or leave --site out"
            raise CommandFailed(
                Exit.USAGE, "LIFECYCLE_MORE_CRAWLERS: the crawler of --site takes its place", None, cure
            )
        beside = generic if plan.site is not None else Path(more).absolute() if more else None
        if file.is_file():
            return file, beside
        if plan.site is not None and not chosen:
            return generic, None
        if chosen or examples is None:
            cure = "crawlctl dev --crawlers FILE, a crawlers.yaml in this folder, or --site FOLDER to crawl a folder"
            raise CommandFailed(Exit.USAGE, f"there is no catalogue of crawlers at {file}", None, cure)
        if plan.kubernetes is not None and plan.kubernetes.settings().image is None:
            cure = "--image, or LIFECYCLE_CLUSTER__IMAGE: one with Scrapy and the examples (docs/deployment.md)"
            raise CommandFailed(Exit.USAGE, "the example crawlers need an image that pods can be made of", None, cure)
        self.has_examples = True
        target = self.state_dir / "crawlers.yaml"
        write_crawlers(examples / "crawlers.yaml", target, plan.url("site"), in_images=plan.kubernetes is not None)
        return target, beside

    def _start_migrations(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "crawler_lifecycle.cli", "db", "upgrade")
        return processes.spawn(command, env=env, log=self.layout.logs / "database.log")

    def _finish_migrations(self, process: subprocess.Popen[bytes]) -> None:
        log = self.layout.logs / "database.log"
        try:
            code = process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            raise PartFailed(
                f"the database is not migrated after 120 s; the end of {log}:\n{processes.tail(log)}"
            ) from None
        if code:
            raise PartFailed(f"the database cannot be migrated; the end of {log}:\n{processes.tail(log)}")

    def _start_temporal(self, part: Part) -> None:
        file = self.layout.temporal_file
        temporal_server.prepare(file, say=self._tell)
        self._supervisor.start([part])
        try:
            self._supervisor.wait_healthy(["temporal"])
        except PartFailed:
            self._supervisor.stop(["temporal"])
            if not temporal_server.is_damaged(file):
                raise
            temporal_server.prepare(file, say=self._tell, damaged=True)
            self._supervisor.start([part])
            self._supervisor.wait_healthy(["temporal"])

    # --- stop ----------------------------------------------------------------------------------------------------

    def _open_runs(self, timeout_s: float = ASK_S) -> list[int] | None:
        if "gateway" not in self.pids:
            return None
        try:
            with Gateway(self.layout.url("gateway"), timeout_s=timeout_s) as gateway:
                return [int(str(run["run_id"])) for run in gateway.runs(status=OPEN_STATUSES)]
        except CommandFailed:
            return None

    def _end_crawls(self) -> list[int] | None:
        """Stop every open run by force and wait for the proof of its end. Returns the runs that are still open."""
        left = self._open_runs(END_CRAWLS_S)
        if not left:
            return left
        with Gateway(self.layout.url("gateway"), timeout_s=END_CRAWLS_S) as gateway:
            for run_id in left:
                gateway.stop(run_id, force=True, reason="crawlctl dev --kill")
        until = time.monotonic() + PROOF_S
        while left and time.monotonic() < until:
            time.sleep(0.2)
            left = self._open_runs(END_CRAWLS_S)
        return left

    # --- what others see -----------------------------------------------------------------------------------------

    def _tell(self, line: str) -> None:
        """The supervisor's thread calls this too, and must continue when the output is closed or the disk is full."""
        with contextlib.suppress(OSError):
            self._say(line)
        with contextlib.suppress(OSError):
            logs = self.state_dir / "logs"
            logs.mkdir(parents=True, exist_ok=True)
            with (logs / "dev.log").open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n")

    def _pids_changed(self) -> None:
        """In the supervisor's thread: without it, nothing would be started again, nor ever be seen to have ended."""
        try:
            self._write_dev_json()
        except OSError as error:
            self._tell(f"dev.json cannot be written, and names other processes until the next change: {error}")

    def _write_dev_json(self) -> None:
        if not self.layout.ports:  # it was not started
            return
        pids = self._supervisor.pids()
        content = {
            **self.layout.addresses(),
            "state": str(self.layout.cluster_dir),
            **self._chosen,
            "processes": pids,
            "started": {name: start_time(pid) for name, pid in pids.items()},
            "pid": os.getpid() if pids else None,
        }
        target = self.state_dir / dev_json.NAME
        draft = target.with_name("dev.json.draft")
        # The database's address may hold a password.
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(content, indent=2) + "\n")
        draft.replace(target)
