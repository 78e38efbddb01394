"""Input of commands: ``name=value`` options, files or standard input, and the output of users' modules."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .problems import WrongUsage


def pairs(words: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return ``name=value`` options as a mapping. A value may also contain ``=``. Raises ``CommandFailed``."""
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise WrongUsage(f"{option} {word!r} has no value", f"give {option} name=value")
        if name in found:
            raise WrongUsage(f"{option} {name!r} is given twice", "give it once")
        found[name] = value
    return found


def content_of(file: Path, option: str = "--file") -> bytes:
    """Return the bytes of a file; ``-`` is standard input. Raises ``CommandFailed``."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise WrongUsage(f"{option} {file} cannot be read", why=str(error)) from None


def json_of(where: str, content: bytes) -> Any:
    """Return the value of a JSON text. ``where`` names the text in errors. Raises ``CommandFailed``."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WrongUsage(f"{where}: this is not valid JSON", why=str(error)) from None


def answer_of(module: str, words: Sequence[str], timeout_s: float | None = None) -> tuple[bytes, int]:
    """Return the output of ``python -m module words`` and its exit code.

    The process finds modules in the current folder. After ``timeout_s`` seconds it is killed with its child processes.
    """
    command = [sys.executable, "-m", module, *words]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    try:
        return child.communicate(timeout=timeout_s)[0], child.returncode
    except subprocess.TimeoutExpired:
        return b"", -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # also ends its child processes
        child.wait()
