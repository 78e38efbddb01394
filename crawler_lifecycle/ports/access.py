"""A row of the access log, and a token that the database keeps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

#: The kinds of things that requests are about. Only ``crawlctl`` changes tokens.
Kind = Literal["run", "manager", "graph", "schedule", "webhook", "token"]


@dataclass(frozen=True, slots=True)
class AccessRow:
    """A change by somebody, or a request that was refused.

    It never contains bodies, arguments or tokens.
    """

    at: datetime
    caller: str | None
    """The name of the token; ``None``: an open gateway, or nobody who is known."""
    caller_project: str
    """The project of the token; ``*``: all projects; empty: nobody who is known."""
    operation: str
    """The operation id of the route."""
    address: str | None
    """The address from which the request came; ``None``: crawlctl used the database itself."""
    status: int | None
    """The HTTP status; ``None``: there was no answer."""
    outcome: str
    """``done``, or the code of the problem."""
    requests: int = 1
    """The number of equal requests that the row stands for."""
    verb: str | None = None
    """The text of the button, if somebody pressed one."""
    kind: str | None = None
    """The kind of the subject, such as ``run``."""
    subject: str | None = None
    """The number or name of the subject."""
    subject_uid: str | None = None
    project: str = ""
    """The project of the subject, or else of the caller."""
    id: int = 0


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token that the database keeps: its hash, never itself."""

    name: str
    role: str
    project: str
    sha256: str
    created_by: str | None
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None = None
    """The last use, to the minute."""
    revoked_at: datetime | None = None
