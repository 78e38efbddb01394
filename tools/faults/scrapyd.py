"""scrapyd in the harness of the fault tests, next to our service: the same crawls at the same time,
under the same faults.

scrapyd (PyPI) gets its own venv next to the programs of the fault tests. Its jobs execute the
crawler of the fault tests with their own journals, its files are on the same small disk, and
requests without an answer are repeated. Its ``listjobs.json`` is read twice a second, as any client
reads it: pending, running and finished. An accepted job that is not listed counts as ended, because
a client cannot tell more. A reader without an answer keeps the last status.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.kubernetes.cluster import binaries
from tools.faults.harness import SLOTS, SOAK, Harness, RecordAway
from tools.faults.load import USUAL, Rows
from tools.faults.oracle import Evidence, doubled
from tools.faults.parts import Part, answers
from tools.soak.journal import read_journals

VERSION = "scrapyd==1.6.0"
#: If a job is listed twice, the last of these states counts.
STATUSES = {"finished": "SUCCEEDED", "pending": "PENDING", "running": "RUNNING"}
#: The program that scrapyd calls as its runner. It becomes the crawler of the soak, with the same
#: process id.
RUNNER = f"""
import json, os, sys
if sys.argv[1] == "list":
    sys.exit(print("soak"))
args = dict(word.split("=", 1) for flag, word in zip(sys.argv, sys.argv[1:]) if flag == "-a")
number, files = args["_job"], os.environ["FILES"] + "/" + args["_job"]
os.makedirs(files, exist_ok=True)
names = dict(RUN_ID=number, TASK_ID=number, TASK_INDEX="0", ATTEMPT="1", ARGS=json.dumps(args))
names |= dict(FILES_DIR=files, STATS_FILE=files + "/stats.json")
os.environ.update(("CRAWL_" + name, value) for name, value in names.items())
os.execv(sys.executable, [sys.executable, "-S", {str(SOAK / "crawler.py")!r}])
"""


def program() -> Path:
    """Return the interpreter of scrapyd's venv, which is made if it does not exist."""
    folder = binaries.cache_root().with_name("faults") / VERSION
    python = folder / "bin" / "python"
    if not (folder / "bin" / "scrapyd").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", VERSION], check=True)
    return python


class Scrapyd:
    """One scrapyd, the jobs that were requested, and what it reports about them."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.count = harness, 0
        self.journals = harness.folder / "journals of scrapyd"
        self.url = f"http://127.0.0.1:{harness.port('scrapyd')}"
        self.asked: dict[str, dict[str, Any]] = {}
        self.accepted: dict[str, float] = {}
        """Jobs that it took, and when."""
        self.listed: dict[str, str] = {}
        self._over = threading.Event()
        self._asker = threading.Thread(target=self._ask, daemon=True)

    def begin(self) -> None:
        """Start scrapyd, and apply the faults of our service to it."""
        harness = self.harness
        self.journals.mkdir()
        (harness.folder / "plain.py").write_text(RUNNER)
        # Its queue is next to the small disk, as our database is. docs/faults.md describes what
        # happens otherwise.
        places = "".join(f"{name}_dir = {harness.disk / name}\n" for name in ("logs", "eggs"))
        places += f"dbs_dir = {harness.folder / 'dbs'}\n"
        options = f"http_port = {harness.port('scrapyd')}\nmax_proc = {SLOTS}\nrunner = plain\n"
        (harness.logs / "scrapyd.conf").write_text(
            f"[scrapyd]\n{options}{places}[settings]\nsoak = none\n"
        )
        env = harness.clean | {
            "PYTHONPATH": str(harness.folder),
            "FILES": str(harness.disk / "files"),
        }
        words = [str(program()), "-m", "scrapyd"]
        harness.parts["scrapyd"] = Part(
            "scrapyd", words, env, harness.logs, answers(f"{self.url}/daemonstatus.json")
        )
        harness.parts["scrapyd"].start()
        harness.parts["scrapyd"].wait_ready()
        harness.beside["scrapyd"] = self.journals
        self._asker.start()

    def want(self, args: dict[str, str]) -> None:
        """Request a job with these arguments until it is accepted. A job that only a stop ends is
        not requested.
        """
        if float(args["seconds"]) <= USUAL:
            self.count += 1
            self.asked[str(self.count)] = args | {
                "journal": str(self.journals),
                "jobid": str(self.count),
            }

    def _ask(self) -> None:
        while not self._over.wait(0.2):
            for number in list(self.asked):
                with suppress(httpx.HTTPError, ValueError):
                    form = {"project": "soak", "spider": "soak", **self.asked[number]}
                    told = httpx.post(
                        f"{self.url}/schedule.json", data=form, timeout=2, trust_env=False
                    ).json()
                    if told["status"] == "ok":
                        self.accepted[number] = time.time()
                        del self.asked[number]

    def record(self) -> Rows:
        """Return each accepted job with its status, in our terms.

        Raises errors that the sampler treats as a missing answer.
        """
        known = list(self.accepted)
        try:
            told = httpx.get(
                f"{self.url}/listjobs.json?project=soak", timeout=2, trust_env=False
            ).json()
            self.listed = {
                job["id"]: status for name, status in STATUSES.items() for job in told[name]
            }
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise RecordAway(str(error)) from error
        return [(int(number), 0, 1, self.listed.get(number, "LOST")) for number in known]

    def busy(self) -> bool:
        """Return whether scrapyd lists a job that has not ended, or false while it does not answer."""
        try:
            return any(status in ("PENDING", "RUNNING") for *_, status in self.record())
        except RecordAway:
            return False

    def end(self) -> Evidence:
        """Return what is known about its jobs, which have had the time to end."""
        self._over.set()
        self._asker.join()
        with suppress(RecordAway):
            self.record()
        evidence = Evidence(processes=read_journals(self.journals))
        last = {str(one.run_id): one.last for one in evidence.processes}
        lost = [number for number in self.accepted if self.listed.get(number) != "SUCCEEDED"]
        evidence.lost = [last.get(number, self.accepted[number]) for number in lost]
        evidence.doubled = doubled(evidence)
        bad = {
            str(one.run_id)
            for one in evidence.processes
            if not one.end or one.end.get("reason") != "finished"
        }
        told = {
            "accepted": len(self.accepted),
            "never begun": len(self.accepted.keys() - last.keys()),
            "not listed any more": len(self.accepted.keys() - self.listed.keys()),
            "never finished as listed": sum(one in self.listed for one in lost),
            "finished as listed, and killed or failed": sum(
                self.listed.get(one) == "SUCCEEDED" for one in bad
            ),
        }
        self.harness.say(f"jobs of scrapyd: {told}")
        return evidence
