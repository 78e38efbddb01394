"""Options that every verb accepts, before or after its name."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from crawler_lifecycle import dev_json
from crawler_lifecycle.domain.bounds import storable

from .machine import LOCK, starting
from .problems import CommandFailed, Exit, WrongUsage

if TYPE_CHECKING:
    from crawler_lifecycle.domain.retention import Retention
    from crawler_lifecycle.settings import Settings

    from .client.gateway import Gateway

FORMATS = ("table", "wide", "json", "jsonl", "yaml", "name")
TIME_FORMATS = ("relative", "iso")
COLOURS = ("auto", "always", "never")
REQUEST_TIMEOUT_S = 30.0
#: Seconds to wait for a ``crawlctl dev`` that is starting.
START_S = 60
#: The maximum number of characters read from a token file, because a device may have no end.
TOKEN_MAX = 100_000

HELP = """\
Options that every verb accepts, before or after its name: \
`-o table|wide|json|jsonl|yaml|name` output format · \
`--gateway URL` · `--token-file FILE` · `--timeout 30m` longest time to wait · \
`--time-format relative|iso` · `--no-color` · `-q`, `--quiet` data only.

Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 not in this state, 5 run failed, \
6 run stopped, 7 gave up waiting, 8 unreachable, 9 not authorised, 130 interrupted."""

#: Option whose next word is always data, even if that word looks like an option -> the long name
#: that the verb gets.
_DATA = {"-a": "--arg", "-s": "--setting"} | {
    name: name
    for name in (
        "--arg",
        "--setting",
        "--reason",
        "--tag",
        "--request-id",
        "--by",
        "--task-file",
        "--flow",
        "--parent",
        "--file",
        "--download",
        "--name",
        "--each",
        "--spider",
    )
}

#: Option of every verb that needs a value -> its long name.
_VALUES = {"-o": "--output"} | {
    name: name
    for name in ("--output", "--gateway", "--timeout", "--time-format", "--token-file", "--color")
}
_FLAGS = {"--no-color": "--no-color", "-q": "--quiet", "--quiet": "--quiet"}


@dataclass(frozen=True, slots=True)
class Session:
    """The options of one call."""

    output: str = "table"
    gateway_url: str | None = None
    token_file: Path | None = None
    timeout_s: float | None = None
    time_format: str = "relative"
    color: bool = True
    force_color: bool = False
    quiet: bool = False

    def gateway(self) -> Gateway:
        """Return a connection to the configured gateway, or to the gateway of ``crawlctl dev``.

        Raises ``CommandFailed``.
        """
        # this imports the HTTP client, which `--help` does not need
        from .client.gateway import Gateway

        timeout_s = min(self.timeout_s or REQUEST_TIMEOUT_S, REQUEST_TIMEOUT_S)
        url = self.gateway_url or _setting("url")
        if url is not None:
            return Gateway(url, token=self.token(), timeout_s=timeout_s)
        stack = stack_of_dev()
        if stack is None or not stack.known.get("gateway"):
            raise CommandFailed(
                Exit.UNREACHABLE,
                "no gateway is configured",
                f"no --gateway, no LIFECYCLE_GATEWAY__URL, no {dev_json.DEV_JSON} in this folder "
                "or a folder above it",
                "start a gateway on this machine with crawlctl dev, or name one with crawlctl "
                "--gateway URL …",
            )
        url = str(stack.known["gateway"])
        if self.token() is not None:
            say(
                f"the token is not sent to {url}: this gateway was found in {dev_json.DEV_JSON}, "
                "and needs none"
            )
        return Gateway(url, token=None, timeout_s=timeout_s, stack=stack)

    def token(self) -> str | None:
        """Return the token from ``--token-file``, ``LIFECYCLE_GATEWAY__TOKEN`` or the settings
        file, in this order.

        A token is never an argument, because every user of a machine can read the arguments of all
        processes. Raises ``CommandFailed``.
        """
        if self.token_file is not None:
            return _read_token(self.token_file)
        if found := _setting("token"):
            return _checked_token(found, "LIFECYCLE_GATEWAY__TOKEN")
        return None

    @property
    def for_people(self) -> bool:
        """Return whether the output format is for people (a table), and not for a program."""
        return self.output in ("table", "wide")


_current = Session()


def current() -> Session:
    """Return the options of this call."""
    return _current


def say(line: str) -> None:
    """Write a line for people to standard error.

    Standard output contains only data, which programs may read.
    """
    if not _current.quiet:
        print(line, file=sys.stderr, flush=True)


def begin(session: Session) -> None:
    """Set the options of this call."""
    global _current
    _current = session


def command(verb: str, **options: object) -> str:
    """Return a command line with these options, omitting those that are ``None`` or ``False``."""
    words = ["crawlctl", verb]
    for name, value in options.items():
        if value not in (None, False):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(words)


def stack_of_dev() -> dev_json.Stack | None:
    """Return the stack of this folder or a folder above it, as ``dev_json.nearest`` does.

    If the stack is starting, wait for it.

    Raises ``CommandFailed`` if the stack is still starting after ``START_S``.
    """
    here = Path.cwd()
    locks = (folder / dev_json.FOLDER / LOCK for folder in (here, *here.parents))
    lock = next(filter(Path.is_file, locks), here)
    for second in range(START_S + 1):
        age = starting(lock)
        if age is None:
            return dev_json.nearest(say)
        if second == 0:
            say(f"crawlctl dev is starting ({age:.0f} s); waiting up to {START_S} s for it")
        time.sleep(1)
    raise CommandFailed(
        Exit.UNREACHABLE, "crawlctl dev is still starting", None, f"ls {lock.parent / 'logs'}"
    )


def _setting(name: str) -> str | None:
    try:
        return dev_json.gateway_setting(name)
    except dev_json.ConfigUnreadable as error:
        raise WrongUsage(
            str(error), "give the path of a TOML file in LIFECYCLE_CONFIG, or unset it"
        ) from None


def _read_token(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(TOKEN_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(
            f"--token-file {file} cannot be read",
            "give a file that only contains the token",
            why=str(error),
        ) from None
    return _checked_token(text.strip(), f"--token-file {file}")


def _checked_token(text: str, where: str) -> str:
    # The error must not contain the text, which may be a token with a small mistake.
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise WrongUsage(
            f"{where} contains no valid token",
            "give one word of printable ASCII, as crawlctl gateway token new prints it",
        )
    return text


def split(words: Sequence[str]) -> tuple[Session, list[str]]:
    """Split a command line into the options of every verb, at any position, and the words for the
    verb itself.

    Words after ``--`` and the values of options such as ``-a`` are data, and are not changed.
    Raises ``CommandFailed``.
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
        elif name in _VALUES:
            value = attached if attached is not None else next(left, None)
            if not value:
                raise WrongUsage(f"{name} needs a value", "crawlctl --help")
            found[_VALUES[name]] = value
        elif word in _FLAGS:
            flags.add(_FLAGS[word])
        elif name == "--token":
            raise WrongUsage(
                "--token is not supported: every user of this machine could read the token",
                "set LIFECYCLE_GATEWAY__TOKEN, or give --token-file FILE",
            )
        else:
            rest.append(word)
    return _session(found, flags), rest


def _session(found: Mapping[str, str], flags: Set[str]) -> Session:
    output = found.get("--output", "table")
    # The Temporal CLI calls a table "text".
    output = _one_of("-o", "table" if output == "text" else output, FORMATS)
    color = _one_of("--color", found.get("--color", "auto"), COLOURS)
    timeout = found.get("--timeout")
    token_file = found.get("--token-file")
    return Session(
        output=output,
        gateway_url=found.get("--gateway"),
        token_file=None if token_file is None else Path(token_file),
        timeout_s=None if timeout is None else seconds(timeout),
        time_format=_one_of("--time-format", found.get("--time-format", "relative"), TIME_FORMATS),
        color="--no-color" not in flags
        and color != "never"
        and (color == "always" or "NO_COLOR" not in os.environ),
        force_color=color == "always" and "--no-color" not in flags,
        quiet="--quiet" in flags,
    )


def _one_of(option: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise WrongUsage(f"{option} {value!r} is not allowed", f"choose from {', '.join(choices)}")
    return value


def _parts(word: str) -> tuple[str, str | None]:
    """Return an option's name and attached value: ``--output=json``, ``-ojson``, ``-o=json``,
    ``-aname=value``.
    """
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    if len(word) > 2 and (word[:2] == "-o" or (word[:2] in ("-a", "-s") and "=" in word)):
        return word[:2], word[2:].removeprefix("=")
    return word, None


_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?",
    re.ASCII,
)


def seconds(text: str) -> float:
    """Return the seconds of a duration: ``90``, ``90s``, ``30m``, ``1h30m`` or ``7d``.

    Raises ``CommandFailed``.
    """
    match = _DURATION.fullmatch(text.strip())
    if not text.strip() or match is None:
        raise WrongUsage(
            f"{text!r} is not a duration", "give a duration such as 90s, 30m, 1h30m or 7d"
        )
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + rest


def long_ago(
    text: str, now: datetime, rule: Retention, option: str = "--older-than"
) -> tuple[float, datetime]:
    """Return the seconds that an option such as ``--older-than`` contains, and the time that is
    this number of seconds before ``now``.

    Raises ``CommandFailed``.
    """
    age_s = seconds(text)
    if age_s < rule.least_s:
        least = (
            f"{rule.least_s / 86400:g}d" if rule.least_s >= 86400 else f"{rule.least_s / 3600:g}h"
        )
        raise WrongUsage(
            f"{option} {text!r} is too short", f"give at least {least}", why=rule.why_least
        )
    try:
        return age_s, storable(now - timedelta(seconds=age_s))
    except (OverflowError, ValueError):
        raise WrongUsage(
            f"{option} {text!r} is too long", f"give a duration such as {rule.default_s / 86400:g}d"
        ) from None


def time_of(option: str, text: str, now: datetime | None = None) -> str:
    """Return the time of an option in UTC, in the format of the API. Raises ``CommandFailed``.

    ``text`` is an ISO 8601 date or time. If ``now`` is given, ``text`` may also be a duration such
    as ``24h``, which means that long before ``now``. A time without an offset is UTC.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        # A duration needs a unit here, because a number alone could be a year.
        length = _DURATION.fullmatch(text.strip()) is not None and text.strip()[-1:].isalpha()
        if now is None or not length:
            fix = (
                "give a duration such as 24h or 7d, or a time" if now is not None else "give a time"
            )
            fix += " such as 2026-11-20 or 2026-11-20T12:00Z"
            raise WrongUsage(f"{option} {text!r} is not a time", fix) from None
        try:
            found = now - timedelta(seconds=seconds(text))
        except OverflowError:
            raise WrongUsage(f"{option} {text!r} is too long ago", "give a date") from None
    try:
        at = storable(found if found.tzinfo else found.replace(tzinfo=UTC))
    except ValueError as error:
        raise WrongUsage(f"{option} {text!r} is not allowed", str(error)) from None
    return at.isoformat().replace("+00:00", "Z")


def load_settings() -> Settings:
    """Return the settings. Raises ``CommandFailed``, which names a wrong setting."""
    from crawler_lifecycle.domain.errors import InvalidRequest
    from crawler_lifecycle.settings import Settings

    try:
        return Settings.load()
    except InvalidRequest as error:
        raise WrongUsage(
            f"settings: {error}",
            "correct it in the environment or in the file that LIFECYCLE_CONFIG names",
        ) from None


def installed() -> str:
    """Return the version of this package."""
    # Imported here, because few commands need it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("crawler-lifecycle")
    except PackageNotFoundError:
        return "unknown (not installed)"
