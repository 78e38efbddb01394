"""The rights of the database users, as deploy/database grants them."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy" / "database"


def grants(user: str) -> list[str]:
    """Return the statements that grant rights to this user, one each."""
    text = (FOLDER / f"{user}.sql").read_text(encoding="utf-8")
    return re.findall(rf"^(GRANT [^;]*? TO {user}@'%');", text, re.MULTILINE)
