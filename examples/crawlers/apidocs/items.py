"""The items that the crawlers collect."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Service:
    """A service, as its page describes it."""

    id: str
    title: str
    url: str
    protocol: str
    api_version: str
    category: str
    operations: int
    description_length: int


@dataclass
class Operation:
    """An operation, with everything that a caller must know."""

    service: str
    operation: str
    url: str
    request: str
    deprecated: bool
    inputs: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass
class CheckedLink:
    """The answer of the site for one address. For a redirect, ``location`` is the target."""

    url: str
    status: int
    location: str | None
    retries: int
    size: int
