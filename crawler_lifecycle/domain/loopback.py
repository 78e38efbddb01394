"""Which addresses can only mean this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a host name or address, with or without a port, can only mean this machine."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0] if "." in host else host
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.partition(":")[0].lower() == "localhost"


def leads_here(address: object) -> bool:
    """Whether ``http://HOST:PORT…`` or ``HOST:PORT`` leads to this machine and nowhere else."""
    if not isinstance(address, str):
        return False
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        return parts.scheme in ("", "http") and parts.hostname is not None and is_loopback(parts.hostname)
    except ValueError:
        return False
