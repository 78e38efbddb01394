"""Graphs in their workflow: steps follow their dependencies, commands change them, and nothing holds anything up."""

from __future__ import annotations

import pytest

from tests.contracts.store.graphing import chain
from tests.support.graphing import graph_lab
from tests.support.lab import Lab

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_chain_runs_in_its_order(real_lab: Lab) -> None:
    g = graph_lab(real_lab)
    async with g.working():
        handle = await g.start(chain(3))
        result = await g.ended(handle)
    assert (result.state, result.cause, g.row().state) == ("completed", None, "completed")
    assert g.states() == {"s0": "completed", "s1": "completed", "s2": "completed"}
    assert g.functions.calls == {"s0": 1, "s1": 1, "s2": 1}
    assert g.functions.batches == [["s0", "s1", "s2"]]
