"""``X().run()`` in a file of its own: the script of the original, which here starts the manager and shows it.

The manager itself runs on a plans worker, which must have the module. The gateway is called by ``crawlctl``, a process
of its own: so address and token are found as there, the exit codes are those of ``crawlctl manager wait``, and whoever
imports the classes loads none of it. Ctrl-C ends the showing, not the manager.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

_CRAWLCTL = (sys.executable, "-m", "crawler_lifecycle.cli")


class Script(Protocol):
    """What is needed of a class that has read its options."""

    name: str
    flow_id: str | None


def plan_of(cls: type) -> str:
    """The name of a class for a plans worker, ``module:Class``; also in the file that is the program itself."""
    module = cls.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    return f"{module}:{cls.__qualname__}"


def run_script(script: Script) -> None:
    """Start the manager with the options of this command line and show it to its end.

    Raises ``SystemExit`` with the code of ``crawlctl manager wait`` unless it completed.
    """
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
    return [*_CRAWLCTL, "manager", "start", plan_of(type(script)), "--watch", *named, *flow, "--", *argv]


def _leave(code: int) -> None:
    """End the program unless all is well; of a process that a signal ended as a shell tells it."""
    if code:
        raise SystemExit(code if code > 0 else 128 - code)
