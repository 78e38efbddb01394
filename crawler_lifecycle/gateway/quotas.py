"""The route of quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel

from crawler_lifecycle.domain.pools import DEFAULT, POOL_NAME
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.quotas import Limit
from crawler_lifecycle.store.runs.quotas import QuotaStore

from .access.operations import caller_key

_Pool = Annotated[str, Query(pattern=f"^{POOL_NAME.pattern}$", description="the pool of the run")]


class QuotaList(BaseModel):
    """The limits for a start by the caller."""

    quotas: list[Limit]


def add_quotas(app: FastAPI, quotas: QuotaStore) -> None:
    """Add ``GET /v1/quotas``."""

    @app.get("/v1/quotas")
    def list_quotas(pool: _Pool = DEFAULT) -> QuotaList:
        """The quotas for a start by this caller in this pool, and their present use."""
        quotas.known_pools().check(pool)
        return QuotaList(
            quotas=quotas.quotas_of({"caller": caller_key(), "pool": pool, "project": chosen(None)})
        )
