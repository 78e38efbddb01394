"""Calls of ``crawlctl`` in this process: a separate one takes half a second of processor time
before it does anything. tests/dev/test_exit_codes.py tests how the program itself begins and ends.
"""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from crawler_lifecycle.cli import main


def crawlctl(*words: str, env: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Call it with this environment in this folder.

    Returns its output and its exit code. Environment, folder and output are the process's own, so a
    call from another thread gets a process.
    """
    if threading.current_thread() is not threading.main_thread():
        command = (sys.executable, "-m", "crawler_lifecycle.cli", *words)
        return subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=300
        )
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2)
    )
    with _environment(env), chdir(folder), redirect_stdout(out), redirect_stderr(err):
        try:
            code = main.run(words)
        except SystemExit as end:
            code = int(end.code or 0)
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # as the end of a process closes what is still open
    said = [text.buffer.getvalue().decode() for text in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["crawlctl", *words], code, *said)


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before, given = os.environ.copy(), dict(env)  # which may be os.environ itself
    mask = os.umask(0o022)  # that of the process, which some commands change
    os.umask(mask)
    os.environ.clear()
    os.environ.update(given)
    try:
        yield
    finally:
        os.umask(mask)
        os.environ.clear()
        os.environ.update(before)
