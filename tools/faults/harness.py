"""The harness of the fault tests: real servers and our services on loopback, toxiproxy before each
of them, and a small disk for the tasks.

It consists of Temporal's production server on PostgreSQL, MariaDB, S3 by rclone, one scheduler
service, two gateways, and two workers of all roles on the local cluster. Nothing outlives the
program, which ends every process by its id.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pymysql

from crawler_lifecycle.cli.stack import temporal_server
from crawler_lifecycle.sqlite_files import connect, driver
from tests.support.faulty_http import serving
from tests.support.receiver import ENVIRONMENT, Receiver
from tests.support.s3 import aws_environment, rclone_command
from tools.faults.build import available
from tools.faults.code_record import PACKAGE
from tools.faults.parts import HTTP, Part, Proxies, answers, listens, pids

ROOT, SOAK = Path(__file__).resolve().parents[2], Path(__file__).resolve().parents[1] / "soak"
PG = Path("/usr/lib/postgresql/15/bin")
#: The disk that contains the folders of tasks.
DISK = "512m"
SLOTS = 12
OURS = ("scheduler", "gateway-1", "gateway-2", "worker-1", "worker-2")
#: In a short test run, there is one process of each kind, which halves the cost. Two processes of a
#: kind belong to the task ``faults``.
SHORT_OURS = ("scheduler", "gateway-2", "worker-2")
PROXIED = (
    "temporal",
    "postgres",
    "database",
    "s3",
    "scheduler",
    "gateway-1",
    "gateway-2",
    "webhook",
)
#: Environment variables of the machine that would be settings of our services.
FOREIGN = ("LIFECYCLE_", "TEMPORAL_", "AWS_", "CRAWL_", "OTEL_")
DYNAMIC = (
    "matching.enableFairness: [{value: true}]\nmatching.numTaskqueueWritePartitions: [{value: 1}]\n"
    "matching.priorityBacklogForwarding: [{value: false, constraints: {taskQueueName: "
    "crawler-lifecycle}}]\n"
    "worker.perNamespaceWorkerOptions: [{value: {MaxConcurrentWorkflowTaskPollers: 20}}]\n"
)
ARGS = {"seconds": "1", "how": "finished"}
#: The newest versions of a package that pruning keeps. Gateways prune when they start.
KEEP = 3
#: After a restore, nobody waits a quarter of an hour for an audit, or minutes for a process that
#: would have started work but died before the restore.
AUDITS = {
    f"LIFECYCLE_AUDIT__{name}": value
    for name, value in {
        "EVERY_S": "10",
        "GRACE_S": "5",
        "ORPHAN_GRACE_S": "5",
        "START_GRACE_S": "5",
    }.items()
}


class RecordAway(Exception):
    """The database does not answer."""


class Harness:
    """All components that are up. Only the main thread starts parts."""

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        landed: Path | None = None,
        dev: bool = False,
        sqlite: bool = False,
    ) -> None:
        self.folder, self.say, self.landed, self.dev = folder, say, landed, dev
        self.file = folder / "record.db" if sqlite else None
        """The file of the record, if it is on SQLite instead of MariaDB."""
        self.code = folder / "s3" / "archive" / "code"
        """The zips of deployed code."""
        self.ours = SHORT_OURS if dev else OURS
        self.gateways = [name for name in self.ours if name.startswith("gateway")]
        self.parts: dict[str, Part] = {}
        self.ports: dict[str, int] = {}
        self.journals, self.disk, self.logs = folder / "journals", folder / "disk", folder / "logs"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        # The folder marks every process of this harness. Crawlers are marked too, because they get
        # HOME, and folders of their own below it.
        path = f"{Path(sys.executable).parent}:{clean['PATH']}"
        self.clean = clean | {"HOME": str(folder), "NO_COLOR": "1", "PATH": path}
        self._local, self.receiver, self.slots = threading.local(), Receiver(), SLOTS
        self.entry: dict[str, Any] = {}
        """The catalogue's entry of the crawler ``soak``."""
        self.beside: dict[str, Path] = {}
        """Parts that are compared with ours and suffer the same, and the journals of their
        crawlers.
        """

    # --- life -------------------------------------------------------------------------------------

    @classmethod
    @contextmanager
    def up(
        cls,
        say: Callable[[str], None],
        keep: Path | None,
        landed: str = "",
        dev: bool = False,
        slots: int = SLOTS,
        sqlite: bool = False,
    ) -> Iterator[Harness]:
        """Start a harness, and end it afterwards. The folder stays, without the data of the
        servers.

        ``landed`` is the commit of another build, which the second gateway and the second worker
        use. With ``dev``, Temporal is the dev server of its SDK, on a file.
        """
        folder = keep or Path(tempfile.mkdtemp(prefix="faults-"))
        folder.mkdir(exist_ok=True, parents=True)
        folder.chmod(
            0o711
        )  # PostgreSQL does not execute as root, and must reach its own folder below this one.
        harness = cls(folder, say, folder / "landed" if landed else None, dev, sqlite)
        harness.slots = slots
        with ExitStack() as undo:
            undo.callback(harness._end)
            harness.make(undo)
            if harness.landed is not None:
                harness.landed.mkdir()
                packed = ["git", "-C", str(ROOT), "archive", landed, "crawler_lifecycle", "workers"]
                tar = subprocess.run(packed, capture_output=True, check=True).stdout
                subprocess.run(["tar", "-x", "-C", str(harness.landed)], input=tar, check=True)
            undo.callback(harness._copy_tasks)
            undo.callback(harness._end)
            undo.enter_context(serving(harness.receiver))
            harness.ports["webhook"] = int(harness.receiver.url.rpartition(":")[2])
            harness._servers()
            harness._services()
            yield harness

    def make(self, undo: ExitStack) -> None:
        """Make the folders and the small disk."""
        for place in (self.journals, self.disk, self.logs):
            place.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0755", "none", str(self.disk)],
            check=True,
        )
        undo.callback(subprocess.run, ["umount", "-l", str(self.disk)], check=True)

    def _copy_tasks(self) -> None:
        with suppress(shutil.Error, OSError):
            shutil.copytree(self.disk / "cluster", self.folder / "tasks", symlinks=True)

    def _end(self) -> None:
        """End our services first, as a deployment does, then the servers that they need, then the
        crawlers.
        """
        for name in reversed(list(self.parts)):
            self.parts.pop(name).end(30 if name in OURS else 10)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for data in ("mariadb", "postgres", "s3"):
            shutil.rmtree(self.folder / data, ignore_errors=True)

    def processes(self) -> list[int]:
        """Return every process of this harness except this process: the processes with its folder
        in their environment.
        """
        mark, found = os.fsencode(self.folder), []
        for pid in pids():
            with suppress(OSError):
                if pid != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def processor(self) -> float:
        """Return the seconds of processor time that this program and everything that it started
        have used.
        """
        used = sum(os.times()[:4])
        for pid in self.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used += sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
        return used

    def dump(self, file: Path) -> None:
        """Keep a copy of the record, for people who search for the cause of a violation, and for
        restores.
        """
        if self.file is not None:
            with (
                closing(connect(self.file)) as source,
                closing(connect(file)) as to,
            ):
                source.backup(to)
            return
        words = [
            "mariadb-dump",
            "--hex-blob",
            "--single-transaction",
            "--add-drop-database",
            *self._client(),
        ]
        with file.open("wb") as out:
            subprocess.run(
                [*words, "--databases", "lifecycle"], stdout=out, check=True, timeout=120
            )

    def _client(self) -> list[str]:
        return ["-h", "127.0.0.1", "-P", str(self.port("database")), "-u", "root"]

    # --- copies, and what comes of them -----------------------------------------------------------

    def copy(self, whom: str) -> Path:
        """Copy the record or Temporal's database while everything continues to execute."""
        if whom == "database":
            self.dump(copy := self.folder / "copy.sql")
        else:
            shutil.rmtree(copy := self.folder / "postgres" / "copy", ignore_errors=True)
            words = [
                "-D",
                str(copy),
                "-h",
                "127.0.0.1",
                "-p",
                str(self.port("postgres")),
                "-U",
                "temporal",
            ]
            self._run(str(PG / "pg_basebackup"), *words, "-c", "fast", user="postgres")
        return copy

    def rows(self, whom: str) -> int:
        """Return how much a restore can lose: changes of statuses, or pages of histories."""
        if whom == "database":
            return int(self.record("SELECT COUNT(*) FROM status_transition")[0][0])
        words = [
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port("postgres")),
            "-U",
            "temporal",
            "-d",
            "temporal",
        ]
        return int(self._run(str(PG / "psql"), *words, "-Atc", "SELECT COUNT(*) FROM history_node"))

    def put_back(self, whom: str, copy: Path) -> None:
        """Restore a server from a copy.

        After a restore of Temporal's database, Temporal is started again too, because it keeps lost
        data in memory.
        """
        if whom == "database":
            with copy.open("rb") as file:
                subprocess.run(["mariadb", *self._client()], stdin=file, check=True, timeout=120)
            self.record("USE lifecycle", "mysql")
            return
        both = [self.parts[name] for name in ("temporal", "postgres")]
        for part in both:
            part.kill()
        shutil.rmtree(data := self.folder / "postgres" / "data")
        copy.rename(data)
        for part in reversed(both):
            part.start()
            part.wait_ready()

    def audited(self) -> None:
        """Start our services after a restore, as docs/operations-database.md describes, and adopt
        what no row knows.
        """
        crawlctl, env = [sys.executable, "-m", "crawler_lifecycle.cli"], self.env | AUDITS
        self._run(*crawlctl, "db", "upgrade", env=env)
        for part in (self.parts[name] for name in self.ours):
            part.env |= AUDITS
            part.start()
        for name in self.ours:
            self.parts[name].wait_ready(self.tick)
        for _ in range(10):
            told = subprocess.run(
                [*crawlctl, "audit", "--adopt"],
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
            )
            if told.returncode in (0, 1):
                break
            self.say(f"  audit: {told.stderr.strip()[-200:]}")
        self.say(
            f"  audit: {told.stdout.count('taken up again')} of {told.stdout.count('workflow ')} "
            "taken up again"
        )

    def tick(self) -> None:
        for part in self.parts.values():
            part.tick()

    def port(self, name: str) -> int:
        """Return a free port below the range of outgoing connections. The same name gets the same
        port.
        """
        while name not in self.ports:
            with socket.socket() as probe, suppress(OSError):
                one = 20_000 + int.from_bytes(os.urandom(2), "big") % 10_000
                probe.bind(("127.0.0.1", one))
                if one not in self.ports.values():
                    self.ports[name] = one
        return self.ports[name]

    def _part(
        self,
        name: str,
        command: list[str],
        env: dict[str, str],
        ready: Callable[[], bool],
        **more: Any,
    ) -> Part:
        self.parts[name] = part = Part(name, command, env, self.logs, ready, **more)
        part.start()
        return part

    def _run(self, *words: str, user: str = "", env: dict[str, str] | None = None) -> str:
        """Run a command to its end. Raises RuntimeError with its output."""
        as_user = (
            ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--"] if user else []
        )
        done = subprocess.run(
            [*as_user, *words], env=env or self.clean, capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(words)[:200]}: {done.stderr[-1500:]}{done.stdout[-500:]}"
            )
        return done.stdout

    # --- what is not ours -------------------------------------------------------------------------

    def _servers(self) -> None:
        programs, port = available(self.dev), self.port
        # On a busy machine, programs that start in parallel are up sooner than programs that start
        # one after the other.
        (self.folder / "s3" / "archive").mkdir(parents=True)
        rclone = [*rclone_command(self.folder / "s3")]
        rclone[rclone.index("--addr") + 1] = f"127.0.0.1:{port('s3')}"
        self._part("s3", rclone, self.clean, lambda: listens(port("s3")))
        cli = [str(Path(sys.executable).with_name("temporal"))]
        # Uses the settings of `crawlctl dev`. With its own defaults, the server reads its queues 20
        # times a second.
        if self.dev:
            dev = temporal_server.command(self.folder / "temporal.db", port("temporal"), None)
            self._temporal(dev, "", cli)
        self._toxiproxy(programs)
        if self.file is None:
            self._mariadb()
        absent = {
            *(("postgres", *OURS) if self.dev else ()),
            *(("database",) if self.file else ()),
        } - {*self.ours}
        for name in PROXIED:
            if name not in absent:
                self.proxies.add(name, port(f"proxy of {name}"), port(name))
        if not self.dev:
            self._postgres()
            self._temporal(*self._production(programs), cli)
        if self.file is not None:
            return
        self.parts["mariadb"].wait_ready()
        self.record("CREATE DATABASE lifecycle CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "mysql")
        self.record("USE lifecycle")

    def _toxiproxy(self, programs: Path) -> None:
        at = str(self.port("toxiproxy"))
        words = [
            str(programs / "toxiproxy-server"),
            "-host",
            "127.0.0.1",
            "-port",
            at,
            "-proxy-metrics",
        ]
        quiet = self.clean | {"LOG_LEVEL": "warn"}
        api = f"http://127.0.0.1:{at}"
        self._part("toxiproxy", words, quiet, answers(f"{api}/version")).wait_ready()
        self.proxies = Proxies(api)

    def _mariadb(self) -> None:
        data, find = self.folder / "mariadb", "/usr/sbin:/usr/bin:/usr/local/bin"
        data.mkdir()
        maker, server = (
            shutil.which(name, path=find) for name in ("mariadb-install-db", "mariadbd")
        )
        if not (maker and server):
            raise RuntimeError("MariaDB is not installed; `make test-deps` installs it")
        where = [f"--datadir={data / 'data'}", "--user=root"]
        self._run(maker, "--no-defaults", *where, "--auth-root-authentication-method=normal")
        more = [
            f"--tmpdir={data}",
            f"--socket={data / 's'}",
            f"--port={self.port('database')}",
            "--skip-log-bin",
        ]
        more += [
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=128M",
        ]
        # Its writes are durable if the process dies, but not if the machine fails.
        more += ["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"]
        self._part(
            "mariadb", [server, "--no-defaults", *where, *more], self.clean, self._database_answers
        )

    def _database_answers(self) -> bool:
        with suppress(RecordAway):
            return self.record("SELECT 1", "mysql") == [(1,)]
        return False

    def _postgres(self) -> Part:
        data = self.folder / "postgres"
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        env = self.clean | {"HOME": str(data)}
        self._run(
            str(PG / "initdb"),
            "-D",
            f"{data}/data",
            "-A",
            "trust",
            "-U",
            "temporal",
            user="postgres",
            env=env,
        )
        words = [
            str(PG / "postgres"),
            "-D",
            f"{data}/data",
            "-p",
            str(self.port("postgres")),
            "-k",
            str(data),
        ]
        # Its writes are durable if the process dies, but not if the machine fails.
        words += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        ask = [str(PG / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port("postgres"))]
        ready = lambda: subprocess.run(ask).returncode == 0  # noqa: E731
        return self._part("postgres", words, env, ready, user="postgres")

    def _production(self, programs: Path) -> tuple[list[str], str]:
        """Start Temporal's production server, and create the namespace."""
        self.parts["postgres"].wait_ready()
        tool = [
            str(programs / "temporal-sql"),
            "--plugin",
            "postgres12_pgx",
            "--ep",
            "127.0.0.1",
            "-u",
            "temporal",
        ]
        tool += ["-p", str(self.port("postgres")), "--pw", "none"]
        for name, schema in (("temporal", "temporal"), ("temporal_visibility", "visibility")):
            self._run(*tool, "--db", name, "create")
            self._run(*tool, "--db", name, "setup-schema", "-v", "0.0")
            self._run(
                *tool,
                "--db",
                name,
                "update-schema",
                "-d",
                str(programs / "schema" / schema / "versioned"),
            )
        config = self.folder / "temporal"
        config.mkdir()
        (config / "dynamic.yaml").write_text(DYNAMIC)
        at = (
            "pluginName: postgres12_pgx, connectAddr: "
            f'"127.0.0.1:{self.port("proxy of postgres")}", user: temporal'
        )
        sql = f"{at}, password: none, connectProtocol: tcp"
        names = ("temporal", "http", "matching", "history", "work", "m1", "m2", "m3", "m4")
        places = {name: self.port(name) for name in names}
        model = Template(Path(__file__).with_name("temporal.yaml").read_text())
        text = model.substitute(sql=sql, dynamic=config / "dynamic.yaml", **places)
        (config / "development.yaml").write_text(text)
        words = [
            str(programs / "temporal-server"),
            "--root",
            str(self.folder),
            "--config",
            "temporal",
            "--env",
        ]
        return [*words, "development", "--allow-no-auth", "start"], "default"

    def _temporal(self, words: list[str], namespace: str, cli: list[str]) -> None:
        operator, at = [*cli, "operator"], f"127.0.0.1:{self.port('temporal')}"

        def healthy() -> bool:
            asked = [*operator, "cluster", "health", "--address", at]
            # A check by an external program would take the processor time for which it waits.
            if not listens(self.port("temporal")):
                return False
            return subprocess.run(asked, env=self.clean, capture_output=True).returncode == 0

        part = self._part("temporal", words, self.clean, healthy)
        if namespace:
            part.wait_ready()
            self._run(
                *operator,
                "namespace",
                "create",
                "-n",
                namespace,
                "--retention",
                "24h",
                "--address",
                at,
            )

    # --- ours -------------------------------------------------------------------------------------

    def _services(self) -> None:
        proxy = {name: f"127.0.0.1:{self.port(f'proxy of {name}')}" for name in PROXIED}
        gateway = proxy[self.gateways[0]]
        crawlers = self.folder / "crawlers.yaml"
        args: dict[str, Any] = {name: {"default": value} for name, value in ARGS.items()}
        args |= {"journal": {"default": str(self.journals)}, "number": {"required": False}}
        entry = {
            "name": "soak",
            "kind": "command",
            "project": str(SOAK),
            "command": ["python", "-S", "crawler.py"],
        }
        entry |= {"resumable": True, "args": args}
        more = {name: {"required": False} for name in ("site", "refused")}
        visitor = entry | {"name": "visitor", "sites": {"from": "site"}, "args": args | more}
        self.entry = entry
        deployed = {key: value for key, value in entry.items() if key != "project"}
        deployed |= {"name": PACKAGE, "package": PACKAGE}
        crawlers.write_text(json.dumps([entry, visitor, *([] if self.landed else [deployed])]))
        database = f"mysql+pymysql://root@{proxy.get('database')}/lifecycle"
        if self.file is not None:
            database = f"sqlite:///{self.file}"
        self.env = self.clean | aws_environment(f"http://{proxy['s3']}") | {
            "TEMPORAL_ADDRESS": proxy["temporal"],
            "TEMPORAL_CONFIG_FILE": str(self.folder / "temporal.toml"),
            "LIFECYCLE_DATABASE__URL": database,
            "LIFECYCLE_CATALOGUE": str(crawlers),
            "LIFECYCLE_CLUSTER__STATE_DIR": str(self.disk / "cluster"),
            "LIFECYCLE_CLUSTER__SLOTS": str(self.slots),
            "LIFECYCLE_SCHEDULER__URL": f"http://{proxy['scheduler']}",
            "LIFECYCLE_SCHEDULER__PORT": str(self.port("scheduler")),
            "LIFECYCLE_GATEWAY__URL": f"http://{gateway}",
            "LIFECYCLE_GATEWAY__AUTH_DISABLED": "true",
            "LIFECYCLE_GATEWAY__MAX_WRITES_PER_S": "200",
            "LIFECYCLE_GATEWAY__TASK_KEY": secrets.token_hex(32),
            "LIFECYCLE_ARCHIVE__URL": "s3://archive/runs",
            **ENVIRONMENT,
            "LIFECYCLE_WEBHOOKS__LOOPBACK": "true",
            "LIFECYCLE_EVENTS__URL": (self.folder / "events.jsonl").as_uri(),
        }  # fmt: skip
        self.env |= {"PYTHONPATH": str(ROOT)}
        if self.landed is None:
            self.env |= {
                "LIFECYCLE_CODE__URL": "s3://archive/code",
                "LIFECYCLE_CODE__KEEP": str(KEEP),
                "LIFECYCLE_CODE__CACHE_DIR": str(self.folder / "code-cache"),
            }
        clock = ["cc", "-O2", "-shared", "-fPIC", "-o", str(self.folder / "clock.so")]
        self._run(*clock, str(Path(__file__).with_name("clock.c")))
        self._run(sys.executable, "-m", "crawler_lifecycle.cli", "db", "upgrade", env=self.env)
        for name in ("s3", "temporal"):
            self.parts[name].wait_ready()
        self.say("the servers and the record are up")
        for name in self.ours:
            self.service(name)
        for name in self.ours:
            self.parts[name].wait_ready()

    def _clock(self, name: str) -> Path:
        return self.folder / f"clock of {name}"

    def set_clock(self, name: str, by: int) -> None:
        """Set the wall clock of one of our processes wrong by this many seconds, from now on."""
        with self._clock(name).open("r+b" if self._clock(name).exists() else "wb") as file:
            file.write(by.to_bytes(8, "little", signed=True))

    def service(self, name: str) -> Part:
        """Start one of our services.

        The second process of a kind is of the landed build, if one is given, and has its own clock.
        """
        verb = name.partition("-")[0]
        env, port = dict(self.env), self.port(name)
        if name.endswith("-2"):
            self.set_clock(name, 0)
            env |= {
                "LD_PRELOAD": str(self.folder / "clock.so"),
                "WRONG_CLOCK": str(self._clock(name)),
            }
            env |= {"PYTHONPATH": str(self.landed or ROOT)}
        if verb == "gateway":
            env |= {"LIFECYCLE_GATEWAY__PORT": str(port)}
        elif verb == "worker":
            env |= {"LIFECYCLE_WORKER__HEALTH_PORT": str(port)}
        words = [sys.executable, "-m", "crawler_lifecycle.cli", verb]
        return self._part(name, words, env, answers(f"http://127.0.0.1:{port}/readyz"))

    # --- asking -----------------------------------------------------------------------------------

    def record(self, sql: str, database: str = "lifecycle") -> list[tuple[Any, ...]]:
        """Return the result of a statement, past every proxy. Raises ``RecordAway`` if the
        database is down.
        """
        held = self._local
        try:
            if self.file is not None:
                if getattr(held, "connection", None) is None:
                    held.connection = opened(self.file)
                return list(held.connection.execute(sql))
            if getattr(held, "connection", None) is None:
                where: Any = {"host": "127.0.0.1", "port": self.port("database"), "user": "root"}
                held.connection = pymysql.connect(
                    **where, database=database, connect_timeout=2, read_timeout=5, autocommit=True
                )
            # The first statement is sent before the database has tables.
            held.connection.select_db(database)
            with held.connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        except (pymysql.err.MySQLError, driver.Error) as error:
            held.connection = None
            raise RecordAway(str(error)) from error

    def ask(
        self, gateway: str, method: str, path: str, body: Any, key: str = ""
    ) -> tuple[int | None, dict[str, Any]]:
        """Send one request through the proxy of a gateway, and return the status and the answer, or
        ``None`` if nobody answered.
        """
        url, headers = (
            f"http://127.0.0.1:{self.port(f'proxy of {gateway}')}{path}",
            {"Idempotency-Key": key},
        )
        content = {"content" if isinstance(body, bytes) else "json": body}
        try:
            got = HTTP.request(method, url, headers=headers, timeout=15, **content)
            told = got.json() if got.content else {}
        except (httpx.HTTPError, ValueError) as error:
            return None, {"error": f"{type(error).__name__}: {error}"[:200]}
        return got.status_code, told if isinstance(told, dict) else {"told": told}


def seconds(at: str | datetime) -> float:
    """Return a recorded time in seconds since the epoch. SQLite stores it as text."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return moment.replace(tzinfo=UTC).timestamp()


def opened(file: Path) -> driver.Connection:
    """Open the record on SQLite, with those functions of MariaDB that statements use."""
    connection = connect(file, "rw", timeout=5, isolation_level=None)
    for name in ("NOW", "UTC_TIMESTAMP"):
        connection.create_function(name, 1, lambda _: datetime.now(UTC).isoformat())
    connection.create_function("UNIX_TIMESTAMP", 1, lambda at: at and seconds(at))
    return connection
