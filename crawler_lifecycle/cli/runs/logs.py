"""``crawlctl logs``: shows or follows the log of a task."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli.output import as_json, clean, emit
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.domain.log_search import LineLevel

from .texts import RunId

#: A line that exceeds this length is printed in parts of this length.
LINE_MAX = 64 * 1024


def logs(
    run: RunId,
    /,
    *,
    task: int | None = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    tail: int | None = None,
    at_error: bool = False,
    line: int | None = None,
    search: str | None = None,
    level: LineLevel | None = None,
) -> int:
    """Show the log of a task.

    With -f, follow it until the task ends or --timeout expires (exit code 7).

    Parameters
    ----------
    task
        task id; default: the main task
    follow
        follow until the task ends
    tail
        show only this many of the newest lines
    at_error
        show the lines around the last error
    line
        show the lines around the line with this number; with --search or --level, begin there
    search
        show only lines that contain this text, with their numbers
    level
        show only errors, or only warnings and errors, with their numbers
    """
    if tail is not None and tail < 1:
        raise WrongUsage(f"--tail {tail} is not allowed", "give 1 or more, or leave it out")
    if at_error and (follow or tail or line or search or level):
        raise WrongUsage("--at-error chooses the lines itself", "leave the other options out")
    if (line or search or level) and (follow or tail):
        raise WrongUsage(
            "--line, --search and --level choose the lines themselves",
            "leave --follow and --tail out",
        )
    if follow:
        return _follow(run, task, tail)
    with current().gateway() as gateway:
        around = "error" if at_error else "line" if line and not (search or level) else None
        text = gateway.logs(run, task, tail=tail, around=around, line=line, q=search, level=level)
    if not current().for_people:
        rows = [{"run_id": run, "task_id": task, "line": line} for line in text.splitlines()]
        document = {"run_id": run, "task_id": task, "log_tail": text}
        emit(document, names=[], table=lambda: None, rows=rows)
    elif text:
        print(
            clean(text.replace("\r\n", "\n"), lines=True), end="" if text.endswith("\n") else "\n"
        )
    else:
        say(f"the log is empty; next: crawlctl tasks {run}")
    return Exit.DONE


def _follow(run: int, task: int | None, tail: int | None) -> int:
    if current().output not in ("table", "wide", "jsonl"):
        raise WrongUsage(
            f"-o {current().output} cannot be used with --follow",
            "leave -o out, or use -o jsonl, which writes line by line",
        )
    with current().gateway() as gateway, _alarm(current().timeout_s, run):
        for line in lines(gateway.follow_logs(run, task, tail=tail)):
            if current().output == "jsonl":
                print(
                    as_json({"run_id": run, "task_id": task, "line": line}, indent=None), flush=True
                )
            else:
                print(clean(line), flush=True)
    return Exit.DONE


def lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the lines of text that arrives in chunks. A line that exceeds ``LINE_MAX`` is split."""
    rest = ""
    for piece in pieces:
        rest += piece
        *whole, rest = rest.split("\n")
        for line in whole:
            yield line.removesuffix("\r")
        while len(rest) > LINE_MAX:
            yield rest[:LINE_MAX]
            rest = rest[LINE_MAX:]
    if rest:
        yield rest


@contextmanager
def _alarm(timeout_s: float | None, run: int) -> Iterator[None]:
    """Raise ``CommandFailed`` (exit code 7) after ``timeout_s``, even if nothing is received."""
    if timeout_s is None:
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise CommandFailed(
            Exit.GAVE_UP_WAITING,
            f"gave up after {timeout_s:g} s; the task continues",
            None,
            f"crawlctl logs {run} -f",
        )

    former = signal.signal(signal.SIGALRM, over)
    others, _ = signal.setitimer(signal.ITIMER_REAL, max(timeout_s, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        # The caller may have set an alarm before.
        signal.setitimer(signal.ITIMER_REAL, others)
