"""Judges a manager by the journals that its crawlers keep, and by the kernel's list of processes."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from crawler_lifecycle.cli.client.gateway import Document
from tools.soak.harness import SoakHarness
from tools.soak.journal import Process, clock, read_journals
from tools.soak.strikes import Strike

#: The seconds after the end of a fault within which a manager with free slots must have begun
#: something.
STANDS_STILL_S = 15.0
COUNTED_S = 0.2


class Count:
    """Counts the executing crawlers five times a second, only from the kernel's list."""

    def __init__(self, mark: bytes) -> None:
        self._mark, self._over = mark, threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self.most = self.times = 0

    def __enter__(self) -> Count:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._over.wait(COUNTED_S):
            self.most, self.times = max(self.most, len(crawlers(self._mark))), self.times + 1


def crawlers(mark: bytes) -> list[int]:
    """Return the processes that execute the crawler ``soak`` and have these bytes in their
    environment.
    """
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # The process has ended, or belongs to another user.
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:] == [
                b"-S",
                b"crawler.py",
                b"",
            ]:
                found += [int(pid)] if mark in Path(f"/proc/{pid}/environ").read_bytes() else []
    return found


def judge(
    harness: SoakHarness,
    found: Document,
    jobs: int,
    window: int,
    count: Count,
    killed: Collection[tuple[int, int]],
    strikes: Sequence[Strike],
) -> list[str]:
    """Return everything that is untrue of a manager that has ended, as sentences."""
    crawls = read_journals(harness.journals)
    runs = harness.query("SELECT run_id FROM run_history WHERE crawler = 'soak'")
    began = [crawl.begin for crawl in crawls]
    print(
        f"{len(crawls)} crawls of {len(runs)} runs in {max(began) - min(began):.0f} s; at once: "
        "at most "
        f"{most_at_once(crawls)} by their journals, {count.most} by {count.times} counts"
    )
    wrong = [*of_ledger(crawls, jobs, killed), *stands_still(crawls, window, strikes)]
    if (found["status"], found["outcome"]) != ("COMPLETED", "finished"):
        wrong.append(f"the manager is {found['status']} {found['outcome']}: {found['cause']}")
    for most in (most_at_once(crawls), count.most):
        if most != window:
            wrong.append(
                f"{most} at once, and the window is {window}"
                + ("" if most > window else ": it proves nothing")
            )
    if found["state"] != (right := {"good": jobs} | ({"bad": len(killed)} if killed else {})):
        wrong.append(f"hooks on record are {found['state']}, expected {right}")
    if len(runs) != jobs + len(killed):
        wrong.append(f"{len(runs)} runs of {jobs} jobs, of which {len(killed)} were killed")
    of = "FROM manager_item WHERE manager_id = ? AND retry = 0"
    seqs = [
        row[0] for row in harness.query(f"SELECT seq {of} ORDER BY position", found["manager_id"])
    ]
    if seqs != list(range(1, jobs + 1)):
        wrong.append(f"jobs got their numbers in another order than the source has: {seqs}")
    return wrong


def of_ledger(
    crawls: Sequence[Process], jobs: int, killed: Collection[tuple[int, int]]
) -> Iterator[str]:
    """Check that each job ended exactly once, and that each of its tries was executed once."""
    good = Counter(
        int(crawl.args["number"]) for crawl in crawls if crawl.end and crawl.end.get("code") == 0
    )
    if lost := [number for number in range(jobs) if not good[number]]:
        yield f"lost: {lost}"
    tries = Counter(
        (int(crawl.args["number"]), crawl.args.get("retry_num", "0")) for crawl in crawls
    )
    if doubled := {one: times for one, times in (tries | Counter()).items() if times > 1}:
        yield f"more than once (number, retry): {doubled}"
    if again := {number: times for number, times in good.items() if times > 1}:
        yield f"again after a success: {again}"
    for crawl in crawls:
        if (crawl.end is None) != ((crawl.pid, crawl.start) in killed):
            yield (
                f"nobody killed {crawl}"
                if crawl.end is None
                else f"it was killed and ended: {crawl}"
            )


def stands_still(
    crawls: Sequence[Process], window: int, strikes: Sequence[Strike]
) -> Iterator[str]:
    """Return the times when fewer jobs executed than allowed, and nothing was begun for too long
    although everything was up.
    """
    begins = [crawl.begin for crawl in crawls]
    for one, other in pairwise(begins):
        since = max(
            [one, *(strike.over for strike in strikes if strike.at < other and strike.over > one)]
        )
        if other - since <= STANDS_STILL_S:
            continue
        # A slot may have become free only just before.
        free = [
            at
            for at in sorted(crawl.last for crawl in crawls)
            if _live(crawls, at) < window and one <= at < other
        ]
        if free and other - max(since, free[0]) > STANDS_STILL_S:
            what = ", ".join(
                f"{s.what} {clock(s.at)}-{clock(s.over)}"
                for s in strikes
                if one - 20 < s.at < other
            )
            yield (
                f"it stood still for {other - max(since, free[0]):.1f} s before {clock(other)}: "
                f"{what or 'no strike'}"
            )


def _live(crawls: Sequence[Process], at: float) -> int:
    return sum(crawl.begin <= at < crawl.last for crawl in crawls)


def most_at_once(crawls: Sequence[Process]) -> int:
    """Return the maximum number of crawls that executed at the same moment."""
    steps = sorted([(crawl.begin, 1) for crawl in crawls] + [(crawl.last, -1) for crawl in crawls])
    live = most = 0
    for _, step in steps:
        live += step
        most = max(most, live)
    return most
