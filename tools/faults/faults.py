"""The faults: how each fault affects the harness, for how long, and how its real effect is counted."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from tools.faults.harness import OURS, PROXIED, Harness
from tools.faults.oracle import Fault
from tools.faults.parts import HTTP, Part, children, listens, stat
from tools.soak.journal import read_journals

#: The maximum wait until a fault has affected something.
PATIENCE_S = 40.0
#: The pause between two faults, so that most faults are alone. Other faults overlap with the
#: effects of an earlier fault.
PAUSE_S = (3.0, 9.0)
#: The pause before a long fault, so that crawls execute that began after the last fault.
LONG_PAUSE_S = (25.0, 30.0)
#: The faults of a short test run with the dev server, and the maximum wait until such a fault has
#: affected something.
SHORT_S = 6.0
SERVERS = ("temporal", "postgres", "mariadb", "s3")
KINDS = {
    **dict.fromkeys(("refuse", "reset", "latency", "black hole", "cut"), PROXIED),
    "kill": (*OURS, *SERVERS, "crawler"),
    "freeze": (*OURS, *SERVERS[:3], "crawler"),
    "disk full": ("tasks",),
    "away": ("all of ours",),
    "clock": ("gateway-2", "worker-2"),
}
#: The faults of a test run with long faults: Temporal is down for minutes, and during the last
#: fault nobody observes the cluster.
LONG_KINDS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("long freeze", "long kill", "long black hole", "blind freeze"), ("temporal",)
)


@dataclass
class Strike:
    """A fault in force.

    It counts its effect every ``pause`` seconds until it is over. Connections are counted by
    separate programs.
    """

    label: str
    until: float
    heal: Callable[[], None]
    count: Callable[[dict[str, float]], None]
    did: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    patience: float = PATIENCE_S
    pause: float = 0.5
    _counts_at: float = 0.0

    def over(self) -> bool:
        if (now := time.time()) >= self._counts_at:
            self._counts_at = now + self.pause
            self.count(self.did)
        waits = not any(self.did.values()) and not self.label.startswith("restore")
        return now > self.until + (self.patience if waits else 0)


def storm(harness: Harness, seconds: float, *turns: Callable[[], None]) -> None:
    """Keep everything up for this long, and let each participant act when it is due."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for turn in (harness.tick, *turns):
            turn()
        time.sleep(0.1)


class Faults:
    """Chooses faults by seed.

    The same seed causes the same faults in the same order. Which crawler a kill affects depends on
    which crawlers execute.
    """

    def __init__(
        self, harness: Harness, seed: int, only: str = "", restore: str = "", away: float = 0.0
    ) -> None:
        """Set up the faults. ``away`` is the number of seconds for which Temporal is down, in a
        test run with only such faults.
        """
        self.harness, self.only, self.restore, self.away = harness, only, restore, away
        self.kinds: dict[str, tuple[str, ...]] = LONG_KINDS if away else KINDS
        self.pause = LONG_PAUSE_S if away else PAUSE_S
        self.done: list[Fault] = []
        self.kills: set[tuple[int, int]] = set()
        self._now: Strike | None = None
        self._deck: list[tuple[str, str]] = []
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """Continue with this seed.

        The rest of the previous seed's shuffled faults comes first, so that short test runs cover
        more kinds.
        """
        self.dice = random.Random(f"faults {seed}")
        self._next = time.time() + self.dice.uniform(*self.pause)

    def turn(self, begin: bool = True) -> None:
        """Begin a fault when it is due, and end faults that are over."""
        if self._now is not None:
            if self._now.over():
                self._end(self._now)
        elif begin and time.time() > self._next:
            kind, whom = self._draw()
            label = f"{kind} of {whom}"
            self._now = getattr(self, f"_{kind.removeprefix('long ').replace(' ', '_')}")(
                label, whom
            )
            if self.away:
                self._now.until = time.time() + self.away
            elif self.harness.dev:
                self._now.until, self._now.patience = (
                    min(self._now.until, time.time() + SHORT_S),
                    SHORT_S,
                )
            self.harness.say(f"{label}")

    def _end(self, strike: Strike) -> None:
        strike.heal()
        strike.count(strike.did)
        self._now = None
        fault = Fault(strike.label, strike.began, time.time(), dict(strike.did))
        self.done.append(fault)
        told = (
            ", ".join(f"{value:g} {what}" for what, value in strike.did.items() if value)
            or "NOTHING"
        )
        self.harness.say(f"  {strike.label}, {fault.ended - fault.began:.1f} s: {told}")
        self._next = time.time() + self.dice.uniform(*self.pause)

    def finish(self) -> None:
        """End the fault in force. A long fault ends at once."""
        if self._now is not None and self.away:
            self._now.until = time.time()
        while self._now is not None:
            self.harness.tick()
            self.turn(begin=False)
            time.sleep(0.1)

    def _draw(self) -> tuple[str, str]:
        """Return a kind of fault from a shuffled deck, so that a short test run covers all kinds,
        and a target of the fault.
        """
        if not self._deck:
            none = (
                {"postgres", "all of ours", *OURS} - {*self.harness.ours}
                if self.harness.dev
                else set()
            )
            none |= {"database", "mariadb"} if self.harness.file else set()
            for kind, names in self.kinds.items():
                if whom := [
                    one for one in names if self.only in f"{kind} of {one}" and one not in none
                ]:
                    self._deck.append((kind, self.dice.choice(whom)))
            self.dice.shuffle(self._deck)
            # Not in every test run, because audits come at once after this fault, and repair what
            # another fault left.
            if self.restore:
                self._deck.insert(-1, ("restore", self.restore))
        return self._deck.pop()

    # --- the network ------------------------------------------------------------------------------

    def _wire(
        self, label: str, whom: str, seconds: float, begin: Callable[[], None], what: str, how: str
    ) -> Strike:
        """A fault of a proxy.

        ``how`` determines what it counts: connections that ``ended``, or bytes that ``came`` or
        ``passed``.
        """
        proxies = self.harness.proxies
        last = proxies.connections(whom)
        ended, grown, before = 0, 0, proxies.through(whom)

        def count(did: dict[str, float]) -> None:
            nonlocal last, ended, grown
            now = proxies.connections(whom)
            ended += len(last.keys() - now.keys())
            for peer, (came, went) in now.items():
                old = last.get(peer, (0, 0))
                grown += max(0, came - old[0]) + (max(0, went - old[1]) if how == "passed" else 0)
            last = now
            did[what] = ended if how == "ended" else grown
            if how == "ended":
                did["bytes in ended connections"] = proxies.through(whom) - before

        begin()
        return Strike(label, time.time() + seconds, lambda: proxies.heal(whom), count)

    def _refuse(self, label: str, whom: str) -> Strike:
        """Nobody listens: connections are closed, and no new connections can be made."""
        refused = 0

        def begin() -> None:
            self.harness.proxies.enable(whom, False)

        strike = self._wire(
            label, whom, self.dice.uniform(3, 15), begin, "connections cut", "ended"
        )
        count, port = strike.count, self.harness.port(f"proxy of {whom}")

        def counting(did: dict[str, float]) -> None:
            nonlocal refused
            count(did)
            refused += not listens(port) if time.time() < strike.until else 0
            did["tries of ours refused"] = refused

        strike.count = counting
        return strike

    def _reset(self, label: str, whom: str) -> Strike:
        begin = lambda: self.harness.proxies.toxic(whom, "reset_peer", "upstream", timeout=0)  # noqa: E731
        return self._wire(label, whom, self.dice.uniform(2, 8), begin, "connections reset", "ended")

    def _latency(self, label: str, whom: str) -> Strike:
        late = self.dice.randrange(200, 1500)

        def begin() -> None:
            for stream in ("upstream", "downstream"):
                self.harness.proxies.toxic(whom, "latency", stream, latency=late, jitter=late // 3)

        return self._wire(
            label, whom, self.dice.uniform(5, 15), begin, f"bytes {late} ms late", "passed"
        )

    def _black_hole(self, label: str, whom: str) -> Strike:
        """Bytes go in and none come out, while connections stay open."""

        def begin() -> None:
            for stream in ("upstream", "downstream"):
                self.harness.proxies.toxic(whom, "timeout", stream, timeout=0)

        return self._wire(label, whom, self.dice.uniform(3, 20), begin, "bytes swallowed", "came")

    def _cut(self, label: str, whom: str) -> Strike:
        """Each answer ends in the middle, and so does its connection."""
        size = self.dice.choice((0, 7, 60, 300, 2000))
        begin = lambda: self.harness.proxies.toxic(whom, "limit_data", "downstream", bytes=size)  # noqa: E731
        return self._wire(
            label, whom, self.dice.uniform(3, 8), begin, f"answers cut after {size} bytes", "ended"
        )

    # --- processes --------------------------------------------------------------------------------

    def _alike(self, *whom: str) -> list[Part]:
        """The given parts, and the software that is compared with ours: a fault of one of our
        processes affects that software too.
        """
        beside = self.harness.beside if set(whom) & {*OURS} else []
        return [self.harness.parts[name] for name in (*whom, *beside)]

    def _kill(self, label: str, whom: str) -> Strike:
        if whom == "crawler":
            return self._to_crawler(label, signal.SIGKILL, 0.0)
        parts = self._alike(whom)
        dead = sum(part.kill() for part in parts)
        away = self.away or self.dice.choice((0.0, 0.0, self.dice.uniform(3, 15)))
        for part in parts:
            part.tick()
            part.wanted = not away

        def heal() -> None:
            for part in parts:
                part.wanted = True
                part.wait_ready(self.harness.tick)

        return Strike(
            label, time.time() + away, heal, lambda did: did.update({"processes dead": dead})
        )

    def _freeze(self, label: str, whom: str) -> Strike:
        seconds = self.dice.choice((self.dice.uniform(1, 5), self.dice.uniform(8, 20)))
        if whom == "crawler":
            return self._to_crawler(label, signal.SIGSTOP, seconds)
        parts, began = self._alike(whom), time.time()
        pids = [part.pid for part in parts] + (children(parts[0].pid) if whom == "postgres" else [])
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def count(did: dict[str, float]) -> None:
            if all((found := stat(pid)) and found[0] == "T" for pid in pids[:1]):
                did["seconds stopped"] = round(time.time() - began, 1)

        def heal() -> None:
            count(strike.did)
            for pid in reversed(pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            for part in parts:
                part.wait_ready(self.harness.tick)

        strike = Strike(label, began + seconds, heal, count)
        return strike

    def _blind_freeze(self, label: str, whom: str) -> Strike:
        """Nobody observes the cluster: workers without wake-ups, which are up before Temporal is
        frozen.
        """
        workers = [
            self.harness.parts[name] for name in self.harness.ours if name.startswith("worker")
        ]

        def observe(value: bool) -> None:
            for part in workers:
                part.env |= {"LIFECYCLE_WORKER__WAKE_UPS": str(value).lower()}
                part.kill()
                part.start()
            for part in workers:
                part.wait_ready(self.harness.tick)

        observe(False)
        strike = self._freeze(label, whom)
        thaw = strike.heal

        def heal() -> None:
            thaw()
            observe(True)

        strike.heal = heal
        return strike

    def _to_crawler(self, label: str, number: signal.Signals, seconds: float) -> Strike:
        """A fault of one executing crawler of each side. It counts when the kernel confirms it."""
        live = [
            [c for c in read_journals(journals) if _lives(c.pid, c.start) and not c.end]
            for journals in (self.harness.journals, *self.harness.beside.values())
        ]
        strike = Strike(label, time.time() + seconds, lambda: None, lambda did: None)
        if not live[0]:
            self.harness.say("  no crawler lives; it waits for one")
            strike.count = lambda did: self._late(strike, number, seconds)
            return strike
        victims = [self.dice.choice(of_one) for of_one in live if of_one]
        for victim in victims:
            self.kills.add((victim.pid, victim.start))
            os.kill(victim.pid, number)

        def count(did: dict[str, float]) -> None:
            what = "crawlers dead" if number == signal.SIGKILL else "crawlers stopped"
            states = [
                found[0] if (found := stat(v.pid)) and found[2] == v.start else "X" for v in victims
            ]
            did[what] = max(did.get(what, 0), sum(state in "XZT" for state in states))

        def heal() -> None:
            for victim in victims:
                if _lives(victim.pid, victim.start):
                    os.kill(victim.pid, signal.SIGCONT)

        strike.count, strike.heal = count, heal
        return strike

    def _late(self, strike: Strike, number: signal.Signals, seconds: float) -> None:
        if any(_lives(c.pid, c.start) and not c.end for c in read_journals(self.harness.journals)):
            other = self._to_crawler(strike.label, number, seconds)
            strike.count, strike.heal, strike.until = other.count, other.heal, other.until

    def _away(self, label: str, whom: str) -> Strike:
        """None of our processes executes for a while, and then all of them start at once."""
        parts = self._alike(*self.harness.ours)
        dead = sum(part.kill() for part in parts)
        for part in parts:
            part.tick()
            part.wanted = False

        def heal() -> None:
            for part in parts:
                part.wanted = True
            for part in parts:
                part.wait_ready(self.harness.tick)

        count = lambda did: did.update({"processes dead": dead})  # noqa: E731
        return Strike(label, time.time() + self.dice.uniform(15, 60), heal, count)

    def _restore(self, label: str, whom: str) -> Strike:
        """The record, or Temporal's database, is restored from a copy that is some seconds old,
        while our services are stopped.
        """
        harness, began = self.harness, time.time()
        copy, lost = harness.copy(whom), dict[str, float]()

        def heal() -> None:
            for name in harness.ours:
                harness.parts[name].kill()
            before = harness.rows(whom)
            harness.put_back(whom, copy)
            lost["rows lost"] = before - harness.rows(whom)
            harness.audited()

        return Strike(
            label, began + self.dice.uniform(5, 20), heal, lambda did: did.update(lost), began=began
        )

    def _clock(self, label: str, whom: str) -> Strike:
        """The wall clock of one process jumps, and later returns to the right time.

        The effect is counted by the date of the process's own answers.
        """
        by = self.dice.choice((-600, -3, 3, 600))
        url = f"http://127.0.0.1:{self.harness.port(whom)}/healthz"
        self.harness.set_clock(whom, by)

        def count(did: dict[str, float]) -> None:
            with suppress(httpx.HTTPError, KeyError):
                told = HTTP.get(url, timeout=5).headers["date"]
                off = parsedate_to_datetime(told).timestamp() - time.time()
                if abs(off - by) < 2:
                    did[f"answers dated {by:+d} s"] = did.get(f"answers dated {by:+d} s", 0) + 1

        return Strike(
            label,
            time.time() + self.dice.uniform(10, 20),
            lambda: self.harness.set_clock(whom, 0),
            count,
        )

    # --- the disk ---------------------------------------------------------------------------------

    def _disk_full(self, label: str, whom: str) -> Strike:
        """The disk with the folders of tasks is full. Space that becomes free in the meantime is
        also taken.
        """
        file = self.harness.disk / "ballast"
        out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def count(did: dict[str, float]) -> None:
            if not strike.healed:
                with suppress(OSError):
                    while written := os.write(out, b"\0" * 65536):
                        did["bytes taken"] = did.get("bytes taken", 0) + written
                    return
                with suppress(OSError):
                    did["bytes left"] = 0 * os.write(out, b"\0" * 512)

        def heal() -> None:
            strike.healed = True
            os.close(out)
            Path(file).unlink()

        strike = _Disk(label, time.time() + self.dice.uniform(3, 8), heal, count)
        return strike


@dataclass
class _Disk(Strike):
    pause: float = 0.0
    """Whoever frees a byte must not get it."""
    healed: bool = False


def _lives(pid: int, start: int) -> bool:
    found = stat(pid)
    return found is not None and found[2] == start and found[0] != "Z"
