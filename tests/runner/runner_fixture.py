"""Runs the runner as pods and the local cluster do: as a plain folder, with a clean environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import crawler_lifecycle.runner

RUNNER = Path(crawler_lifecycle.runner.__file__).parent
#: The runner, whose clock for deadlines and grace periods stands still until a file appears.
PATIENT = f"""
import os, sys
sys.path.insert(0, {str(RUNNER.parents[1])!r})
from crawler_lifecycle.runner import main
gate, keep = sys.argv.pop(1), main.Runner._keep_deadline
main.Runner._keep_deadline = lambda self, child: keep(self, child) if os.path.exists(gate) else None
main.main(sys.argv[1:])
"""
#: The runner with short pauses: before it asks whether a stop is forced, between two searches for
#: signs of life, and before an upload is tried again. Parts of an upload are small.
EAGER_PART_BYTES = 512 * 1024
EAGER = f"""
import sys
sys.path.insert(0, {str(RUNNER.parents[1])!r})
from crawler_lifecycle.runner import bundle, forced, main, signs, upload
forced._PAUSES_S = upload._PAUSES_S = (0.1,)
signs.SECONDS = main.FEED_SECONDS = 0.1
bundle.PART_BYTES = {EAGER_PART_BYTES}
main.main(sys.argv[1:])
"""
#: The signals that the runner handles when it is ready, as a mask.
_BLOCKED = sum(1 << (number - 1) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD))


def wait_until(condition: Callable[[], object], seconds: float = 150) -> None:
    """Poll until the condition holds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true, not within {seconds:g} s"
        time.sleep(0.01)


class RunnerFixture:
    """One crawler's folders, and the runner around it."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.state = folder / "state"
        self.stats_file = folder / "stats.json"
        self.summary_file = folder / "summary.json"
        for path in (self.files, self.state):
            path.mkdir(exist_ok=True)
        self._started: list[subprocess.Popen[bytes]] = []
        self.output = b""
        self.python_of_crawler = os.environ.get("LIFECYCLE_TEST_SCRAPY") or sys.executable
        """A Python with another Scrapy; by default our own."""

    def environment(self, args: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "CRAWL_ARGS": json.dumps(dict(args)),
            "CRAWL_FILES_DIR": str(self.files),
            "CRAWL_STATE_DIR": str(self.state),
            "CRAWL_STATS_FILE": str(self.stats_file),
            "CRAWL_SUMMARY_FILE": str(self.summary_file),
            **more,
        }

    def start(
        self,
        *argv: str,
        args: Mapping[str, str] | None = None,
        patient_until: str | None = None,
        eager: bool = False,
        **more: str,
    ) -> subprocess.Popen[bytes]:
        """Start the runner; ``patient_until`` names one of the crawler's files, before which no
        limit expires.

        With ``eager``, its pauses last a tenth of a second, and its parts are small.
        """
        self.summary_file.unlink(missing_ok=True)
        runner = ["-c", EAGER] if eager else [str(RUNNER)]
        if patient_until is not None:
            runner = ["-c", PATIENT, str(self.files / patient_until)]
        process = subprocess.Popen(
            [self.python_of_crawler, "-I", "-S", *runner, *argv],
            env=self.environment(args or {}, more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], seconds: float = 120.0) -> int:
        self.output, _ = process.communicate(timeout=seconds)
        return process.returncode

    def run(self, *argv: str, args: Mapping[str, str] | None = None, **more: Any) -> int:
        return self.finish(self.start(*argv, args=args, **more))

    @staticmethod
    def listens(process: subprocess.Popen[bytes]) -> bool:
        """Return whether the runner handles signals; before that, any of them ends its interpreter."""
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.split("SigBlk:")[1].split()[0], 16) == _BLOCKED

    def python(self, code: str, **more: Any) -> int:
        return self.run("command", "--", sys.executable, "-I", "-S", "-c", code, **more)

    def start_python(self, code: str, **more: Any) -> subprocess.Popen[bytes]:
        process = self.start("command", "--", sys.executable, "-I", "-S", "-c", code, **more)
        wait_until((self.files / "ready").exists)
        return process

    def summary(self) -> dict[str, Any]:
        raw = self.summary_file.read_bytes()
        assert len(raw) <= 4096
        data: dict[str, Any] = json.loads(raw)
        return data

    def stats(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.stats_file.read_text())
        return data

    def progress(self) -> list[dict[str, Any]]:
        return self.lines("crawl_progress")

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines that were printed under this name."""
        lines = [
            line for line in self.output.decode().splitlines() if line.startswith(f'{{"{kind}"')
        ]
        return [json.loads(line)[kind] for line in lines]

    def close(self) -> None:
        """End every process group that we started."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdout is not None:
                process.stdout.close()
            process.wait()
