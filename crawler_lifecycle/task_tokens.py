"""Tokens for a task: a crawler's token and a files token.

With ``task.<run>.<mac>``, a crawler can add tasks to its own run and read its stop. With
``files.<run>.<index>.<attempt>.<mac>``, a task's runner can upload files. Neither token allows
anything else.

``<run>`` is the number and uid of the run (``RunRef``), because a later run may get the same
number. ``<mac>`` is an HMAC-SHA256. Its input begins with a prefix for each purpose and version, so
a signature for another purpose is not valid here. The scheduler service signs tokens and the
gateway verifies them. Both have the setting ``gateway.task_key``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from crawler_lifecycle.domain.run_ref import RunRef

#: Prefixes of the signed text. A new version of a token needs a new prefix, which makes signatures
#: of the old version invalid.
_PURPOSE = b"crawler-lifecycle/task-token/v2\n"
_FILES = b"crawler-lifecycle/files-token/v2\n"
#: The minimum size of a key in bytes, equal to that of a SHA-256 digest. A key with fewer bytes
#: would weaken the signature.
KEY_MIN = 32
#: The highest index or attempt, because the database stores both as 32-bit integers.
_NUMBER_MAX = 2**31 - 1
_RUN = r"([1-9][0-9]{0,18}-[0-9a-f]{32})"
_SHAPE = re.compile(rf"task\.{_RUN}\.([A-Za-z0-9_-]{{43}})", re.ASCII)
_FILES_SHAPE = re.compile(
    rf"files\.({_RUN}\.(0|[1-9][0-9]{{0,9}})\.([1-9][0-9]{{0,9}}))\.([A-Za-z0-9_-]{{43}})", re.ASCII
)


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


def sign_files(key: bytes, run: RunRef, index: int, attempt: int) -> str:
    """Return the token for uploading this task's files.

    The gateway accepts it until the database shows that the task has ended. Raises ``ValueError``
    for a key of less than ``KEY_MIN`` bytes, an invalid run, or an index or attempt out of range.
    """
    if RunRef.named(str(run)) is None or not (
        0 <= index <= _NUMBER_MAX and 1 <= attempt <= _NUMBER_MAX
    ):
        raise ValueError(
            f"run {run}, index {index}, attempt {attempt}: no task can have these numbers"
        )
    task = f"{run}.{index}.{attempt}"
    return f"files.{task}.{_mac(key, task, _FILES)}"


def verify_files(key: bytes, token: str) -> tuple[RunRef, int, int] | None:
    """Return the run, index and attempt of this files token.

    Return ``None`` if the text is not such a token or was signed with a different key. Raises
    ``ValueError`` for a key shorter than ``KEY_MIN`` bytes.
    """
    found = _FILES_SHAPE.fullmatch(token)
    if found is None or not hmac.compare_digest(_mac(key, found[1], _FILES), found[5]):
        return None
    run = RunRef.named(found[2])
    return None if run is None else (run, int(found[3]), int(found[4]))


def _mac(key: bytes, named: str, purpose: bytes = _PURPOSE) -> str:
    if len(key) < KEY_MIN:
        raise ValueError(
            f"LIFECYCLE_GATEWAY__TASK_KEY: {len(key)} bytes are too few; use {KEY_MIN} or more "
            "random bytes"
        )
    digest = hmac.digest(key, purpose + named.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
