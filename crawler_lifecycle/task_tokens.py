"""The tokens by which a crawler adds tasks to its own run and reads its stop, and a runner uploads its task's files.

Each does that and nothing else. ``task.<run_id>.<mac>`` and ``files.<run_id>.<index>.<attempt>.<mac>``: the mac is
HMAC-SHA256 over a prefix that belongs to one purpose and version alone, so that a signature made with the same key for
something else never opens a run. The scheduler service signs, the gateway verifies; both know ``gateway.task_key``.
Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

#: Another version of the token gets another text here, and so another signature.
_PURPOSE = b"crawler-lifecycle/task-token/v1\n"
_FILES = b"crawler-lifecycle/files-token/v1\n"
#: As many bytes as the hash gives; a shorter key is weaker than the signature it makes.
KEY_MIN = 32
#: Run ids are 64-bit integers of the database.
_RUN_MAX = 2**63 - 1
#: Indexes and attempts are 32-bit integers there.
_NUMBER_MAX = 2**31 - 1
_SHAPE = re.compile(r"task\.([1-9][0-9]{0,18})\.([A-Za-z0-9_-]{43})", re.ASCII)
_FILES_SHAPE = re.compile(
    r"files\.([1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,9})\.([1-9][0-9]{0,9})\.([A-Za-z0-9_-]{43})", re.ASCII
)


def sign(key: bytes, run_id: int) -> str:
    """The token for this run. Raises ``ValueError`` for a key under ``KEY_MIN`` bytes or an id that no run has."""
    _check(key)
    if not 1 <= run_id <= _RUN_MAX:
        raise ValueError(f"run_id: {run_id} is no id of a run; ids go from 1 to {_RUN_MAX}")
    return f"task.{run_id}.{_mac(key, str(run_id))}"


def verify(key: bytes, token: str) -> int | None:
    """The run that this token is for; ``None`` when it was not signed with this key, or is no such token.

    Raises ``ValueError`` for a key under ``KEY_MIN`` bytes.
    """
    _check(key)
    found = _SHAPE.fullmatch(token)
    if found is None or int(found[1]) > _RUN_MAX:
        return None
    return int(found[1]) if hmac.compare_digest(_mac(key, found[1]), found[2]) else None


def sign_files(key: bytes, run_id: int, index: int, attempt: int) -> str:
    """The token for uploading this task's files. It is good while the task has not ended on record.

    Raises ``ValueError`` for a key under ``KEY_MIN`` bytes or numbers that no task has.
    """
    _check(key)
    if not (1 <= run_id <= _RUN_MAX and 0 <= index <= _NUMBER_MAX and 1 <= attempt <= _NUMBER_MAX):
        raise ValueError(f"run {run_id}, index {index}, attempt {attempt}: there is no such task")
    task = f"{run_id}.{index}.{attempt}"
    return f"files.{task}.{_mac(key, task, _FILES)}"


def verify_files(key: bytes, token: str) -> tuple[int, int, int] | None:
    """Run, index and attempt that this token is for; ``None`` when it was not signed with this key, or is no such
    token. Raises ``ValueError`` for a key under ``KEY_MIN`` bytes."""
    _check(key)
    found = _FILES_SHAPE.fullmatch(token)
    if found is None:
        return None
    run_id, index, attempt = (int(found[n]) for n in (1, 2, 3))
    if run_id > _RUN_MAX or index > _NUMBER_MAX or attempt > _NUMBER_MAX:
        return None
    right = hmac.compare_digest(_mac(key, f"{run_id}.{index}.{attempt}", _FILES), found[4])
    return (run_id, index, attempt) if right else None


def _mac(key: bytes, named: str, purpose: bytes = _PURPOSE) -> str:
    digest = hmac.new(key, purpose + named.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _check(key: bytes) -> None:
    if len(key) < KEY_MIN:
        raise ValueError(
            f"LIFECYCLE_GATEWAY__TASK_KEY: {len(key)} bytes are too few; use {KEY_MIN} random ones or more"
        )
