"""The display of the story: a live table on a terminal, and one plain line for each change
everywhere else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from crawler_lifecycle.cli.output import STYLES, ago, clean, number

TITLES = (
    "RUN",
    "CRAWLER",
    "TRIGGER",
    "STATUS",
    "STAGE",
    "TASKS",
    "PAGES",
    "ITEMS",
    "VERIFIED",
    "NEXT POLL",
)
TERMINAL = ("COMPLETED", "FAILED")

Run = Mapping[str, Any]


class View:
    """Prints events line by line, with a table of the runs below them if there is a terminal."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live = (
            Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        )
        self._begun = time.monotonic()
        self._told: dict[int, str] = {}

    def __enter__(self) -> View:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.freeze()

    def freeze(self) -> None:
        """Leave the table as it is. Later output is printed below the table."""
        if self._live is not None:
            self._live.stop()

    def say(self, topic: str, text: str, style: str = "") -> None:
        """Print one event, with the seconds since the beginning."""
        line = Text(f"{time.monotonic() - self._begun:5.1f} s  ", style="dim")
        self.console.print(
            line.append(topic.ljust(11), style="bold").append(
                clean(text), style=style or "not bold"
            )
        )

    def plain(self, text: str = "") -> None:
        """Print a line without decoration."""
        self.console.print(text)

    def show(self, runs: Sequence[Run]) -> None:
        """Update the table of runs."""
        if self._live is not None:
            if not self._live.is_started:
                self._live.start()
            self._live.update(_table(runs), refresh=True)
            return
        for run in runs:
            state = _state(run)
            if self._told.get(run["run_id"]) != state:
                self._told[run["run_id"]] = state
                self.say(f"run {run['run_id']}", f"{run['crawler']}: {state}")


def tasks_text(run: Run) -> str:
    """Return the task counts in one short line."""
    return ", ".join(
        f"{count} {status.lower()}" for status, count in sorted((run.get("tasks") or {}).items())
    )


def _state(run: Run) -> str:
    outcome = f" ({run['outcome']})" if run.get("outcome") else ""
    return f"{run['status']}{outcome}, {run['stage']}, tasks: {tasks_text(run) or 'none yet'}"


def _table(runs: Sequence[Run]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", title=None)
    for title in TITLES:
        table.add_column(
            title, justify="right" if title in ("RUN", "PAGES", "ITEMS") else "left", no_wrap=True
        )
    for run in runs:
        status = clean(run["status"]) + (
            f" ({clean(run['outcome'])})" if run.get("outcome") else ""
        )
        next_poll = "-" if run["status"] in TERMINAL else ago(run.get("next_poll_at"))
        texts = [
            str(run["run_id"]),
            clean(run["crawler"]),
            clean(run["trigger"]),
            status,
            clean(run["stage"]),
        ]
        texts += [tasks_text(run), number(run.get("pages")), number(run.get("items"))]
        texts += [ago(run.get("verified_at")), next_poll]
        table.add_row(*(Text(text, style=STYLES.get(text.partition(" ")[0], "")) for text in texts))
    return table
