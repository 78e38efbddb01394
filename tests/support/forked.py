"""A program of ours in a copy of this process, which has what the program imports: a second of a processor else.

For one that is to refuse its start: no other thread is in the copy, so nothing that needs one may have been begun here.
How programs themselves begin is for the tests of those that serve.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

#: Far longer than a refusal takes.
PATIENCE_S = 120.0


def forked(program: Callable[[], object], *, env: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What it prints, and its exit code, with this environment, in this folder."""
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # this process may have threads
        pid = os.fork()
    if pid == 0:
        _be(program, dict(env), folder, files)
    end = time.monotonic() + PATIENCE_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    said = []
    for number in files:
        with os.fdopen(number, "r+") as file:
            file.seek(0)
            said.append(file.read())
    return subprocess.CompletedProcess([], os.waitstatus_to_exitcode(ended[1]), *said)


def _be(program: Callable[[], object], env: dict[str, str], folder: Path, files: list[int]) -> None:
    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        code = _code_of(program)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(program: Callable[[], object]) -> int:
    try:
        found = program()
    except SystemExit as end:
        found = end.code
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return 1
    return found if isinstance(found, int) else 0
