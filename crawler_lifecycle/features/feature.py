"""The record of a feature: what the core knows of it.

The core loops over ``FEATURES`` and names none of them. Each slot is optional. A record imports
nothing of its feature: ``crawlctl`` reads it at each start, so objects are named as
``module:object``, below the folder of the feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class VerbGroup:
    """A noun of ``crawlctl`` with its verbs."""

    name: str
    help: str
    verbs: Mapping[str, tuple[str, str]]
    """The function of each verb, and its line in the help."""
    panel: str = "Runs"
    """The part of the help in which the noun stands."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """One feature. ``name`` is that of its folder."""

    name: str
    nouns: tuple[VerbGroup, ...] = ()
    verbs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Verbs of ``crawlctl`` without a noun."""
    tables: tuple[str, ...] = ()
    """The modules that define its tables."""
    subject: str = ""
    """The column with the numbers or names by which requests name one of its subjects."""
    retain: str = ""
    """Its ``FeatureRetention``: the rows that are removed."""
    routes: tuple[str, ...] = ()
    """Functions that add routes of the API. Like those of ``pages`` and ``middleware``, they take
    app and gateway.
    """
    pages: tuple[str, ...] = ()
    """Functions that add web pages."""
    middleware: tuple[str, ...] = ()
    """Functions that add middleware around all that the gateway has."""
    workflows: tuple[str, ...] = ()
    """Classes of workflows."""
    activities: str | None = None
    """The function that makes the objects with the activities from ``compose.Parts``."""
    recover: str | None = None
    """The function that makes the ``ParentKind`` of rows with workflows from ``compose.Parts``."""
    audited: str | None = None
    """The sources that audits compare (``Source``)."""
    keeper: str | None = None
    """The function that makes a background service of the role ``audit`` from the store and
    ``Workflows``.
    """

    conditions: Mapping[str, str] = field(default_factory=dict)
    """Functions that return what needs somebody now, from the store and the time (``Condition``),
    by the noun with which its kinds begin.
    """
    watcher: str | None = None
    """The function that makes a background service of the gateway from the gateway."""

    def function(self, name: str) -> str:
        """Return the full name of a function below the folder of the feature."""
        return f"crawler_lifecycle.features.{self.name}.{name}"

    def load(self, name: str) -> Any:
        """Import ``module``, or return the object ``module:object``, below the folder of the
        feature.
        """
        return resolve_name(self.function(name))
