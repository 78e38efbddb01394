"""Tokens for a task: a crawler's token, and tokens for its files, leases and code.

With ``task.<run>.<mac>``, a crawler can add tasks to its own run and read its stop. With
``files.<run>.<index>.<attempt>.<mac>``, a task's runner can upload files. With
``leases.<run>.<index>.<attempt>.<mac>``, a task's crawler can lease requests to sites. With
``code.<run>.<index>.<attempt>.<mac>``, a task's runner can fetch the code of its run. No token
allows anything else.

``<run>`` is the number and uid of the run (``RunRef``), because a later run may get the same
number. ``<mac>`` is an HMAC-SHA256. Its input begins with a prefix for each purpose and version, so
a signature for another purpose is not valid here. The scheduler service signs tokens and the
gateway verifies them. Both have the setting ``gateway.task_key``.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import re
from dataclasses import dataclass

from crawler_lifecycle.domain.run_ref import RunRef

#: Prefixes of the signed text. A new version of a token needs a new prefix, which makes signatures
#: of the old version invalid.
_PURPOSE = b"crawler-lifecycle/task-token/v2\n"
_TASK_PURPOSE = "crawler-lifecycle/{}-token/v2\n"
#: The minimum size of a key in bytes, equal to that of a SHA-256 digest. A key with fewer bytes
#: would weaken the signature.
KEY_MIN = 32
#: The highest index or attempt, because the database stores both as 32-bit integers.
_NUMBER_MAX = 2**31 - 1
_RUN = r"([1-9][0-9]{0,18}-[0-9a-f]{32})"
_SHAPE = re.compile(rf"task\.{_RUN}\.([A-Za-z0-9_-]{{43}})", re.ASCII)
_TASK_SHAPE = re.compile(
    rf"(files|leases|code)\.({_RUN}\.(0|[1-9][0-9]{{0,9}})\.([1-9][0-9]{{0,9}}))\.([A-Za-z0-9_-]{{43}})",
    re.ASCII,
)


class Purpose(enum.StrEnum):
    """The use of a token of a task."""

    FILES = "files"
    LEASES = "leases"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """The content of a token of a task."""

    purpose: Purpose
    run: RunRef
    index: int
    attempt: int


def sign(key: bytes, run: RunRef) -> str:
    """Return the crawler's token for this run.

    Raises ``ValueError`` for a key shorter than ``KEY_MIN`` bytes or an invalid run.
    """
    if RunRef.named(str(run)) is None:
        raise ValueError(
            f"run: {run} is not valid; give a number and a uid of 32 hexadecimal digits"
        )
    return f"task.{run}.{_mac(key, str(run))}"


def verify(key: bytes, token: str) -> RunRef | None:
    """Return the run that this crawler's token is for.

    Return ``None`` if the text is not such a token or was signed with a different key. Raises
    ``ValueError`` for a key shorter than ``KEY_MIN`` bytes.
    """
    found = _SHAPE.fullmatch(token)
    right = found is not None and hmac.compare_digest(_mac(key, found[1]), found[2])
    return RunRef.named(found[1]) if found is not None and right else None


def sign_task(key: bytes, claim: TaskClaim) -> str:
    """Return the token with which this task may do what the claim states.

    The gateway accepts it until the database shows that the task has ended. Raises ``ValueError``
    for a key of less than ``KEY_MIN`` bytes, an invalid run, or an index or attempt out of range.
    """
    run = claim.run
    index = claim.index
    attempt = claim.attempt
    if RunRef.named(str(run)) is None or not (
        0 <= index <= _NUMBER_MAX and 1 <= attempt <= _NUMBER_MAX
    ):
        raise ValueError(
            f"run {run}, index {index}, attempt {attempt}: no task can have these numbers"
        )
    task = f"{run}.{index}.{attempt}"
    return f"{claim.purpose}.{task}.{_mac(key, task, _TASK_PURPOSE.format(claim.purpose).encode())}"


def verify_task(key: bytes, token: str) -> TaskClaim | None:
    """Return what this token of a task names.

    Return ``None`` if the text is not such a token or was signed with a different key. Raises
    ``ValueError`` for a key shorter than ``KEY_MIN`` bytes.
    """
    found = _TASK_SHAPE.fullmatch(token)
    if found is None:
        return None
    right = _mac(key, found[2], _TASK_PURPOSE.format(found[1]).encode())
    run = RunRef.named(found[3])
    if run is None or not hmac.compare_digest(right, found[6]):
        return None
    return TaskClaim(Purpose(found[1]), run, int(found[4]), int(found[5]))


def _mac(key: bytes, named: str, purpose: bytes = _PURPOSE) -> str:
    if len(key) < KEY_MIN:
        raise ValueError(
            f"LIFECYCLE_GATEWAY__TASK_KEY: {len(key)} bytes are too few; use {KEY_MIN} or more "
            "random bytes"
        )
    digest = hmac.digest(key, purpose + named.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
