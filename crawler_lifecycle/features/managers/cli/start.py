"""``crawlctl manager start`` and ``add``.

Items are sent in pages, each with its own idempotency key.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from crawler_lifecycle.cli.client.polling import Polling
from crawler_lifecycle.cli.inputs import Given, Settings, filled, pairs
from crawler_lifecycle.cli.output import as_json, clean, emit, say_note, show_facts
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import By, End, Project, is_news
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.status_words import status_word
from crawler_lifecycle.subjects import Cell, Document

from ..domain.manager import PAGE_ITEMS
from .items import Args, Format, Item, Source, format_of, pages
from .verbs import MANAGER, ManagerId

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway
    from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition

#: Seconds to wait until a worker starts the next attempt of a manager that had ended.
ATTEMPT_S = 120.0
REQUEST_ID_MAX = 100

Each = Annotated[
    Path | None, Parameter(help="JSON Lines or CSV file with one job per line; - is standard input")
]
FormatOption = Annotated[
    Format | None,
    Parameter(name="--format", help="format of the items; the default depends on the file name"),
]


def start(
    plan: str | None = None,
    /,
    *argv: str,
    crawler: str | None = None,
    each: Each = None,
    form: FormatOption = None,
    arg: Given = None,
    setting: Settings = None,
    max_running: int | None = None,
    max_per_key: str | None = None,
    retries: int | None = None,
    retry_delay: float | None = None,
    pool: str | None = None,
    version: str | None = None,
    keep_open: bool = False,
    name: str | None = None,
    flow: str | None = None,
    tag: list[str] | None = None,
    parent: str | None = None,
    request_id: str | None = None,
    project: Project = None,
    by: By = None,
    wait: End = False,
    watch: bool = False,
    dry_run: bool = False,
) -> int:
    """Start a crawl manager for a class, or for a crawler that runs once for each item.

    Parameters
    ----------
    class
        class of a user-code worker, as module:Class (crawlctl manager plan)
    argv
        options of the class, given after --
    crawler
        run this crawler once for each item, instead of a class
    arg
        argument of every run, as name=value
    max_running
        at most this many runs at once
    max_per_key
        limit of runs with the same argument at once, for example domain=2
    retries
        retry a failed job at most this many times
    retry_delay
        seconds before each retry
    pool
        pool of every run (crawlctl pools); the default is the crawler's pool
    version
        version of the crawler's package for every run; the default is the current one
    keep_open
        more items come later (crawlctl manager add)
    name
        name of the manager; the default is the name of the class or crawler
    flow
        flow id; the same id continues a manager that has ended
    tag
        tag of the manager and of its runs
    parent
        id of the workflow to notify when the manager ends
    request_id
        the same id never starts a second manager
    watch
        wait, and print a line for each change
    dry_run
        only show the request
    """
    key = checked_id(request_id)
    given = {
        "args": pairs(arg, "-a"),
        "settings": pairs(setting, "-s"),
        "max_running": max_running,
        "max_per_key": _per_key(max_per_key),
        "retries": retries,
        "retry_delay_s": retry_delay,
        "pool": pool,
        "version": version,
    }
    options = filled(given)
    _check_call(plan, crawler, each, options)
    request: dict[str, Any] = {
        "plan": plan,
        "argv": list(argv),
        "crawler": crawler,
        "options": options,
        "name": name,
        "flow_id": flow,
        "tags": tag,
        "parent": parent,
        "project": project,
        "requested_by": by or user(),
    }
    request = filled(request)
    if dry_run:
        emit(request, names=[key], table=lambda: print(as_json(request)))
        return Exit.DONE
    with current().gateway() as gateway:
        if plan is not None:
            request["plan"] = full_name(gateway, plan)
        started, sent = _started(gateway, request, key, each, form, seal=not keep_open)
        manager_id = int(started["manager_id"])
        say_note(started, f"manager {manager_id}")
    # With a flow, the response may show the end of the previous attempt, which must be ignored.
    before = started if flow else None
    if watch or wait:
        return MANAGER.follow(manager_id, watch=watch, after=before)
    facts: list[tuple[str, Cell]] = [
        *((field, started.get(field)) for field in ("manager_id", "workflow_id")),
        ("status", status_word(started)),
    ]
    facts += [("items", f"{sent.jobs:,}, {sent.new:,} of them new")] if sent else []
    emit(started, names=[manager_id], table=lambda: show_facts(facts))
    more = (
        ""
        if not crawler or (each and not keep_open)
        else f"crawlctl manager add {manager_id} --each FILE --seal · "
    )
    say(f"next: {more}crawlctl manager watch {manager_id} · crawlctl manager stop {manager_id}")
    return Exit.DONE


def _started(
    gateway: Gateway,
    request: dict[str, Any],
    key: str,
    each: Path | None,
    form: Format | None,
    *,
    seal: bool,
) -> tuple[dict[str, Any], Sender | None]:
    """Start the manager and send its items. All items of a file are checked first."""
    if each is None:
        return gateway.start(request, key, "manager"), None
    base = request.get("options", {}).get("args", {})
    source = Source(each, format_of(each, form), checker(gateway, request["crawler"], base))
    items = source.all_checked()
    first = list(islice(items, PAGE_ITEMS))
    if not first:
        raise WrongUsage(f"--each {each} has no items", "write one job in each line")
    started = gateway.start(request, key, "manager")
    if request.get("flow_id"):
        await_attempt(gateway, started)
    sender = Sender(gateway, int(started["manager_id"]), key)
    try:
        sender.all(chain(first, items), seal)
    except CommandFailed as failure:
        manager_id = started["manager_id"]
        state = f"manager {manager_id} has {sender.jobs} items and is waiting for more"
        failure.why = "; ".join(filter(None, (failure.why, state)))
        rest = (
            f"crawlctl manager add {manager_id} --each REST --seal, or crawlctl manager stop "
            f"{manager_id}"
        )
        failure.next_step = " · ".join(filter(None, (failure.next_step, rest)))
        raise
    return started, sender


def await_attempt(gateway: Gateway, started: Document) -> None:
    """Wait until a manager that had ended begins its next attempt. The manager accepts no items
    before that. Raises ``CommandFailed``.
    """
    manager_id = int(started["manager_id"])
    path = MANAGER.path(manager_id)
    for row in Polling(timeout_s=current().timeout_s or ATTEMPT_S).answers(
        lambda: gateway.get(path)
    ):
        if is_news(row, started):
            return
    again = f"crawlctl doctor, then the same command, or crawlctl manager describe {manager_id}"
    raise CommandFailed(
        Exit.GAVE_UP_WAITING,
        f"manager {manager_id} has ended and does not continue yet",
        "no worker has started its next attempt",
        again,
    )


def _check_call(
    plan: str | None, crawler: str | None, each: Path | None, options: dict[str, Any]
) -> None:
    if (plan is None) == (crawler is None):
        raise WrongUsage(
            "give either a class or --crawler",
            "crawlctl manager start module:Class [-- options], or crawlctl manager start --crawler "
            "NAME --each FILE",
        )
    if plan is not None and (options or each is not None):
        raise WrongUsage(
            "--each, -a, -s, --max-running, --max-per-key, --retries, --retry-delay, --pool "
            "and --version need --crawler",
            f"crawlctl manager start {plan} -- --max-running-jobs 20",
            why="a class has its own options",
        )


def _per_key(word: str | None) -> dict[str, int]:
    if word is None:
        return {}
    name, _, number = word.partition("=")
    if not name or not number.isascii() or not number.isdecimal() or not int(number):
        raise WrongUsage(
            f"--max-per-key {word!r} is not allowed",
            "give an argument of the crawler and a number, such as domain=2",
        )
    return {name: int(number)}


def full_name(gateway: Gateway, plan: str) -> str:
    """Return the full name of a registered class.

    The last part of the name is enough if it identifies one class.

    An unknown name is returned unchanged, and the gateway refuses it.
    """
    known = {
        str(program.get("plan"))
        for program in gateway.get("/v1/user-code").get("user_code", [])
        if program.get("kind") == "manager"
    }
    fitting = sorted(name for name in known if name.endswith((f".{plan}", f":{plan}")))
    if plan in known or not fitting:
        return plan
    if len(fitting) > 1:
        raise WrongUsage(f"{plan!r} may be any of {', '.join(fitting)}", "give the full name")
    return fitting[0]


# --- adding ---------------------------------------------------------------------------------------


def add(
    manager: ManagerId,
    /,
    *,
    each: Each = None,
    form: FormatOption = None,
    arg: Given = None,
    spider: str | None = None,
    tag: list[str] | None = None,
    seal: bool = False,
    request_id: str | None = None,
) -> None:
    """Add jobs to a manager. Jobs that equal an earlier one are left out.

    Parameters
    ----------
    arg
        argument of one job, as name=value
    spider
        spider of the job, for managers of a class
    tag
        tag of each new job
    seal
        no more jobs will come
    request_id
        the same id adds no item twice
    """
    given = pairs(arg, "-a")
    if each is not None and given:
        raise WrongUsage("--each and -a cannot be combined", "give one of them")
    if each is None and not given and not seal:
        raise WrongUsage("nothing to add", "give -a name=value, --each FILE or --seal")
    with current().gateway() as gateway:
        more = filled({"spider": spider or None, "tags": tag})
        sender = Sender(gateway, manager, checked_id(request_id), more)
        if each is not None:
            found = gateway.get(MANAGER.path(manager))
            source = Source(each, format_of(each, form), checker(gateway, found.get("crawler")))
            sender.all(source.all_checked(), seal)
        else:
            sender.page([Item(1, dict(given))] if given else [], seal)
    sent = {"jobs": sender.jobs, "new": sender.new}
    facts: list[tuple[str, Cell]] = [("manager", manager), *sent.items()]
    emit({"manager_id": manager, **sent}, names=[manager], table=lambda: show_facts(facts))
    say(f"next: crawlctl manager describe {manager}")


@dataclass
class Sender:
    """Sends items to one manager and counts them. Every method raises ``CommandFailed``."""

    gateway: Gateway
    manager_id: int
    request_id: str
    more: Document = field(default_factory=dict)
    """The fields of each job other than its arguments."""
    jobs: int = 0
    new: int = 0
    _pages: int = 0
    _note: str | None = None

    def all(self, items: Iterable[Item], seal: bool) -> None:
        """Send all items.

        If ``seal`` is true, the last page informs the manager that no more items will come.
        """
        for page, last in pages(items):
            self.page(page, seal and last)

    def page(self, page: list[Item], seal: bool) -> None:
        """Send one page. While the gateway is unreachable, try again for up to a minute."""
        self._pages += 1
        body: dict[str, object] = {
            "jobs": [{"spider_args": item.args, **self.more} for item in page],
            "seal": seal,
        }
        key = f"{self.request_id}/{self._pages}"
        try:
            # A retry has the same key, so nothing is added twice.
            answer = next(
                Polling().answers(
                    lambda: self.gateway.post(MANAGER.path(self.manager_id, "/jobs"), body, key),
                    lambda failure: say(f"{failure.what}; trying again"),
                    answered=True,
                )
            )
        except CommandFailed as failure:
            raise self._explained(failure, page) from None
        self.jobs += len(page)
        self.new += int(answer.get("new") or 0)
        if answer.get("note") and answer["note"] != self._note:
            self._note = str(answer["note"])
            say(f"manager {self.manager_id}: {clean(self._note)}")

    def _explained(self, failure: CommandFailed, page: list[Item]) -> CommandFailed:
        """Return the error with its line, and with the next step for the other lines."""
        index = re.match(r"jobs\[(\d+)\]\.?", failure.what)
        what = failure.what
        if index and int(index[1]) < len(page):
            what = f"line {page[int(index[1])].line}: {what[index.end() :]}"
        added = f"{self.jobs} items were already added"
        again = f"repeat the command with --request-id {self.request_id}, which adds no item twice"
        return CommandFailed(
            failure.code, what, "; ".join(filter(None, (failure.why, added))), again
        )


def checked_id(request_id: str | None) -> str:
    """Return the given id, or a new one. Raises ``CommandFailed`` if the id is not allowed."""
    if request_id is not None and (
        not request_id.isascii() or not 0 < len(request_id) <= REQUEST_ID_MAX
    ):
        raise WrongUsage(
            f"--request-id {request_id!r} is not allowed",
            f"give 1 to {REQUEST_ID_MAX} ASCII characters",
        )
    return request_id or str(uuid.uuid4())


def catalogue(gateway: Gateway) -> list[CrawlerDefinition]:
    """Return the crawlers that can be started."""
    from pydantic import TypeAdapter

    from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition

    return TypeAdapter(list[CrawlerDefinition]).validate_python(gateway.rows("/v1/crawlers"))


def checker(gateway: Gateway, crawler: object, base: Args | None = None) -> Callable[[Args], None]:
    """Return a check of items against the crawler's arguments in the catalogue.

    Without a crawler, the check accepts all items.
    """
    if not isinstance(crawler, str):
        return lambda args: None
    definition = next((entry for entry in catalogue(gateway) if entry.name == crawler), None)
    if definition is None:
        raise WrongUsage(f"there is no crawler {crawler!r}", "crawlctl crawler list")
    from crawler_lifecycle.domain.crawlers.crawler import effective_args

    from ..domain.manager import job_texts

    def check(args: Args) -> None:
        given = {**(base or {}), **args}
        try:
            effective_args(definition, job_texts("args", given, built_in=True))
        except InvalidRequest as error:
            raise ValueError(str(error)) from None

    return check
