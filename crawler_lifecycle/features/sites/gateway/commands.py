"""Commands about sites, for the API and the web UI, and their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import DAY_S, storable
from crawler_lifecycle.domain.hosts import domain_of
from crawler_lifecycle.gateway.runs.commands import CommandResult, existing
from crawler_lifecycle.gateway.runs.requests import SignedBody
from crawler_lifecycle.store.runs.caps import CapStore
from crawler_lifecycle.web.problems import Problem, refused

from ..domain.site import DEFAULT, UNLIMITED, SiteLimits, site_name
from ..ports import SiteRow
from ..store.sites import SiteStore

#: The longest time for which a person can close a site, in seconds.
CLOSED_MAX_S = 30 * DAY_S
REASON_MAX = 200


class PutSite(SignedBody):
    """Body of ``PUT /v1/sites/{site}``: all limits of the site. An omitted limit does not exist."""

    tasks: int | None = None
    requests_per_s: float | None = None
    connections: int | None = None
    rest_s: float | None = None
    hours: Annotated[str, Field(max_length=100)] | None = None
    days_off: Annotated[str, Field(max_length=100)] | None = Field(default=None, alias="not")
    crawl_delay: Literal["obey", "ignore"] | None = None

    def limits(self) -> SiteLimits:
        """Return the limits. Raises ``InvalidRequest``."""
        given = self.model_dump(by_alias=True, exclude_none=True, exclude={"requested_by"})
        return SiteLimits.from_json(given)


class CloseSite(SignedBody):
    """Body of ``POST /v1/sites/{site}/close``: one of the times, and a reason."""

    for_s: Annotated[float, Field(gt=0, le=CLOSED_MAX_S)] | None = None
    until: Annotated[AwareDatetime, AfterValidator(storable)] | None = None
    reason: Annotated[str, Field(min_length=1, max_length=REASON_MAX)] | None = None


class OpenSite(SignedBody):
    """Body of ``POST /v1/sites/{site}/open``. All fields are optional."""

    reason: Annotated[str, Field(min_length=1, max_length=REASON_MAX)] | None = None


@dataclass(eq=False)
class SiteCommands:
    """The commands about one site. All take its name in any form, and raise ``Problem`` or an
    error of the domain.
    """

    store: SiteStore
    caps: CapStore
    clock: Clock

    def find(self, site: str) -> SiteRow:
        """Return the site. Raises ``Problem`` 404, which names the site that the host belongs
        to.
        """
        name = site_name(site)
        row = self.store.get_site(name)
        known = [] if row is not None or DEFAULT in name else self.store.sites_of(name)
        if known:
            raise _elsewhere(name, known[0])
        return existing("site", name, row)

    def put(self, site: str, body: PutSite) -> CommandResult[SiteRow]:
        """Replace the limits of a site. The note names each change."""
        name = site_name(site)
        limits = body.limits()
        before, changed = self.store.set_limits(name, limits, body.requested_by)
        if changed:
            self.caps.adopt()
        note = changes(before, limits) if changed else "Nothing changed."
        return CommandResult(self.find(name), changed, note)

    def delete(self, site: str, by: str | None) -> CommandResult[SiteRow]:
        """Remove the limits of a site. Those for all other sites then apply to it."""
        name = self.find(site).site
        before, changed = self.store.remove_limits(name, by)
        if changed:
            self.caps.adopt()
        note = changes(before, None) if changed else "It has no limits of its own."
        return CommandResult(self.find(name), changed, note)

    def close(self, site: str, body: CloseSite) -> CommandResult[SiteRow]:
        """Close a site for some time, even if no run has visited it yet."""
        name = self._known_or_new(site)
        if name == DEFAULT:
            raise refused("site", "* cannot be closed; close each site", name)
        for_s = body.for_s
        if (for_s is None) == (body.until is None):
            raise refused("for_s", "give one of for_s and until")
        if body.until is not None:
            for_s = (body.until - self.clock()) / timedelta(seconds=1)
            if not 0 < for_s <= CLOSED_MAX_S:
                until = body.until.isoformat()
                text = f"{until} is not allowed; give a time in the next 30 days"
                raise refused("until", text, until)
        assert for_s is not None
        self.store.close_site(name, for_s, _person(body))
        note = "No task starts there, and running tasks pause within a minute."
        return CommandResult(self.find(name), True, note)

    def _known_or_new(self, site: str) -> str:
        """Return the name of a site that exists, or of the one that a host would belong to."""
        name = site_name(site)
        if DEFAULT in name:
            return self.find(name).site
        known = self.store.sites_of(name)
        if known and known[0] != name:
            raise _elsewhere(name, known[0])
        return known[0] if known else domain_of(name)

    def open(self, site: str, body: OpenSite) -> CommandResult[SiteRow]:
        """Open a closed site."""
        name = self.find(site).site
        changed = self.store.open_site(name, _person(body))
        row = self.find(name)
        note = None if changed else "It was not closed."
        if row.state == "outside_hours" and row.opens_at is not None:
            note = f"It is closed outside its hours until {row.opens_at:%Y-%m-%d %H:%M} UTC."
        return CommandResult(row, changed, note)


def _elsewhere(host: str, site: str) -> Problem:
    text = f"site {host!r} does not exist; this host belongs to site {site}"
    return Problem(404, "site_not_found", text)


def changes(before: SiteLimits | None, after: SiteLimits | None) -> str:
    """Return a text that names each limit that differs, such as ``tasks: none → 2``."""
    old = (before or UNLIMITED).to_json()
    new = (after or UNLIMITED).to_json()
    if old == new:
        return "limits removed" if after is None else "limits set"
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(
        f"{name}: {limit_text(old.get(name))} → {limit_text(new.get(name))}" for name in names
    )


def limit_text(value: object) -> str:
    """Return the value of a limit as a person writes it; ``none`` if there is none."""
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _person(body: CloseSite | OpenSite) -> str:
    """Return the text that is recorded about who closed or opened a site, and why."""
    person = body.requested_by or "a person"
    return f"{person}: {body.reason}" if body.reason else person
