"""``crawlctl pool``: pools in the database."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

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
        maximum number of parallel tasks; none: as many as the cluster accepts
    weight
        its share of slots, in proportion to the weights of other waiting pools (default: 1)
    reserved
        slots that other pools leave free for it
    project
        the only project whose runs may use it; *: all projects may
    """

    max: int | Literal["none"] | None = None
    weight: float | None = None
    reserved: int | None = None
    project: str | None = None


_NONE = PoolOptions()


def set_pool(
    name: Name, /, *, options: Annotated[PoolOptions, Parameter(name="*")] = _NONE, by: By = None
) -> None:
    """Create a pool, or change the given limits of one. They apply to the next slot."""
    none = {"max": "none", "project": "*"}
    given = filled(asdict(options)).items()
    body = {field: None if none.get(field) == value else value for field, value in given}
    with current().gateway() as gateway:
        KIND.print_facts(gateway.patch(KIND.path(name), {**body, "requested_by": by or user()}))


def delete(name: Name, /) -> None:
    """Delete a pool of the database that nothing names."""
    with current().gateway() as gateway:
        KIND.print_facts(gateway.delete(KIND.path(name)))
