"""Shared helpers for tests of the stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.stack import processes
from tests.support import in_process

ROOT = Path(__file__).resolve().parents[2]
#: Far longer than anything takes that works, in seconds, and the maximum for a child process.
PATIENCE_S, ANSWER_S = 150.0, 300.0


@dataclass
class Dev:
    """A ``crawlctl dev`` with one state directory."""

    state_dir: Path
    options: tuple[str, ...] = ("--ports", "free", "--services", "4")
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    spoken: str = ""

    def start(self, *more: str) -> Dev:
        """Start it and wait for its banner."""
        self.launch(*more)
        return self.await_banner()

    def await_banner(self) -> Dev:
        """Wait for the banner of a stack that was launched."""
        assert self.process is not None
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.spoken += line
            if line.startswith("ready in"):
                return self
        raise AssertionError(f"no banner: {self.spoken}\n{self.error_output()}")

    def launch(self, *more: str) -> None:
        """Start it without waiting."""
        self.close()
        command = [
            sys.executable,
            "-m",
            "crawler_lifecycle.cli",
            "dev",
            "--state-dir",
            str(self.state_dir),
        ]
        self.state_dir.parent.mkdir(parents=True, exist_ok=True)
        with self.state_dir.with_suffix(".err").open("a") as errors:
            self.process = subprocess.Popen(
                [*command, *self.options, *more],
                cwd=self.state_dir.parent,
                env=os.environ | self.env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def close(self) -> None:
        """Kill what is left of it."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def error_output(self) -> str:
        """Return everything that it printed for people."""
        return self.state_dir.with_suffix(".err").read_text()

    @property
    def known(self) -> dict[str, Any]:
        """Return the present contents of ``dev.json``."""
        content: dict[str, Any] = json.loads((self.state_dir / "dev.json").read_text())
        return content

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to exit. Return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(ANSWER_S)

    @contextmanager
    def no_crawl_gets_on(self) -> Iterator[None]:
        """Let the demonstration site answer no requests meanwhile, so that no crawl of it can end."""
        site = self.known["processes"]["site"]
        os.kill(site, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(site, signal.SIGCONT)

    def crawlers(self) -> list[str]:
        """Return the names in the catalogue as the gateway knows it, without starting a process."""
        with Gateway(self.known["gateway"]) as gateway:
            return [str(row["name"]) for row in gateway.rows("/v1/crawlers")]

    def crawlctl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call ``crawlctl`` against this stack."""
        given = ("--gateway", self.known["gateway"], *words)
        done = in_process.crawlctl(*given, env=os.environ | self.env, folder=self.state_dir.parent)
        assert not check or done.returncode == 0, done.stderr
        return done


def wait_until(condition: Callable[[], object]) -> None:
    """Return when ``condition`` holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"it did not come within {PATIENCE_S:g} s"
        time.sleep(0.05)


def gone(pids: dict[str, int]) -> bool:
    """Return whether all of these processes have ended."""
    return all(processes.start_time(pid) is None for pid in pids.values())
