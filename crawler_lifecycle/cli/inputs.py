"""Input for commands: ``name=value`` options, files, standard input, and the output of users'
modules.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from .problems import WrongUsage

Given = Annotated[list[str] | None, Parameter(name=["--arg", "-a"])]
Arguments = Annotated[Given, Parameter(help="argument of the crawler, name=value")]
Settings = Annotated[
    list[str] | None, Parameter(name=["--setting", "-s"], help="setting, NAME=value")
]

#: The maximum size of an input in bytes. It exceeds the size of any graph; a limit is needed
#: because a device has no end.
CONTENT_MAX = 256 << 20


def pairs(words: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return ``name=value`` options as a mapping.

    A value can contain further ``=`` characters. Raises ``CommandFailed``.
    """
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise WrongUsage(f"{option} {word!r} has no value", f"give {option} name=value")
        if name in found:
            raise WrongUsage(f"{option} {name!r} is given twice", "give it once")
        found[name] = value
    return found


def filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, omitting ``None``, empty lists and empty objects."""
    return {name: value for name, value in values.items() if value not in (None, [], {})}


def content_of(file: Path, option: str = "--file") -> bytes:
    """Return the bytes of a file; ``-`` is standard input.

    Raises ``CommandFailed``, also for more than ``CONTENT_MAX`` bytes.
    """
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as opened:
            content = opened.read(CONTENT_MAX + 1)
    except OSError as error:
        raise WrongUsage(f"{option} {file} cannot be read", why=str(error)) from None
    if len(content) > CONTENT_MAX:
        raise WrongUsage(
            f"{option} {file} is larger than {CONTENT_MAX >> 20} MiB", "give a smaller file"
        )
    return content


def json_of(where: str, content: bytes) -> Any:
    """Return the value of a JSON string.

    ``where`` names the source of the string in errors. Raises ``CommandFailed``.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WrongUsage(f"{where}: this is not valid JSON", why=str(error)) from None


def answer_of(
    module: str, words: Sequence[str], timeout_s: float | None = None
) -> tuple[bytes, int]:
    """Run ``python -m module words``, and return its output and exit code.

    The process finds modules in the current folder. After ``timeout_s`` seconds, the process is
    killed with its child processes.
    """
    command = [sys.executable, "-m", module, *words]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        return child.communicate(timeout=timeout_s)[0], child.returncode
    except subprocess.TimeoutExpired:
        return b"", -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # also ends its child processes
        child.wait()
