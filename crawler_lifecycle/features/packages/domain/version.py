"""Names and values of packages."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.bounds import check_text, refusal
from crawler_lifecycle.domain.names import CRAWLER_NAME

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
#: The maximum number of versions that one package keeps.
VERSIONS_MAX = 1000
#: The maximum number of spiders of a package, and of arguments of a spider.
SPIDERS_MAX = 1000
ARGS_MAX = 100
#: The maximum number of characters of the name of a spider or of an argument.
NAME_MAX = 100
#: The maximum number of characters of the default value of an argument.
DEFAULT_MAX = 1000
#: The maximum number of bytes of all spiders together, as JSON.
SPIDERS_BYTES = 256 * 1024
#: The maximum number of characters of a note.
NOTE_MAX = 500
#: A spider of a Scrapy project: its ``name``, and ``args``, which maps each argument in the
#: signature of its class to ``{"default": TEXT or None}`` or ``{"required": True}``.
Spider = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PackageVersion:
    """One version of a package."""

    package: str
    version: str
    project: str
    digest: str
    """The digest of its contents: ``sha256:`` and 64 hexadecimal digits."""
    size: int
    """The size of the zip in bytes."""
    files: int
    commit: str | None
    spiders: list[Spider] | None
    """The spiders by name; empty if the package is no Scrapy project. ``None`` in lists."""
    note: str | None
    """The reason why the spiders are unknown."""
    created_at: datetime
    created_by: str | None
    current: bool
    """True if runs that name no version use this one."""


def check_package(name: object) -> None:
    """Raise ``InvalidRequest`` unless this can be the name of a package."""
    if not isinstance(name, str) or not CRAWLER_NAME.fullmatch(name):
        raise refusal("package", name, "give 1 to 63 characters: a-z, 0-9, '-', '_' and '.'")


def check_version(version: object) -> None:
    """Raise ``InvalidRequest`` unless this can be the name of a version."""
    if not isinstance(version, str) or not VERSION.fullmatch(version):
        fix = "give at most 64 letters, digits and . _ + -, beginning with a letter or digit"
        raise refusal("version", version, fix)


def check_spiders(said: object) -> list[Spider]:
    """Return the spiders that a project says it has.

    Raises ``InvalidRequest`` if these are not spiders, or too many.
    """
    if not isinstance(said, list) or len(said) > SPIDERS_MAX:
        raise refusal("spiders", said, f"a package may have up to {SPIDERS_MAX} spiders")
    found = [_spider(spider) for spider in said]
    if len(json.dumps(found)) > SPIDERS_BYTES:
        raise refusal("spiders", said, f"they may have up to {SPIDERS_BYTES:,} bytes as JSON")
    return found


def _spider(said: object) -> Spider:
    name = said.get("name") if isinstance(said, dict) else None
    check_text("spider", name, NAME_MAX, needed=True)
    args = said.get("args") if isinstance(said, dict) else None
    if not isinstance(args, dict) or len(args) > ARGS_MAX:
        raise refusal(f"spider {name}", args, f"a spider may have up to {ARGS_MAX} arguments")
    return {"name": str(name), "args": {arg: _rule(arg, rule) for arg, rule in args.items()}}


def _rule(name: str, said: object) -> dict[str, Any]:
    check_text("argument", name, NAME_MAX, needed=True)
    if not isinstance(said, dict):
        raise refusal(f"argument {name}", said, "give an object")
    if said.get("required") is True:
        return {"required": True}
    default = said.get("default")
    check_text(f"argument {name}", default, DEFAULT_MAX)
    return {"default": default}
