"""Runs, managers and graphs, as commands steer them, wait for them, follow them, and say how they ended."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from crawler_lifecycle.domain.waiting import ageless
from crawler_lifecycle.subjects import STOPPED, TERMINAL, Document, Subject

from .client.polling import Polling
from .output import as_json, console, emit, emit_list, say_note, show_rows, write_lines
from .problems import CommandFailed, Exit
from .session import Session, current

if TYPE_CHECKING:
    from .client.gateway import Gateway

T = TypeVar("T")
Goal = Literal["completed", "ended", "started"]
#: What tells an entry from others, a line about it, and the document that it is of.
Entry = tuple[object, str, Document]
#: What people still take for "at once".
LONGEST_PAUSE_S = 1.0

By = Annotated[str | None, Parameter(help="who asks for it; default: you")]
Limit = Annotated[int, Parameter(help="at most so many")]
Reason = Annotated[str | None, Parameter(help="written into the record")]
Force = Annotated[bool, Parameter(negative=(), help="kill what it executes")]
Yes = Annotated[bool, Parameter(negative=(), help="do not ask; needed without a terminal")]
Proof = Annotated[bool, Parameter(negative=(), help="wait for the proof that nothing of it executes")]
End = Annotated[bool, Parameter(negative=(), help="wait for its end; the exit code tells how it ended")]

#: The state of a graph as the status of a run, and as its outcome.
_OF_STATE = {
    "draft": ("INITIALIZING", None),
    "executing": ("PROCESSING", None),
    "completed": ("COMPLETED", "finished"),
    "discarded": ("FAILED", "failed"),
    "cancelled": ("FAILED", "cancelled"),
}


def status_of(row: Document) -> tuple[Any, Any]:
    """Status and outcome of a run or a manager; of a graph the same in their words."""
    return _OF_STATE.get(str(row.get("state")), (row.get("status"), row.get("outcome")))


@dataclass(frozen=True, slots=True)
class Kind:
    """The subject of a command: runs, managers, graphs, or (without ``line``) schedules and webhooks."""

    subject: Subject
    line: Callable[[Document], str] = str
    """One of it in a line: what it is and its number, then how it is."""
    again: str = "resume"
    """The verb that lets one go on that has ended."""

    @property
    def noun(self) -> str:
        return self.subject.noun

    def number(self, row: Document) -> Any:
        """The number of one of them, or whatever tells it from others."""
        return row[self.subject.key]

    def call(self, verb: str, *numbers: object) -> str:
        """A command line about some of them."""
        words = ["crawlctl"] if self.noun == "run" else ["crawlctl", self.noun]
        return " ".join([*words, verb, *(shlex.quote(str(one)) for one in numbers)])

    def path(self, number: object, what: str = "") -> str:
        """The address of one of them, or of something of it, such as ``/stop``."""
        return f"/v1{self.subject.path(number, what)}"

    def ask(self, action: str, body: Mapping[str, Any] | None = None) -> Callable[[Gateway, Any], Document]:
        """The call that has this done to one of them."""
        return lambda gateway, number: gateway.post(self.path(number, f"/{action}"), body)

    def list_all(self, limit: int, **filters: Any) -> int:
        """The verb ``list``."""
        session, plural = current(), self.subject.plural
        with session.gateway() as gateway:
            rows = gateway.rows(f"/v1/{plural}", limit=limit, **filters)
        make = "create" if self.noun in ("schedule", "webhook") else "start"
        empty = f"no {plural}; next: crawlctl {self.noun} {make} --help"
        emit_list(session, plural, rows, self.subject.columns, name=self.subject.key, empty=empty)
        return Exit.DONE


def verdict(row: Document, goal: Goal) -> Exit | None:
    """The meaning of a state for somebody who waits for ``goal``; ``None`` to go on waiting."""
    status, outcome = status_of(row)
    if status not in TERMINAL:
        return Exit.DONE if goal == "started" and status != "INITIALIZING" else None
    if goal == "ended" or status == "COMPLETED":
        return Exit.DONE
    if goal == "started" and row.get("started_at"):
        return Exit.DONE
    return Exit.RUN_STOPPED if outcome in STOPPED else Exit.RUN_FAILED


def is_news(row: Document, after: Document | None) -> bool:
    """Tell whether a row is of the attempt that ``after``, the answer to a start or resume, has brought about.

    That of a manager may be the end before: its next attempt is on record a little later.
    """
    attempt, before = int(row.get("attempt") or 0), after or {}
    if before.get("ended_at"):
        return attempt != before.get("attempt") or row.get("ended_at") != before["ended_at"]
    return attempt >= int(before.get("attempt") or 0)


def wait_for(
    kind: Kind, gateway: Gateway, number: Any, goal: Goal, *, after: Document | None = None
) -> tuple[Document, Exit]:
    """Ask for one until ``goal`` is reached; how it is then, and the exit code that says how it ended.

    What is said of an attempt before that of ``after`` does not count. A gateway that restarts meanwhile is waited for.
    """
    session = current()
    shown = ""
    for row in Polling(timeout_s=session.timeout_s).answers(lambda: gateway.get(kind.path(number))):
        code = verdict(row, goal) if is_news(row, after) else None
        if code is not None:
            return row, code
        told = kind.line(row)
        if ageless(told) != ageless(shown):
            session.say(told)
        shown = told
    raise gave_up(kind, number, shown.partition(f"{kind.noun} {number} ")[2])


def await_end(
    kind: Kind, gateway: Gateway, number: Any, goal: Goal = "completed", *, after: Document | None = None
) -> int:
    """The same, and show it; the exit code."""
    return show_state(kind, *wait_for(kind, gateway, number, goal, after=after))


def gave_up(kind: Kind, number: object, state: str) -> CommandFailed:
    """The end of a patience that was limited by ``--timeout``."""
    why = f"after {current().timeout_s:g} s it is {state or 'unknown'}"
    again = kind.call("wait", number)
    return CommandFailed(Exit.GAVE_UP_WAITING, f"gave up waiting; the {kind.noun} goes on", why, again)


def show_state(kind: Kind, row: Document, code: Exit) -> int:
    """Write one, and say what to look at when it did not go well; its exit code."""
    show(kind, [row])
    return look_further(kind, kind.number(row), code)


def look_further(kind: Kind, number: object, code: Exit) -> int:
    """Say what to look at when it did not go well; the exit code."""
    if code is not Exit.DONE:
        current().say(f"next: {kind.call('describe', number)} · {kind.call(kind.again, number)}")
    return code


def show(kind: Kind, rows: Sequence[Document]) -> None:
    """Write them, and the notes of the gateway."""
    session = current()
    document: Any = rows[0] if len(rows) == 1 else {f"{kind.noun}s": list(rows)}
    names = [kind.number(row) for row in rows]
    columns = kind.subject.state
    emit(session, document, names=names, table=lambda: show_rows(session, rows, columns, empty=f"no {kind.noun}"))
    for row in rows:
        say_note(session, row, f"{kind.noun} {kind.number(row)}")


def each(
    kind: Kind,
    numbers: Sequence[Any],
    ask: Callable[[Gateway, Any], Document],
    *,
    wait: bool = False,
    then: str = "describe {}",
) -> int:
    """Do the same to several: one that cannot be steered does not keep the others from it, nor one that has ended.

    ``wait``: until all have ended. ``then``: what to do next, after the verbs, with ``{}`` for the number.
    """
    session = current()
    answers: list[Document] = []
    failures: list[CommandFailed] = []
    with session.gateway() as gateway:
        for number in dict.fromkeys(numbers):
            try:
                answers.append(ask(gateway, number))
                if not gateway.accepted and status_of(answers[-1])[0] in TERMINAL:
                    what, after = f"{kind.noun} {number} had ended already", kind.call("describe", number)
                    failures.append(CommandFailed(Exit.NOT_IN_THIS_STATE, what, None, after))
            except CommandFailed as failure:
                failures.append(failure)
        if wait:
            ends = [wait_for(kind, gateway, kind.number(one), "ended")[0] for one in answers]
            notes = [{"note": one["note"]} if one.get("note") else {} for one in answers]
            answers = [{**end, **note} for end, note in zip(ends, notes, strict=True)]
    if answers:
        show(kind, answers)
        if not wait and not failures:
            session.say(f"next: {kind.call(then.format(shlex.quote(str(kind.number(answers[-1])))))}")
    for told in failures[:-1]:
        session.say(f"crawlctl: {told}")
    if failures:
        raise failures[-1]
    return Exit.DONE


def be_sure(kind: Kind, numbers: Sequence[object], what: str, *, yes: bool, verb: str = "force-stop") -> None:
    """Ask before ``what`` is killed or deleted. Raises ``CommandFailed`` when nobody says yes, or can be asked."""
    if yes:
        return
    does, why, done, instead = {
        "force-stop": ("Kill", "force-stop kills crawlers without asking them", "stopped", "stop"),
        "delete": ("Delete", "delete cannot be undone", "deleted", "describe"),
    }[verb]
    if not sys.stdin.isatty():
        raise CommandFailed(Exit.USAGE, why, None, kind.call(verb, *numbers, "--yes"))
    wanted = " ".join(shlex.quote(str(one)) for one in numbers)
    print(f"{does} {what} {wanted}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed(Exit.ERROR, f"nothing was {done}", None, kind.call(instead, *numbers))


# --- following ------------------------------------------------------------------------------------------------------


def follow(kind: Kind, gateway: Gateway, number: Any, *, watch: bool, after: Document | None = None) -> int:
    """See one that was started to its end, or to that of the attempt that follows ``after``; the exit code."""
    if watch:
        return watch_one(kind, gateway, number, after=after)
    current().say(f"{kind.noun} {number} started; Ctrl-C stops the waiting, not the {kind.noun}")
    return await_end(kind, gateway, number, after=after)


def watch_one(kind: Kind, gateway: Gateway, number: Any, *, after: Document | None = None) -> int:
    """Show one until its end, or the end of the attempt that follows ``after``; the exit code."""
    row, code = watch_changes(
        lambda: gateway.poll(kind.path(number)),
        lambda row: [(number, kind.line(row), row)],
        end=lambda row: verdict(row, "completed") if is_news(row, after) else None,
    )
    return seen_to_its_end(kind, row, code)


def seen_to_its_end(kind: Kind, row: Document, code: Exit | None) -> int:
    """Say how one ended that was watched; the exit code. Raises ``CommandFailed`` when it has not (no ``code``)."""
    number = kind.number(row)
    if code is None:
        raise gave_up(kind, number, kind.line(row).partition(f"{kind.noun} {number} ")[2])
    if current().output in ("json", "yaml", "name"):
        return show_state(kind, row, code)
    return look_further(kind, number, code)


def watch_changes(
    ask: Callable[[], T],
    entries: Callable[[T], Sequence[Entry]],
    *,
    picture: Callable[[T], Any] | None = None,
    end: Callable[[T], Exit | None] = lambda answer: None,
    nothing: str = "",
) -> tuple[T, Exit | None]:
    """Ask again and again, and show what changed: a ``picture`` redrawn on a terminal, else a line for each entry.

    Returns the last answer, and what ``end`` said of it; ``None`` when ``--timeout`` is over. ``nothing`` is said once
    when there is no entry at all.
    """
    session = current()
    polling = Polling(timeout_s=session.timeout_s, longest_s=LONGEST_PAUSE_S)
    told: dict[object, str] = {}
    with nullcontext() if picture is None else _screen(session) as show:
        for answer in polling.answers(ask, lambda failure: session.say(f"{failure.what}; asking on")):
            changed = [one for one in entries(answer) if told.get(one[0]) != ageless(one[1])]
            told |= {key: ageless(line) for key, line, _ in changed}
            if show is not None and picture is not None:
                show(picture(answer))
            elif changed and session.output == "jsonl":
                for document in {id(one[2]): one[2] for one in changed}.values():
                    print(as_json(document, indent=None))
                sys.stdout.flush()
            elif changed:
                write_lines(session, [line for _, line, _ in changed])
            elif nothing and not told:
                session.say(nothing)
                told[None] = ""
            if changed:
                polling.hurry()
            code = end(answer)
            if code is not None:
                break
    return answer, code


@contextmanager
def _screen(session: Session) -> Iterator[Callable[[Any], None] | None]:
    """Something that redraws the terminal; ``None`` where lines are to be written instead."""
    terminal = console(session)
    if not session.for_people or not sys.stdout.isatty() or terminal.is_dumb_terminal:
        yield None
        return
    from rich.live import Live

    with Live(console=terminal, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False) as live:
        yield lambda picture: live.update(picture, refresh=True)
