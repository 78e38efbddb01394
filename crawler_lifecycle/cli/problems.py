"""Errors from commands: an exit code, and a message with the problem, its cause and the next
step.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. The values must not change, because scripts use them."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_IN_THIS_STATE = 4
    RUN_FAILED = 5
    RUN_STOPPED = 6
    GAVE_UP_WAITING = 7
    UNREACHABLE = 8
    NOT_AUTHORISED = 9
    INTERRUPTED = 130


class CommandFailed(Exception):
    """A command failed.

    ``what`` is the problem, ``why`` its cause, and ``next_step`` a command or action to try.
    """

    def __init__(
        self, code: Exit, what: str, why: str | None = None, next_step: str | None = None
    ) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.next_step:
            lines.append(f"  next: {self.next_step}")
        return "\n".join(lines)


class WrongUsage(CommandFailed):
    """The command line, a setting or a file that was given is wrong. The exit code is
    ``Exit.USAGE``.
    """

    def __init__(self, what: str, next_step: str | None = None, *, why: str | None = None) -> None:
        super().__init__(Exit.USAGE, what, why, next_step)
