"""Short helpers for people's actions on the pages, and a gateway that requires them to log in."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.cli.stack.supervise import Part
from crawler_lifecycle.gateway.access.tokens import new_token
from tests.e2e.harness import ENDLESS, QUICK, Harness
from tests.support.builds import command


def start(harness: Harness, crawler: str = "plain", **request: Any) -> int:
    """Start a run through the API, as another program does; one without arguments continues until a
    stop.
    """
    if crawler == "plain":
        request.setdefault("args", ENDLESS)
    return int(
        harness.gateway.start({"crawler": crawler, **QUICK, **request}, uuid.uuid4().hex)["run_id"]
    )


def row(page: Page, run_id: int) -> Locator:
    """Return the row of a run in the list."""
    return page.locator(f"#run-{run_id}")


def now(page: Page) -> Locator:
    """Return what the page of a run says about it now."""
    return page.locator("#subject-head")


def number(page: Page) -> int:
    """Return the run that a page is about."""
    expect(page).to_have_url(re.compile(r"/runs/\d+$"))
    return int(page.url.rpartition("/")[2])


def reach(target: Locator) -> None:
    """Press the tab key until this has the focus, which must then be visible."""
    for _ in range(80):
        if target.evaluate("e => e === document.activeElement"):
            break
        target.page.keyboard.press("Tab")
    expect(target).to_be_focused()
    expect(target).to_be_in_viewport()
    assert target.evaluate("e => getComputedStyle(e).outlineStyle") != "none", (
        "the focus cannot be seen"
    )


@dataclass(frozen=True)
class Guarded:
    """A gateway that requires tokens, next to the stack's open one."""

    url: str
    tokens: dict[str, str]
    file: Path
    entries: dict[str, str]

    def take_back(self, name: str) -> None:
        """Remove a token from the file."""
        self.file.write_text(
            "\n".join(text for known, text in self.entries.items() if known != name)
        )


@contextmanager
def guarded(
    harness: Harness, port: int | None = None, more: Mapping[str, str] | None = None
) -> Iterator[Guarded]:
    """A gateway with a token for each role, named like the role; with ``more`` variables."""
    made = {role: new_token(role, role, "*") for role in ("read", "operate", "admin")}
    file = harness.folder / "tokens.toml"
    entries = {role: entry for role, (_, entry) in made.items()}
    file.write_text("\n".join(entries.values()))
    port = port or processes.free_port()
    usual = harness.stack.supervisor._kept["gateway"].part
    env = {
        key: value for key, value in usual.env.items() if key != "LIFECYCLE_GATEWAY__AUTH_DISABLED"
    }
    env |= {
        "LIFECYCLE_GATEWAY__PORT": str(port),
        "LIFECYCLE_GATEWAY__CALLERS_FILE": str(file),
        **(more or {}),
    }
    part = Part("guarded", command("gateway"), f"http://127.0.0.1:{port}/readyz", env)
    harness.stack.supervisor.start([part])
    try:
        harness.stack.supervisor.wait_healthy(["guarded"])
        yield Guarded(
            f"http://127.0.0.1:{port}",
            {role: token for role, (token, _) in made.items()},
            file,
            entries,
        )
    finally:
        harness.undeploy("guarded")
