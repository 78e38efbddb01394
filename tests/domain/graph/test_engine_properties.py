"""The engine against the model: any graph, any order of ends, failures, cancels, retries, crashes,
grafts, growth.
"""

from __future__ import annotations

from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.features.graphs.domain import picking
from crawler_lifecycle.features.graphs.domain.engine import Graph
from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphSpec,
    GraphState,
    StepState,
)
from tests.domain.graph.harness import Harness, Tape, a_level
from tests.domain.graph.steps import begin, end, run, states
from tests.support.examples import examples

TAPES = st.binary(min_size=400, max_size=1500)
LARGE = (HealthCheck.large_base_example, HealthCheck.data_too_large)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=LARGE)
@given(TAPES, st.booleans(), st.sampled_from([None, None, 1, 3]))
def test_whatever_happens_states_are_those_of_the_model_and_the_graph_ends(
    numbers: bytes, fail_fast: bool, cap: int | None
) -> None:
    """``Harness`` checks the guarantees: nothing starts before its dependencies, or twice; limits
    and resources hold; changed rows are named; whatever is open can continue, or names what it
    waits for.
    """
    tape = Tape(numbers)
    harness = Harness(tape, GraphOptions(check_deps=False, fail_fast=fail_fast, max_parallel=cap))
    with mock.patch.multiple(picking, SPREAD=2, BATCH_STEPS=4):
        assert harness.add(a_level(tape, tape.below(12)))
        harness.play(80)
        harness.finish()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=LARGE)
@given(TAPES)
def test_the_order_of_ends_does_not_matter(numbers: bytes) -> None:
    tape = Tape(numbers)
    spec = GraphSpec(a_level(tape, 1 + tape.below(12)), GraphOptions(check_deps=False))
    ends = {
        step.path: tape.one([StepState.COMPLETED] * 3 + [StepState.DISCARDED])
        for step in spec.steps
    }
    one, other = Graph.of(spec), Graph.of(spec)
    # By then, all are due.
    run(one, discarded=[path for path, state in ends.items() if state is StepState.DISCARDED])
    while ready := [
        step for step in other.steps if step.state in (StepState.AVAILABLE, StepState.SCHEDULED)
    ]:
        step = tape.one(ready)
        step.state = StepState.AVAILABLE
        begin(other, step.path)
        end(other, step.path, ends[step.path])
    assert states(one) == states(other)
    assert one.state is not GraphState.EXECUTING or any(step.missing for step in one.steps)
