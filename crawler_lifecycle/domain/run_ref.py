"""The identity of a run: its number and its uid."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunRef:
    """The identity of a run outside its database. Names of objects contain the run's number. A
    restored or new database may use the same number again. The uid is created together with the
    run's row and never used again, so only an object with this uid belongs to the run.
    """

    run_id: int
    uid: str

    def __str__(self) -> str:
        """Return the name of the run, which is unique across all databases."""
        return f"{self.run_id}-{self.uid}"

    @classmethod
    def named(cls, name: str) -> RunRef | None:
        """Return the run with this name (``str(run)``), or ``None`` for any other string.

        ``007-…`` is not such a name, because our numbers have no leading zeros.
        """
        found = _NAME.fullmatch(name)
        number = int(found[1]) if found else 0
        return cls(number, found[2]) if found and number <= RUN_ID_MAX else None

    def owns(self, uid: str | None) -> bool:
        """Return whether an object with this uid belongs to this run. An object without a uid
        belongs to no run.
        """
        return uid == self.uid

    def foreign(self, what: str, uid: str | None) -> str:
        """Return a message, with the fix, about an object that has this run's number but belongs to
        another run.
        """
        whose = (
            f"run {self.run_id} with the uid {uid}" if uid else f"a run {self.run_id} without a uid"
        )
        return f"{what} belongs to {whose}, and this run has the uid {self.uid}: {FOREIGN_FIX}"


_NAME = re.compile(r"([1-9][0-9]{0,18})-([0-9a-f]{32})", re.ASCII)


#: Run ids are 64-bit integers of the database.
RUN_ID_MAX = 2**63 - 1


#: The reason why two runs have the same number, and the fix.
FOREIGN_FIX = (
    "the database was restored or created again, and used the number twice; the object is not "
    "changed; an audit lists "
    "it (crawlctl audit); to adopt executing tasks without a row, use crawlctl audit --adopt; end "
    "all others by hand"
)
