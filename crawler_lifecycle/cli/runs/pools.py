"""``crawlctl pool``: pools in the database."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.client.gateway import Gateway
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
    """Create a pool, or change the given limits of one. They hold for the next slot."""
    given = filled(asdict(options))
    with current().gateway() as gateway:
        body = _present(gateway, name) | given | {"requested_by": by or user()}
        if body.get("max") == "none":
            del body["max"]
        if body.get("project") == "*":
            del body["project"]
        KIND.print_facts(gateway.put(KIND.path(name), body))


def _present(gateway: Gateway, name: str) -> dict[str, Any]:
    """Return the limits of a pool in the database; empty if it is new, or cannot be read."""
    for row in gateway.get("/v1/pools")["pools"]:
        if row["name"] == name and row["origin"] == "people" and row["max"] != 0:
            return {field: row[field] for field in PoolOptions.__dataclass_fields__}
    return {}


def delete(name: Name, /) -> None:
    """Delete a pool of the database that nothing names."""
    with current().gateway() as gateway:
        KIND.print_facts(gateway.delete(KIND.path(name)))
