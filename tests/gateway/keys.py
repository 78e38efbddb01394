"""A tokens file with one token for each role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.access.tokens import Role, TokenFile, new_token
from crawler_lifecycle.web.origins import named_hosts

KEY = b"k" * 32


class Keys:
    """The file, its tokens, and the entrance it makes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokens.toml"
        self.now = 0.0
        self.tokens: dict[str, str] = {}
        lines = ""
        for role in Role:
            self.tokens[role], more = new_token(f"the-{role}", role)
            lines += more
        self.file.write_text(lines)
        self.callers = TokenFile(self.file, clock=lambda: self.now)

    def entrance(self, **more: Any) -> Entrance:
        return Entrance(**{"callers": self.callers, "task_key": KEY, "check": named_hosts(()), **more})

    def headers(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"}
