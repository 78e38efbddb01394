"""An event of the outbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from crawler_lifecycle.domain.names import run_subject


@dataclass(frozen=True, slots=True)
class Event:
    """One row of ``outbox_event``."""

    seq: int
    run_id: int | None
    """The run that it is about, if it is about one."""
    subject_uid: str
    """Whose number the subject's is: numbers come again where a database was restored."""
    attempt: int
    type: str
    body: Mapping[str, object]
    created_at: datetime
    subject: str = ""
    """What it is about: ``runs/7``, ``managers/3``; left out: the run."""

    def __post_init__(self) -> None:
        if not self.subject:
            object.__setattr__(self, "subject", run_subject(self.run_id or 0))

    @property
    def key(self) -> str:
        """Names subject, attempt and type, in this database and every other: ``event_key``."""
        number = self.subject.partition("/")[2]
        prefix = "" if self.run_id is not None else self.subject.removesuffix(number)
        return f"{prefix}{number}-{self.subject_uid}/{self.attempt}/{self.type}"
