"""The lock of the npm example: each package with its hash, without the address of a registry."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "foreign" / "crawlee_node"


def test_each_package_has_its_hash_and_none_an_address() -> None:
    lock = json.loads((FOLDER / "package-lock.json").read_text())
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert lock["packages"][""]["dependencies"] == wanted
    assert [
        name
        for name, package in packages.items()
        if "integrity" not in package or "resolved" in package
    ] == []
