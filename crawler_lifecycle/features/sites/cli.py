"""``crawlctl site``: the limits that all runs on a site share, and its closures."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import crawler_lifecycle.runner
from crawler_lifecycle.cli.inputs import filled
from crawler_lifecycle.cli.output import emit, show_facts, show_list, show_rows
from crawler_lifecycle.cli.problems import WrongUsage
from crawler_lifecycle.cli.session import current, seconds, time_of
from crawler_lifecycle.cli.subjects import By, Kind, Limit, Reason, Search
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.subjects import SITE, SITE_ROBOTS, SITE_RUN

KIND = Kind(SITE)
Name = Annotated[
    str, Parameter(help="the site: a domain, a host, *.HOST, or * for all other sites")
]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of a site.

    Parameters
    ----------
    tasks
        maximum number of tasks at once; 0 starts none
    requests_per_s
        maximum requests per second, of all runs together
    connections
        maximum number of requests in progress
    rest_s
        seconds for which the site stays closed after it refused a request without Retry-After
        (default: 60); they double
    hours
        when it may be visited, such as "22:00-06:00 Europe/Berlin"
    days_off
        days of the month on which it may not, such as 1-10
    crawl_delay
        whether the crawl delay of its robots.txt limits it (default: obey)
    """

    tasks: int | None = None
    requests_per_s: float | None = None
    connections: int | None = None
    rest_s: float | None = None
    hours: str | None = None
    days_off: Annotated[str | None, Parameter(name="--not")] = None
    crawl_delay: Literal["obey", "ignore"] | None = None


_NONE = LimitOptions()


def list_sites(
    *,
    search: Search = None,
    show: Literal["closed", "limited", "busy"] | None = None,
    limit: Limit = 50,
) -> None:
    """List the sites that runs have visited or that have limits.

    Parameters
    ----------
    show
        only closed sites, those with limits of their own, or those with requests in the last 24
        hours
    """
    empty = "no sites; next: crawlctl site set --help"
    show_list(
        "/v1/sites", SITE.columns, key="site", empty=empty, limit=limit, search=search, show=show
    )


def show(site: Name, /) -> None:
    """Show the limits and the state of a site, and what happened on it in the last hour."""
    with current().gateway() as gateway:
        found = gateway.get(KIND.path(site))

    def table() -> None:
        show_facts(SITE.known(found))
        if found["robots"]:
            print()
            show_rows(found["robots"], SITE_ROBOTS.columns, empty="")
        if found["runs"]:
            print()
            show_rows(found["runs"], SITE_RUN.columns, empty="")

    emit(found, names=[found["site"]], table=table)


def set_limits(
    site: Name, /, *, limits: Annotated[LimitOptions, Parameter(name="*")] = _NONE, by: By = None
) -> None:
    """Set the limits of a site. They replace all limits that it has."""
    given = {
        "tasks": limits.tasks,
        "requests_per_s": limits.requests_per_s,
        "connections": limits.connections,
        "rest_s": limits.rest_s,
        "hours": limits.hours,
        "not": limits.days_off,
        "crawl_delay": limits.crawl_delay,
    }
    body = filled(given)
    if not body:
        raise WrongUsage("no limit is given", "crawlctl site set --help")
    with current().gateway() as gateway:
        KIND.print_facts(gateway.put(KIND.path(site), {**body, "requested_by": by or user()}))


def delete(site: Name, /) -> None:
    """Remove the limits of a site. Those of * then apply to it."""
    with current().gateway() as gateway:
        KIND.print_facts(gateway.delete(KIND.path(site)))


def close(
    site: Name,
    /,
    *,
    time: str | None = None,
    until: str | None = None,
    reason: Reason = None,
    by: By = None,
) -> None:
    """Close a site for all runs: no task starts on it, and those that execute pause.

    Parameters
    ----------
    time
        how long, such as 30m; default: 1h
    until
        the time at which it opens again
    """
    if time is not None and until is not None:
        raise WrongUsage("--time: not allowed with --until", "give one of them")
    when = (
        {"for_s": seconds(time or "1h")} if until is None else {"until": time_of("--until", until)}
    )
    body = {**when, "reason": reason, "requested_by": by or user()}
    KIND.post(site, "close", body)


def open_site(site: Name, /, *, reason: Reason = None, by: By = None) -> None:
    """Open a closed site for all runs."""
    body = {"reason": reason, "requested_by": by or user()}
    KIND.post(site, "open", body)


def proxy(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    port: int = 0,
) -> None:
    """Run a crawler whose requests wait until their sites allow them.

    The crawler gets the address of a proxy in HTTP_PROXY and HTTPS_PROXY. Use this in the command
    of a catalogue entry: `command: [crawlctl, site, proxy, --, node, main.js]`.

    Parameters
    ----------
    command
        the crawler with its arguments, after `--`; without one, the proxy prints its address and
        serves until it is stopped
    port
        the port on 127.0.0.1; 0 is any free port
    """
    runner = Path(crawler_lifecycle.runner.__file__).parent
    script = str(runner / "inject" / "crawl_runner_proxy.py")
    crawler = ["--", *command] if command else []
    os.execv(sys.executable, [sys.executable, script, "--port", str(port), *crawler])  # noqa: S606
