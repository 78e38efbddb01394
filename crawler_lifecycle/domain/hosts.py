"""Hosts, in the one form in which they are compared and stored."""

from __future__ import annotations

import functools
import ipaddress
from urllib.parse import urlsplit

import idna
from publicsuffixlist import PublicSuffixList

from .bounds import refusal

#: The maximum length of a host in the domain name system, in characters.
HOST_MAX = 253
#: The maximum length of a text in which a host is looked for, in characters.
_TEXT_MAX = 10_000
_FIX = "give a host such as shop.example, or a URL that begins with http:// or https://"


def host_of(text: str, field: str = "site") -> str:
    """Return the host of a URL, or of a host with or without a port.

    The result is in lower case, with international names in Punycode, and without a user, a port or
    the final dot. Example: ``https://me:pw@Bücher.example:8443/a`` gives
    ``xn--bcher-kva.example``. Raises ``InvalidRequest``, which names ``field``.
    """
    text = text.strip()
    # A password before the host is shown to nobody.
    shown = text.rpartition("@")[2]
    if len(text) > _TEXT_MAX or any(mark in text for mark in "\t\r\n"):
        raise refusal(field, f"{shown[:60]}…", _FIX)
    address = _address(text)
    if address is not None:
        return address
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        found = parts.hostname or ""
        parts.port  # noqa: B018  raises for a port that is none
    except ValueError:
        raise refusal(field, shown, _FIX) from None
    address = _address(found)
    if address is not None:
        return address
    try:
        name = idna.encode(found.rstrip("."), uts46=True).decode("ascii").lower()
    except idna.IDNAError:
        # Some hosts have labels such as _dmarc or a--b, which IDNA forbids.
        name = found.rstrip(".").lower()
        if not _is_plain(name):
            raise refusal(field, shown, _FIX) from None
    if len(name) > HOST_MAX:
        raise refusal(field, f"{shown[:60]}…", f"a host has at most {HOST_MAX} characters")
    return name


def _address(text: str) -> str | None:
    """Return an IP address in its one form; ``None`` for any other text."""
    try:
        return ipaddress.ip_address(text.strip("[]")).compressed
    except ValueError:
        return None


def _is_plain(name: str) -> bool:
    labels = name.split(".")
    return name.isascii() and all(
        1 <= len(label) <= 63 and label.replace("-", "").replace("_", "").isalnum()
        for label in labels
    )


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, or any other that has no domain, such as ``1.2``."""
    return ":" in host or host.replace(".", "").isdigit()


def domain_of(host: str) -> str:
    """Return the domain to which a host belongs: the part that its owner registered.

    The public suffix list decides: ``www.shop.co.uk`` gives ``shop.co.uk``, and ``me.github.io``
    gives ``me.github.io``. A host without such a part, such as ``localhost`` or an IP address, is
    its own domain.
    """
    if is_address(host):
        return host
    return _suffixes().privatesuffix(host) or host


def is_public_suffix(host: str) -> bool:
    """Return whether anybody can register a domain below the host, such as ``co.uk``."""
    return not is_address(host) and _registries().publicsuffix(host) == host


@functools.cache
def _registries() -> PublicSuffixList:
    return PublicSuffixList(only_icann=True, accept_unknown=False)


@functools.cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()
