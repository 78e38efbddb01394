"""Detection of addresses that can only mean this machine."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

#: A host name or address, with or without a port. The whole text must match:
#: ``localhost.example.com`` is another host.
_HOST = re.compile(
    r"(?:\[([0-9a-f.]*:[0-9a-f:.]*)\]|([a-z0-9.-]+))(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE
)


def is_loopback(host: str) -> bool:
    """Return whether this host name or address can only mean this machine. Only a port may follow
    the name or address.
    """
    found = _HOST.fullmatch(host)
    name = host if found is None else found[1] or found[2]
    try:
        return "%" not in name and ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def leads_here(address: object) -> bool:
    """Return whether ``http://HOST:PORT…`` or ``HOST:PORT`` can only mean this machine."""
    if not isinstance(address, str):
        return False
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        return parts.scheme in ("", "http") and is_loopback(parts.netloc)
    except ValueError:
        return False
