"""Code that the verbs for runs, managers, graphs, schedules and webhooks share: list, control, wait
and watch.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.waiting import ageless
from crawler_lifecycle.subjects import TERMINAL, Document, Subject

from .client.polling import Polling
from .output import (
    as_json,
    clean,
    console,
    emit,
    say_note,
    show_facts,
    show_list,
    show_rows,
    write_lines,
)
from .problems import CommandFailed, Exit, WrongUsage
from .session import current, say

if TYPE_CHECKING:
    from .client.gateway import Gateway

T = TypeVar("T")
Goal = Literal["completed", "ended", "started"]
#: The words that identify an entry, a line that describes the entry, and the entry's document.
Entry = tuple[object, str, Document]
#: The longest pause between two polls by ``watch``, in seconds. People would notice a delay that
#: exceeds this pause.
LONGEST_PAUSE_S = 1.0

By = Annotated[str | None, Parameter(help="who requests this; default: you")]
Project = Annotated[
    str | None,
    Parameter(help="project, if the token is for all projects; default: the token's project"),
]
Search = Annotated[
    str | None,
    Parameter(
        help="only entries that contain this text, ignoring case; docs/gateway.md lists the fields"
    ),
]
Sort = Annotated[str | None, Parameter(help="sort by this column; -COLUMN: largest first")]
Limit = Annotated[int, Parameter(help="show at most this many entries")]
Reason = Annotated[str | None, Parameter(help="reason for the record")]
Shown = Annotated[str | None, Parameter(help="reason to show")]
Force = Annotated[bool, Parameter(help="kill every task that is executing")]
Yes = Annotated[bool, Parameter(help="do not ask for confirmation; needed without a terminal")]
Proof = Annotated[bool, Parameter(help="wait for proof that no task is executing any more")]
End = Annotated[bool, Parameter(help="wait for the end; the exit code shows the outcome")]

#: State of a graph -> the status and the ``ended_by`` of a run that correspond to it.
_OF_STATE = {
    "draft": ("INITIALIZING", None),
    "executing": ("PROCESSING", None),
    "completed": ("COMPLETED", EndedBy.CRAWLER),
    "discarded": ("FAILED", EndedBy.CRAWLER),
    "cancelled": ("FAILED", EndedBy.PERSON),
}


def status_of(row: Document) -> tuple[Any, Any]:
    """Return the status and ``ended_by`` of a run or manager; for a graph, return the values that
    correspond to its state.
    """
    return _OF_STATE.get(str(row.get("state")), (row.get("status"), row.get("ended_by")))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entry that commands handle: runs, managers, graphs, schedules or webhooks."""

    subject: Subject
    line: Callable[[Document], str] = str
    """A function that returns a line with an entry's kind, number and state. Schedules and webhooks
    do not need this function.
    """
    again: str = "resume"
    """The verb that resumes an ended entry."""

    @property
    def noun(self) -> str:
        return self.subject.noun

    def number(self, row: Document) -> Any:
        """Return the number or other identifier of an entry."""
        return row[self.subject.key]

    def call(self, verb: str, *numbers: object) -> str:
        """Return a command line with this verb and these entries."""
        words = ["crawlctl"] if self.noun == "run" else ["crawlctl", self.noun]
        return " ".join([*words, verb, *(shlex.quote(str(number)) for number in numbers)])

    def path(self, number: object, what: str = "") -> str:
        """Return the API path of an entry, or of a part such as ``/stop``."""
        return f"/v1{self.subject.path(number, what)}"

    def list_all(self, limit: int, **filters: Any) -> None:
        """Print the entries that match, as the verb ``list`` does."""
        plural = self.subject.plural
        make = "create" if self.noun in ("schedule", "webhook") else "start"
        empty = f"no {plural}; next: crawlctl {self.noun} {make} --help"
        subject = self.subject
        show_list(
            f"/v1/{plural}", subject.columns, key=subject.key, empty=empty, limit=limit, **filters
        )

    def show(self, rows: Sequence[Document]) -> None:
        """Print entries, and the gateway's notes about them."""
        document: Any = rows[0] if len(rows) == 1 else {f"{self.noun}s": list(rows)}
        names = [self.number(row) for row in rows]
        columns = self.subject.state
        emit(document, names=names, table=lambda: show_rows(rows, columns, empty=f"no {self.noun}"))
        for row in rows:
            say_note(row, f"{self.noun} {self.number(row)}")

    def print_facts(self, found: Document) -> None:
        """Print everything about one entry, and the gateway's note about it."""
        say_note(found)
        emit(
            found,
            names=[self.number(found)],
            table=lambda: show_facts(self.subject.known(found)),
        )

    def describe(self, number: object) -> None:
        """Print everything about one entry."""
        with current().gateway() as gateway:
            self.print_facts(gateway.get(self.path(number)))

    def post(self, number: object, what: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a command about one entry, and print its new state."""
        with current().gateway() as gateway:
            self.print_facts(gateway.post(self.path(number, f"/{what}"), body))

    def look_further(self, number: object, code: Exit) -> int:
        """Return ``code``. If ``code`` is an error, print the suggested next commands first."""
        if code is not Exit.DONE:
            say(f"next: {self.call('describe', number)} · {self.call(self.again, number)}")
        return code

    def each(
        self,
        numbers: Sequence[Any],
        action: str,
        body: Mapping[str, Any] | None = None,
        *,
        wait: bool = False,
        then: str = "describe {}",
    ) -> int:
        """Request ``action`` for several entries.

        If the request fails for one entry, or the entry has already ended, the other entries are
        not affected.

        If ``wait`` is true, wait until all entries have ended. ``then`` is the suggested next verb,
        with ``{}`` in place of the number.
        """
        answers: list[Document] = []
        failures: list[CommandFailed] = []
        with current().gateway() as gateway:
            for number in dict.fromkeys(numbers):
                try:
                    if action == "delete":
                        answers.append(gateway.delete(self.path(number), **(body or {})))
                        continue
                    answers.append(gateway.post(self.path(number, f"/{action}"), body))
                    if not gateway.accepted and status_of(answers[-1])[0] in TERMINAL:
                        what = f"{self.noun} {number} has already ended"
                        after = self.call("describe", number)
                        failures.append(CommandFailed(Exit.NOT_IN_THIS_STATE, what, None, after))
                except CommandFailed as failure:
                    failures.append(failure)
            if wait:
                ends = [
                    self.wait_for(gateway, self.number(answer), "ended")[0] for answer in answers
                ]
                notes = [
                    {"note": answer["note"]} if answer.get("note") else {} for answer in answers
                ]
                answers = [{**end, **note} for end, note in zip(ends, notes, strict=True)]
        if answers:
            self.show(answers)
            if not wait and not failures:
                say(f"next: {self.call(then.format(shlex.quote(str(self.number(answers[-1])))))}")
        for refused in failures[:-1]:
            say(f"crawlctl: {refused}")
        if failures:
            raise failures[-1]
        return Exit.DONE

    def be_sure(
        self, numbers: Sequence[object], what: str, *, yes: bool, verb: str = "force-stop"
    ) -> None:
        """Ask for confirmation before ``what`` is killed or deleted.

        Raises ``CommandFailed`` if the answer is not yes or there is no terminal.
        """
        if yes:
            return
        does, why, done, instead = {
            "force-stop": (
                "Kill",
                "force-stop kills crawlers, which cannot save anything",
                "stopped",
                "stop",
            ),
            "delete": ("Delete", "delete cannot be undone", "deleted", "describe"),
        }[verb]
        if not sys.stdin.isatty():
            raise WrongUsage(why, self.call(verb, *numbers, "--yes"))
        wanted = " ".join(shlex.quote(str(number)) for number in numbers)
        print(f"{does} {what} {wanted}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandFailed(
                Exit.ERROR, f"nothing was {done}", None, self.call(instead, *numbers)
            )

    # --- following --------------------------------------------------------------------------------

    def wait_for(
        self, gateway: Gateway, number: Any, goal: Goal, *, after: Document | None = None
    ) -> tuple[Document, Exit]:
        """Poll an entry until ``goal`` is reached. Return the entry's document and the exit code.

        Attempts before the attempt in ``after`` are ignored. A restart of the gateway does not end
        the wait.
        """
        shown = ""
        for row in Polling(timeout_s=current().timeout_s).answers(
            lambda: gateway.get(self.path(number))
        ):
            code = verdict(row, goal) if is_news(row, after) else None
            if code is not None:
                return row, code
            line = self.line(row)
            if ageless(line) != ageless(shown):
                say(line)
            shown = line
        raise self.gave_up(number, shown.partition(f"{self.noun} {number} ")[2])

    def await_end(
        self, number: Any, goal: Goal = "completed", *, after: Document | None = None
    ) -> int:
        """Wait for an entry as ``wait_for`` does, and print the entry. Return the exit code."""
        with current().gateway() as gateway:
            row, code = self.wait_for(gateway, number, goal, after=after)
        self.show([row])
        return self.look_further(number, code)

    def gave_up(self, number: object, state: str) -> CommandFailed:
        """Return the error for a wait that took longer than ``--timeout``."""
        why = f"after {current().timeout_s:g} s it is {state or 'unknown'}"
        again = self.call("wait", number)
        return CommandFailed(
            Exit.GAVE_UP_WAITING, f"gave up waiting; the {self.noun} continues", why, again
        )

    def follow(self, number: Any, *, watch: bool, after: Document | None = None) -> int:
        """Wait for the end of an entry that was started. If ``watch`` is true, show its changes.

        Return the exit code.

        Attempts before the attempt in ``after`` are ignored.
        """
        if watch:
            return self.watch_one(number, after=after)
        say(f"{self.noun} {number} started; Ctrl-C ends the wait, not the {self.noun}")
        return self.await_end(number, after=after)

    def watch_one(self, number: Any, *, after: Document | None = None) -> int:
        """Show the changes to an entry until the entry ends. Return the exit code.

        Attempts before the attempt in ``after`` are ignored.
        """
        with current().gateway() as gateway:
            row, code = watch_changes(
                lambda: gateway.poll(self.path(number)),
                lambda row: [(number, self.line(row), row)],
                end=lambda row: verdict(row, "completed") if is_news(row, after) else None,
            )
        return self.seen_to_its_end(row, code)

    def seen_to_its_end(self, row: Document, code: Exit | None) -> int:
        """Return the exit code after a watch.

        Raises ``CommandFailed`` if ``code`` is ``None``, which means that the time limit was
        reached.
        """
        number = self.number(row)
        if code is None:
            raise self.gave_up(number, self.line(row).partition(f"{self.noun} {number} ")[2])
        if current().output in ("json", "yaml", "name"):
            self.show([row])
        return self.look_further(number, code)


@dataclass(frozen=True, slots=True)
class NamedKind(Kind):
    """Schedules or webhooks, which have names and can be paused. Each method executes a verb."""

    def pause(self, name: str, reason: str | None, by: str | None) -> None:
        self.post(name, "pause", {"reason": reason, "requested_by": by or user()})

    def put(
        self,
        name: str,
        body: Mapping[str, Any],
        by: str | None,
        following: Callable[[Document], str],
    ) -> None:
        """Create an entry or replace its definition.

        ``following`` returns the verbs that are suggested after that.
        """
        with current().gateway() as gateway:
            found = gateway.put(self.path(name), {**body, "requested_by": by or user()})
        self.print_facts(found)
        verbs = " · ".join(
            f"crawlctl {self.noun} {verb} {name}" for verb in following(found).split()
        )
        say(f"next: {verbs}")

    def definition(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the current definition with these changes.

        Raises ``CommandFailed`` if no change is given.
        """
        if not changes:
            raise WrongUsage("nothing to change", f"crawlctl {self.noun} update --help")
        with current().gateway() as gateway:
            return {**gateway.get(self.path(name))["definition"], **changes}

    def delete(self, name: str) -> None:
        with current().gateway() as gateway:
            found = gateway.delete(self.path(name))
        emit(found, names=[name], table=lambda: print(clean(f"{self.noun} {name} is deleted")))
        say_note(found)


def verdict(row: Document, goal: Goal) -> Exit | None:
    """Return the exit code of a command that waits for ``goal``; ``None`` if the command must keep
    waiting.
    """
    status, ended_by = status_of(row)
    if status not in TERMINAL:
        return Exit.DONE if goal == "started" and status != "INITIALIZING" else None
    if goal == "ended" or status == "COMPLETED":
        return Exit.DONE
    if goal == "started" and row.get("started_at"):
        return Exit.DONE
    return Exit.RUN_STOPPED if ended_by == EndedBy.PERSON else Exit.RUN_FAILED


def is_news(row: Document, after: Document | None) -> bool:
    """Return whether a row belongs to the attempt that a start or resume began.

    ``after`` is the response to that request.

    The row of a manager may still show the end of the previous attempt, because the start of the
    next attempt is recorded a little later.
    """
    attempt = int(row.get("attempt") or 0)
    before = after or {}
    if before.get("ended_at"):
        return attempt != before.get("attempt") or row.get("ended_at") != before["ended_at"]
    return attempt >= int(before.get("attempt") or 0)


def watch_changes(
    ask: Callable[[], T],
    entries: Callable[[T], Sequence[Entry]],
    *,
    picture: Callable[[T], Any] | None = None,
    end: Callable[[T], Exit | None] = lambda answer: None,
    nothing: str = "",
) -> tuple[T, Exit | None]:
    """Poll, and show changes: redraw ``picture`` on a terminal; otherwise print a line for each
    changed entry.

    Return the last response, and what ``end`` returned for this response: ``None`` means that
    ``--timeout`` expired. ``nothing`` is printed once if there is no entry.
    """
    polling = Polling(timeout_s=current().timeout_s, longest_s=LONGEST_PAUSE_S)
    printed: dict[object, str] = {}
    with nullcontext() if picture is None else _screen() as show:
        for answer in polling.answers(ask, lambda failure: say(f"{failure.what}; trying again")):
            changed = [
                entry for entry in entries(answer) if printed.get(entry[0]) != ageless(entry[1])
            ]
            printed |= {key: ageless(line) for key, line, _ in changed}
            if show is not None and picture is not None:
                show(picture(answer))
            elif changed and current().output == "jsonl":
                for document in {id(change[2]): change[2] for change in changed}.values():
                    print(as_json(document, indent=None))
                sys.stdout.flush()
            elif changed:
                write_lines([line for _, line, _ in changed])
            elif nothing and not printed:
                say(nothing)
                printed[None] = ""
            if changed:
                polling.hurry()
            code = end(answer)
            if code is not None:
                break
    return answer, code


@contextmanager
def _screen() -> Iterator[Callable[[Any], None] | None]:
    """Yield a function that redraws the terminal, or ``None`` if lines have to be printed
    instead.
    """
    terminal = console()
    if not current().for_people or not sys.stdout.isatty() or terminal.is_dumb_terminal:
        yield None
        return
    from rich.live import Live

    with Live(
        console=terminal, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False
    ) as live:
        yield lambda picture: live.update(picture, refresh=True)
