"""The fields of a request that begins a canary."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from ..domain.canary import RUNS_MAX, SHARE_MAX, SHARE_MIN, CanarySettings, Judge


class CanaryFields(BaseModel):
    """The fields with which a new version is tried before it becomes current."""

    canary: Annotated[float, Field(ge=SHARE_MIN, le=SHARE_MAX)] | None = None
    """The share of the runs without a version that try it; without one, it is current at once."""
    canary_runs: Annotated[int, Field(ge=1, le=RUNS_MAX)] = 3
    """The number of ended runs after which it is judged."""
    judge: list[Judge] = Field(default=[*Judge], min_length=1, max_length=len(Judge))
    """What its runs are judged by, in addition to the entry's ``expect``."""

    def settings(self) -> CanarySettings | None:
        """Return the settings of the canary; ``None`` if there shall be none."""
        if self.canary is None:
            return None
        return CanarySettings(self.canary, self.canary_runs, self.judge)
