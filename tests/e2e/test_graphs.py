"""The commands of docs/first-graph.md on a complete stack, as written, with the results that the
page states.
"""

from __future__ import annotations

from examples.graphs import WALKS
from tests.e2e.harness import Harness, until
from tests.e2e.test_managers import commands_of, play
from tests.support.builds import ROOT

PAGE = ROOT / "docs" / "first-graph.md"
STEPS = "SELECT path, graph_step.attempt FROM graph_step JOIN graph USING (graph_id) WHERE graph_key = 'tuesday'"
RUNS = "SELECT count(*), count(DISTINCT request_id) FROM run_history WHERE parent = 'graph/tuesday'"


def test_the_ten_minutes_of_the_page(harness: Harness) -> None:
    until(
        lambda: ("examples.graphs",) in map(tuple, harness.query("SELECT plan FROM plan")),
        "the module on record",
    )
    assert len([play(harness, line) for line in commands_of(PAGE)]) > 15
    states = dict(harness.query("SELECT graph_key, state FROM graph"))
    assert states == dict.fromkeys(
        ("monday", "tuesday", "wednesday", "thursday", "friday"), "completed"
    )
    assert f'"pages":{sum(WALKS)}' in play(harness, "crawlctl graph step monday report --result")
    runs = len(WALKS) + 1
    assert [tuple(row) for row in harness.query(RUNS)] == [(runs, runs)], (
        "a retry of one step begins nothing else"
    )
    attempts = dict(harness.query(STEPS))
    assert (attempts["publish"], attempts["report"]) == (2, 1)
