"""Tokens: the tokens file with its callers and their roles, and the tokens in the database.

The file contains only hashes. A token has 256 random bits, so nobody can derive it from its
SHA-256, and other users may read the file. But they must not be able to write to it, because they
could add a token of their own. Such a file is refused.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.bounds import check_name
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.projects import ALL, DEFAULT
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.task_tokens import TaskClaim

if TYPE_CHECKING:
    from crawler_lifecycle.store.access import TokenStore

logger = logging.getLogger(__name__)

#: The prefix of new tokens, by which people and secret scanners recognise them.
PREFIX = "crawl_"
#: Seconds between two checks for changes of the file.
FRESH_S = 0.5
#: Seconds between two reads of the tokens in the database. A new or revoked token takes effect
#: within this time.
KEPT_S = 2.0
#: Seconds for which a gateway that cannot read the database still accepts the tokens that it read
#: before.
STALE_S = 60.0
FILE_MAX = 1024 * 1024
_KEYS = ("name", "role", "sha256", "expires", "project")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)


class Role(enum.StrEnum):
    """The permissions of a caller. Each role includes the permissions of the roles listed before
    it.
    """

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Return whether this role includes the permissions of ``needed``."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    ``role`` is ``None`` for a crawler and for a task. A crawler may only add tasks to ``run`` and
    read whether it must stop. A task may only do what its ``claim`` states.
    """

    name: str
    role: Role | None
    run: RunRef | None = None
    claim: TaskClaim | None = None
    login: str | None = None
    """The id of the session, if the caller is a browser."""
    project: str = DEFAULT
    """The only project that the caller can see and change; ``*`` stands for all projects."""

    @property
    def key(self) -> str:
        """The name and the project, because tokens of two projects can have the same name."""
        return f"{self.project}/{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of the file."""

    caller: Caller
    sha256: str
    expires: datetime | None


class TokenFileError(Exception):
    """The tokens file cannot be used. The message names the file, the line and the fix."""


def new_token(name: str, role: Role | str, project: str = DEFAULT) -> tuple[str, str]:
    """Return a new token, and the lines of TOML for the tokens file.

    The lines do not contain the token itself.

    Raises ``ValueError`` for a name, role or project that the file must not contain.
    """
    _check_name(name)
    _check_project(project)
    token = PREFIX + secrets.token_urlsafe(32)
    lines = [
        "[[token]]",
        f'name = "{name}"',
        f'role = "{_role(str(role)).value}"',
        f'sha256 = "{digest(token)}"',
    ]
    lines += [] if project == DEFAULT else [f'project = "{project}"']
    return token, "\n".join(lines) + "\n"


def digest(token: str) -> str:
    """Return the hash of a token, in the form that the tokens file contains."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenFile:
    """The tokens of a file, which is read again after each change.

    If a new version of the file is broken, the previous tokens stay valid, and the log and
    ``problem`` report the error until the file is correct. The constructor raises
    ``TokenFileError``. After a call of ``keep``, the tokens of the database are known too. If both
    have the same token, the file wins.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._asked_at = clock()
        self._mark = _mark(path)
        self._entries = read(path)
        self._kept: Mapping[str, Entry] = {}
        self._kept_at: float | None = None
        self.used: dict[str, datetime] = {}
        """The time of the last use of each token in the database, by its hash."""
        self.problem: str | None = None

    def keep(self, entries: Mapping[str, Entry] | None) -> None:
        """Use these tokens of the database, by their hashes; ``None`` means that they have not been
        read yet.
        """
        self._kept_at = -STALE_S if entries is None else self._clock()
        self._kept = entries or {}

    def find(self, token: str, now: datetime) -> tuple[Caller | None, bool]:
        """Return the caller of this token, and whether the token has expired.

        The comparison with all entries takes constant time.
        """
        return self.find_hash(digest(token), now)

    def find_hash(self, shown: str, now: datetime) -> tuple[Caller | None, bool]:
        """Return the caller of the token with this hash, and whether the token has expired.

        Raises ``Problem`` 503 if the token is not in the file and the database could not be read
        for too long.
        """
        self._refresh()
        found: Entry | None = None
        for entry in self._entries:
            if hmac.compare_digest(entry.sha256, shown):
                found = entry
        found = found or self._find_kept(shown, now)
        if found is None:
            return None, False
        return found.caller, found.expires is not None and found.expires <= now

    def _find_kept(self, shown: str, now: datetime) -> Entry | None:
        if self._kept_at is None:
            return None
        if self._clock() - self._kept_at >= STALE_S:
            detail = (
                "The token is not in the tokens file, and the database, which has all other "
                "tokens, does not answer"
            )
            # Import it only here, because `gateway token new` needs no FastAPI.
            from crawler_lifecycle.web.problems import unavailable

            raise unavailable("store_unavailable", detail)
        found = self._kept.get(shown)
        if found is not None and any(
            entry.caller.name == found.caller.name for entry in self._entries
        ):
            logger.warning(
                "token %s in the database is refused, because a token in the tokens file has the "
                "same name",
                found.caller.name,
            )
            return None
        if found is not None:
            self.used[shown] = now
        return found

    def _refresh(self) -> None:
        if self._clock() - self._asked_at < FRESH_S:
            return
        self._asked_at = self._clock()
        try:
            mark = _mark(self._path)
            if mark == self._mark and self.problem is None:
                return
            entries = read(self._path)
        except TokenFileError as error:
            if self.problem is None:
                logger.error(
                    "the tokens file cannot be used, the previous tokens stay valid: %s", error
                )
            self.problem = (
                "the tokens file cannot be used; the previous tokens stay valid; the log shows why"
            )
            return
        if mark != self._mark or self.problem is not None:
            logger.info(
                "the tokens file was read again: %s",
                ", ".join(sorted(e.caller.name for e in entries)),
            )
        self._entries = entries
        self._mark = mark
        self.problem = None


@dataclass(eq=False)
class TokenCache:
    """Passes the tokens of the database to the tokens file of this process, and records when they
    were last used.

    Each reading also calls ``share``, which shares the ended sessions.
    """

    callers: TokenFile
    store: TokenStore
    share: Callable[[], Awaitable[None]]

    def __post_init__(self) -> None:
        self._told: dict[str, datetime] = {}
        self.callers.keep(None)

    async def run(self) -> None:
        """Read until the task is cancelled."""
        meanwhile = (
            "after a minute, only tokens in the tokens file are accepted, and logouts take effect "
            "only here"
        )
        loop = Loop(
            "reading the tokens in the database", KEPT_S, meanwhile=meanwhile, first_s=KEPT_S
        )
        await loop.run(self.read)

    async def read(self) -> None:
        """Read all tokens and ended sessions once. Raises the errors of the store."""
        await self.share()
        rows = await run_in_threadpool(self.store.list_tokens, live=True)
        # Somebody could have edited the database by hand.
        known = [row for row in rows if row.role in set(Role)]
        callers = {
            row.sha256: Caller(row.name, Role(row.role), project=row.project) for row in known
        }
        self.callers.keep(
            {row.sha256: Entry(callers[row.sha256], row.sha256, row.expires_at) for row in known}
        )
        used = {
            sha256: at.replace(second=0, microsecond=0) for sha256, at in self.callers.used.items()
        }
        if new := dict(used.items() - self._told.items()):
            await run_in_threadpool(self.store.tokens_used, new)
        self._told = used


def _mark(path: Path) -> tuple[int, int, int]:
    """Return numbers that change if a file is edited or replaced, or if its link points to another
    file.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise TokenFileError(
            f"{path}: {error.strerror}; set LIFECYCLE_GATEWAY__CALLERS_FILE to a TOML file"
        ) from None
    return found.st_mtime_ns, found.st_size, found.st_ino


# --- the file -------------------------------------------------------------------------------------


def read(path: Path) -> Sequence[Entry]:
    """Read the tokens of a file. Raises ``TokenFileError``, which names the file, the line and the
    fix.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(FILE_MAX + 1)
    except OSError as error:
        raise TokenFileError(
            f"{path}: {error.strerror}; set LIFECYCLE_GATEWAY__CALLERS_FILE to a TOML file"
        ) from None
    if mode & stat.S_IWOTH:
        raise TokenFileError(
            f"{path}: every user of this machine can write to it and could add a token; run chmod "
            f"o-w {path}"
        )
    if len(raw) > FILE_MAX:
        raise TokenFileError(f"{path}: more than {FILE_MAX} bytes; a token takes about 150")
    try:
        text = raw.decode()
        document = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TokenFileError(f"{path}: not valid TOML: {error}") from None
    return _Reader(path, text).entries(document)


class _Reader:
    """Converts a TOML document to entries.

    It knows the lines of the file, so that every error can name its line.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._starts = [
            n for n, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*token\s*\]\]", line)
        ]

    def entries(self, document: dict[str, Any]) -> list[Entry]:
        for key in document:
            if key != "token":
                raise self._wrong(
                    None, key, f"unknown key {key!r}; the file can contain only [[token]] tables"
                )
        tables = document.get("token", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self._wrong(
                None, "token", "token must be a list of tables; write [[token]] above each"
            )
        if not tables:
            raise TokenFileError(f"{self._path}: has no [[token]], so nobody could call; add one")
        found = [self._entry(n, table) for n, table in enumerate(tables)]
        seen: dict[str, int] = {}
        for n, entry in enumerate(found):
            if entry.sha256 in seen:
                raise self._wrong(
                    n,
                    "sha256",
                    f"the token is the same as number {seen[entry.sha256] + 1}; remove one of them",
                )
            seen[entry.sha256] = n
        return found

    def _entry(self, n: int, table: dict[str, Any]) -> Entry:
        for key in table:
            if key not in _KEYS:
                raise self._wrong(n, key, f"unknown key {key!r}; known: {', '.join(_KEYS)}")
        for key in _KEYS[:3]:
            if not isinstance(table.get(key), str):
                raise self._wrong(n, key, f"{key} is missing or is not a string; give it in quotes")
        try:
            _check_name(table["name"])
            role = _role(table["role"])
            project = table.get("project", DEFAULT)
            _check_project(project)
        except ValueError as error:
            raise self._wrong(n, str(error).partition(":")[0], str(error)) from None
        if not re.fullmatch(r"[0-9a-fA-F]{64}", table["sha256"]):
            # The value is not shown, because people often put the token itself here by mistake.
            raise self._wrong(
                n, "sha256", "sha256 must be 64 hexadecimal digits: printf %s TOKEN | sha256sum"
            )
        expires = table.get("expires")
        if expires is not None and (not isinstance(expires, datetime) or expires.tzinfo is None):
            raise self._wrong(
                n, "expires", "expires must be a time with an offset, such as 2027-01-31T12:00:00Z"
            )
        try:
            expires = expires.astimezone(UTC) if expires is not None else None
        except OverflowError:
            raise self._wrong(
                n, "expires", f"expires: {expires} is not in the years 1 to 9999 in UTC"
            ) from None
        return Entry(Caller(table["name"], role, project=project), table["sha256"].lower(), expires)

    def _wrong(self, n: int | None, key: str, text: str) -> TokenFileError:
        return TokenFileError(f"{self._path}{self._place(n, key)}: {text}")

    def _place(self, n: int | None, key: str) -> str:
        """Return the position of a key, or of its table if the key is missing.

        For an inline table, return only its number.
        """
        if n is not None and n >= len(self._starts):
            return f": token {n + 1}"
        first = self._starts[n] if n is not None else 0
        last = (
            self._starts[n + 1] if n is not None and n + 1 < len(self._starts) else len(self._lines)
        )
        pattern = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[\].=]""")
        for number in range(first, last):
            if pattern.match(self._lines[number]):
                return f": line {number + 1}"
        return f": line {first + 1}"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name: {name!r} is not allowed; use 1 to 64 of letters, digits and . _ @ -"
        )


def _check_project(name: object) -> None:
    if name == ALL:
        return
    try:
        check_name("project", name)
    except InvalidRequest as error:
        raise ValueError(f'{error}; "{ALL}" means all projects') from None


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise ValueError(f"role: {text!r} is unknown; use one of {', '.join(Role)}") from None
