"""The token by which a crawler adds tasks to its own run, and does nothing else.

``task.<run_id>.<mac>``: the mac is HMAC-SHA256 over a prefix that belongs to this purpose and version alone, so that a
signature made with the same key for something else never opens a run. The scheduler service signs, the gateway
verifies; both know ``gateway.task_key``. Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

#: Another version of the token gets another text here, and so another signature.
_PURPOSE = b"crawler-lifecycle/task-token/v1\n"
#: As many bytes as the hash gives; a shorter key is weaker than the signature it makes.
KEY_MIN = 32
#: Run ids are 64-bit integers of the database.
_RUN_MAX = 2**63 - 1
_SHAPE = re.compile(r"task\.([1-9][0-9]{0,18})\.([A-Za-z0-9_-]{43})", re.ASCII)


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


def _mac(key: bytes, run_id: str) -> str:
    digest = hmac.new(key, _PURPOSE + run_id.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _check(key: bytes) -> None:
    if len(key) < KEY_MIN:
        raise ValueError(
            f"LIFECYCLE_GATEWAY__TASK_KEY: {len(key)} bytes are too few; use {KEY_MIN} random ones or more"
        )
