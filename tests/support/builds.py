"""Other builds of this project: a changed copy of its code, run in separate processes.

A deployment is also a copy; patching a module in a running process would change both builds.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The commit of the last released build.
LANDED = (ROOT / "tests/dev/landed.txt").read_text().strip()
#: Variables of a stack -> their names in the last released build.
LANDED_NAMES: dict[str, str] = {}


@dataclass(frozen=True)
class Change:
    """Text of one file (its path below ``crawler_lifecycle/``) that differs in another build."""

    file: str
    old: str
    new: str


def build(folder: Path, *changes: Change) -> Path:
    """Make a build with these changes in ``folder``; ``python -m`` executes it in processes that
    start there.
    """
    for package in ("crawler_lifecycle", "workers"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for change in changes:
        file = folder / "crawler_lifecycle" / change.file
        text = file.read_text()
        assert text.count(change.old) == 1, f"{change.file} has not once: {change.old!r}"
        file.write_text(text.replace(change.old, change.new))
    return folder


def command(*words: str) -> Sequence[str]:
    """Return the command ``crawlctl`` of the build in the working directory."""
    return (sys.executable, "-m", "crawler_lifecycle.cli", *words)


def environment(env: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return an environment in which the working directory decides which build is executed."""
    return {
        key: value for key, value in env.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")
    } | more


def checked_out(commit: str, folder: Path, *paths: str) -> Path:
    """Check out these paths of a commit, or all of it; a shallow clone fetches it.

    Raises ``CalledProcessError`` if it is missing.
    """

    def git(*words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=check)

    if git("cat-file", "-e", commit, check=False).returncode:
        git("fetch", "--quiet", "--depth", "1", "origin", commit)
    packed = git("archive", commit, *paths).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder
