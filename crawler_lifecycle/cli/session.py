"""What holds for a whole call of ``crawlctl``: the options that every verb accepts, before or after its name."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crawler_lifecycle.cli.problems import CommandFailed, Exit

if TYPE_CHECKING:
    from crawler_lifecycle.cli.gateway import Gateway

FORMATS = ("table", "json", "yaml", "name")
DEV_JSON = Path(".crawl", "dev.json")
REQUEST_TIMEOUT_S = 30.0

HELP = """\
Options of every verb, before or after it: `-o table|json|yaml|name` output format · `--gateway URL` · \
`--timeout 30m` give up after · `--no-color` · `-q`, `--quiet` data only.

Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 not in this state, 5 run failed, 6 run stopped, \
7 gave up waiting, 8 unreachable, 9 not authorised, 130 interrupted."""

#: Options whose next word is data, whatever it looks like, and the long name under which they are passed on.
_DATA = {
    "-a": "--arg",
    "-s": "--setting",
    **{name: name for name in ("--arg", "--setting", "--reason", "--tag", "--request-id", "--by", "--task-file")},
}


@dataclass(frozen=True, slots=True)
class Session:
    """The options of one call."""

    output: str = "table"
    gateway_url: str | None = None
    timeout_s: float | None = None
    color: bool = True
    quiet: bool = False

    def gateway(self) -> Gateway:
        """A connection to the gateway that was named, or that runs here. Raises ``CommandFailed``."""
        from crawler_lifecycle.cli.gateway import Gateway  # with its HTTP client, which `--help` can do without

        return Gateway(self.gateway_url or discover(), timeout_s=min(self.timeout_s or REQUEST_TIMEOUT_S, 30.0))

    def say(self, line: str) -> None:
        """Tell people something; programs read standard output, where only data goes."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)


_current = Session()


def current() -> Session:
    """The options of this call."""
    return _current


def begin(session: Session) -> None:
    """Make these the options of this call."""
    global _current
    _current = session


def discover() -> str:
    """The gateway's address: ``LIFECYCLE_GATEWAY__URL``, else that of the nearest ``.crawl/dev.json`` upwards.

    Raises ``CommandFailed`` when there is none.
    """
    if url := os.environ.get("LIFECYCLE_GATEWAY__URL"):
        return url
    here = Path.cwd()
    for folder in (here, *here.parents):
        try:
            known = json.loads((folder / DEV_JSON).read_text())
        except (OSError, ValueError):
            continue
        if isinstance(known, dict) and isinstance(known.get("gateway"), str):
            return str(known["gateway"])
    raise CommandFailed(
        Exit.UNREACHABLE,
        "no gateway is known",
        f"no --gateway, no LIFECYCLE_GATEWAY__URL, and no {DEV_JSON} in this folder or above it",
        "crawlctl dev (starts one on this machine), or crawlctl --gateway URL …",
    )


def split(words: Sequence[str]) -> tuple[Session, list[str]]:
    """Take the options of every verb out of the command line, wherever they stand; the rest is the verb's own.

    Words behind ``--`` and the values of options such as ``-a`` are data and left alone. Raises ``CommandFailed``.
    """
    found: dict[str, str] = {}
    flags: set[str] = set()
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, attached = _parts(word)
        if word == "--":
            rest += [word, *left]
        elif name in _DATA:
            value = attached if attached is not None else next(left, None)
            rest += [word] if value is None else [f"{_DATA[name]}={value}"]
        elif name in ("-o", "--output", "--gateway", "--timeout"):
            value = attached if attached is not None else next(left, None)
            if not value:
                raise CommandFailed(Exit.USAGE, f"{name} needs a value", None, "crawlctl --help")
            found["--output" if name == "-o" else name] = value
        elif word in ("--no-color", "-q", "--quiet"):
            flags.add(word)
        else:
            rest.append(word)
    output = found.get("--output", "table")
    if output not in FORMATS:
        raise CommandFailed(Exit.USAGE, f"-o {output!r} is no output format", None, f"choose from {', '.join(FORMATS)}")
    timeout = found.get("--timeout")
    session = Session(
        output=output,
        gateway_url=found.get("--gateway"),
        timeout_s=None if timeout is None else seconds(timeout),
        color="--no-color" not in flags and "NO_COLOR" not in os.environ,
        quiet=bool(flags & {"-q", "--quiet"}),
    )
    return session, rest


def _parts(word: str) -> tuple[str, str | None]:
    """An option's name and the value attached to it: ``--output=json``, ``-ojson``, ``-o=json``, ``-aname=value``."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    if len(word) > 2 and (word[:2] == "-o" or (word[:2] in ("-a", "-s") and "=" in word)):
        return word[:2], word[2:].removeprefix("=")
    return word, None


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``30m`` or ``1h30m``. Raises ``CommandFailed``."""
    match = _DURATION.fullmatch(text.strip())
    if not text.strip() or match is None:
        raise CommandFailed(Exit.USAGE, f"{text!r} is no duration", None, "give one such as 90s, 30m or 1h30m")
    hours, minutes, rest = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + rest


def user() -> str:
    """Who calls, for the record of who started or stopped what."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return f"uid {os.getuid()}"
