"""Deploys, canaries, roll-backs and deletions of versions of a package, changes of an entry of the
catalogue, and crawls with them.

Each version has other contents: the soak's crawler, and a file with the name of the code. A bad
version always fails, and only canaries try it.
"""

from __future__ import annotations

import io
import os
import random
import time
import zipfile
from typing import Any

from tools.faults.code_oracle import KEYS, spider_of
from tools.faults.code_record import ENTRY, PACKAGE, SPIDERS
from tools.faults.harness import SOAK, RecordAway
from tools.faults.load import Load

#: Seconds between two requests, and of a crawl.
PACE_S = 1.5
SECONDS = (0.3, 4.0)
_VERSIONS = f"/v1/packages/{PACKAGE}/versions"
#: This many known versions stay, so that a deletion never removes the package.
KEPT = 5
#: Files of code that are not modules.
ENDINGS = {"code": "code.txt", "scrapy": "scrapy.cfg"}
SETTINGS = 'SPIDER_MODULES = ["spiders"]'
SPIDER = """
import scrapy
class Shelf(scrapy.Spider):
    name = "{}"
"""
_DONE = (
    "SELECT c.code_digest FROM run_code c JOIN run_history r ON r.run_id = c.run_id "
    f"WHERE r.crawler = '{PACKAGE}' GROUP BY c.code_digest "
    "HAVING MIN(r.status = 'COMPLETED') = 1"
)
_OPEN = "SELECT canary_id, new_version FROM canary WHERE state = 'open'"


def zipped(**files: str) -> bytes:
    """Return a zip with these texts, by the names of their files without the ending."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(ENDINGS.get(name, f"{name}.py"), text)
    return file.getvalue()


class CodeLoad:
    """Sends requests about code at random moments, by seed."""

    def __init__(self, load: Load, entry: dict[str, Any], seed: int) -> None:
        """``entry`` is the entry of the catalogue whose editions are set."""
        self.load, self.entry = load, entry
        self.begin(seed)
        self.good: list[str] = []
        """Accepted versions that are not bad, oldest first."""
        self.newest = ""
        """The version that was accepted last. It is never pruned."""
        self.deleted: set[str] = set()
        self.numbers: list[int] = []
        """Accepted versions of the entry."""
        self.projects: list[str] = []
        """Accepted versions of the Scrapy project."""
        # So that also a test run of seconds has a canary and a roll-back.
        self._first = [
            *(self._deploy, self._set, self._start, self._project, self._start, self._canary),
            *(self._start, self._start, self._start, self._start, self._deploy, self._start),
            *(self._use, self._start, self._use_entry, self._start),
        ]
        self._runs: list[int] = []
        self._stopped: list[int] = []
        self._count = 0
        self._next = 0.0

    def begin(self, seed: int) -> None:
        """Continue with this seed."""
        self.dice = random.Random(f"codes {seed}")

    def turn(self) -> None:
        """Send a request when it is due."""
        if time.time() < self._next:
            return
        self._next = time.time() + self.dice.expovariate(1 / PACE_S)
        if self._first:
            self._first.pop(0)()
            return
        kinds = {
            self._start: 14.0,
            self._deploy: 0.5,
            self._canary: 1.2,
            self._use: 0.8,
            self._delete: 1.0,
            self._other: 0.4,
            self._decide: 0.7,
            self._set: 1.0,
            self._use_entry: 1.0,
            self._stop: 1.0,
            self._resume: 1.0,
            self._age: 0.5,
            self._project: 0.6,
            self._use_project: 0.6,
        }
        action = self.dice.choices([*kinds], [*kinds.values()])[0]
        ends = action in (self._deploy, self._canary, self._use) and self._read(_OPEN)
        # Most canaries are left to the judge.
        (self._start if ends and self.dice.random() < 0.8 else action)()

    def _start(self) -> None:
        crawler = self.dice.choice((PACKAGE, PACKAGE, PACKAGE, ENTRY))
        args = {"seconds": str(round(self.dice.uniform(*SECONDS), 1))}
        tasks = [{"args": args}] * self.dice.choice((1, 1, 2))
        body: dict[str, Any] = {"crawler": crawler, "tasks": tasks, "poll_minutes": [0.1]}
        known = self._known() if crawler == PACKAGE else [str(number) for number in self.numbers]
        if known and self.dice.random() < 0.2:
            body["version"] = self.dice.choice(known)
        self._count += 1
        key = f"{KEYS}{self._count}"
        self.load.ask("start", key, "/v1/runs", body, dice=self.dice, then=self._began)

    def _began(self, told: dict[str, Any]) -> None:
        if told["crawler"] == PACKAGE:
            self._runs.append(int(told["run_id"]))

    def _known(self) -> list[str]:
        return [version for version in self.good if version not in self.deleted]

    def _deploy(self) -> None:
        self._put("deploy")

    def _canary(self) -> None:
        if self.good:
            share = self.dice.choice((0.3, 0.5))
            runs = self.dice.choice((1, 1, 2))
            self._put("canary", f"?canary={share}&canary_runs={runs}", self.dice.random() < 0.5)

    def _put(self, kind: str, params: str = "", bad: bool = False, version: str = "") -> None:
        self._count += 1
        wanted = version or f"v{self._count}"
        name = f"{wanted}/{self._count}{' bad' if bad else ''}"

        def accepted(told: dict[str, Any]) -> None:
            self.newest = wanted
            if not bad and wanted not in self.good:
                self.good.append(wanted)

        about = {"version": wanted, "name": name, "bad": bad}
        path = f"{_VERSIONS}/{wanted}{params}"
        code = zipped(crawler=(SOAK / "crawler.py").read_text(), code=name)
        self._ask(kind, "PUT", path, code, about=about, then=accepted)

    def _other(self) -> None:
        """Deploy other contents under the newest version, which must be refused."""
        if self.newest in self._known():
            self._put("other contents", version=self.newest)

    def _use(self) -> None:
        if known := self._known():
            body = {"version": self.dice.choice(known[-4:])}
            self._ask("use", "POST", f"/v1/packages/{PACKAGE}/use", body)

    def _delete(self) -> None:
        known = self._known()
        if len(known) > KEPT:
            version = self.dice.choice(known[:-KEPT])
            self.deleted.add(version)
            about = {"version": version}
            self._ask("delete version", "DELETE", f"{_VERSIONS}/{version}", None, about=about)

    def _decide(self) -> None:
        """End a canary by hand. A bad version is never accepted."""
        for canary_id, version in self._read(_OPEN):
            kind = self.dice.choice(("accept", "reject")) if version in self.good else "reject"
            path, about = f"/v1/canaries/{canary_id}/{kind}", {"canary": canary_id}
            self._ask(kind, "POST", path, {}, about=about)

    def _set(self) -> None:
        self._count += 1
        edition = f"e{self._count}"
        args = {**self.entry["args"], "edition": {"default": edition}}
        body = {"entry": {**self.entry, "name": ENTRY, "args": args}}

        def accepted(told: dict[str, Any]) -> None:
            self.numbers.append(int(told["number"]))

        path, about = f"/v1/crawlers/{ENTRY}", {"edition": edition}
        self._ask("set entry", "PUT", path, body, about=about, then=accepted)

    def _project(self) -> None:
        """Deploy a Scrapy project, which a worker inspects."""
        self._count += 1
        version = f"v{self._count}"
        cfg = "[settings]\ndefault = settings\n"
        spiders = SPIDER.format(spider_of(version))
        code = zipped(scrapy=cfg, settings=SETTINGS, spiders=spiders)

        def accepted(told: dict[str, Any]) -> None:
            self.projects.append(version)

        path, about = f"/v1/packages/{SPIDERS}/versions/{version}", {"version": version}
        self._ask("project", "PUT", path, code, about=about, then=accepted)

    def _use_project(self) -> None:
        if self.projects:
            body = {"version": self.dice.choice(self.projects[-3:])}
            self._ask("use project", "POST", f"/v1/packages/{SPIDERS}/use", body)

    def _use_entry(self) -> None:
        if self.numbers:
            body = {"number": self.dice.choice(self.numbers[-4:])}
            self._ask("use entry", "POST", f"/v1/crawlers/{ENTRY}/use", body)

    def _stop(self) -> None:
        if self._runs:
            run_id = self._runs[-1]
            self._stopped.append(run_id)
            body = {"requested_by": "faults"}
            self._ask("stop", "POST", f"/v1/runs/{run_id}/stop", body, run_id=run_id)

    def _resume(self) -> None:
        """Resume a stopped or failed run with its own code, or with the newest."""
        if runs := self._stopped or self._runs:
            run_id = runs.pop(0)
            body = self.dice.choice(({}, {"version": "newest"}))
            self._ask("resume", "POST", f"/v1/runs/{run_id}/resume", body, run_id=run_id)

    def _age(self) -> None:
        """Let gateways believe that stored code is old, so that they may remove what nothing needs.
        Code of runs that a person may still resume stays new.
        """
        past = time.time() - 7200
        for (digest,) in self._read(_DONE):
            file = self.load.harness.code / f"{digest.removeprefix('sha256:')}.zip"
            if file.exists():
                os.utime(file, (past, past))

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self.load.harness.record(sql)
        except RecordAway:
            return []

    def _ask(self, kind: str, method: str, path: str, body: Any, **more: Any) -> None:
        self._count += 1
        key = f"code-{self._count}"
        self.load.ask(kind, key, path, body, method=method, dice=self.dice, **more)
