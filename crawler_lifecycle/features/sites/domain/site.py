"""Names, limits and free slots of sites, and the sites of a run.

A site is what shares one budget. By default this is a registered domain with all its hosts. An
entry can give one host a budget of its own, and a pattern such as ``*.blogs.example`` gives one to
this host and all hosts below it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, ClassVar, Final, Literal

from crawler_lifecycle.domain.bounds import STRICT, Bound, check_number, refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.hosts import domain_of, host_of, is_address, is_public_suffix
from crawler_lifecycle.domain.pools import Ticket
from crawler_lifecycle.domain.run import SITES_MAX

from .hours import OpenHours

#: The name of the limits for sites without an entry.
DEFAULT = "*"
_PATTERN = "*."
#: What an entry says about the crawl delay of robots.txt.
OBEY: Final = "obey"
IGNORE: Final = "ignore"
#: The maximum number of sites with limits of their own.
LIMITED_MAX = 10_000
_LIMITS = {
    "tasks": Bound(0, 1_000_000, whole=True, or_none=True),
    "requests_per_s": Bound(0.0001, 10_000, "requests a second", or_none=True),
    "connections": Bound(1, 1000, whole=True, or_none=True),
    "rest_s": Bound(1, 86_400, "seconds"),
}


def site_name(text: str) -> str:
    """Return the name of an entry: a host, ``*.host`` or ``*``, in its one form.

    Raises ``InvalidRequest``.
    """
    text = text.strip()
    if text == DEFAULT:
        return text
    if text.startswith(_PATTERN):
        host = text.removeprefix(_PATTERN)
        name = host_of(host, "site") if host else host
        if not name or is_address(name):
            raise refusal("site", text, "give a host after *., such as *.blogs.example")
        if is_public_suffix(name):
            fix = f"anybody can register a domain below {name}; give a pattern for one of these"
            raise refusal("site", text, f"{fix}, such as *.shop.{name}")
        return _PATTERN + name
    return host_of(text, "site")


@functools.lru_cache(20_000)
def candidates(host: str) -> tuple[str, ...]:
    """Return the names of entries that can apply to a host, the closest first, without ``*``.

    Example: ``de.shop.example`` gives ``de.shop.example``, ``*.de.shop.example``,
    ``*.shop.example``, ``*.example`` and ``shop.example``.
    """
    labels = host.split(".")
    below = [".".join(labels[n:]) for n in range(len(labels))]
    patterns = [] if is_address(host) else [_PATTERN + name for name in below]
    return tuple(dict.fromkeys([host, *patterns, domain_of(host)]))


def site_of(host: str, entries: Mapping[str, object]) -> str:
    """Return the site of a host: the closest entry for it, or its registered domain.

    ``entries`` contains at least those of ``candidates`` that exist.
    """
    return next((name for name in candidates(host) if name in entries), domain_of(host))


@dataclass(frozen=True, slots=True)
class SiteLimits:
    """The limits of all runs together on one site. ``None`` means no limit.

    Raises ``InvalidRequest``.
    """

    __pydantic_config__: ClassVar = STRICT

    tasks: int | None = None
    """The maximum number of tasks at once; 0 starts none."""
    requests_per_s: float | None = None
    connections: int | None = None
    """The maximum number of requests in progress at once."""
    rest_s: float = 60.0
    """Seconds for which the site is closed after it refused a request without ``Retry-After``. The
    time doubles while the site keeps refusing.
    """
    hours: str | None = None
    """The time of day in which the site may be visited: ``22:00-06:00 Europe/Berlin``."""
    days_off: str | None = None
    """The days of the month on which the site may not be visited: ``1-10 of the month`` or
    ``1,15,31``. In JSON its key is ``not``.
    """
    crawl_delay: Literal["obey", "ignore"] = OBEY
    """Whether the crawl delay of the site's robots.txt limits its requests: ``obey`` or
    ``ignore``.
    """

    def __post_init__(self) -> None:
        for name, bound in _LIMITS.items():
            check_number(name, getattr(self, name), bound)
        for name, text in (("hours", self.hours), ("not", self.days_off)):
            if text is not None and not isinstance(text, str):
                raise refusal(name, text, "give a text, or leave it out")
        OpenHours.read(self.hours, self.days_off)
        if self.crawl_delay not in (OBEY, IGNORE):
            raise refusal("crawl_delay", self.crawl_delay, f"give {OBEY} or {IGNORE}")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SiteLimits:
        """Return the limits of an entry. Raises ``InvalidRequest``, also for an unknown key."""
        if not isinstance(data, Mapping):
            raise InvalidRequest('give an object, such as {"tasks": 2, "requests_per_s": 10}')
        given = {"days_off" if name == "not" else name: value for name, value in data.items()}
        if unknown := sorted(given.keys() - {f.name for f in fields(cls)}):
            known = ", ".join("not" if f.name == "days_off" else f.name for f in fields(cls))
            raise InvalidRequest(f"{unknown[0]}: unknown; known: {known}")
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """Return the entry with these limits, without those that have no value."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if self.crawl_delay == OBEY:
            del given["crawl_delay"]
        return {"not" if name == "days_off" else name: value for name, value in given.items()}

    @property
    def leased(self) -> bool:
        """True if crawlers need a lease for their requests."""
        return self.requests_per_s is not None or self.connections is not None

    def delay_s(self, crawl_delay: float | None) -> float | None:
        """Return the seconds between two requests if the crawl delay of robots.txt limits the site
        more than its entry does; ``None`` otherwise.
        """
        if crawl_delay is None or self.crawl_delay == IGNORE:
            return None
        rate = self.requests_per_s
        return crawl_delay if rate is None or rate * crawl_delay > 1 else None

    def with_delay(self, crawl_delay: float | None) -> SiteLimits:
        """Return the limits that apply to a site whose robots.txt has this crawl delay."""
        delay_s = self.delay_s(crawl_delay)
        return self if delay_s is None else replace(self, requests_per_s=1 / delay_s)

    def opens_at(self, now: float, closed_until: float = 0.0) -> float:
        """Return when the site may be visited, which is closed until this time: ``now``, or a later
        time.

        Times are seconds since 1970.
        """
        now = max(now, closed_until)
        open_hours = OpenHours.read(self.hours, self.days_off)
        if open_hours is None:
            return now
        here = datetime.fromtimestamp(now, UTC)
        opens = open_hours.next(here)
        # A time that was converted there and back can differ by a microsecond.
        return now if opens == here else opens.timestamp()


UNLIMITED = SiteLimits()


def check_sites(count: int) -> None:
    """Raise ``InvalidRequest`` if an installation has too many entries."""
    if count > LIMITED_MAX:
        raise refusal("sites", count, f"give limits to at most {LIMITED_MAX} sites")


def read_entries(given: object) -> dict[str, SiteLimits]:
    """Return the limits of each site in a setting, by the site's name in its one form.

    Raises ``InvalidRequest``, which names the site, the key, the value and the fix of each error.
    """
    if not isinstance(given, Mapping):
        raise InvalidRequest("give an object that maps each site to its limits")
    check_sites(len(given))
    found: dict[str, SiteLimits] = {}
    wrong: list[str] = []
    for key, limits in given.items():
        try:
            name = site_name(str(key))
            if name in found:
                raise InvalidRequest("given twice; give it once")
            found[name] = limits if isinstance(limits, SiteLimits) else SiteLimits.from_json(limits)
        except InvalidRequest as error:
            wrong.append(f"{key}: {error}")
    if wrong:
        raise InvalidRequest(*wrong)
    return found


def free_slots(limits: SiteLimits, closures: int, tasks: int) -> int | None:
    """Return how many further tasks an open site allows; ``None`` for any number.

    ``tasks`` is the number of tasks that hold a slot of the site. While ``closures`` is above 0,
    the site allows one task, which finds out whether it answers again.
    """
    most = limits.tasks
    if closures:
        most = 1 if most is None else min(most, 1)
    return None if most is None else max(0, most - tasks)


def turns(line: Sequence[Ticket], free: int) -> Counter[int]:
    """Return how many of the free slots each waiting run gets, by the numbers of the runs.

    ``line`` is in the order of the line. The most urgent runs get all their slots first. Runs of
    the same priority get one slot in each turn.
    """
    given = Counter[int]()
    for _, urgent in groupby(line, key=lambda ticket: ticket.priority):
        waiting = list(urgent)
        while waiting and free:
            turn = waiting[:free]
            given.update(ticket.run_id for ticket in turn)
            free -= len(turn)
            waiting = [ticket for ticket in waiting if given[ticket.run_id] < ticket.wanted]
    return given


def hosts_of(
    sites: Sequence[str], args: Mapping[str, str], tasks: Sequence[Mapping[str, str]]
) -> set[str]:
    """Return the hosts that a run visits. ``tasks`` contains the arguments of each task.

    In ``sites``, ``{start_url}`` stands for the hosts in the values of this argument. A run with
    more than ``SITES_MAX`` hosts belongs to no site, and the result is empty. Raises
    ``InvalidRequest``, which names the field, the value and the fix.
    """
    hosts = set[str]()
    texts = set[str]()
    for field, text in _texts(sites, args, tasks):
        if text in texts:
            continue
        texts.add(text)
        hosts.add(host_of(text, field))
        if len(hosts) > SITES_MAX:
            return set()
    return hosts


def _texts(
    sites: Sequence[str], args: Mapping[str, str], tasks: Sequence[Mapping[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield each text that contains a host, after the field in which it was given."""
    for number, text in enumerate(sites):
        if not (text.startswith("{") and text.endswith("}")):
            yield f"sites[{number}]", text
            continue
        name = text[1:-1]
        if name in args:
            yield f"args.{name}", args[name]
        for index, task in enumerate(tasks):
            if name in task:
                yield f"tasks[{index}].args.{name}", task[name]
