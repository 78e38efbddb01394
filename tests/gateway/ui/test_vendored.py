"""Other projects' files in the package: they are what ``VENDORED.md`` says, and unchanged."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from crawler_lifecycle import gateway

VENDOR = Path(gateway.__file__).parent / "ui" / "assets" / "vendor"
ROW = re.compile(
    r"^\| (\S+) \| (\S+) \| (\d+\.\d+\.\d+) \| (\S+) \| (0BSD|MIT) \| ([0-9a-f]{64}) \|$", re.M
)


def test_every_file_is_listed_with_its_hash_and_its_version() -> None:
    rows = ROW.findall((VENDOR / "VENDORED.md").read_text())
    listed = {name: digest for name, _, _, _, _, digest in rows}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    there.pop("VENDORED.md")
    assert there == listed
    versions = {package: version for _, package, version, _, _, _ in rows}
    assert f"version='{versions['htmx.org']}'" in (VENDOR / "htmx.min.js").read_text().replace(
        '"', "'"
    )
    assert {package: v for _, package, v, *_ in rows} == {p: v for _, p, v, *_ in reversed(rows)}, (
        "two versions of one"
    )
