"""The rights of the users of the database, as deploy/database grants them."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy" / "database"


def grants(user: str) -> list[str]:
    """The statements that give this user rights, one for each."""
    text = (FOLDER / f"{user}.sql").read_text(encoding="utf-8")
    return re.findall(rf"^(GRANT [^;]*? TO {user}@'%');", text, re.MULTILINE)
