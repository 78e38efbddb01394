"""The limits of sites in one crawler process: it leases lanes from the gateway, and calls a
function when a request may begin.

It uses only the standard library, and no crawler framework. One thread asks the gateway. Requests
begin in another thread, unless the caller has an event loop for that (``wake``).
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import itertools
import json
import logging
import math
import os
import random
import secrets
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any
from urllib.parse import quote, urlsplit

logger = logging.getLogger(__name__)
#: Spreads the calls of many tasks.
_CHANCE = random.Random()  # noqa: S311

#: Seconds by which a request may begin after its time (``domain/lanes.py``), including what is not
#: known exactly about this time, and the part of it that is always left.
SLACK_S = 0.05
_LEAST_SLACK_S = 0.02
#: Seconds by which two clocks may move apart in a second. The time is exact below this error. Until
#: then, no request with a timetable begins, and the gateway is asked again soon, at most so often.
_DRIFT = 1e-4
_EXACT_S = 0.02
_EXACT_AFTER_S = 0.05
_HEARD_MAX = 10
#: Further seconds by which it may be sent. The rest of the slack is for the way to the site.
_SEND_S = 0.01
#: Seconds between two reports of refused requests, between two calls about hosts that the gateway
#: does not accept, and between two calls to a gateway that knows no leases.
RETRY_S = 0.7
FREE_S = 60.0
NO_LEASES_S = 5.0
#: The longest time in seconds for which the gateway answers nothing while no site closes.
SILENCE_S = 60.0
#: Seconds in which questions are collected into one call, and by which hosts with lanes are asked
#: about early in the call of another host.
COLLECT_S = 0.02
EARLY_S = 3.0
#: Seconds after which each gateway knows new limits of a site.
NEW_LIMITS_S = 1.2
#: Seconds before the end of a lease in which no request begins.
MARGIN_S = 0.5
#: Seconds after which an unused lane is returned.
IDLE_S = 2.0
#: Seconds for which an unused connection is kept: longer than any pause of a task that waits for a
#: lane, because each gateway has its own line of tasks, and a new connection may lead to another
#: one. Routers silently drop connections that are unused for minutes.
KEEP_S = 30.0
#: The limits for one call: seconds, those of all last ones, hosts, lanes and the size of the
#: answer.
CALL_S = 10.0
LAST_CALL_S = 2.0
HOSTS_MAX = 100
WANTED_MAX = 64
#: The limits for one host in one call: the highest count of a status, the seconds of the longest
#: ``Retry-After``, the number of proxies, the name of the others, and the characters of a name.
COUNT_MAX = 1_000_000
RETRY_AFTER_MAX_S = 86_400.0
PROXIES_MAX = 20
OTHERS = "others"
PROXY_LENGTH_MAX = 255
_ANSWER_MAX = 4 * 1024 * 1024
#: Statuses of a gateway that knows no leases, and of one that does not accept a host or a report.
_UNKNOWN = 404
_REFUSED = (413, 422)
#: The type of problem with which a gateway answers 404 to a path that it does not know.
_NO_PATH = "urn:problem-type:crawler-lifecycle:not_found"
#: The number of entries of a question without a report: ``wanted`` and ``kept``.
_BARE = 2

Begin = Callable[[Any, float], object]
"""Called with the lane of a request that begins, or with ``None`` if it needs no lane, and with the
time of the monotonic clock after which it must not be sent any more.
"""


class GatewayClock:
    """The gateway's clock, compared with the monotonic clock of this process.

    An answer shows the time as exactly as half of its call took, so the fastest call counts.
    """

    def __init__(self) -> None:
        self.error = math.inf
        """The maximum difference to the true time, in seconds."""
        self._ahead = 0.0
        self._heard = 0
        self._heard_at = time.monotonic()

    def hear(self, now: float, sent: float, received: float) -> None:
        """Note the time ``now`` in an answer."""
        ahead = now - (sent + received) / 2
        error = (received - sent) / 2
        self.error += (received - self._heard_at) * _DRIFT
        self._heard_at = received
        self._heard += 1
        if error < self.error or abs(ahead - self._ahead) > error + self.error:
            self._ahead = ahead
            self.error = error

    @property
    def is_exact(self) -> bool:
        """False if another call could show the time more exactly."""
        return self.error < _EXACT_S or self._heard > _HEARD_MAX

    def monotonic(self, now: float) -> float:
        """Return the time of the monotonic clock at this time of the gateway's clock."""
        return now - self._ahead


class Lane:
    """One lane of a site. Times are those of the monotonic clock."""

    def __init__(self) -> None:
        self.begins = 0.0
        self.every = -1.0
        self.until = 0.0
        self.error = 0.0
        self.exact = False
        self.used_at = time.monotonic()
        self.busy = False
        self.leaves = False
        self.leaves_at = math.inf

    def update(self, answer: Any, sent: float, answered: float, clock: GatewayClock) -> None:
        """Take over the answer to a call.

        The lease counts from the time at which the call was sent, so that it never ends too late.
        """
        begins = answered + answer["first_s"]
        every = answer["every_s"]
        if every and every == self.every:
            # The next beginning that is due stays the same one.
            self.begins += (begins - self.begins + every / 2) % every - every / 2
        else:
            self.begins = begins
        self.every = every
        self.error = clock.error
        self.exact = clock.is_exact
        self.until = sent + answer["until_s"]
        self.leaves = self.leaves or answer["leaves"]
        leaves_s = answer.get("leaves_s")
        self.leaves_at = math.inf if leaves_s is None else answered + leaves_s

    def begin_at(self, now: float) -> float | None:
        """Return when the next request may begin; ``None`` if none may begin here any more."""
        self.leaves = self.leaves or now >= self.leaves_at
        if self.busy or self.leaves or (self.every and not self.exact):
            return None
        slack = self._slack()
        if self.every and now > self.begins + slack:
            missed = (now - slack - self.begins) // self.every + 1
            self.begins += missed * self.every
        begins = max(now, self.begins)
        return begins if begins < min(self.until - MARGIN_S, self.leaves_at) else None

    def take(self, now: float, *, exclusive: bool) -> float:
        """Begin a request, and return the time after which it must not be sent any more."""
        latest = self.until - MARGIN_S
        if self.every:
            latest = min(latest, self.begins + self._slack() + _SEND_S)
        self.begins += self.every
        self.busy = exclusive
        self.used_at = now
        return latest

    def _slack(self) -> float:
        return max(_LEAST_SLACK_S, SLACK_S - self.error)


class LeasedHost:
    """The lanes of this process at one host, and the requests that wait for them."""

    def __init__(self) -> None:
        self.site: str | None = None
        """Its site, as the gateway names it; ``None`` until the gateway has answered."""
        self.lanes: dict[int, Lane] = {}
        self.waiting: deque[Begin] = deque()
        self.free = False
        self.exclusive = True
        self.probe = False
        self.call_max = HOSTS_MAX
        """The most hosts in its next call: after a refused call, half of those in that call."""
        self.block: dict[str, Any] | None = None
        self.passed = False
        self.statuses: Counter[str] = Counter()
        self.refused = 0
        """The number of requests that robots.txt did not allow."""
        self.proxies: dict[str, Counter[str]] = {}
        """The part of ``statuses`` that came through each proxy, or directly."""
        self.proxied = False
        """True after the first request through a proxy. Until then, none is counted here."""
        self.ask_at = 0.0
        self.not_before = 0.0
        """The time before which a new request is no reason to ask."""
        self.used_at = time.monotonic()

    def ask_soon(self, now: float) -> None:
        self.ask_at = min(self.ask_at, now + COLLECT_S)

    def question(self, now: float) -> dict[str, Any]:
        """Return what is asked, and forget the lanes that are returned by it."""
        for number, lane in list(self.lanes.items()):
            lane.leaves = lane.leaves or now >= lane.leaves_at
            over = lane.leaves or lane.until <= now
            idle = not self.waiting and now - lane.used_at > max(IDLE_S, 2 * lane.every)
            if not lane.busy and (over or idle):
                del self.lanes[number]
        busy = len(self.waiting)
        busy += sum(
            lane.busy or not (self.exclusive or lane.leaves) for lane in self.lanes.values()
        )
        asked: dict[str, Any] = {"wanted": min(busy, WANTED_MAX), "kept": list(self.lanes)}
        if self.block is not None:
            asked["block"] = self.block
        if self.passed:
            asked["passed"] = True
        if self.statuses:
            asked["statuses"] = _counts(self.statuses)
        if self.refused:
            asked["refused"] = min(self.refused, COUNT_MAX)
        if self.proxies:
            asked["proxies"] = {name: _counts(counts) for name, counts in self.proxies.items()}
        self.block = None
        self.passed = False
        self.refused = 0
        self.statuses = Counter()
        self.proxies = {}
        return asked

    def ask_again(self, asked: dict[str, Any], at: float) -> None:
        """Keep the reports of a call that failed for the next one."""
        self.ask_at = self.not_before = at
        self.block = self.block or asked.get("block")
        self.passed = self.passed or asked.get("passed", False)
        self.statuses.update(asked.get("statuses", {}))
        self.refused += asked.get("refused", 0)
        for proxy, counts in asked.get("proxies", {}).items():
            self.count_of(proxy).update(counts)

    def count_of(self, proxy: str) -> Counter[str]:
        """Return the counter of a proxy. Of too many proxies, the last ones share one."""
        if len(self.proxies) >= PROXIES_MAX:
            proxy = proxy if proxy in self.proxies else OTHERS
        return self.proxies.setdefault(proxy, Counter())

    def answered(self, answer: Any, clock: GatewayClock, sent: float, received: float) -> None:
        """Take over what the gateway answered."""
        # Gateways of older versions do not send the time.
        now = answer.get("now", (sent + received) / 2)
        clock.hear(now, sent, received)
        at = clock.monotonic(now)
        self.site = answer["site"]
        self.call_max = HOSTS_MAX
        self.free = answer["free"]
        self.exclusive = answer["exclusive"]
        self.probe = answer["probe"]
        given = {lane["lane"]: lane for lane in answer["lanes"]}
        for number, lane in given.items():
            self.lanes.setdefault(number, Lane()).update(lane, sent, at, clock)
        for number in self.lanes.keys() - given.keys():
            # The lane belongs to another task now. A request that is in progress there ends.
            self.lanes[number].leaves = True
        pause = answer["ask_s"] * _CHANCE.uniform(0.8, 1.0)
        if answer["closed_s"] > 0:
            pause += _CHANCE.uniform(0.3, 0.6)
        self.ask_at = received + pause
        for lane in self.lanes.values():
            if not lane.leaves:
                self.ask_at = min(self.ask_at, lane.leaves_at)
        usable = self.free or any(not lane.leaves for lane in self.lanes.values())
        self.not_before = received if usable else self.ask_at
        if any(lane.leaves and not lane.busy for lane in self.lanes.values()) or self.block:
            self.ask_soon(received)
        elif given and not clock.is_exact:
            self.ask_at = min(self.ask_at, received + _EXACT_AFTER_S)


class SiteLeases:
    """The leases of this process. Threads may share it.

    ``begin`` calls its function as soon as a request may begin, and ``end`` must be called when the
    request has ended. With ``wake``, the caller begins requests itself: ``wake`` is called in any
    thread when the caller must call ``begin_due``.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        bans: Iterable[int] = (429,),
        wake: Callable[[], object] | None = None,
    ) -> None:
        self._url = urlsplit(url)
        # Each process of a task has its own lanes.
        self._path = f"{self._url.path}?process={secrets.token_hex(4)}"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._bans = frozenset(bans)
        self._clock = GatewayClock()
        self._sites: defaultdict[str, LeasedHost] = defaultdict(LeasedHost)
        self._waiting: set[str] = set()
        self._changed = threading.Condition()
        self._next_ask = 0.0
        self._closed = False
        self._connection: http.client.HTTPConnection | None = None
        self._called_at = 0.0
        self._number = 0
        """The number of the last call."""
        self._repeated: dict[str, dict[str, Any]] = {}
        """The last call, if it got no answer. It is repeated with the same number, because the
        gateway may have counted its reports.
        """
        self._repeat_at = 0.0
        self._known = False
        """True if the gateway has answered with leases. Then a 404 frees no host any more."""
        self._lost = False
        """True if a report was lost."""
        self._watches = False
        """True while a thread waits for closings."""
        self._problem = ""
        self._woken = threading.Event()
        self._wake = wake or self._woken.set
        threading.Thread(target=self._ask_loop, name="crawl-leases", daemon=True).start()
        atexit.register(self.close)
        if wake is None:
            threading.Thread(target=self._begin_loop, name="crawl-begins", daemon=True).start()

    @classmethod
    def from_environment(cls, **more: Any) -> SiteLeases | None:
        """Return the leases of this task, or ``None`` if the installation has no leases."""
        url = os.environ.get("CRAWL_LEASES_URL")
        token = os.environ.get("CRAWL_LEASES_TOKEN")
        return cls(url, token, **more) if url and token else None

    def is_free(self, host: str) -> bool:
        """Return true if a request to this host may begin now, without a lane and without
        ``begin``.
        """
        site = self._sites.get(host)
        if site is None or not site.free:
            return False
        site.used_at = time.monotonic()
        return True

    def is_exclusive(self, host: str) -> bool:
        """Return true if the connections to this host are limited, so that a connection must not
        outlive its request.
        """
        site = self._sites.get(host)
        return site is not None and site.exclusive and not site.free

    def begin(self, host: str, function: Begin) -> None:
        """Call ``function`` as soon as a request to this host may begin."""
        with self._changed:
            now = time.monotonic()
            site = self._sites[host]
            site.used_at = now
            site.waiting.append(function)
            self._waiting.add(host)
            if not site.free and all(lane.leaves for lane in site.lanes.values()):
                self._ask_at(site, max(now + COLLECT_S, site.not_before))
        self._wake()

    def cancel(self, host: str, function: Begin) -> bool:
        """Forget a request that waits. Return false if it does not wait any more."""
        with self._changed:
            site = self._sites.get(host)
            if site is None or function not in site.waiting:
                return False
            site.waiting.remove(function)
            return True

    def end(
        self,
        host: str,
        lane: int | None,
        status: int | None = None,
        retry_after: float | None = None,
        proxy: str | None = None,
    ) -> None:
        """Return the lane of a request that ended with this status, or without a response.
        ``proxy`` is the host and port of its proxy.

        ``retry_after`` are the seconds of ``Retry-After``. A status of ``bans``, or 503 with
        ``retry_after``, closes the site for all tasks. The gateway knows only statuses from 100 to
        599, so others count as ``error``, and as 429 if they close the site.
        """
        with self._changed:
            now = time.monotonic()
            site = self._sites[host]
            held = None if lane is None else site.lanes.get(lane)
            if held is not None:
                held.busy = False
                held.leaves = held.leaves or site.probe
            word = "error" if status is None or not 100 <= status < 600 else str(status)
            site.statuses[word] += 1
            site.proxied = site.proxied or bool(proxy)
            if site.proxied:
                # Its name has only printable characters of ASCII, and no user.
                name = quote(proxy or "direct", ":[]", errors="replace")
                site.count_of(name[:PROXY_LENGTH_MAX])[word] += 1
            if status in self._bans or (status == 503 and retry_after is not None):
                site.block = _block(status, retry_after)
                # Until the gateway has answered, the other hosts of its site are not known.
                hosts = [site] if site.site is None else self._hosts_of({site.site})
                self._pause(hosts, now)
            elif status is not None:
                site.passed = True
            if held is not None and held.leaves:
                self._ask_at(site, now + COLLECT_S)
        if self._waiting:
            self._wake()

    def refuse(self, host: str) -> None:
        """Count a request that robots.txt did not allow."""
        with self._changed:
            self._sites[host].refused += 1

    def ask_anew(self, host: str) -> None:
        """Let requests to a host wait until each gateway knows the limit of its robots.txt."""
        with self._changed:
            site = self._sites[host]
            if not site.lanes:
                site.free = False
                site.not_before = site.ask_at = time.monotonic() + NEW_LIMITS_S
                self._changed.notify_all()

    def post(self, path: str, body: Any) -> tuple[int, bytes]:
        """Send an object to a path below the address of leases. Return the status and the answer.

        Raises ``OSError`` and ``http.client.HTTPException``.
        """
        with contextlib.closing(self._connect(CALL_S)) as connection:
            text = json.dumps(body).encode()
            connection.request("POST", self._url.path + path, text, self._headers)
            response = connection.getresponse()
            return response.status, response.read(_ANSWER_MAX)

    def abandon(self, host: str, lane: int | None) -> None:
        """Return the lane of a request that did not begin."""
        with self._changed:
            site = self._sites.get(host)
            held = None if site is None or lane is None else site.lanes.get(lane)
            if held is not None:
                held.busy = False
        self._wake()

    def begin_due(self) -> float | None:
        """Begin the requests whose time has come. Return the seconds until the next one; ``None``
        if that depends on the gateway or on other requests.
        """
        ready: list[tuple[Begin, int | None, float]] = []
        soonest: float | None = None
        with self._changed:
            now = time.monotonic()
            for host in list(self._waiting):
                site = self._sites[host]
                begins = _begin_some(site, now, ready)
                if begins is not None:
                    soonest = begins if soonest is None else min(soonest, begins)
                if not site.waiting:
                    self._waiting.discard(host)
        for function, lane, latest in ready:
            function(lane, latest)
        return None if soonest is None else max(0.0, soonest - now)

    def close(self) -> None:
        """Return all lanes, and send the last reports."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            asked = {}
            for host, site in self._sites.items():
                held = bool(site.lanes)
                site.waiting.clear()
                question = site.question(time.monotonic())
                if held or len(question) > _BARE:
                    asked[host] = {**question, "wanted": 0, "kept": []}
        self._woken.set()
        if asked:
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                self._report(asked, time.monotonic() + LAST_CALL_S)

    def _report(self, asked: dict[str, dict[str, Any]], until: float) -> None:
        """Send the last reports in as many calls as needed, and the closed sites first. No call
        begins after ``until``.
        """
        calls = deque([sorted(asked, key=lambda host: "block" not in asked[host])])
        with contextlib.closing(self._connect(LAST_CALL_S)) as connection:
            if self._repeated:
                self._call(connection, self._repeated, self._number)
            # The other thread may begin one more call.
            numbers = itertools.count(self._number + 2)
            while calls and time.monotonic() < until:
                hosts = calls.popleft()
                refused = len(hosts) > HOSTS_MAX
                if not refused:
                    questions = {host: asked[host] for host in hosts}
                    status, _ = self._call(connection, questions, next(numbers))
                    refused = status in _REFUSED
                if refused and len(hosts) > 1:
                    half = len(hosts) // 2
                    calls.extend([hosts[:half], hosts[half:]])

    def _hosts_of(self, names: Collection[str]) -> list[LeasedHost]:
        return [site for site in self._sites.values() if site.site in names]

    def _pause(self, sites: Iterable[LeasedHost], now: float) -> None:
        """Begin no further request in the lanes of these hosts, and ask the gateway about them."""
        for site in sites:
            for lane in site.lanes.values():
                lane.leaves = True
            self._ask_at(site, max(now, site.not_before) if site.free else now)
            site.not_before = now + RETRY_S

    def _ask_at(self, site: LeasedHost, at: float) -> None:
        site.ask_at = min(site.ask_at, at)
        if site.ask_at < self._next_ask:
            self._changed.notify_all()

    # --- the gateway ------------------------------------------------------------------------------

    def _ask_loop(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    self._disconnect()
                    return
                now = time.monotonic()
                asked = self._due(now)
                if not asked:
                    times = [site.ask_at for site in self._sites.values()]
                    soonest = self._repeat_at if self._repeated else min(times, default=now + 60)
                    self._next_ask = soonest
                    self._changed.wait(min(max(soonest - now, 0.005), 60.0))
                    self._next_ask = 0.0
                    continue
            self._ask(asked)
            if not self._closed:
                self._wake()

    def _due(self, now: float) -> dict[str, dict[str, Any]]:
        """Return the questions that are due, by host, and forget hosts without any use.

        The host that has been due longest comes first, so that no host waits for others forever.
        """
        asked: dict[str, dict[str, Any]] = {}
        if self._repeated:
            return self._repeated if self._repeat_at <= now else asked
        due = sorted(
            (site.ask_at, host)
            for host, site in self._sites.items()
            if site.ask_at <= (now + EARLY_S if site.lanes else now)
        )
        if not due or due[0][0] > now:
            return asked
        call_max = HOSTS_MAX
        for _, host in due:
            site = self._sites[host]
            if len(asked) >= min(call_max, site.call_max):
                continue
            unused = not (site.waiting or site.lanes or site.statuses or site.block or site.refused)
            if unused and now - site.used_at > FREE_S:
                del self._sites[host]
                continue
            call_max = min(call_max, site.call_max)
            asked[host] = site.question(now)
        return asked

    def _ask(self, asked: dict[str, dict[str, Any]]) -> None:
        sent = time.monotonic()
        status = 0
        answers: Any = {}
        if asked is not self._repeated:
            self._number += 1
        try:
            status, answers = self._send(asked, sent)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._disconnect()
            self._warn(f"{type(error).__name__}: {error}")
        else:
            expected = status in (200, *_REFUSED) or (status == _UNKNOWN and not self._known)
            self._warn("" if expected else f"it answers with status {status}")
        received = self._called_at = time.monotonic()
        with self._changed:
            self._known = self._known or status == 200
            self._repeated = {}
            for host, question in asked.items():
                site = self._sites[host]
                if status == 200 and host in answers:
                    site.answered(answers[host], self._clock, sent, received)
                elif status in _REFUSED:
                    self._refused(host, question, received, hosts=len(asked))
                elif status == _UNKNOWN and not self._known:
                    site.free = True
                    site.ask_at = received + NO_LEASES_S
                else:
                    self._repeated = asked
                    self._repeat_at = received + _CHANCE.uniform(0.5, 1.5)
            if self._has_lanes() and not self._watches:
                self._watches = True
                threading.Thread(target=self._watch, name="crawl-closings", daemon=True).start()

    def _has_lanes(self) -> bool:
        return not self._closed and any(site.lanes for site in self._sites.values())

    def _watch(self) -> None:
        """Pause at once when a site closes, as long as this process has lanes."""
        pause = 0.0
        while self._watches:
            time.sleep(pause)
            names: Collection[str] = ()
            try:
                names, pause = self._closed_sites()
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
                pause = NO_LEASES_S
            with self._changed:
                self._pause(self._hosts_of(names), time.monotonic())
                self._watches = self._has_lanes()

    def _closed_sites(self) -> tuple[list[str], float]:
        """Wait until a site with lanes of this process closes. Return these sites, and the seconds
        after which to call again.
        """
        with contextlib.closing(self._connect(SILENCE_S)) as connection:
            connection.request("GET", f"{self._url.path}/closings", headers=self._headers)
            response = connection.getresponse()
            answer = response.read(_ANSWER_MAX)
        if response.status != 200:  # an older gateway, or one with too many calls
            return [], FREE_S
        names = list(json.loads(answer)["sites"])
        return names, RETRY_S if names else 0.0

    def _send(self, asked: dict[str, dict[str, Any]], now: float) -> tuple[int, Any]:
        """Call the gateway over the last connection, or over a new one if the gateway has closed it
        or if it was unused for long. Return and raise what ``_call`` does.
        """
        if self._connection is not None and now - self._called_at <= KEEP_S:
            with contextlib.suppress(ConnectionError):
                return self._call(self._connection, asked, self._number)
        self._disconnect()
        self._connection = self._connect(CALL_S)
        return self._call(self._connection, asked, self._number)

    def _refused(self, host: str, question: dict[str, Any], now: float, *, hosts: int) -> None:
        """Find out what the gateway does not accept in a call about this many hosts: ask about half
        of them until the host is alone, then without a report. Requests to a host that the gateway
        never accepts need no lane.
        """
        site = self._sites[host]
        site.call_max = max(1, hosts // 2)
        if hosts > 1:
            site.ask_again(question, now)
        elif len(question) > _BARE:
            site.ask_again({}, now)
            if not self._lost:
                self._lost = True
                logger.warning("The gateway refused a report about %s; it is lost", host)
        elif site.site is None:
            site.free = True
            site.ask_at = now + FREE_S
        else:
            self._warn(f"it does not accept {host} any more")
            site.ask_again(question, now + _CHANCE.uniform(0.5, 1.5))

    def _warn(self, problem: str) -> None:
        """Log a problem once, until a call succeeds."""
        if problem and not self._problem:
            logger.warning(
                "No leases from the gateway at %s (%s); requests to sites with limits wait",
                self._url.netloc,
                problem,
            )
        self._problem = problem

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(self._url.hostname or "", self._url.port, timeout=seconds)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _call(
        self, connection: http.client.HTTPConnection, asked: dict[str, dict[str, Any]], number: int
    ) -> tuple[int, Any]:
        """Return the status and the answers by host.

        Raises ``OSError``, ``http.client.HTTPException``, and ``ValueError`` for what another
        server answers, such as an ingress while the gateway starts.
        """
        body = json.dumps({"sites": asked}).encode()
        connection.request("POST", f"{self._path}&call={number}", body, self._headers)
        response = connection.getresponse()
        answer = response.read(_ANSWER_MAX)
        if response.status not in (200, _UNKNOWN):
            return response.status, {}
        found: Any = None
        with contextlib.suppress(ValueError):
            found = json.loads(answer)
        found = found if isinstance(found, dict) else {}
        if response.status == _UNKNOWN and found.get("type") == _NO_PATH:
            return _UNKNOWN, {}
        answers = found.get("sites")
        if response.status != 200 or not isinstance(answers, dict):
            raise ValueError(f"another server answers with status {response.status}")
        return 200, answers

    # --- requests ---------------------------------------------------------------------------------

    def _begin_loop(self) -> None:
        while not self._closed:
            self._woken.clear()
            self._woken.wait(self.begin_due())


def _counts(counter: Counter[str]) -> dict[str, int]:
    return {word: min(count, COUNT_MAX) for word, count in counter.items()}


def _block(status: int | None, retry_after: float | None) -> dict[str, Any]:
    """Return the report of a refused request, as the gateway accepts it."""
    if status is None or not 400 <= status < 600:
        status = 429
    if retry_after is not None:
        retry_after = min(retry_after, RETRY_AFTER_MAX_S) if retry_after >= 0 else None
    return {"status": status, "retry_after_s": retry_after}


def _begin_some(
    site: LeasedHost, now: float, ready: list[tuple[Begin, int | None, float]]
) -> float | None:
    """Add the requests that begin now to ``ready``. Return the time of the next one, if known."""
    while site.free and site.waiting:
        ready.append((site.waiting.popleft(), None, math.inf))
    soonest: float | None = None
    for number, lane in site.lanes.items():
        while site.waiting:
            begins = lane.begin_at(now)
            if begins is None:
                break
            if begins > now:
                soonest = begins if soonest is None else min(soonest, begins)
                break
            latest = lane.take(now, exclusive=site.exclusive)
            ready.append((site.waiting.popleft(), number, latest))
    return soonest
