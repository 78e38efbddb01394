"""Runs checks: at the same time, each with a time limit, none able to hide another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .line import Line

if TYPE_CHECKING:
    from crawler_lifecycle.observability.redaction import Redactor
    from crawler_lifecycle.settings import Settings

    from .sources import Sources


@dataclass(frozen=True, slots=True)
class Context:
    """What checks may know. ``settings`` is ``None`` when they are wrong; ``fix`` allows them to mend things."""

    settings: Settings | None
    sources: Sources
    redactor: Redactor
    fix: bool = False
    limit_s: float = 15.0
    token: str | None = None

    @property
    def call_s(self) -> float:
        """How long one call of a check may take: a check makes a few, and each one that fails has a line to write."""
        return self.limit_s / 3

    @property
    def known(self) -> Settings:
        """The settings, for checks that are run only when there are any."""
        if self.settings is None:
            raise RuntimeError("this check needs settings")
        return self.settings


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to check; ``look`` may take ``Context.limit_s`` and raise anything."""

    name: str
    look: Callable[[Context], Sequence[Line]]
    needs_settings: bool = True


class _Running:
    """A check in a thread of its own. The thread is a daemon: one that hangs must not keep the program from ending."""

    def __init__(self, check: Check, context: Context) -> None:
        self.check = check
        self._context = context
        self._done = threading.Event()
        self._lines: Sequence[Line] = ()
        threading.Thread(target=self._run, name=f"doctor-{check.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._lines = self.check.look(self._context)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._lines = [Line(self.check.name, "bad", f"the check itself failed: {text}", "please report this")]
        finally:
            self._done.set()

    def lines(self, until: float) -> Sequence[Line]:
        if self._done.wait(max(0.0, until - time.monotonic())):
            return self._lines
        cure = "look at what it speaks with; --timeout gives checks more time"
        return [Line(self.check.name, "bad", f"no answer within {self._context.limit_s:g} s", cure)]


def run(checks: Sequence[Check], context: Context) -> Iterator[Line]:
    """The findings of all checks in their order. Takes ``context.limit_s`` seconds at most, whatever they do."""
    until = time.monotonic() + context.limit_s
    chosen = [check for check in checks if context.settings is not None or not check.needs_settings]
    for running in [_Running(check, context) for check in chosen]:
        for line in running.lines(until):
            cure = None if line.cure is None or line.level == "ok" else context.redactor.text(line.cure)
            yield Line(line.check, line.level, context.redactor.text(line.text), cure)
