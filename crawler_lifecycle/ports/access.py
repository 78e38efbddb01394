"""Rows in the access log, and tokens in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

#: The kinds of objects in the access log. Only ``crawlctl`` changes tokens.
Kind = Literal[
    "run",
    "manager",
    "graph",
    "schedule",
    "webhook",
    "pool",
    "site",
    "package",
    "crawler",
    "incident",
    "token",
]


@dataclass(frozen=True, slots=True)
class AccessRow:
    """A change that a person or program made, or a refused request. A row never contains bodies,
    arguments or tokens."""

    at: datetime
    caller: str | None
    """The name of the token; ``None`` if the gateway is open or the caller is unknown."""
    caller_project: str
    """The token's project, ``*`` for all projects, or empty for an unknown caller."""
    operation: str
    """The operation id of the route."""
    address: str | None
    """The address from which the request came, or ``None`` if crawlctl used the database
    directly."""
    status: int | None
    """The HTTP status, or ``None`` if there was no response."""
    outcome: str
    """``done``, or the problem code."""
    requests: int = 1
    """The number of identical requests that the row represents."""
    verb: str | None = None
    """The label of the button, if the request came from a button."""
    kind: str | None = None
    """The kind of the subject, such as ``run``."""
    subject: str | None = None
    """The number or name of the subject."""
    subject_uid: str | None = None
    project: str = ""
    """The subject's project or, if the subject has none, the caller's project."""
    id: int = 0


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token in the database. Only the token's hash is stored, never the token itself."""

    name: str
    role: str
    project: str
    sha256: str
    created_by: str | None
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None = None
    """The time of the last use, to the minute."""
    revoked_at: datetime | None = None
