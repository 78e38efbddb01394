"""The definition of a webhook: its kind, its address, its events, and the secrets that sign
them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar
from urllib.parse import urlsplit

from crawler_lifecycle.domain.bounds import STRICT, check_text, refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.domain.names import (
    EVENT_TYPES,
    EVENT_WEBHOOK_TEST,
    NAME_OF_FORM,
    verdict_events,
)

NAME_MAX = 80
WEBHOOK_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_MAX - 1}}}")
URL_MAX = 2000
#: The maximum number of values of one filter.
VALUES_MAX = 100
#: The maximum number of characters of a value.
VALUE_MAX = 200
#: The highest number of webhooks that an installation can allow, and the maximum number of rows
#: that are read. ``bounds.MOST`` has the default limit.
WEBHOOKS_MAX = 1_000
#: A webhook is paused after its deliveries have failed for this many seconds.
GIVE_UP_S = 24 * 3600.0

#: The kinds of webhooks: signed events for programs, and alerts for people.
WEBHOOK = "webhook"
EMAIL = "email"
CHATS = ("slack", "teams", "discord")
KINDS = (WEBHOOK, *CHATS, EMAIL)
#: The events of alerts whose definition names none: everything that needs a person, once for each
#: cause.
ALERTS = ("incident.*",)
#: The maximum number of addresses in one e-mail.
RECIPIENTS_MAX = 20
#: The end of an address that responses show instead of its secret part.
HIDDEN = "/…"

_RECIPIENT = re.compile(
    r"(?=.{3,254}$)[A-Za-z0-9.!#$&'*+/=?^_`{|}~-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}"
)
_SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)
_LABEL = "[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(
    rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*{_LABEL}\.?|[0-9A-Fa-f:.]+:[0-9A-Fa-f:.]*", re.ASCII
)
#: Hosts that resolvers read as an address and not as a name, because their last part is a number
#: (WHATWG URL, "ends in a number") or they contain a colon.
NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?|.*:.*", re.ASCII | re.IGNORECASE)
#: The allowed ports: https, http (on a developer's machine), and all ports from 1024 on. Lower
#: ports belong to other protocols.
_PORTS = frozenset({443, 80, *range(1024, 2**16)})
#: Maps the name of each filter to the field of an event that it tests.
FILTERS: Mapping[str, str] = {
    "crawlers": "crawler",
    "tags": "tags",
    "flows": "flow_id",
    "statuses": "status",
    "outcomes": "outcome",
    "ended_by": "ended_by",
}


def webhook_workflow_id(name: str) -> str:
    """Return the id of the workflow that delivers to a webhook."""
    return f"crawl-webhook/{name}"


def webhook_sink(webhook_id: int | str) -> str:
    """Return the value of ``sink`` in the rows of a webhook's deliveries. For ``""``, return the
    prefix for all webhooks.
    """
    return f"webhook/{webhook_id}"


#: An SQL pattern for the sinks of all webhooks.
WEBHOOK_SINKS = "webhook/%"


def webhook_subject(webhook_id: int) -> str:
    """Return the subject of an event about a webhook."""
    return f"webhooks/{webhook_id}"


def check_webhook_name(name: object) -> None:
    """Raise ``InvalidRequest`` unless this may be the name of a webhook."""
    if not isinstance(name, str) or not WEBHOOK_NAME.fullmatch(name):
        raise refusal(
            "name", name, f"give 1 to {NAME_MAX} letters, digits, dots, dashes and underscores"
        )
    if name == NAME_OF_FORM:
        raise refusal(
            "name", name, f"/webhooks/{NAME_OF_FORM} is the page of the form; give another name"
        )


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """The definition of a webhook. Raises ``InvalidRequest``, which names the field, the value and
    the fix.

    An event is delivered if it matches at least one value of each filter. An empty filter matches
    every event.
    """

    __pydantic_config__: ClassVar = STRICT

    url: str
    """The address, or a reference ``env:NAME`` to it. The addresses of an e-mail are separated by
    commas.
    """
    secrets: list[str] = field(default_factory=list)
    """References ``env:NAME`` to the secrets: one, or two while a secret is being replaced. Only
    webhooks of kind ``webhook`` sign.
    """
    events: list[str] = field(default_factory=list)
    """Types of events, or a pattern such as ``run.*`` for all types of one kind. If it is empty,
    all types are meant.
    """
    crawlers: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    flows: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    ended_by: list[str] = field(default_factory=list)
    kind: str = WEBHOOK

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise refusal("kind", self.kind, f"choose from {', '.join(KINDS)}")
        if self.kind == EMAIL:
            _check_recipients(self.recipients)
        elif not _is_reference(self.url):
            check_url(self.url, hidden=self.kind in CHATS)
        if self.kind != WEBHOOK:
            if self.secrets:
                raise refusal(
                    "secrets",
                    len(self.secrets),
                    f"omit them: webhooks of kind {self.kind} are not signed",
                )
        elif not 1 <= len(self.secrets) <= 2 or len(set(self.secrets)) < len(self.secrets):
            raise refusal(
                "secrets",
                len(self.secrets),
                "give one reference, or two different references while the secret changes",
            )
        for secret in self.secrets:
            if not _is_reference(secret):
                # The message does not show the text, because it may be the secret itself.
                raise InvalidRequest(
                    "secrets: this is not a reference; give env:NAME, a variable of workers "
                    "with the role webhooks"
                )
        for name in ("events", *FILTERS):
            _check_values(name, getattr(self, name))
        for event in self.events:
            if not any(_named(event, type) for type in EVENT_TYPES):
                raise refusal(
                    "events",
                    event,
                    f"choose from {', '.join(sorted(EVENT_TYPES))}, or a kind such as run.*",
                )

    @classmethod
    def read(cls, definition: Mapping[str, Any]) -> WebhookSpec:
        """Read a stored definition. Raises ``InvalidRequest``."""
        try:
            return cls(**definition)
        except TypeError as error:
            raise InvalidRequest(f"definition: {error}") from None

    def document(self) -> dict[str, Any]:
        """The definition as JSON, without unset fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in ([], WEBHOOK)}

    @property
    def recipients(self) -> list[str]:
        """The recipients of an e-mail."""
        return [address.strip() for address in str(self.url).removeprefix("mailto:").split(",")]

    @property
    def types(self) -> list[str]:
        """The types of events that the webhook may receive."""
        return sorted(
            type
            for type in EVENT_TYPES
            if not self.events or any(_named(event, type) for event in self.events)
        )

    def fits(self, type: str, facts: Mapping[str, object]) -> bool:
        """Return whether an event with these facts (``event_facts``) is delivered.

        A filter does not match an event without the filter's field. People are notified of each
        verdict only once.
        """
        types = self.types
        if type == EVENT_WEBHOOK_TEST or type not in types:
            return False
        told = [event for event in verdict_events(facts.get("attention")) if event in types]
        if self.kind != WEBHOOK and type in told[1:]:
            return False
        return all(
            _has(facts.get(fact), getattr(self, name))
            for name, fact in FILTERS.items()
            if getattr(self, name)
        )


def event_facts(body: Mapping[str, object], run: Mapping[str, object] | None) -> dict[str, object]:
    """Return the fields of an event that filters test. They come from its body and from its run."""
    names = ("crawler", "flow_id", "status", "outcome", "ended_by", "attention")
    own = {name: body[name] for name in names if body.get(name) is not None}
    state = {} if body.get("state") is None else {"status": body["state"]}
    return {**state, **own, **(run or {})}


def shown(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the definition as responses show it. A chat's URL is shown without its last part,
    which is a secret.
    """
    scheme, there, rest = str(definition.get("url")).partition("://")
    if definition.get("kind") not in CHATS or not there:
        return definition
    return {**definition, "url": f"{scheme}://{re.split('[/?]', rest)[0]}{HIDDEN}"}


def _is_reference(text: object) -> bool:
    return isinstance(text, str) and _SECRET.fullmatch(text) is not None


def _check_recipients(found: Sequence[str]) -> None:
    wrong = [event for event in found if not _RECIPIENT.fullmatch(event)]
    if wrong or len(found) > RECIPIENTS_MAX:
        fix = f"give 1 to {RECIPIENTS_MAX} addresses such as ops@example.com, separated by commas"
        raise refusal("url", wrong[0] if wrong else len(found), fix)


def check_url(url: object, *, hidden: bool) -> None:
    """Raise ``InvalidRequest`` unless the string is a valid address. ``WebhookRules`` decides
    whether it may be called.

    With ``hidden``, the message does not show the address, because it is a secret.
    """
    fix = "give an address such as https://hooks.example.com/crawls"
    said = "…" if hidden else url
    if isinstance(url, str) and "@" in re.split(r"[/?#]", url.partition("//")[2], maxsplit=1)[0]:
        # The message does not show the address, because it may contain a password.
        raise InvalidRequest(
            "url: a name or password in it is not allowed; deliveries are signed, so check the "
            "signature instead"
        )
    if (
        not isinstance(url, str)
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or len(url) > URL_MAX
    ):
        raise refusal(
            "url",
            said,
            f"{fix}, of at most {URL_MAX} plain characters: %C3%BC for ü, and xn--… in names",
        )
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        if NUMBER.fullmatch(host):
            ipaddress.ip_address(host)
    except ValueError:
        raise refusal("url", said, fix) from None
    named = f"[{host}]" if ":" in host else host
    exact = parts.netloc.lower() == (named if port is None else f"{named}:{port}")
    if parts.scheme not in ("https", "http") or not _HOST.fullmatch(host) or not exact:
        raise refusal("url", said, fix)
    if port is not None and port not in _PORTS:
        raise refusal("url", said, "give a port from 1024 to 65535, or omit it")
    if parts.fragment or "#" in url:
        raise refusal("url", said, "omit the part after #")
    if parts.scheme == "http" and not is_loopback(host):
        raise refusal(
            "url",
            said,
            "give an https address; http is only for this machine, with crawlctl dev, such as "
            "http://127.0.0.1:9000/",
        )


def _check_values(name: str, values: Sequence[object]) -> None:
    if len(values) > VALUES_MAX:
        raise refusal(name, len(values), f"give at most {VALUES_MAX} values")
    for value in values:
        check_text(name, value, VALUE_MAX, needed=True)


def _named(pattern: str, type: str) -> bool:
    return type == pattern or (pattern.endswith(".*") and type.partition(".")[0] == pattern[:-2])


def _has(value: object, wanted: Collection[str]) -> bool:
    return (
        any(entry in wanted for entry in value)
        if isinstance(value, list | tuple)
        else value in wanted
    )


def fix(name: str, through_seq: int, *, fails: bool) -> str:
    """Return the fix for a paused or failing webhook.

    ``through_seq`` is the number of the last delivered event. ``fails`` is true if the delivery of
    the next event fails.
    """
    resume = f"crawlctl webhook resume {name}"
    stuck = through_seq + 1
    if not fails:
        return f"{resume}, or delete it"
    return (
        f"repair the receiver, then {resume}; to skip only event {stuck}: {resume} --skip-event "
        f"{stuck}"
    )
