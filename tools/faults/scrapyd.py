"""``python -m tools.faults.scrapyd --seed S``: faults that exist for scrapyd, and what its status says against /proc.

scrapyd (PyPI) gets a venv of its own beside the programs of the bench. Its jobs are the bench's crawler with the same
journals, its disk is as small, and who is not answered asks again. Its ``listjobs.json`` is read twice a second as
anybody reads it: pending, running, finished; an accepted job that it does not list is over, as far as one can tell.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pymysql

from tests.kubernetes.cluster import binaries
from tools.faults.faults import Faults, storm
from tools.faults.load import PACE_S, Sampler
from tools.faults.oracle import Evidence, figure, table
from tools.faults.parts import Part, answers
from tools.faults.world import SLOTS, SOAK, World
from tools.soak.journal import read_journals

VERSION = "scrapyd==1.6.0"
KINDS: dict[str, tuple[str, ...]] = dict.fromkeys(("kill", "freeze"), ("scrapyd", "crawler")) | {
    "disk full": ("tasks",)
}
#: Of a job that is listed twice the last of these counts.
STATUSES = {"finished": "SUCCEEDED", "pending": "PENDING", "running": "RUNNING"}
#: What scrapyd calls a runner: it becomes the crawler of the soak, under the same process id.
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
    """The interpreter of scrapyd's venv; made where it is not there."""
    folder = binaries.cache_root().with_name("faults") / VERSION
    python = folder / "bin" / "python"
    if not (folder / "bin" / "scrapyd").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", VERSION], check=True)
    return python


class Scrapyd(World):
    """scrapyd alone, with a small disk. Its jobs are read as the bench reads a record."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", flush=True))
        self.dice, self.next, self.count = random.Random(f"load {seed}"), 0.0, 0
        self.asked: dict[str, dict[str, Any]] = {}
        self.accepted: set[str] = set()
        self.listed: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self.port('scrapyd')}"

    def begin(self) -> None:
        (self.folder / "plain.py").write_text(RUNNER)
        # Its queue lies beside the small disk, as our database does: see docs/faults.md for what happens otherwise.
        places = "".join(f"{name}_dir = {self.disk / name}\n" for name in ("logs", "eggs"))
        places += f"dbs_dir = {self.folder / 'dbs'}\n"
        options = f"http_port = {self.port('scrapyd')}\nmax_proc = {SLOTS}\nrunner = plain\n"
        (self.logs / "scrapyd.conf").write_text(f"[scrapyd]\n{options}{places}[settings]\nsoak = none\n")
        env = self.clean | {"PYTHONPATH": str(self.folder), "FILES": str(self.disk / "files")}
        words = [str(program()), "-m", "scrapyd"]
        self.parts["scrapyd"] = Part("scrapyd", words, env, self.logs, answers(f"{self.url}/daemonstatus.json"))
        self.parts["scrapyd"].start()
        self.parts["scrapyd"].wait_ready()

    def turn(self) -> None:
        """Start a job when it is time to, and ask again for those that nobody answered."""
        if time.time() > self.next:
            self.next = time.time() + self.dice.expovariate(1 / PACE_S)
            self.count += 1
            seconds = self.dice.choice([self.dice.uniform(0.2, 3), self.dice.uniform(2, 15), self.dice.uniform(10, 40)])
            args = {"seconds": f"{seconds:.1f}", "how": self.dice.choice(["finished"] * 9 + ["exit:1", "signal:11"])}
            self.asked[str(self.count)] = args | {"journal": str(self.journals), "jobid": str(self.count)}
        for number in list(self.asked):
            with suppress(httpx.HTTPError, ValueError):
                form = {"project": "soak", "spider": "soak", **self.asked[number]}
                told = httpx.post(f"{self.url}/schedule.json", data=form, timeout=2, trust_env=False).json()
                if told["status"] == "ok":
                    self.accepted.add(number)
                    del self.asked[number]

    def record(self, sql: str, database: str = "") -> list[tuple[Any, ...]]:
        """Each accepted job with its status, under our words. Raises what the sampler takes for nobody's answer."""
        known = set(self.accepted)
        try:
            told = httpx.get(f"{self.url}/listjobs.json?project=soak", timeout=5, trust_env=False).json()
            self.listed = {job["id"]: status for name, status in STATUSES.items() for job in told[name]}
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise pymysql.err.OperationalError(str(error)) from error
        return [(int(number), 0, 1, self.listed.get(number, "LOST")) for number in known]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.faults.scrapyd", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    world = Scrapyd(folder := Path(tempfile.mkdtemp(prefix="faults-")), chosen.seed)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        world.make(undo)
        undo.callback(world._end)
        world.begin()
        faults, sampler = Faults(world, chosen.seed), Sampler(world)
        faults.kinds = KINDS
        sampler.start()
        storm(world, 60 * chosen.minutes, world.turn, faults.turn)
        faults.finish()
        storm(world, 45)  # the longest job takes 40 s
        sampler.stop()
        processes = read_journals(world.journals)
    print("\n".join(table(figure(Evidence(faults=faults.done, seen=sampler.untrue, processes=processes)))))
    ran = Counter(str(one.run_id) for one in processes)
    bad = {str(one.run_id) for one in processes if not one.end or one.end.get("reason") != "finished"}
    told = {
        "accepted": len(world.accepted),
        "never begun": len(world.accepted - ran.keys()),
        "executed more than once": sum(times > 1 for times in ran.values()),
        "not listed any more": len(world.accepted - world.listed.keys()),
        "finished as listed, and killed or failed": sum(world.listed.get(one) == "SUCCEEDED" for one in bad),
    }
    print(f"jobs: {told}")


if __name__ == "__main__":
    main()
