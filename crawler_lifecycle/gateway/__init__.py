"""The gateway: the HTTP API through which people and programs start, stop and watch runs (docs/gateway.md)."""

from .app import create_app
from .serve import serve

__all__ = ["create_app", "serve"]
