"""The engine against the model: any graph, any order of ends, failures, cancels, retries, crashes, grafts, growth."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.graph.spec import GraphOptions
from tests.domain.graph.world import Tape, World, a_level

TAPES = st.lists(st.integers(0, 999), max_size=400)


@settings(max_examples=300, deadline=None)
@given(TAPES, st.booleans(), st.sampled_from([None, 1, 3]))
def test_whatever_happens_states_are_those_of_the_model_and_the_graph_ends(
    numbers: list[int], fail_fast: bool, cap: int | None
) -> None:
    tape = Tape(numbers)
    world = World(tape, GraphOptions(check_deps=False, fail_fast=fail_fast, max_parallel=cap))
    assert world.add(a_level(tape, tape.below(14)))
    world.play(60)
    world.finish()
