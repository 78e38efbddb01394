"""``python -m examples.picture FILE`` makes the picture in the quickstart from ``crawlctl watch``
during a real run.

It starts the embedded stack and a run of several tasks, runs ``crawlctl watch`` in its own
terminal, and kills one of the crawlers. As soon as the screen shows the correction, the screen is
written as an SVG file. The SVG file loads nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from examples.story_checks import Slots, task_processes

COLUMNS, LINES = 104, 30
#: The beginning of every new frame of ``rich.live``, which returns to the first line of the frame
#: and erases it.
ERASE = re.compile(r"\r(?:\x1b\[1A)?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
#: Codes that only move or hide the cursor.
CURSOR = re.compile(r"\x1b\[\?25[hl]")
#: Fonts that the SVG would load from another host.
FONT_FACE = re.compile(r"@font-face \{.*?\}", re.DOTALL)
PATIENCE_S = 180.0


def frames(written: str) -> list[str]:
    """Yield the frames that a program which redraws its screen has completed, with their colours,
    oldest first.
    """
    whole = ERASE.split(written)[:-1]
    return [CURSOR.sub("", frame).replace("\r", "").strip("\n") for frame in whole if frame.strip()]


def svg(frame: str, command: str) -> str:
    """Return one frame below the command that drew it, as an SVG file."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(frame))
    picture = FONT_FACE.sub("", console.export_svg(title=command, unique_id="watch"))
    return "\n".join(line.rstrip() for line in picture.splitlines() if line.strip()) + "\n"


def screen(command: list[str], env: dict[str, str]) -> Iterator[str]:
    """Yield everything that a command has written to its own terminal, again after each output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    written, until = b"", time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                written += os.read(ours, 65536)
                yield written.decode(errors="ignore")
        raise TimeoutError(
            f"the screen showed no such frame within {PATIENCE_S:g} s:\n{written.decode()[-2000:]}"
        )
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def first(written: Iterator[str], fits: Callable[[str], object]) -> str:
    """Return the first frame that matches."""
    for text in written:
        for frame in frames(text)[-1:]:
            if fits(Text.from_ansi(frame).plain):
                return frame
    raise EOFError("the program has ended")


def take(stack: Stack) -> str:
    """Start a run, kill one of its crawlers, and take the picture when the screen shows the
    correction.
    """
    with Gateway(str(stack.addresses["gateway"]), timeout_s=60) as gateway:
        letters = ("a-b", "c-d", "e-i", "j-p", "q-s", "t-z")
        request = {
            "crawler": "operations",
            "tasks": [{"args": {"letters": part}} for part in letters],
            "max_parallel_tasks": 4,
            "poll_minutes": [0.05],
            "limits": {"start_check_s": 0.5},
            "requested_by": "picture",
        }
        run_id = int(gateway.start(request, f"picture-{time.time_ns()}")["run_id"])
        env = {
            **os.environ,
            "LIFECYCLE_GATEWAY__URL": str(stack.addresses["gateway"]),
            "TERM": "xterm-256color",
        }
        env.pop("NO_COLOR", None)
        command = ["crawlctl", "watch", str(run_id)]
        watched = screen([sys.executable, "-m", "crawler_lifecycle.cli", *command[1:]], env)
        try:
            first(watched, lambda text: re.search(r"1  RUNNING +\d+ pages, [1-9]\d* items", text))
            places = Slots(stack.state_dir, stack.addresses)
            os.killpg(task_processes(places, run_id)["1/1"][2], signal.SIGKILL)
            frame = first(
                watched,
                lambda text: "correction:" in text and "RUNNING" in text and "QUEUED" in text,
            )
        finally:
            watched.close()
            gateway.stop(run_id, force=True, reason="the picture is taken", requested_by="picture")
    return svg(frame, " ".join(command))


def main() -> int:
    """Take the picture, and write it to the named file."""
    parser = argparse.ArgumentParser(prog="python -m examples.picture", description=__doc__)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("LIFECYCLE_CLUSTER__SLOTS", "8")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        stack = Stack(Layout(Path(folder), services=100, only_free_ports=True))
        stack.start()
        try:
            options.file.write_text(take(stack), encoding="utf-8")
        finally:
            stack.stop(kill_crawls=True)
    print(f"{options.file}: {options.file.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
