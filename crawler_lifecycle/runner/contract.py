"""The contract with the process: the environment that the runner reads, and the files that it
writes.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from . import reported
from .safe_directory import NotOurs, SafeDirectory

Json = dict[str, Any]
#: Variables of the environment.
Environ = Mapping[str, str]

#: The maximum size in bytes of the summary, and of the part of the summary with the short fields.
#: The containers of a pod share 12 KiB for their termination messages, and Kubernetes cuts a
#: message that is too long.
SUMMARY_MAX = 4096
SHORT_MAX = 1024
STATS_MAX = 64 * 1024
COUNTERS = ("pages", "items", "errors", "bytes")

FINISHED = 0
FAILED = 1
DISK_FULL = 3
BAD_CONFIGURATION = 4
STOPPED = 11
STOPPED_UNCLEANLY = 13
#: The exit code of shells for a program that does not exist.
NOT_EXECUTED = 127

#: The end of the sentence about files that a crawl left in its working folder.
NOT_KEPT = "are not kept: write them to CRAWL_FILES_DIR"

STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: The words before a crawler's command that limit its requests by a proxy. The runner executes them
#: itself, so that neither an image nor PATH needs crawlctl.
PROXY = ("crawlctl", "site", "proxy", "--")


class BadConfiguration(Exception):
    """An environment or command line that can never work."""


#: The fields of a contract that contain the unchanged value of a variable.
_TEXTS = (
    "files_dir",
    "state_dir",
    "stats_file",
    "summary_file",
    "upload_url",
    "upload_token",
    "log_file",
)


class Contract(NamedTuple):
    """The values of the contract's variables that the runner uses.

    A path is ``None`` when its variable is not set.
    """

    args: dict[str, str]
    settings: Json
    files_dir: str | None
    state_dir: str | None
    stats_file: str | None
    summary_file: str | None
    resume: bool
    attempt: int
    stop_signal: int
    memory_limit: int | None
    """Bytes."""
    deadline: float | None
    """Seconds since the epoch."""
    stop_grace_s: float
    """Seconds between the crawler's stop signal and its SIGKILL."""
    end_grace_s: float | None
    """Seconds from the end of ``stop_grace_s`` until all processes are killed, including the
    runner.

    If this value is set, the runner itself enforces the crawler's grace period.
    """
    upload_url: str | None
    upload_token: str | None
    log_file: str | None
    """The file that our standard output writes to; set when the runner must limit its size."""
    stop_url: str | None
    """The gateway's URL that reports whether the run's stop is forced."""
    stop_token: str | None
    items: str
    """``off`` means that the runner counts no items in feeds. Otherwise, this is JSON for the file
    ``DECLARED``, which declares which files contain items.
    """
    fields: list[str]
    """The item fields that the summary reports first."""

    @classmethod
    def read(cls, environ: Environ) -> Contract:
        """Read the variables. Raises ``BadConfiguration``, which names the variable."""
        name = environ.get("CRAWL_STOP_SIGNAL") or "SIGTERM"
        if name not in STOP_SIGNALS:
            raise BadConfiguration(
                f"CRAWL_STOP_SIGNAL: {name!r} is not allowed; use one of {', '.join(STOP_SIGNALS)}"
            )
        limit = environ.get("CRAWL_MEMORY_LIMIT") or "0"
        if not limit.isdecimal():
            raise BadConfiguration(
                f"CRAWL_MEMORY_LIMIT: {limit!r} is not a whole number of bytes, such as 536870912"
            )
        args = _object(environ, "CRAWL_ARGS")
        for key, value in args.items():
            if not isinstance(value, str):
                raise BadConfiguration(
                    f"CRAWL_ARGS: the value of {key!r} is not a string; put it in quotes"
                )
        return cls(
            args=args,
            settings=_object(environ, "CRAWL_SETTINGS"),
            resume=environ.get("CRAWL_RESUME") == "1",
            attempt=_attempt(environ),
            stop_signal=int(getattr(signal, name)),
            memory_limit=int(limit) or None,
            deadline=_deadline(environ),
            stop_grace_s=_seconds(environ, "CRAWL_STOP_GRACE_S", 30.0),
            end_grace_s=_seconds(environ, "CRAWL_END_GRACE_S", 0.0)
            if environ.get("CRAWL_END_GRACE_S")
            else None,
            stop_url=_stop_url(environ),
            stop_token=environ.get("CRAWL_TOKEN"),
            items=environ.get("CRAWL_ITEMS", ""),
            fields=_fields(environ),
            **{name: environ.get(f"CRAWL_{name.upper()}") for name in _TEXTS},
        )


def behind_proxy(command: Sequence[str]) -> bool:
    """Return true if this command limits its requests by the proxy."""
    return tuple(command[: len(PROXY)]) == PROXY


def _fields(environ: Environ) -> list[str]:
    """Return the field names. An invalid variable gives no names, because that is no reason to
    refuse a crawl.
    """
    try:
        names = json.loads(environ.get("CRAWL_FIELDS") or "[]")
    except (ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _stop_url(environ: Environ) -> str | None:
    gateway = environ.get("CRAWL_GATEWAY_URL", "")
    run_id = environ.get("CRAWL_RUN_ID", "")
    if not gateway.startswith(("http://", "https://")) or not run_id.isdecimal():
        return None
    return f"{gateway.rstrip('/')}/v1/runs/{run_id}/stop"


def _attempt(environ: Environ) -> int:
    """Return the number of the attempt. If the variable is invalid, return 1, because only the note
    about resuming depends on this number.
    """
    text = environ.get("CRAWL_ATTEMPT") or "1"
    return int(text) if text.isdecimal() and len(text) < 10 else 1


def _deadline(environ: Environ) -> float | None:
    """Return ``CRAWL_DEADLINE``, else the time ``CRAWL_RUN_TIMEOUT_S`` seconds from now, else
    ``None``.

    The service sets the second variable when it cannot know the start time.
    """
    text = environ.get("CRAWL_DEADLINE")
    if not text:
        limited = environ.get("CRAWL_RUN_TIMEOUT_S")
        return time.time() + _seconds(environ, "CRAWL_RUN_TIMEOUT_S", 0.0) if limited else None
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        if moment.tzinfo is None:
            raise ValueError("the time zone is missing")
        return moment.timestamp()
    except (ValueError, OverflowError) as error:
        raise BadConfiguration(
            f"CRAWL_DEADLINE: {text[:100]!r} is not an ISO 8601 time with a zone ({error})"
        ) from None


def _seconds(environ: Environ, name: str, default: float) -> float:
    text = environ.get(name)
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < 2**31:
        raise BadConfiguration(
            f"{name}: {text!r} is not a valid number of seconds; use one from 0 to {2**31 - 1}"
        )
    return seconds


def _object(environ: Environ, name: str) -> Json:
    text = environ.get(name) or "{}"
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BadConfiguration(
            f"{name}: the value is not JSON ({error}); use a JSON object"
        ) from None
    if not isinstance(data, dict):
        raise BadConfiguration(f"{name}: the value is not a JSON object; write {{...}}")
    return data


def now() -> str:
    """Return the current time as ISO 8601 in UTC."""
    return moment(time.time())


def moment(seconds: float) -> str:
    """Return the seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()  # noqa: UP017


def write(path: str, text: str) -> None:
    """Replace the whole file.

    If the file cannot be replaced (a pod's termination log is a mount), overwrite its content.
    """
    folder, name = os.path.split(path)
    try:
        SafeDirectory(folder or ".").replace(name, text.encode(), lasting=False)
    except OSError:
        # First write the new content, then cut off the rest of the previous content, so that a full
        # disk does not damage the file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags, 0o644), "wb") as file:
            file.write(text.encode())
            file.flush()
            file.truncate()


def summary_text(data: Json) -> str:
    """Return the summary as JSON of at most ``SUMMARY_MAX`` bytes: first the short fields, then the
    long ones.

    ``fields`` comes last, and is either complete or left out, because a field that is missing there
    would seem to be empty in every item.
    """
    long = picked(data, ("files", "message", "blocked"))
    last = picked(data, ("fields",))
    short = fitted(
        {name: value for name, value in data.items() if name not in (*long, *last)}, SHORT_MAX
    )
    text = fitted({**json.loads(short), **long}, SUMMARY_MAX)
    whole = json.dumps({**json.loads(text), **last})
    return whole if len(whole) <= SUMMARY_MAX else text


def picked(data: Json, names: Iterable[str]) -> Json:
    """Return the fields with these names that the object has."""
    return {name: data[name] for name in names if name in data}


def fitted(data: Json, most: int) -> str:
    """Return the object as JSON of at most ``most`` bytes. The longest string is halved repeatedly
    until the object fits.
    """
    data = dict(data)
    while len(text := json.dumps(data)) > most:
        name = max(
            (name for name, value in data.items() if isinstance(value, str)),
            key=lambda name: len(data[name]),
        )
        if len(data[name]) < 2:
            raise ValueError(
                f"the object does not fit into {most} bytes, even with its strings cut"
            )
        data[name] = data[name][: len(data[name]) // 2]
    return text


def read(path: str) -> Json | None:
    """Return the JSON object in the file; ``None`` when the file is missing, too large or not
    valid.
    """
    folder, name = os.path.split(path)
    try:
        raw = SafeDirectory(folder or ".").read(name, STATS_MAX + 1)
        data = json.loads(raw) if raw is not None and len(raw) <= STATS_MAX else None
    except (OSError, NotOurs, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def valid_stats(data: Json) -> Json:
    """Return those fields from a stats file that the contract defines and that have the correct
    type.

    Strings are cut to their maximum length.
    """
    good: Json = {}
    for name in COUNTERS:
        value = data.get(name)
        if type(value) is int and 0 <= value <= reported.COUNT_MAX:
            good[name] = value
    for name, limit in (("updated_at", 200), ("finish_reason", 200), ("message", 1000)):
        value = data.get(name)
        if type(value) is str and value:
            good[name] = value[:limit]
    for name in ("resumable", "resumed", "saved"):
        if type(data.get(name)) is bool:
            good[name] = data[name]
    blocked = reported.blocks(data.get("blocked"))
    if blocked:
        good["blocked"] = blocked
    if type(data.get("scrapystats")) is dict:
        good["scrapystats"] = reported.statistics(data["scrapystats"])
    return good
