"""The pages about the HTTP API, typed as written with a real stack: every command works and prints
what the page shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crawler_lifecycle.cli.stack import processes
from tests.e2e.harness import QUICK, Harness, until
from tools.openapi import document

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "gateway.md", DOCS / "access.md")
TEXT = "".join(page.read_text() for page in PAGES)
#: The page gives the event stream three seconds; if that is not enough, the same command is typed
#: again.
PATIENT = """
timeout() {
  for _ in {1..20}; do
    command timeout "$@" > events.txt || true
    if grep -q '^event: run.ended' events.txt; then return; fi
  done
}
"""


def blocks() -> list[tuple[str, str, str]]:
    """Return the pages' commands in order: language, text, and expected output (or nothing)."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.S | re.M)
    page = []
    for n, (language, text) in enumerate(found):
        if language == "sh":
            follows = found[n + 1] if n + 1 < len(found) else ("", "")
            page.append((language, text, follows[1] if follows[0] == "text" else ""))
    return page


def script(parts: list[tuple[str, str, str]]) -> str:
    """Return all blocks as one shell session, which stops at the first failure, with a mark after
    each block.
    """
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", PATIENT]
    for n, (_, text, _) in enumerate(parts):
        lines += [text.rstrip("\n"), f"echo '--- {n}'"]
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")),
    reason="curl or jq is missing; `make test-deps` installs them",
)
def test_every_command_of_the_page_does_what_it_says(harness: Harness, tmp_path: Path) -> None:
    parts = blocks()
    assert len(parts) >= 12
    assert sum(text.count("timeout ") for _, text, _ in parts) == 1
    # The page pages through ended runs, of which its own may be the only one by then.
    ended = harness.gateway.start(
        {"crawler": "plain", "args": {"max_pages": "1"}, **QUICK}, "before-the-page"
    )["run_id"]
    until(lambda: harness.status(ended) == "COMPLETED", "the end of a run before")
    gateway = str(harness.stack.addresses["gateway"])
    text = (
        script(parts)
        .replace("http://127.0.0.1:8500", gateway)
        .replace("8501", str(processes.free_port()))
    )
    layout = harness.stack.layout
    env = {
        **layout.environment(harness.folder / "crawlers.yaml"),
        "NO_COLOR": "1",
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    told = re.split(r"^--- \d+\n", done.stdout, flags=re.M)
    assert done.returncode == 0, (
        f"block {len(told) - 1}: {parts[len(told) - 1][1]}\n{told[-1]}\n{done.stderr[-3000:]}"
    )
    for (_, asked, expected), printed in zip(parts, told, strict=False):
        assert printed == expected, asked


def test_every_path_of_the_pages_exists() -> None:
    paths = set(json.loads(document())["paths"])
    forms = {re.sub(r"\{[^}]+\}", "{}", path) for path in paths}
    for path in re.findall(r"(?:GET|POST) (/[\w/{}]+)", TEXT):
        assert re.sub(r"\{[^}]+\}", "{}", path) in forms, path


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", TEXT))))
def test_every_link_of_the_pages_leads_somewhere(link: str) -> None:
    file, _, anchor = link.partition("#")
    target = DOCS / (file or "access.md")
    assert target.is_file(), link
    if anchor:
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
        assert anchor in {
            re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
        }
