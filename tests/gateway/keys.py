"""A tokens file with one token for each role."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from crawler_lifecycle.domain.projects import ALL
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.access.tokens import FRESH_S, Role, TokenFile, new_token
from crawler_lifecycle.web.origins import named_hosts

KEY = b"k" * 32


class Keys:
    """The file, its tokens, and the authentication that uses it.

    Tokens of a project have its name and a role: ``b-read``.
    """

    def __init__(self, folder: Path, *projects: str) -> None:
        self.file = folder / "tokens.toml"
        self.now = 0.0
        self.tokens: dict[str, str] = {}
        lines = ""
        for project in (ALL, *projects):
            for role in Role:
                name = role if project == ALL else f"{project}-{role}"
                self.tokens[name], more = new_token(f"the-{name}", role, project)
                lines += more
        self.file.write_text(lines)
        self.callers = TokenFile(self.file, clock=lambda: self.now)

    def entrance(self, **more: Any) -> Entrance:
        return Entrance(
            **{"callers": self.callers, "task_key": KEY, "check": named_hosts(()), **more}
        )

    def headers(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"}

    def move(self, name: str, project: str) -> None:
        """Replace a token of a project."""
        whole, own = self.file.read_text(), f'name = "the-{name}"'
        before, _, after = whole.partition(own)
        self.file.write_text(
            before + own + re.sub(r'project = ".*"', f'project = "{project}"', after, count=1)
        )
        self.now += FRESH_S
