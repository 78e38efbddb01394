"""Sending items to a manager: page by page, each under a key of its own, so that no repeat adds one twice."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli.client.polling import patiently
from crawler_lifecycle.cli.output import Document, clean, emit, show_facts
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.runs.start import pairs
from crawler_lifecycle.cli.session import Session, current
from crawler_lifecycle.domain.errors import InvalidRequest

from .control import MANAGER
from .items import Args, Format, Item, Source, format_of, pages

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway

REQUEST_ID_MAX = 100

Each = Annotated[Path | None, Parameter(help="one job a line of this JSON Lines or CSV file; - is standard input")]
FormatOption = Annotated[Format | None, Parameter(name="--format", help="of the items; default: by the file's name")]


def add(
    manager: Annotated[int, Parameter(help="the manager's id")],
    /,
    *,
    each: Each = None,
    form: FormatOption = None,
    arg: Annotated[list[str] | None, Parameter(name=["--arg", "-a"], help="argument of one job, name=value")] = None,
    spider: Annotated[str | None, Parameter(help="spider of the job, for managers of a class")] = None,
    tag: Annotated[list[str] | None, Parameter(help="tag of each of them")] = None,
    seal: Annotated[bool, Parameter(negative=(), help="no more will come")] = False,
    request_id: Annotated[str | None, Parameter(help="the same id adds each item once")] = None,
) -> int:
    """Give a manager more jobs; those that are like an earlier one are left out."""
    session = current()
    given = pairs(arg, "-a")
    if each is not None and given:
        raise CommandFailed(Exit.USAGE, "--each and -a exclude each other", None, "give one of them")
    if each is None and not given and not seal:
        raise CommandFailed(Exit.USAGE, "there is nothing to add", None, "give -a name=value, --each FILE or --seal")
    with session.gateway() as gateway:
        sender = Sender(session, gateway, manager, checked_id(request_id), spider=spider, tags=tag or [])
        if each is not None:
            found = gateway.get(MANAGER.path(manager))
            source = Source(each, format_of(each, form), checker(gateway, found.get("crawler")))
            if source.again:
                for _ in source.items():
                    pass
            sender.all(source.items(), seal)
        else:
            sender.page([Item(1, dict(given))] if given else [], seal)
    document = sender.answer()
    facts = [("manager", str(manager)), ("jobs", str(sender.jobs)), ("new", str(sender.new))]
    emit(session, document, names=[manager], table=lambda: show_facts(session, facts))
    session.say(f"next: crawlctl manager describe {manager}")
    return Exit.DONE


class Sender:
    """Sends items to one manager and counts them. Every method raises ``CommandFailed``."""

    def __init__(
        self,
        session: Session,
        gateway: Gateway,
        manager_id: int,
        request_id: str,
        *,
        spider: str | None = None,
        tags: list[str] | None = None,
    ) -> None:
        self._session = session
        self._gateway = gateway
        self._manager_id = manager_id
        self._request_id = request_id
        self._more = ({"spider": spider} if spider else {}) | ({"tags": tags} if tags else {})
        self._pages = 0
        self._told: str | None = None
        self.jobs = 0
        self.new = 0

    def all(self, items: Iterable[Item], seal: bool) -> None:
        """Send all items; with ``seal`` the last page says that no more will come."""
        for page, last in pages(items):
            self.page(page, seal and last)

    def page(self, page: list[Item], seal: bool) -> None:
        """Send one page, through outages of the gateway up to a minute."""
        self._pages += 1
        body: dict[str, object] = {"jobs": [{"spider_args": item.args, **self._more} for item in page], "seal": seal}
        key = f"{self._request_id}/{self._pages}"
        try:
            answer = patiently(
                lambda: self._gateway.post(MANAGER.path(self._manager_id, "/jobs"), body, key),
                lambda failure: self._session.say(f"{failure.what}; trying again"),
            )
        except CommandFailed as failure:
            raise self._explained(failure, page) from None
        self.jobs += len(page)
        self.new += int(answer.get("new") or 0)
        if answer.get("note") and answer["note"] != self._told:
            self._told = str(answer["note"])
            self._session.say(f"manager {self._manager_id}: {clean(self._told)}")

    def answer(self) -> Document:
        """What was sent, for programs."""
        return {"manager_id": self._manager_id, "jobs": self.jobs, "new": self.new}

    def _explained(self, failure: CommandFailed, page: list[Item]) -> CommandFailed:
        """The failure with the line that it is about, and what to do about the rest."""
        place = re.match(r"jobs\[(\d+)\]\.?", failure.what)
        what = failure.what
        if place and int(place[1]) < len(page):
            what = f"line {page[int(place[1])].line}: {what[place.end() :]}"
        told = f"{self.jobs} items before were added"
        again = f"repeat the command with --request-id {self._request_id}: what was added is not added again"
        return CommandFailed(failure.code, what, "; ".join(filter(None, (failure.why, told))), again)


def checked_id(request_id: str | None) -> str:
    """The id that was given, or a new one. Raises ``CommandFailed``."""
    if request_id is not None and (not request_id.isascii() or not 0 < len(request_id) <= REQUEST_ID_MAX):
        cure = f"give 1 to {REQUEST_ID_MAX} characters of ASCII"
        raise CommandFailed(Exit.USAGE, f"--request-id {request_id!r} is not allowed", None, cure)
    return request_id or str(uuid.uuid4())


def checker(gateway: Gateway, crawler: object, base: Args | None = None) -> Callable[[Args], None]:
    """What refuses an item that the crawler would refuse, by the catalogue; without a crawler nothing is refused."""
    if not isinstance(crawler, str):
        return lambda args: None
    found = next((one for one in gateway.crawlers() if one.get("name") == crawler), None)
    if found is None:
        raise CommandFailed(Exit.USAGE, f"there is no crawler {crawler!r}", None, "crawlctl crawler list")
    from pydantic import TypeAdapter

    from crawler_lifecycle.domain.crawlers.arguments import as_text
    from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, effective_args
    from crawler_lifecycle.domain.managers.manager import job_text

    definition = TypeAdapter(CrawlerDefinition).validate_python(found)

    def check(args: Args) -> None:
        given = {**(base or {}), **args}
        try:
            words = {
                name: as_text(value) if isinstance(value, bool) else job_text(f"args.{name}", value)
                for name, value in given.items()
                if value is not None
            }
            effective_args(definition, words)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None

    return check
