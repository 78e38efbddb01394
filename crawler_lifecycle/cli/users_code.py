"""What users' modules answer: each in a process of its own, which finds modules in the folder of the call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress


def answer_of(module: str, words: Sequence[str], timeout_s: float | None = None) -> tuple[bytes, int]:
    """What ``python -m module words`` wrote, and its exit code; it is killed with its children when it takes longer."""
    command = [sys.executable, "-m", module, *words]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    try:
        return child.communicate(timeout=timeout_s)[0], child.returncode
    except subprocess.TimeoutExpired:
        return b"", -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # also what it left behind
        child.wait()
