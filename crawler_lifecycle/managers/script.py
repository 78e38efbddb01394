"""``X().run()`` in a file of its own: the script of the original, which here starts the manager and shows it.

The manager itself runs on a plans worker, which must have the module. The gateway is called by ``crawlctl``, a process
of its own: so address and token are found as there, the exit codes are those of ``crawlctl manager wait``, and whoever
imports the classes loads none of it. Ctrl-C ends the showing, not the manager.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Protocol

from crawler_lifecycle.domain.crawlers.importable import check_program, importable_name

_CRAWLCTL = (sys.executable, "-m", "crawler_lifecycle.cli")


class Script(Protocol):
    """What is needed of a class that has read its options."""

    name: str
    flow_id: str | None


def run_script(script: Script) -> None:
    """Start the manager with the options of this command line and show it to its end.

    Raises ``SystemExit`` with the code of ``crawlctl manager wait`` unless it completed.
    """
    check_program("run() is called")
    child = subprocess.Popen(_words(script))
    while True:
        try:
            return _leave(child.wait())
        except KeyboardInterrupt:  # it got the same signal, and ends by itself
            continue


def _words(script: Script) -> list[str]:
    argv = sys.argv[1:]
    named = ["--name", script.name] if script.name else []
    flow = ["--flow", script.flow_id] if script.flow_id else []
    return [*_CRAWLCTL, "manager", "start", importable_name(type(script)), "--watch", *named, *flow, "--", *argv]


def _leave(code: int) -> None:
    """End the program unless all is well; of a process that a signal ended as a shell tells it."""
    if code:
        raise SystemExit(code if code > 0 else 128 - code)
