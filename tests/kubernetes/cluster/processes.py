"""Child processes that cannot outlive us, and are ended only by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.go_programs import FRUGAL

#: A death signal is tied to the *thread* that forked. All forks happen in one thread that lives as
#: long as the interpreter.
_FORKER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kube-forker")


class ClusterFailed(Exception):
    """A part of the test cluster did not do what it should; the text ends with the part's last
    output.
    """


class Part:
    """One program of the cluster with its log file.

    It can be killed, frozen and started again unchanged.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self.env = {"PATH": os.environ["PATH"], "HOME": str(log.parent), **FRUGAL, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. The kernel kills it when this process ends, however it ends."""
        if self.alive():
            raise ClusterFailed(f"{self.name} runs already")
        self.process = _FORKER.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                cwd=self.log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the process id. Raises ClusterFailed if it was never started."""
        if self.process is None:
            raise ClusterFailed(f"{self.name} was not started")
        return self.process.pid

    def alive(self) -> bool:
        """Return whether it is running; a frozen process is."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.process is not None:
            self.process.send_signal(number)  # polls first, so that it is never somebody else's id

    def stands_still(self) -> bool:
        """Return whether all its threads have been stopped by SIGSTOP."""
        stats = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def kill(self) -> None:
        """End it at once, frozen or not, and wait until it is gone."""
        if self.process is None:
            return
        self.signal(signal.SIGKILL)
        try:
            self.process.wait(150)
        except subprocess.TimeoutExpired:
            raise ClusterFailed(
                f"{self.name} (pid {self.process.pid}) did not die within 150 s"
            ) from None

    def last_words(self, lines: int = 15) -> str:
        """Return the end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"


def until(
    condition: Callable[[], object],
    what: str,
    seconds: float,
    parts: Sequence[Part] = (),
    pause_s: float = 0.1,
) -> None:
    """Wait until ``condition`` is true.

    Raises ClusterFailed after ``seconds``, or if one of ``parts`` has ended.
    """
    end = time.monotonic() + seconds
    while not condition():
        for part in parts:
            if not part.alive():
                raise ClusterFailed(
                    f"{part.name} ended while waiting for {what}:\n{part.last_words()}"
                )
        if time.monotonic() > end:
            words = "\n".join(f"--- {part.name}\n{part.last_words()}" for part in parts)
            raise ClusterFailed(f"{what} did not come within {seconds:g} s\n{words}")
        time.sleep(pause_s)
