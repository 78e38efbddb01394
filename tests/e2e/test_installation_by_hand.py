"""docs/deployment.md typed as written: MariaDB with two users, S3, and every role in its own
process.

Not from the page are the table of ``Machine``, the Temporal server, and the replacement of systemd:
the units' commands run with their environment files and folder, as the user of the tests.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crawler_lifecycle.cli.stack import processes, temporal_server
from crawler_lifecycle.cli.stack.supervise import Part, Supervisor
from tests.e2e.harness import end_all_below, until
from tests.store.test_installation import DOCS, SECTION, block, here, installed
from tests.support.grants import grants
from tests.support.mariadb import MariaDb
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, Bucket, rclone_s3

__all__ = ["installed"]

ETC, VAR, BIN = "/etc/crawler-lifecycle", "/var/lib/crawler-lifecycle", "/opt/crawler-lifecycle/bin"
ROLES = ["workflows", "cluster", "control", "export", "audit"]
#: Variables of the tests' environment that would be settings of the installation.
FOREIGN = ("LIFECYCLE_", "TEMPORAL_", "AWS_", "CRAWL_", "OTEL_")


def ports_in_a_row(count: int) -> int:
    """Return the port before a row of free ones."""
    while True:
        first = processes.free_port()
        if all(processes.is_free(first + more) for more in range(1, count + 1)):
            return first


@dataclass
class Machine:
    """A machine in a folder.

    ``table`` contains what a reader fills in, and folders and ports that differ here.
    """

    folder: Path
    database: MariaDb
    bucket: Bucket
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("temporal", "gateway", "scheduler"):
            self.ports[name] = processes.free_port()
        self.table = {
            "TEMPORAL-HOST:7233": f"127.0.0.1:{self.ports['temporal']}",
            "DATABASE-HOST:3306": f"127.0.0.1:{self.database.port}",
            "https://S3-HOST": self.bucket.server.url,
            "s3://BUCKET": f"s3://{self.bucket.name}",
            "=KEY-OF-S3": f"={ACCESS_KEY}",
            "=SECRET-OF-S3": f"={SECRET_KEY}",
            "SECRET-OF-SCHEDULER": secrets.token_hex(32),
            "SECRET-OF-TASKS": secrets.token_hex(32),
            "SECRET-OF-LOGINS": secrets.token_hex(32),
            "http://127.0.0.1:8500": f"http://127.0.0.1:{self.ports['gateway']}",
            "port=8700": f"port={ports_in_a_row(len(ROLES))}",
            BIN: str(self.folder / "bin"),
            ETC: str(self.folder / "etc"),
            VAR: str(self.folder / "var"),
        }
        for name in ("etc", "var", "bin", "home"):
            (self.folder / name).mkdir()
        self._program("crawlctl", f'exec {sys.executable} -m crawler_lifecycle.cli "$@"')
        self._program(
            "systemctl",
            f'[ "$1 $2" = "enable --now" ] && shift 2 && printf "%s\\n" "$@" >> {self.folder}/units',
        )
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        path = f"{self.folder / 'bin'}:{clean['PATH']}"
        self.environment = clean | {
            "PATH": path,
            "HOME": str(self.folder / "home"),
            "NO_COLOR": "1",
        }
        self.supervisor = Supervisor(
            self.folder / "logs", say=lambda line: None, changed=lambda: None
        )

    def _program(self, name: str, script: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def filled(self, text: str) -> str:
        for word, ours in self.table.items():
            text = text.replace(word, ours)
        return text

    def type(self, text: str) -> str:
        """Type these lines into a shell in the home folder, until one fails. Return their output."""
        words = ["bash", "-eu", "-o", "pipefail", "-c", self.filled(text)]
        home = self.folder / "home"
        done = subprocess.run(
            words, env=self.environment, cwd=home, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        return done.stdout

    def start_temporal(self) -> None:
        """Start a plain server, in which our workers have to register their search attributes."""
        port = self.ports["temporal"]
        words = temporal_server.command(self.folder / "temporal.db", port, None)
        plain = [
            word
            for before, word in zip(["", *words], words, strict=False)
            if "--search-attribute" not in (before, word)
        ]
        self.supervisor.start(
            [Part("temporal", plain, temporal_server.health(port), self.environment)]
        )
        self.supervisor.wait_healthy(["temporal"], 120)

    def start_unit(self, name: str, template: str) -> None:
        """Start a systemd unit: ``NAME@ROLE``, or one that is the same with another command."""
        before, _, instance = name.partition("@")
        verb = before.removeprefix("crawler-lifecycle-")
        unit = self.filled(template if instance else template.replace("worker %i", verb)).replace(
            "%i", instance or verb
        )
        command = re.findall(r"^ExecStart=(.*)$", unit, re.M)[0].split()
        env = dict(self.environment)
        for optional, file in re.findall(r"^EnvironmentFile=(-?)(.*)$", unit, re.M):
            if not optional or Path(file).exists():
                env |= dict(line.split("=", 1) for line in Path(file).read_text().splitlines())
        port = env["LIFECYCLE_WORKER__HEALTH_PORT"] if instance else self.ports[verb]
        folder = Path(re.findall(r"^WorkingDirectory=(.*)$", unit, re.M)[0])
        self.supervisor.start(
            [Part(name, command, f"http://127.0.0.1:{port}/readyz", env, folder, grace_s=35)]
        )

    def end(self) -> None:
        """End the services, then the server that they need to exit; nothing of them is left."""
        self.supervisor.stop(name for name in self.supervisor.pids() if name != "temporal")
        self.supervisor.close()
        end_all_below(self.folder)


@pytest.fixture
def server(mariadb: MariaDb) -> MariaDb:
    """The database server of ``installed``."""
    return mariadb


@pytest.fixture
def machine(installed: MariaDb, tmp_path: Path) -> Iterator[Machine]:
    with rclone_s3() as storage:
        ready = Machine(tmp_path, installed, storage.bucket())
        try:
            yield ready
        finally:
            ready.end()


def test_a_run_a_stop_and_an_archive(machine: Machine) -> None:
    page = (DOCS / "deployment.md").read_text()
    section = page[page.index(f"\n{SECTION}\n") + 1 :].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.S | re.M)
    assert [language for language, _ in blocks] == ["sql", "bash", "sh", "yaml", "bash", "bash"]
    schema, environment, catalogue, units, use = (text for _, text in blocks[1:])
    machine.start_temporal()

    upgrade, check = schema.splitlines()
    machine.type(upgrade)
    for grant in grants("services"):
        machine.database.execute(here(grant))
    machine.type(check)

    etc = machine.folder / "etc"
    scheduler = machine.ports["scheduler"]  # the usual ports may be taken here
    ports = f"LIFECYCLE_SCHEDULER__PORT={scheduler}\nLIFECYCLE_SCHEDULER__URL=http://127.0.0.1:{scheduler}\n"
    ports += f"LIFECYCLE_GATEWAY__PORT={machine.ports['gateway']}\n"
    (etc / "environment").write_text(machine.filled(environment) + ports)
    (etc / "crawlers.yaml").write_text(catalogue)
    machine.type(units)
    started = (machine.folder / "units").read_text().splitlines()
    template = "\n".join(block("deployment.md", "## systemd", "ini"))
    roles = [f"crawler-lifecycle@{role}" for role in ROLES]
    assert started == ["crawler-lifecycle-scheduler", "crawler-lifecycle-gateway", *roles]
    for unit in started:
        machine.start_unit(unit, template)
    machine.supervisor.wait_healthy(timeout_s=240)

    first, download = use.replace(
        "crawlctl doctor", "crawlctl doctor -o json > doctor.json"
    ).rsplit("crawlctl export", 1)
    machine.type(first)
    home = machine.folder / "home"
    checks = json.loads((home / "doctor.json").read_text())["checks"]
    assert {"temporal", "database", "archive"} <= {line["check"] for line in checks}
    runs = "SELECT run_id, status, outcome FROM lifecycle.run_history ORDER BY run_id"
    assert machine.database.execute(runs) == (
        (1, "COMPLETED", "finished"),
        (2, "FAILED", "cancelled"),
    )
    exported = "SELECT 1 FROM lifecycle.export_record WHERE run_id = 1 AND url IS NOT NULL"
    until(lambda: machine.database.execute(exported), "the first one's archive", 120)
    before = use[: use.index("crawlctl doctor")]  # a separate shell needs address and token again
    machine.type(f"{before}crawlctl export{download}")
    (file,) = home.glob("*.zip")
    (key,) = (key for key in machine.bucket.keys() if key.startswith("archive/1-"))  # noqa: SIM118
    assert file.read_bytes() == machine.bucket.read(key)
    assert any(name.endswith("items.jsonl") for name in zipfile.ZipFile(file).namelist())
