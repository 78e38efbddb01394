"""Addresses of this machine."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
