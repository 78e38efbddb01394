"""Tokens of a task: its crawler adds tasks and reads the stop of its own run, its runner uploads files.

Each does that and nothing else. ``task.<run>.<mac>`` and ``files.<run>.<index>.<attempt>.<mac>``, where a run is named
by number and uid (``RunRef``), so that no other run that ever gets the number is opened: the mac is
HMAC-SHA256 over a prefix that belongs to one purpose and version alone, so that a signature made with the same key for
something else never opens a run. The scheduler service signs, the gateway verifies; both know ``gateway.task_key``.

"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from crawler_lifecycle.domain.run_ref import RunRef

#: Another version of the token gets another text here, and so another signature.
_PURPOSE = b"crawler-lifecycle/task-token/v2\n"
_FILES = b"crawler-lifecycle/files-token/v2\n"
#: As many bytes as the hash gives; a shorter key is weaker than the signature it makes.
KEY_MIN = 32
#: Indexes and attempts are 32-bit integers of the database.
_NUMBER_MAX = 2**31 - 1
_RUN = r"([1-9][0-9]{0,18}-[0-9a-f]{32})"
_SHAPE = re.compile(rf"task\.{_RUN}\.([A-Za-z0-9_-]{{43}})", re.ASCII)
_FILES_SHAPE = re.compile(
    rf"files\.({_RUN}\.(0|[1-9][0-9]{{0,9}})\.([1-9][0-9]{{0,9}}))\.([A-Za-z0-9_-]{{43}})", re.ASCII
)


def sign(key: bytes, run: RunRef) -> str:
    """The token for this run. Raises ``ValueError`` for a key under ``KEY_MIN`` bytes or an id that no run has."""
    if RunRef.named(str(run)) is None:
        raise ValueError(f"run_id: {run} is no run")
    return f"task.{run}.{_mac(key, str(run))}"


def verify(key: bytes, token: str) -> RunRef | None:
    """The run that this token is for; ``None`` when it was not signed with this key, or is no such token.

    Raises ``ValueError`` for a key under ``KEY_MIN`` bytes.
    """
    found = _SHAPE.fullmatch(token)
    right = found is not None and hmac.compare_digest(_mac(key, found[1]), found[2])
    return RunRef.named(found[1]) if found is not None and right else None


def sign_files(key: bytes, run: RunRef, index: int, attempt: int) -> str:
    """The token for uploading this task's files. It is good while the task has not ended on record.

    Raises ``ValueError`` for a key under ``KEY_MIN`` bytes or numbers that no task has.
    """
    if RunRef.named(str(run)) is None or not (0 <= index <= _NUMBER_MAX and 1 <= attempt <= _NUMBER_MAX):
        raise ValueError(f"run {run}, index {index}, attempt {attempt}: there is no such task")
    task = f"{run}.{index}.{attempt}"
    return f"files.{task}.{_mac(key, task, _FILES)}"


def verify_files(key: bytes, token: str) -> tuple[RunRef, int, int] | None:
    """Run, index and attempt that this token is for; ``None`` when it was not signed with this key, or is no such
    token. Raises ``ValueError`` for a key under ``KEY_MIN`` bytes."""
    found = _FILES_SHAPE.fullmatch(token)
    if found is None or not hmac.compare_digest(_mac(key, found[1], _FILES), found[5]):
        return None
    run = RunRef.named(found[2])
    return None if run is None else (run, int(found[3]), int(found[4]))


def _mac(key: bytes, named: str, purpose: bytes = _PURPOSE) -> str:
    if len(key) < KEY_MIN:
        raise ValueError(
            f"LIFECYCLE_GATEWAY__TASK_KEY: {len(key)} bytes are too few; use {KEY_MIN} random ones or more"
        )
    digest = hmac.digest(key, purpose + named.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
