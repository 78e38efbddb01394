"""The stack of ``crawlctl dev``: Temporal dev server, database, services, worker and demonstration
site.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from crawler_lifecycle import dev_json, sqlite_files
from crawler_lifecycle.cli import cluster_access
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.machine import LOCK, living, start_time, starting
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage

from . import copies, processes, temporal_server
from .layout import TEMPLATE, Layout, examples_dir, write_crawlers, write_site_crawler
from .supervise import Part, PartFailed, Supervisor

if TYPE_CHECKING:
    from crawler_lifecycle.adapters.catalogue import YamlCatalogue

#: The order in which parts are ended: each part ends before the parts that it needs.
LEAVING = (("worker",), ("gateway", "scheduler", "site"), ("temporal",))

#: Seconds for the gateway's response about open runs, for its responses while crawls are being
#: ended, and for the proof that they have ended. Calls to a dead gateway fail at once, but a slow
#: gateway gets enough time to end all crawls.
ASK_S = 10.0
END_CRAWLS_S = 30.0
PROOF_S = 60.0

OPEN_STATUSES = ("INITIALIZING", "PROCESSING", "STOPPING")


class Stack:
    """The parts of ``layout`` as child processes, with their files in one state directory.

    ``say`` is called with a human-readable line for each event. A part that does not respond for
    ``silent_s`` seconds is restarted. Crawls are not child processes: they continue after the stack
    ends, and the next stack in this directory adopts them.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        say: Callable[[str], None] = lambda line: None,
        silent_s: float | None = None,
    ) -> None:
        self.layout = layout
        self.state_dir = layout.state_dir
        self._say = say
        #: The suggested first crawler, if the catalogue is not the user's own.
        self.first: str | None = None
        self._lock: IO[str] | None = None
        self._ports = contextlib.ExitStack()
        #: The user's own catalogue; ``None`` if there is none.
        self._catalogue: YamlCatalogue | None = None
        #: The catalogues in use, as listed in ``dev.json``.
        self._chosen: dict[str, str | None] = {}
        self.supervisor = Supervisor(
            layout.logs, say=self._tell, changed=self._pids_changed, silent_s=silent_s
        )

    @property
    def addresses(self) -> dict[str, str | None]:
        """The addresses in ``dev.json``. They are available after ``start``, which chooses the
        ports.
        """
        return self.layout.addresses()

    def start(self) -> None:
        """Start all parts, and wait until they are ready.

        Raises ``CommandFailed`` if another process uses this directory or the cluster cannot be
        used. Raises ``PartFailed`` if a part does not start. Before an error is raised, all parts
        that were started are ended.
        """
        self._take_lock()
        try:
            self._start()
            print(" ready", file=self._lock, flush=True)
        except BaseException:
            self.supervisor.hurry()
            self.stop()
            raise

    def _start(self) -> None:
        self._read_catalogue()
        if self.layout.kubernetes is not None:
            cluster_access.check_namespace(
                cluster_access.connect(self.layout.kubernetes.settings())
            )
        before = self._before()
        self._end_leftovers(before)
        temporal_server.fetch(say=self._tell)
        if self.layout.recreate:
            self._set_aside()
        if self.layout.database is None:
            copies.check(self.layout.database_file)
        self.layout = plan = replace(
            self.layout, ports=self.layout.choose_ports(before, self._tell, self._ports)
        )
        (self.state_dir / "temporal.toml").write_text("")
        crawlers, more = self._catalogues()
        self._chosen = {
            "crawlers": str(crawlers),
            "extra_catalogue": None if more is None else str(more),
        }
        self._chosen |= {
            name: os.environ.get(dev_json.VARIABLES[name]) for name in ("slots", "pools")
        }
        env = plan.environment(crawlers, more)
        parts = plan.parts(env)
        # Python parts start slowly because of their imports, so they are started at the same time.
        # Each part waits for the systems that it needs, and the part's health address shows when
        # the part is ready.
        command = (sys.executable, "-m", "crawler_lifecycle.cli", "db", "upgrade")
        log = self.layout.logs / "database.log"
        migrations = processes.spawn(command, env=env, log=log)
        try:
            self._start_temporal(parts.pop("temporal"))
            # No part may assign run ids before the upgrade has raised the counter of run ids above
            # the ids in use.
            self._finish_migrations(migrations)
            self.supervisor.start(parts.values())
        finally:
            migrations.kill()
            migrations.wait()
        self.supervisor.wait_healthy()

    def stop(self, kill_crawls: bool = False) -> int | None:
        """End the parts in order. Return how many runs continue; ``None`` if this is unknown.

        If ``kill_crawls`` is true, every open run is force-stopped before the parts are ended.
        """
        going_on = self._end_crawls() if kill_crawls else self._open_runs()
        for names in LEAVING:
            self.supervisor.stop(names)
        self.supervisor.close()
        self._write_dev_json()
        self._ports.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        return None if going_on is None else len(going_on)

    def hurry(self) -> None:
        """End all parts without a grace period from now on."""
        self.supervisor.hurry()

    # --- start ------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without its folder, the archive cannot be used, and deletions cannot proceed.
        if self.layout.archive is None:
            (self.state_dir / "archive").mkdir(exist_ok=True)
        self._keep_others_out()
        file = self.state_dir / LOCK
        lock = file.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            pid = file.read_text().partition(" ")[0]
            age = starting(file)
            where = (
                f"{self._before().get('gateway')}/" if age is None else f"starting ({age:.0f} s)"
            )
            raise CommandFailed(
                Exit.NOT_IN_THIS_STATE,
                f"crawlctl dev is already running in {self.state_dir}: {where}",
                "one stack per state directory: two would run the same crawls twice",
                f"use it, or end it with kill {pid}; or crawlctl dev --state-dir ANOTHER",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()} {start_time(os.getpid())}")
        lock.flush()
        self._lock = lock

    def _keep_others_out(self) -> None:
        """Ensure that only this user can write to the folder, because the files in it determine
        what we read and which processes we end.
        """
        found = self.state_dir.stat()
        if found.st_uid != os.geteuid():
            raise CommandFailed(
                Exit.NOT_IN_THIS_STATE,
                f"--state-dir {self.state_dir} belongs to uid {found.st_uid}, but this is uid "
                f"{os.geteuid()}",
                "its owner could make us start and end any process",
                "crawlctl dev --state-dir ANOTHER",
            )
        if found.st_mode & 0o022:
            self.state_dir.chmod(found.st_mode & 0o7755)

    def _before(self) -> Mapping[str, Any]:
        """Return the addresses of the last stack in this folder; empty if there was no stack or its
        file is invalid.
        """
        try:
            found = dev_json.read(self.state_dir / dev_json.NAME)
        except dev_json.SetAside as aside:
            self._tell(str(aside))
            return {}
        return {} if found is None else found.known

    def _end_leftovers(self, before: Mapping[str, Any]) -> None:
        """End the parts of an earlier stack that was killed, if the kernel has not ended them."""
        for name, pid in living(before).items():
            self._tell(
                f"ending {name} (process {pid}), which is left over from a stack that was killed"
            )
            processes.end_process(pid, before["started"][name], 5.0)

    def _set_aside(self) -> None:
        """Move the files of the state directory to a subfolder.

        Raises ``CommandFailed`` if crawls that use these files are still running.
        """
        if crawls := processes.of_folder(self.layout.cluster_dir):
            raise CommandFailed(
                Exit.NOT_IN_THIS_STATE,
                f"crawls of {self.state_dir} are still running (processes "
                f"{', '.join(map(str, crawls[:5]))})",
                "a new stack would have no record of them",
                "crawlctl dev --kill with the version that started them, or kill the processes",
            )
        aside = self.state_dir / f"aside-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        aside.mkdir(mode=0o700)
        for entry in self.state_dir.iterdir():
            if entry.name not in (LOCK, "logs") and not entry.name.startswith("aside-"):
                entry.rename(aside / entry.name)
        self._tell(
            f"the previous files of {self.state_dir} are in {aside.name}; delete it when it is no "
            f"longer needed"
        )

    @property
    def _own_catalogue(self) -> Path:
        """The catalogue that the user chose or has in this folder, even if it does not exist."""
        return Path(
            self.layout.crawlers or os.environ.get("LIFECYCLE_CATALOGUE") or "crawlers.yaml"
        ).absolute()

    def _read_catalogue(self) -> None:
        """Read the user's catalogue before anything starts.

        Raises ``CommandFailed`` if it cannot be used.
        """
        if not self._own_catalogue.is_file():
            return
        # Imported here, because it loads pydantic.
        from crawler_lifecycle.adapters.catalogue import YamlCatalogue
        from crawler_lifecycle.domain.errors import CatalogueError

        try:
            self._catalogue = YamlCatalogue(self._own_catalogue, say=self._tell)
        except CatalogueError as error:
            raise WrongUsage(str(error), "correct it, and type crawlctl dev again") from None

    def tell_catalogue(self) -> None:
        """Print a line when the user's catalogue becomes unreadable, and when it can be read
        again.
        """
        if self._catalogue is not None:
            self._catalogue.all()

    def _catalogues(self) -> tuple[Path, Path | None]:
        """Return the catalogue for the parts, and a second catalogue to add to it, if any.

        The first catalogue is the one that was given, the one in this folder, or the examples.
        Without a checkout, the crawlers that ``crawlctl init`` creates are the examples. If a
        folder of pages is served, the crawler for this folder replaces the examples, or is added to
        any other catalogue.
        """
        plan = self.layout
        chosen = plan.crawlers or os.environ.get("LIFECYCLE_CATALOGUE")
        examples = examples_dir()
        file = self._own_catalogue
        generic = self.state_dir / "site-crawler.yaml"
        if plan.site is not None:
            write_site_crawler(generic, plan.url("site"))
        more = os.environ.get("LIFECYCLE_EXTRA_CATALOGUE")
        if more and plan.site is not None:
            raise WrongUsage(
                "LIFECYCLE_EXTRA_CATALOGUE cannot be used with --site",
                "name the catalogue with --crawlers, or leave --site out",
            )
        beside = generic if plan.site is not None else Path(more).absolute() if more else None
        if file.is_file():
            return file, beside
        if plan.site is not None and not chosen:
            return generic, None
        if chosen or (examples is None and plan.kubernetes is not None):
            raise WrongUsage(
                f"no catalogue of crawlers exists at {file}",
                "crawlctl dev --crawlers FILE, a crawlers.yaml in this folder, or --site FOLDER to "
                "crawl a folder",
            )
        if plan.kubernetes is not None and plan.kubernetes.settings().image is None:
            raise WrongUsage(
                "pods of the example crawlers need an image",
                "set --image to an image with Scrapy and the examples "
                "(docs/deployment-kubernetes.md)",
            )
        self.first = "demo" if examples is None else "services"
        target = self.state_dir / "crawlers.yaml"
        site = plan.url("site") if plan.has_site else None
        write_crawlers(
            (examples or TEMPLATE) / "crawlers.yaml",
            target,
            site,
            in_images=plan.kubernetes is not None,
        )
        return target, beside

    def _finish_migrations(self, process: subprocess.Popen[bytes]) -> None:
        log = self.layout.logs / "database.log"
        try:
            code = process.wait(timeout=120)
            if code == Exit.NOT_IN_THIS_STATE and self.layout.database is None:
                from crawler_lifecycle.store.migrations.schema_version import (
                    read_schema,  # imported here, because it loads SQLAlchemy
                )

                fault = read_schema(str(self.layout.addresses()["database"])).fault
                raise CommandFailed(
                    Exit.NOT_IN_THIS_STATE,
                    f"{self.state_dir} belongs to another version",
                    fault,
                    "crawlctl dev --recreate, which starts afresh and moves the old files aside",
                )
            why = "cannot be migrated" if code else None
        except subprocess.TimeoutExpired:
            why = "is not migrated after 120 s"
        if why:
            raise PartFailed(f"the database {why}; the end of {log}:\n{processes.tail(log)}")

    def _start_temporal(self, part: Part) -> None:
        file = self.layout.temporal_file
        temporal_server.prepare(file, say=self._tell)
        self.supervisor.start([part])
        try:
            self.supervisor.wait_healthy(["temporal"])
        except PartFailed:
            self.supervisor.stop(["temporal"])
            if (damage := sqlite_files.damage(file)) is None:
                raise
            temporal_server.prepare(file, say=self._tell, problem=damage)
            self.supervisor.start([part])
            self.supervisor.wait_healthy(["temporal"])

    # --- stop -------------------------------------------------------------------------------------

    def _open_runs(self, timeout_s: float = ASK_S) -> list[int] | None:
        if "gateway" not in self.supervisor.pids():
            return None
        try:
            with Gateway(self.layout.url("gateway"), timeout_s=timeout_s) as gateway:
                return [int(str(run["run_id"])) for run in gateway.runs(status=OPEN_STATUSES)]
        except CommandFailed:
            return None

    def _end_crawls(self) -> list[int] | None:
        """Force-stop every open run, and wait for the proof that the run has ended.

        Return the runs that are still open.
        """
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

    # --- output --------------------------------------------------------------------------

    def _tell(self, line: str) -> None:
        """Print a line and log it.

        The supervisor calls this method, too, and must survive a closed output or a full disk.
        """
        with contextlib.suppress(OSError):
            self._say(line)
        with contextlib.suppress(OSError):
            logs = self.state_dir / "logs"
            logs.mkdir(parents=True, exist_ok=True)
            with (logs / "dev.log").open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n")

    def _pids_changed(self) -> None:
        """Write the new process ids.

        The supervisor's thread calls this method, and an error must not end that thread.
        """
        try:
            self._write_dev_json()
        except OSError as error:
            self._tell(
                "dev.json cannot be written, and has old process ids until the next change: "
                f"{error}"
            )

    def _write_dev_json(self) -> None:
        if not self.layout.ports:  # the stack was not started
            return
        pids = self.supervisor.pids()
        content = {
            **self.layout.addresses(),
            "stack": self.layout.identity,
            "state": str(self.layout.cluster_dir),
            **self._chosen,
            "processes": pids,
            "started": {name: start_time(pid) for name, pid in pids.items()},
            "pid": os.getpid() if pids else None,
        }
        target = self.state_dir / dev_json.NAME
        draft = target.with_name("dev.json.draft")
        # The URL of the database may contain a password.
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(content, indent=2) + "\n")
        draft.replace(target)
