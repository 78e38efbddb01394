"""Bounds for numbers, times and strings from callers and crawlers.

The first part checks values from a caller (``LIMITS``) and refuses wrong values. The second part
reads values from a crawler. There an impossible value becomes unknown, because a value that does
not fit its column would break every poll.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from crawler_lifecycle.runner.reported import COUNT_MAX as COUNT_MAX
from crawler_lifecycle.runner.reported import statistics as statistics

from .errors import InvalidRequest
from .names import CRAWLER_NAME, REQUEST_ID_MAX, TASKS_PER_RUN_MAX

#: The range of row ids, which is that of a BIGINT.
ID_MAX = 2**63 - 1
#: The range of attempts and exit codes, which is that of an INTEGER.
INT_MAX = 2**31 - 1
#: Times outside these years are refused.
FIRST_YEAR = 1970
LAST_YEAR = 2100
_TIME_FIX = (
    f"give a time in the years {FIRST_YEAR} to {LAST_YEAR} with its zone, such as "
    "2026-03-01T12:00:00Z"
)
#: The maximum number of processors for one task, which is more than any machine has.
CPU_MAX = 100_000
DAY_S = 86_400.0
YEAR_S = 366 * DAY_S
#: The default maximum number of open objects of each kind in one installation (settings
#: ``LIFECYCLE_LIMITS__MANAGERS`` …). Each open webhook needs a thread of a worker.
MOST: Mapping[str, int] = {"managers": 1_000, "graphs": 1_000, "schedules": 1_000, "webhooks": 100}
#: The maximum number of values, including arrays and objects, in a JSON body or in a workflow's
#: input. The validation of even the shortest value takes time.
VALUES_MAX = 150_000
INPUT_VALUES_MAX = 30_000
#: The maximum size of the tasks in one deployment call, in bytes of JSON. With the fields that the
#: tasks share, a call stays below one megabyte, a common limit in proxies.
OFFER_BYTES_MAX = 768 * 1024
#: The maximum length of a short string, such as ``requested_by`` or ``parent``. The columns for
#: these strings have the same length.
SAID_MAX = 255
#: The maximum size of a short string as JSON, in bytes, when the string is sent through Temporal.
#: In this JSON, a character outside ASCII has 6 or 12 bytes. Temporal ends a workflow that sets a
#: search attribute of more than 2,048 bytes. As UTF-8, such a string has at most 765 bytes, and a
#: workflow id can have 1,000.
TRAVEL_MAX = 2_000
#: Unicode categories that are refused: control characters, surrogates and line separators.
#: Databases, protobuf or logs would change them.
_UNFIT = ("Cc", "Cs", "Zl", "Zp")
#: The maximum length of a task's name, uid and reason in an answer from the scheduler service.
NAME_MAX = 255
UID_MAX = 100
REASON_MAX = 1000


#: The pydantic configuration that refuses unknown fields.
STRICT = {"extra": "forbid", "allow_inf_nan": False}


# --- values from a caller -------------------------------------------------------------------------

_QUOTED = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def values_in(text: bytes) -> int:
    """Return the number of values in a JSON text without parsing it.

    An empty array or object counts twice.
    """
    if text.count(b",") > INPUT_VALUES_MAX // 2:
        text = _QUOTED.sub(b"", text)  # commas inside strings do not separate values
    return 1 + sum(map(text.count, (b",", b"[", b"{")))


def check_values(field: str, text: bytes, most: int) -> None:
    """Raise ``InvalidRequest`` for JSON with more than ``most`` values."""
    if (values := values_in(text)) > most:
        raise InvalidRequest(f"{field}: {values} values are too many; send at most {most} at once")


def shown(value: object) -> str:
    """Return a value as text for an error message, with at most 120 characters. Only the beginning
    of a long value is converted.
    """
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a very large number"
    text = repr(value[:120] if isinstance(value, str | list) else value)
    return text if len(text) <= 120 else f"{text[:119]}…"


@dataclass(frozen=True, slots=True)
class Bound:
    """The allowed numbers of a request field. If ``above`` is true, ``least`` itself is not
    allowed.
    """

    least: float
    most: float
    unit: str = ""
    above: bool = False
    whole: bool = False
    or_none: bool = False
    """True if the value may be ``None``."""
    fix: str = ""
    """Further advice, which follows the range in the message."""

    def fix_text(self) -> str:
        """Return the advice for a wrong value, such as ``give a whole number from 1 to 5``."""
        kind = "a whole number" if self.whole else "a number"
        least = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        to = "and at most" if self.above else "to"
        unit = f" {self.unit}" if self.unit else ""
        most = (
            str(int(self.most)) if self.whole or self.most == int(self.most) else f"{self.most:g}"
        )
        return f"give {kind} {least} {to} {most}{unit}{self.fix}"

    def holds(self, value: object) -> bool:
        """Return whether the value is an allowed number.

        A boolean is not a number here.
        """
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        # Only for floats: ``isfinite`` raises an error for an integer that is too large for a
        # float.
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return value <= self.most and (value > self.least if self.above else value >= self.least)


_OPEN = ", or null for no limit"
#: The bounds of all numbers in a request. Every input (HTTP, Temporal, catalogue, CLI) builds the
#: dataclasses of ``domain.run``, which use only this table.
LIMITS: Mapping[str, Bound] = {
    "run_id": Bound(1, ID_MAX, whole=True, or_none=True),
    "attempt": Bound(1, INT_MAX, whole=True),
    "priority": Bound(1, 5, whole=True, fix=": 1 is first, 5 is last"),
    "max_parallel_tasks": Bound(
        1, TASKS_PER_RUN_MAX, whole=True, or_none=True, fix=", or leave it out for all"
    ),
    # At least one poll per day: if polls were less frequent, the recorded status would be of little
    # use.
    "poll_minutes": Bound(0, 1440, "minutes", above=True),
    "limits.start_check_s": Bound(0, 3600, "seconds"),
    "limits.start_timeout_s": Bound(0, YEAR_S, "seconds", above=True, or_none=True, fix=_OPEN),
    "limits.run_timeout_s": Bound(0, YEAR_S, "seconds", above=True, or_none=True, fix=_OPEN),
    "limits.stall_timeout_s": Bound(0, YEAR_S, "seconds", above=True, or_none=True, fix=_OPEN),
    "limits.stop_grace_s": Bound(0, DAY_S, "seconds"),
    "limits.force_stop_after_s": Bound(0, YEAR_S, "seconds", above=True, or_none=True, fix=_OPEN),
}


def refusal(field: str, value: object, fix: str) -> InvalidRequest:
    """Return the error about a value that is not allowed. The error contains the field, the value
    and the fix."""
    return InvalidRequest(f"{field}: {shown(value)} is not allowed; {fix}")


def file_path(setting: str, url: str, forms: str) -> str:
    """Return the path of a URL of the form ``file:///path``.

    ``forms`` says which URLs the setting may have. Raises ``InvalidRequest``.
    """
    parts = urlsplit(url)
    here = parts.netloc in ("", "localhost")
    if parts.scheme != "file" or not here or not parts.path.startswith("/"):
        raise InvalidRequest(f"{setting}: {url!r} is not allowed; give {forms}")
    return unquote(parts.path)


def check_name(what: str, name: object, *, or_none: bool = False) -> None:
    """Raise ``InvalidRequest`` unless the text is a valid name for a crawler, pool or project."""
    if not (or_none and name is None) and not (
        isinstance(name, str) and CRAWLER_NAME.fullmatch(name)
    ):
        rule = (
            "have 1 to 63 characters of a-z, 0-9, '-', '_' and '.', and begin and end with a "
            "letter or digit"
        )
        raise refusal(what, name, f"{what} names {rule}")


def check_number(field: str, value: object, bound: Bound | None = None) -> None:
    """Raise ``InvalidRequest`` unless the number is within its bound. The default bound is the one
    in ``LIMITS``.
    """
    bound = bound or LIMITS[field]
    if not (bound.holds(value) or (value is None and bound.or_none)):
        raise refusal(field, value, bound.fix_text())


def storable(at: datetime) -> datetime:
    """Return the time in UTC.

    Raises ``ValueError``, which contains the fix, for a time outside the years that we store.
    """
    found = believable(at)
    if found is None:
        raise ValueError(_TIME_FIX)
    return found


def check_time(field: str, value: datetime | None) -> None:
    """Raise ``InvalidRequest`` unless the time has a time zone and lies within the years that we
    store.
    """
    if value is None:
        return
    if not isinstance(value, datetime):
        raise refusal(
            field,
            value,
            "give a datetime with its zone, such as datetime(2026, 3, 1, 12, tzinfo=UTC)",
        )
    if value.tzinfo is None or believable(value) is None:
        raise refusal(field, value.isoformat(), _TIME_FIX)


def travels(value: object, most: int = SAID_MAX) -> bool:
    """Return whether databases, Temporal and workflow ids keep this text of 1 to ``most``
    characters unchanged.
    """
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= most
        or len(json.dumps(value)) > TRAVEL_MAX
    ):
        return False
    return value.isprintable() or not any(unicodedata.category(c) in _UNFIT for c in value)


def check_text(field: str, value: object, most: int = SAID_MAX, *, needed: bool = False) -> None:
    """Raise ``InvalidRequest`` unless the text can be stored and sent.

    ``None`` is allowed unless the text is ``needed``.
    """
    if (needed or value is not None) and not travels(value, most):
        fix = f"give a string of 1 to {most} characters without control characters"
        raise refusal(
            field,
            value,
            f"{fix}, at most {TRAVEL_MAX} bytes as JSON (6 or 12 for each character outside ASCII)",
        )


def check_request_id(value: object) -> None:
    """Raise ``InvalidRequest`` unless the text is a valid request id.

    ``None`` is allowed. Leading and trailing spaces are refused, because MySQL ignores trailing
    spaces in comparisons.
    """
    check_text("request_id", value, REQUEST_ID_MAX)
    if isinstance(value, str) and value != value.strip():
        raise refusal("request_id", value, "remove the spaces at the beginning and the end")


# --- values from a crawler ------------------------------------------------------------------------

#: The highest signal number. Linux has 64 signals, and some of its ports have 128.
SIGNAL_MAX = 128
#: The maximum length of a string from a summary, and of a note about a resume.
TEXT_MAX = 1000
NOTE_MAX = 200


def whole(value: object) -> int | None:
    """Return the number in a string of decimal digits. Return ``None`` for a string with other
    characters, and for a number above ``ID_MAX``.
    """
    if not (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 19):
        return None
    return int(value) if int(value) <= ID_MAX else None


def count(value: object) -> int | None:
    """Return the value if it is a whole number from 0 to ``COUNT_MAX`` (a counter or a number of
    bytes), and otherwise ``None``.
    """
    return value if type(value) is int and 0 <= value <= COUNT_MAX else None


def exit_code(value: object) -> int | None:
    """Return the value if it is the exit code of a process and fits its column, and otherwise
    ``None``.
    """
    return value if type(value) is int and -INT_MAX <= value <= INT_MAX else None


def exit_signal(value: object) -> int | None:
    """Return the value if it is a signal number. Otherwise, and for 0, return ``None``."""
    return value if type(value) is int and 0 < value <= SIGNAL_MAX else None


def words(value: object, most: int = TEXT_MAX) -> str | None:
    """Return the text, cut to ``most`` characters, excluding characters that a database or Temporal
    refuses. Return ``None`` for an empty string and for a value that is not a string.
    """
    if not isinstance(value, str):
        return None
    text = value[:most].replace("\0", "")
    return (text if text.isascii() else text.encode("utf-8", "replace").decode()) or None


def cut_to_travel(text: str) -> str:
    """Return the text, truncated if it is too long for a search attribute of Temporal."""
    return (
        text
        if len(text) <= SAID_MAX and len(json.dumps(text)) <= TRAVEL_MAX
        else text[: TRAVEL_MAX // 12]
    )


def moment(value: object) -> datetime | None:
    """Return the time in an ISO 8601 text, in UTC. Return ``None`` if the text is not such a time,
    if the time has no zone, and for a year that we do not store.
    """
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value[:100])
    except ValueError:
        return None
    return believable(at) if at.tzinfo is not None else None


def believable(at: datetime) -> datetime | None:
    """Return the time in UTC, or ``None`` if it is outside the years that we store."""
    try:
        at = at if at.tzinfo is UTC else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at if FIRST_YEAR <= at.year <= LAST_YEAR else None
