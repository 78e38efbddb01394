"""The allowed addresses of webhooks: those of the public internet, and those in the settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.domain.variables import OF_WEBHOOKS, REFERENCE, check_variable

from .definition import EMAIL, NUMBER, WebhookSpec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Public addresses at which a cloud offers private services to its machines.
_INNER = (ipaddress.ip_network("168.63.129.16/32"),)
#: Networks that are not public by IANA's registries, although some supported Python versions call
#: them global.
_SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "2002::/16", "3fff::/20")))
#: The network of all public IPv6 addresses.
_PUBLIC6 = ipaddress.ip_network("2000::/3")
#: The network of NAT64. The last 32 bits of such an address are the IPv4 address that is called.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: ISATAP: after these 32 bits, the last 32 bits of an IPv6 address are an IPv4 address.
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
#: Names that exist only in private networks (RFC 6761, 6762 and 8375; ICANN reserves .internal for
#: this purpose).
_INNER_NAME = re.compile(
    r"[^.]+|(.+\.)?(localhost|local|internal|home\.arpa|svc|lan|intranet|corp|home)"
)
_SETTING = "LIFECYCLE_WEBHOOKS__"


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """The rules of an installation for its webhooks.

    They check a definition when it is created, and again at each delivery. A delivery also checks
    each address to which the host name resolves.
    """

    networks: Sequence[Network] = ()
    """Networks that may be called without further checks."""
    loopback: bool = False
    """True on a developer's machine, where webhooks can call the machine itself, also by http."""
    env_prefix: str = OF_WEBHOOKS
    """The prefix of the variables that can contain secrets."""

    def check(self, spec: WebhookSpec) -> None:
        """Raise ``InvalidRequest`` for a forbidden address, and for secrets that webhooks may not
        use.

        This method does not resolve names or references. An e-mail goes to the mail server of the
        settings.
        """
        for key, text in (("url", spec.url), *(("secrets", secret) for secret in spec.secrets)):
            check_variable(key, text, self.env_prefix, f"{_SETTING}ENV_PREFIX")
        if spec.kind == EMAIL or spec.url.startswith(REFERENCE):
            return
        parts = urlsplit(spec.url)
        host = (parts.hostname or "").removesuffix(".")
        here = self.loopback and is_loopback(host)
        if parts.scheme != "https" and not here:
            raise InvalidRequest(
                f"url: {host}: http is only for loopback with crawlctl dev ({_SETTING}LOOPBACK); "
                "give an https address"
            )
        if NUMBER.fullmatch(host):
            self.check_address(host, host)
        elif _INNER_NAME.fullmatch(host.lower()) and not here and not self.networks:
            raise _refusal(host, "it is a name of a private network")

    def check_address(self, host: str, address: str) -> None:
        """Raise ``InvalidRequest`` if this address of the host may not be called."""
        why = refused(address, self.networks, loopback=self.loopback)
        if why is not None:
            raise _refusal(host, why)


def refused(text: str, networks: Sequence[Network] = (), *, loopback: bool = False) -> str | None:
    """Return the reason why this address may not be called, or ``None`` if it may.

    ``networks`` are always allowed. With ``loopback``, this machine itself may be called.
    """
    try:
        given = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return f"{text!r:.80} is not an address"
    for address in (given, *_inner(given)):
        if any(address.version == network.version and address in network for network in networks):
            continue
        if loopback and address.is_loopback:
            continue
        kind = _kind(address)
        if kind is not None:
            return f"{given} is {kind}"
    return None


def _refusal(host: str, why: str) -> InvalidRequest:
    fix = f"give a public address, or have {_SETTING}NETWORKS allow it"
    return InvalidRequest(f"url: {host} may not be called: {why}; {fix}")


def _inner(address: Address) -> list[Address]:
    """Return the IPv4 addresses that are embedded in this address."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [network for network in inner if network is not None]


def _kind(address: Address) -> str | None:
    if address.is_loopback:
        return "an address of this machine"
    if address.is_link_local:
        return "a link-local address, where clouds offer metadata of machines"
    if address.is_multicast:
        return "a multicast address"
    if any(address.version == network.version and address in network for network in _INNER):
        return "an address of a cloud's own services"
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address in _NAT64):
        return None  # the embedded IPv4 address decides
    special = any(address.version == network.version and address in network for network in _SPECIAL)
    public = address.is_global and not special and (address.version == 4 or address in _PUBLIC6)
    return None if public else "private or reserved"
