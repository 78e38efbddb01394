"""Redaction of secrets and control characters in logs, traces and workflow histories.

There are three filters. The first masks the secrets that this process has: values collected once
from settings and environment, in every usual encoding. The second masks credentials in URLs. The
third masks values next to a name such as "password". No filter raises an error, and the limits
below bound the cost of all filters.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MASK = "[redacted]"
#: Secrets with fewer characters than this are not masked, because this would mask half of every
#: line.
SECRET_MIN = 4
#: Secrets with fewer characters than this are masked only where they form a separate word.
ANYWHERE_MIN = 8
#: The maximum length of a text in characters. A text that exceeds this length is cut, and then ends
#: with "(cut)".
TEXT_MAX = 32 * 1024
#: The maximum number of members of a collection, and of levels of nested collections, that are
#: kept.
MEMBERS_MAX = 64
DEPTH_MAX = 6

_NAMES = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|task[-_]?key|"
    r"auth(?:orization)?|credential|cookie|signature|session[-_]?(?:id|key)"
)
#: Names whose values are never secret: counts, object names, and a hash.
_HARMLESS = re.compile(
    r"(?i)^(?:task_token_sha256|tokens?_(?:file|count|max)|secrets?_(?:file|count|name)|[\w.-]*tokens?\.toml)$"
)
#: Variables that contain a path or an address. In the shell's variables, "pwd" means the working
#: directory.
_FOLDERS = ("PWD", "OLDPWD")
_PLACES = ("_FILE", "_PATH", "_URL")
_SECRET_NAME = re.compile(rf"(?i)(?:^|[^a-z])(?:{_NAMES})s?(?:$|[^a-z])|(?:{_NAMES})s?$")
#: Matches ``password=x``, ``"token": "x"`` and ``Authorization: Bearer x``; the name may contain
#: other words, too.
_PAIR = re.compile(
    rf"""(?ix)
    (?P<name>\b[\w.-]{{0,40}}?(?:{_NAMES})s?(?:[_.-][\w.-]{{0,40}})?)
    (?P<close>\\?["'])? (?P<sep>\s{{0,3}}[=:]\s{{0,3}})
    (?:
        (?P<scheme>(?:basic|bearer|digest|negotiate)\s+) (?P<credentials>[^\s"',;]+)
      | \\?"(?P<double>(?:[^"\\]|\\.)*)\\?"
      | \\?'(?P<single>(?:[^'\\]|\\.)*)\\?'
      | (?P<bare>\[redacted\] | [^\s"',;&}}\])]+)
    )"""
)
#: A reference to a secret in a catalogue or webhook. Such a reference is not masked, because people
#: need its name to correct it.
_REFERENCE = re.compile(r"env:[A-Za-z_]\w*|secret:[\w.-]+/[\w.-]+", re.ASCII)
_BEARER = re.compile(r"(?i)\b(?P<scheme>bearer)\s+(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_URL = re.compile(
    r"(?i)(?P<scheme>\b[a-z][a-z0-9+.-]{0,30}://)(?P<user>[^\s/@:\"']{0,200}):[^\s/\"']{1,400}@"
)

#: Control characters, line and paragraph separators, text direction marks, and lone surrogates.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_STEERING_IN_LINES = re.compile(_STEERING.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def is_secret_name(name: str) -> bool:
    """Return whether a field with this name contains a secret."""
    return _SECRET_NAME.search(name) is not None and _HARMLESS.match(name) is None


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return the text with escapes such as ``\n`` for characters that control a terminal or end a
    line.

    If ``lines`` is true, line breaks and tabs are kept.
    """
    pattern = _STEERING_IN_LINES if lines else _STEERING
    return pattern.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def forms(secret: str) -> set[str]:
    """Return the encodings in which a secret may appear: plain, JSON, URL, hexadecimal, and base64
    at any offset.
    """
    found = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
    }
    if len(secret) < ANYWHERE_MIN:
        return found
    raw = secret.encode("utf-8", "surrogatepass")
    found |= {quote(raw), quote(raw, safe=""), quote_plus(raw), raw.hex(), raw.hex().upper()}
    for offset in range(3):
        # The base64 characters at both ends may also encode bits of the text before and after the
        # secret.
        whole = base64.b64encode(b"\0" * offset + raw).decode()
        first = -(-offset * 8 // 6)
        inner = whole[first : (offset + len(raw)) * 8 // 6]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return {form for form in found if len(form) >= SECRET_MIN}


class Redactor:
    """A filter that masks the secrets of this process, values with secret names, and credentials in
    URLs.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = frozenset(secret for secret in secrets if len(secret.strip()) >= SECRET_MIN)
        wanted = sorted(
            {form for secret in self.secrets for form in forms(secret)}, key=len, reverse=True
        )
        parts = [
            re.escape(f) if len(f) >= ANYWHERE_MIN else rf"(?<!\w){re.escape(f)}(?!\w)"
            for f in wanted
        ]
        self._known = re.compile("|".join(parts)) if parts else None
        self._longest = max(map(len, wanted), default=0)

    def text(self, text: str, limit: int = TEXT_MAX) -> str:
        """Return the text with its secrets masked, cut to about ``limit`` characters."""
        cut = len(text) > limit
        if cut:
            # A secret may extend across the cut, and half of a secret is still secret. So some text
            # after the cut is checked, too.
            text = text[: limit + self._longest]
        if self._known is not None:
            text = self._known.sub(MASK, text)
        if "://" in text:
            text = _URL.sub(rf"\g<scheme>\g<user>:{MASK}@", text)
        text = _PAIR.sub(_mask_pair, text)
        text = _BEARER.sub(rf"\g<scheme> {MASK}", text)
        return f"{text[:limit]}… (cut)" if cut else text

    def value(self, value: object, name: str = "", depth: int = 0, limit: int = TEXT_MAX) -> object:
        """Return the value with its secrets masked, limited in size, and made of JSON types
        only.
        """
        if value is None or isinstance(value, bool | int | float):
            return (
                MASK
                if name and is_secret_name(name) and isinstance(value, int | float) and value
                else value
            )
        if name and is_secret_name(name):
            return MASK
        if isinstance(value, str):
            return self.text(value, limit)
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value[:limit]).decode("utf-8", "backslashreplace"), limit)
        if depth < DEPTH_MAX:
            if isinstance(value, Mapping):
                return self._mapping(value, depth, limit)
            if isinstance(value, list | tuple | set | frozenset):
                members = [
                    self.value(member, name, depth + 1, limit)
                    for member in list(value)[:MEMBERS_MAX]
                ]
                return (
                    [*members, f"… {len(value) - MEMBERS_MAX} more"]
                    if len(value) > MEMBERS_MAX
                    else members
                )
        return self.text(_words(value), limit)

    def _mapping(self, value: Mapping[object, object], depth: int, limit: int) -> dict[str, object]:
        found: dict[str, object] = {}
        try:
            for key, member in value.items():
                if len(found) == MEMBERS_MAX:
                    found["…"] = f"{len(value) - MEMBERS_MAX} more"
                    break
                words = _words(key)
                found[self.text(words, 200)] = self.value(member, words, depth + 1, limit)
        # The mapping's class may come from any library and raise errors, but logging must not fail.
        except Exception as error:
            found["…"] = f"unreadable: {type(error).__name__}"
        return found


def _words(value: object) -> str:
    try:
        return str(value)
    # ``__str__`` of any class may raise an error, but logging must not fail
    except Exception as error:
        return f"<unprintable {type(value).__name__}: {type(error).__name__}>"


def _mask_pair(found: re.Match[str]) -> str:
    if _HARMLESS.match(found["name"]) or not is_secret_name(found["name"]):
        return found.group()
    for group in ("credentials", "double", "single", "bare"):
        if found[group] and not _REFERENCE.fullmatch(found[group]):
            start = found.start(group) - found.start()
            end = found.end(group) - found.start()
            return found.group()[:start] + MASK + found.group()[end:]
    return found.group()


# --- secrets that this process knows --------------------------------------------------------------

_current = Redactor()


def learn(secrets: Iterable[str]) -> None:
    """Add values that this process must never show.

    Each entry point calls this first.
    """
    global _current
    _current = Redactor({*_current.secrets, *secrets})


def forget() -> None:
    """Remove all secrets from the redactor; only tests call this."""
    global _current
    _current = Redactor()


def current() -> Redactor:
    """Return the redactor with all secrets that have been added so far."""
    return _current


def secrets_of_environment(environment: Mapping[str, str]) -> set[str]:
    """Return the secrets in environment variables: values of variables with secret names, and
    credentials in URLs.
    """
    found: set[str] = set()
    for name, value in environment.items():
        if (
            is_secret_name(name)
            and name.upper() not in _FOLDERS
            and not name.upper().endswith(_PLACES)
        ):
            found.add(value)
        elif name.upper().startswith("OTEL_") and name.upper().endswith("_HEADERS"):
            found |= {unquote(secret) for _, secret in parse_qsl(value, separator=",")}
        found |= secrets_of_url(value)
    return found


def secrets_of_url(text: str) -> set[str]:
    """Return the password and the secret query values of a URL, both encoded and decoded."""
    if "://" not in text:
        return set()
    try:
        parts = urlsplit(text)
        found = {parts.password} if parts.password else set()
        found |= {value for name, value in parse_qsl(parts.query) if is_secret_name(name)}
    except ValueError:
        return set()
    return found | {unquote(secret) for secret in found}
