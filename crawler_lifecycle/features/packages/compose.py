"""The composition of this feature."""

from __future__ import annotations

from typing import cast

from crawler_lifecycle.compose import Parts

from .activities import PackageActivities
from .ports import CodeStore, Inspector


def activities(p: Parts) -> tuple[PackageActivities]:
    """Return the object with the activities of packages."""
    return (PackageActivities(cast(CodeStore, p.code), cast(Inspector, p.inspector)),)
