"""Rows of the access log, and tokens that the database keeps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

#: The kinds of objects that requests are about. Only ``crawlctl`` changes tokens.
Kind = Literal["run", "manager", "graph", "schedule", "webhook", "incident", "token"]


@dataclass(frozen=True, slots=True)
class AccessRow:
    """A change by somebody, or a refused request. It never contains bodies, arguments or tokens."""

    at: datetime
    caller: str | None
    """The name of the token, or ``None`` for an open gateway and for an unknown caller."""
    caller_project: str
    """The project of the token, ``*`` for all projects, or empty for an unknown caller."""
    operation: str
    """The operation id of the route."""
    address: str | None
    """The address from which the request came, or ``None`` if crawlctl used the database itself."""
    status: int | None
    """The HTTP status, or ``None`` if there was no answer."""
    outcome: str
    """``done``, or the code of the problem."""
    requests: int = 1
    """The number of equal requests that the row represents."""
    verb: str | None = None
    """The text of the button, if somebody pressed a button."""
    kind: str | None = None
    """The kind of the subject, such as ``run``."""
    subject: str | None = None
    """The number or name of the subject."""
    subject_uid: str | None = None
    project: str = ""
    """The project of the subject, or else that of the caller."""
    id: int = 0


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token that the database keeps. Only its hash is stored, never the token itself."""

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
