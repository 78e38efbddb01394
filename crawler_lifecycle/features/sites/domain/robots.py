"""The files in which a site states rules for crawlers: ``robots.txt`` and ``tdmrep.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from protego import Protego

from crawler_lifecycle.domain.bounds import DAY_S, refusal
from crawler_lifecycle.domain.hosts import host_of

#: The maximum size of a file that is kept, in bytes. RFC 9309 demands at least 500 KiB.
FILE_MAX = 512 * 1024
#: Seconds for which the answer of a site is valid, and for which a failed request is.
VALID_S = DAY_S
FAILED_S = 600.0
#: Seconds in which the task that fetches the files of an origin has to report them.
CLAIM_S = 60.0
#: The range of a crawl delay, in seconds. A longer one counts as the longest, so that one line of a
#: site cannot stop its crawls.
DELAY_RANGE_S = (0.01, 60.0)
#: The length of the longest origin and policy address.
ORIGIN_MAX = 300
POLICY_MAX = 1000
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class TdmReservation:
    """The rights that a site reserves about text and data mining (TDM)."""

    reserved: bool
    policy: str | None = None
    """The address of the licences that the site offers."""


def origin_of(text: str) -> tuple[str, str]:
    """Return an origin such as ``https://shop.example:8443`` in its one form, and its host.

    Raises ``InvalidRequest``.
    """
    fix = "give a scheme, a host and a port, such as https://shop.example:8443"
    if len(text) > ORIGIN_MAX:
        raise refusal("origin", f"{text[:60]}…", fix)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise refusal("origin", text, fix) from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise refusal("origin", text, fix)
    host = host_of(parts.hostname, "origin")
    shown = f"[{host}]" if ":" in host else host
    if port is None or port == _PORTS[parts.scheme]:
        return f"{parts.scheme}://{shown}", host
    return f"{parts.scheme}://{shown}:{port}", host


def is_known(status: int | None) -> bool:
    """Return whether a response with this status means that the rules of a site are known.

    A status from 400 on means that there are none. Without a response, with an error of the server,
    or with 429, they are unknown (RFC 9309).
    """
    if status is None or status == 429:
        return False
    return has_rules(status) or 400 <= status < 500


def has_rules(status: int | None) -> bool:
    """Return whether a response with this status contains rules."""
    return status is not None and 200 <= status < 300


def crawl_delay(body: bytes, agent: str) -> float | None:
    """Return the seconds between two requests that a robots.txt demands of this user agent, or of
    all; ``None`` if it demands no delay.
    """
    delay = Protego.parse(body.decode("utf-8-sig", "ignore")).crawl_delay(agent)
    least, most = DELAY_RANGE_S
    # False for NaN too.
    return min(float(delay), most) if delay is not None and delay >= least else None


def tdm_reservation(body: bytes) -> TdmReservation | None:
    """Return what a ``tdmrep.json`` reserves for any part of the site; ``None`` if it is not
    valid.
    """
    try:
        rules = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        return None
    for rule in rules:
        if rule.get("tdm-reservation") in (1, "1"):
            return TdmReservation(True, tdm_policy(rule.get("tdm-policy")))
    return TdmReservation(False)


def tdm_policy(given: object) -> str | None:
    """Return the address of a policy, unless it is none that a browser may open."""
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return given[:POLICY_MAX]
    return None
