"""The gateway: the HTTP API through which people and programs start, stop and watch runs (docs/gateway.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import create_app
    from .serve import serve

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: `crawlctl gateway token new` needs the module of tokens and no web framework.
    if name == "create_app":
        from .app import create_app

        return create_app
    if name == "serve":
        from .serve import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
