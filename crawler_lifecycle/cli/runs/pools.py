"""``crawlctl pool``: pools in the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli.inputs import filled
from crawler_lifecycle.cli.session import current
from crawler_lifecycle.cli.subjects import By, Kind
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.subjects import POOL

KIND = Kind(POOL)
Name = Annotated[str, Parameter(help="the pool")]


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Limits of a pool.

    Parameters
    ----------
    max
        maximum number of parallel tasks; default: as many as the cluster accepts
    weight
        its share of slots, in proportion to the weights of other waiting pools (default: 1)
    reserved
        slots that other pools leave free for it
    project
        the only project whose runs may use it; default: all projects may
    """

    max: int | None = None
    weight: float | None = None
    reserved: int | None = None
    project: str | None = None


_NONE = PoolOptions()


def set_pool(
    name: Name, /, *, options: Annotated[PoolOptions, Parameter(name="*")] = _NONE, by: By = None
) -> None:
    """Create a pool, or replace all its limits. They hold for the next slot."""
    given = {
        "max": options.max,
        "weight": options.weight,
        "reserved": options.reserved,
        "project": options.project,
        "requested_by": by or user(),
    }
    with current().gateway() as gateway:
        KIND.print_facts(gateway.put(KIND.path(name), filled(given)))


def delete(name: Name, /) -> None:
    """Delete a pool of the database that nothing names."""
    with current().gateway() as gateway:
        KIND.print_facts(gateway.delete(KIND.path(name)))
