"""A crawler that behaves as its arguments say and keeps its own journal, which is the truth for a
soak.

Every process writes one file of JSON lines, outside the folders of the service: its ``begin``, a
``beat`` five times a second while it executes, every stop ``signal``, and its ``end`` just before
it ends as its arguments say. A process that is killed has no ``end``, and its last beat shows until
when it executed. It uses only the standard library.

The arguments are ``journal`` (folder), ``seconds``, ``how`` (see ``finish``), ``deaf`` (it ignores
SIGTERM), ``needs`` (MiB of memory at its end), ``site`` (the host of its requests, which keep the
limits of the site), and ``refused`` (the site refuses the next request for this many seconds).

A deployed copy has a file ``code.txt`` next to it, whose text names the code in the journal. Code
whose name ends with ``bad`` always fails.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time

BEAT_S = 0.2
#: The seconds for which it keeps the memory that it needs. Processes that watch its memory read it
#: twice a second.
HELD_S = 4.0
ANSWER_S = 0.1
#: The end of a crawl whose code is bad.
BAD_END = "exit:1"


def code_name():
    """Return the name of the code that this process executes; empty if it was not deployed."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "code.txt")
    if not os.path.exists(place):
        return ""
    with open(place) as file:
        return file.read()


class Journal:
    """A file to which lines are appended by single writes."""

    def __init__(self, folder, args):
        with open("/proc/self/stat") as file:
            start = int(file.read().rpartition(")")[2].split()[19])
        me = {
            name: int(os.environ[f"CRAWL_{name.upper()}"])
            for name in ("run_id", "task_index", "attempt", "task_id")
        }
        name = f"{me['run_id']}-{me['task_index']}-{me['attempt']}-{os.getpid()}-{start}.jsonl"
        self.file = os.open(
            os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        me |= {"pid": os.getpid(), "start": start, "runner": os.getppid(), "code": code_name()}
        self.say("begin", args=args, **me)

    def say(self, what, **more):
        line = json.dumps({"at": time.time(), "what": what, **more}) + "\n"
        os.write(self.file, line.encode())


class Crawl:
    def __init__(self, args):
        self.args = args
        self.journal = Journal(args["journal"], args)
        self.pages = 0
        self.heard = False
        self.told = 0.0
        # Its folder may be removed while it executes.
        place = os.path.join(os.environ["CRAWL_FILES_DIR"], "items.jsonl")
        try:
            self.items = open(place, "a", buffering=1)  # noqa: SIM115
        except FileNotFoundError:
            self.items = open(os.devnull, "a")  # noqa: SIM115
        signal.signal(signal.SIGTERM, self.hear)

    def hear(self, number, frame):
        self.journal.say("signal", number=number)
        self.heard = True

    def run(self):
        if "site" in self.args:
            threading.Thread(target=lambda: asyncio.run(self.visit()), daemon=True).start()
        end = time.monotonic() + float(self.args["seconds"])
        while time.monotonic() < end:
            if self.heard and not self.args.get("deaf"):
                time.sleep(0.1)  # This lets it receive a second signal.
                self.tell(finish_reason="shutdown")
                self.journal.say("end", code=11, reason="shutdown", pages=self.pages)
                return 11
            self.journal.say("beat")
            self.items.write('{"item": 1}\n')
            self.pages += 1
            if time.monotonic() - self.told > 0.7:
                self.tell()
            time.sleep(min(BEAT_S, max(0.0, end - time.monotonic())))
        if "needs" in self.args:
            self.eat(int(self.args["needs"]))
        how = BAD_END if code_name().endswith("bad") else self.args["how"]
        return self.finish(*how.split(":"))

    async def visit(self):
        """Send one request after the other to the site, whenever it may."""
        from crawl_runner_leases import SiteLeases
        from crawl_runner_turns import turn_at

        host = self.args["site"]
        refused = float(self.args.get("refused", 0))
        leases = SiteLeases.from_environment()
        while True:
            lane = await turn_at(leases, host)
            self.journal.say("request")
            await asyncio.sleep(ANSWER_S)
            if refused:
                self.journal.say("refused")
            self.journal.say("answer")
            leases.end(host, lane, 429 if refused else 200, refused or None)
            refused = 0

    def eat(self, mebibytes):
        """Allocate this much memory, and keep it. If the system gives less, it keeps what it has."""
        self.journal.say("hungry", needs=mebibytes)
        held = []
        with contextlib.suppress(MemoryError):
            for _ in range(mebibytes):
                held.append(b"x" * 2**20)
        until = time.monotonic() + HELD_S
        while time.monotonic() < until:
            self.journal.say("beat")
            time.sleep(BEAT_S)

    def finish(self, kind, value=""):
        """End in this way: ``finished``; ``exit:N``; ``silent:N`` (without a report);
        ``reason:WORD``; ``signal:N``; ``lost``.
        """
        if kind == "lost":  # The runner dies before it can write its summary.
            self.journal.say("lost")
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(0.5)
            return 0
        if kind == "signal":
            self.journal.say("end", signal=int(value), pages=None)
            signal.signal(int(value), signal.SIG_DFL) if int(value) != signal.SIGKILL else None
            os.kill(os.getpid(), int(value))
            time.sleep(5)
        reason = {"finished": "finished", "reason": value}.get(kind)
        code = int(value) if kind in ("exit", "silent") else 0
        if kind != "silent":
            self.tell(**({"finish_reason": reason} if reason else {}))
        self.journal.say(
            "end", code=code, reason=reason, pages=None if kind == "silent" else self.pages
        )
        return code

    def tell(self, **more):
        stats = os.environ["CRAWL_STATS_FILE"]
        with contextlib.suppress(FileNotFoundError):
            with open(stats + ".new", "w") as file:
                json.dump({"pages": self.pages, "items": self.pages, "errors": 0, **more}, file)
            os.replace(stats + ".new", stats)
        self.told = time.monotonic()


if __name__ == "__main__":
    code = Crawl(json.loads(os.environ["CRAWL_ARGS"])).run()
    sys.stdout.flush()
    os._exit(code)
