"""The registration of a feature: everything that the core has to know about it.

The core loops over ``FEATURES`` and names none of them. Each field is optional. A registration
imports nothing from its feature: ``crawlctl`` reads it at each start, so objects are named as
``module:object``, relative to the folder of the feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from crawler_lifecycle.domain.incident import IncidentKind


@dataclass(frozen=True)
class VerbGroup:
    """A noun of ``crawlctl`` with its verbs."""

    name: str
    help: str
    verbs: Mapping[str, tuple[str, str]]
    """Maps each verb to its function and its line in the help."""
    panel: str = "Runs"
    """The section of the help that lists the noun."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """One feature. ``name`` is the name of its folder."""

    name: str
    nouns: tuple[VerbGroup, ...] = ()
    verbs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Verbs of ``crawlctl`` without a noun."""
    tables: tuple[str, ...] = ()
    """The modules that define its database tables."""
    subject: str = ""
    """The column with the numbers or names by which requests identify its subjects."""
    retain: str = ""
    """Its ``FeatureRetention``, which defines the rows that are removed."""
    cap: str = ""
    """Its ``Cap``, which limits how many tasks of a run may start."""
    choose: str = ""
    """The function that chooses the version of a run, and the digest of its package if it has one,
    from the connection and the number of a canary.
    """
    check_resume: str = ""
    """The function that raises ``NotInThisState`` if an ended run cannot execute its code again,
    from the connection, the row of the run and its changed request.
    """
    names_pool: str = ""
    """The function that returns what starts runs in a pool later, such as ``schedule nightly``,
    from the connection and the name of the pool.
    """
    routes: tuple[str, ...] = ()
    """Functions that add routes of the API. Like those in ``pages`` and ``middleware``, they take
    the app and the gateway.
    """
    pages: tuple[str, ...] = ()
    """Functions that add web pages."""
    middleware: tuple[str, ...] = ()
    """Functions that add middleware around the whole gateway."""
    workflows: tuple[str, ...] = ()
    """Classes of workflows."""
    activities: str | None = None
    """The function that creates the objects with the activities from ``compose.Parts``."""
    recover: str | None = None
    """The function that creates the ``ParentKind`` of rows with workflows from
    ``compose.Parts``.
    """
    audited: str | None = None
    """The sources that audits compare (``Source``)."""
    keeper: str | None = None
    """The function that creates a background service for the role ``audit`` from the store and
    ``Workflows``.
    """

    conditions: Mapping[str, str] = field(default_factory=dict)
    """Functions that return the current ``IncidentCondition``s from the store and the time, keyed
    by the noun with which their kinds begin.
    """
    kinds: tuple[IncidentKind, ...] = ()
    """The kinds of incidents that these functions return."""
    watcher: str | None = None
    """The function that creates a background service of the gateway from the gateway."""

    def function(self, name: str) -> str:
        """Return the full name of a function in the folder of the feature."""
        return f"crawler_lifecycle.features.{self.name}.{name}"

    def load(self, name: str) -> Any:
        """Import ``module`` or return the object ``module:object`` from the folder of the
        feature.
        """
        return resolve_name(self.function(name))
