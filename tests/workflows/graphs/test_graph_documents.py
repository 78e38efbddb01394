"""Examples of the documents with nothing left out: Temporal, workflow, store, and processes that import their module.

``tests/graphs`` plays all of them in memory; these are the ones that ask, graft, and hand on what is no JSON.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from crawler_lifecycle.domain.values import decode, unpacked
from crawler_lifecycle.graphs import Workflow
from tests.graphs.support import OTHERS, changed, play
from tests.graphs.test_chancy_document import EXAMPLE
from tests.graphs.test_oban_document import ASKING, ETL, GRAFT
from tests.support.lab import Lab
from tests.workflows.graphs.test_graph_functions import functions_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: What the job learnt, told as its result.
ASKED = ASKING.replace(
    """deps_of=job)

flow""",
    """deps_of=job)
        names = {name: [one.name for one in told[name]] for name in ("all_jobs", "some_jobs", "dep_jobs")}
        same = {name: told[name] for name in ("recorded", "of_deps", "missing")}
        return Record({**names, **same, "counts": dict(status.counts), "args": extract_job.args})

flow""",
)
CHANCY = EXAMPLE.partition("async def main")[0].replace('print(f"', 'open("printed", "a").write("\\n')


async def test_examples_in_processes_of_their_own(real_lab: Lab, tmp_path: Path) -> None:
    source = "\n".join([OTHERS, *(changed(one) for one in (ETL, GRAFT, ASKED, CHANCY))])
    kept = [line for line in source.splitlines() if not line.startswith("await ") and "WorkflowPlugin" not in line]
    (tmp_path / "example.py").write_text("\n".join(kept))
    graphs = built()
    async with functions_of(real_lab, tmp_path, "example") as (g, _):
        for key, workflow in graphs.items():
            spec = workflow.spec()
            ended = await g.ended(await g.start(spec.steps, key, context=spec.context))
            assert ended.state == "completed", (key, [(one.path, one.errors) for one in g.steps().values()])

    def result(key: str, path: str) -> object:
        graph_id = list(graphs).index(key) + 1
        parts = real_lab.store.graphs.result(graph_id, g.steps(graph_id)[path].number)
        return decode(b"".join(unpacked(parts)))

    extracted = result("etl", "extract")
    assert isinstance(extracted, dict)
    assert type(extracted["extracted_at"]) is datetime
    assert result("etl", "load") == {"loaded": 3}
    assert {path for path in g.steps(2) if "/" in path} == {"notify/7", "notify/8", "notify/9"}
    assert result("graft", "notify/8") == {"user_id": 8}
    assert result("asking", "mine") == {
        "all_jobs": ["extract", "transform", "mine", "later"],
        "some_jobs": ["extract", "transform"],
        "dep_jobs": ["transform"],
        "recorded": {"n": 1},
        "of_deps": {"transform": {"n": 2}},
        "missing": None,
        "counts": {"completed": 2, "executing": 1, "suspended": 1},
        "args": {"n": 1},
    }
    first, *middle, last = (tmp_path / "printed").read_text().split()
    assert (first, sorted(middle), last) == ("Top", ["Left", "Right"], "Bottom")
    assert all(one.result_bytes is None for one in g.steps(4).values())  # Chancy keeps none


def built() -> dict[str, Workflow]:
    """The graphs of the examples, built here as whoever sends them would."""
    without = [one.replace("await oban.enqueue_many(", "(") for one in (ETL, ASKED)]
    etl, asking = (play(one) for one in without)
    graft = play(GRAFT.replace("await oban.enqueue_many(workflow)", ""))
    chancy = play(CHANCY + "workflow = Workflow('example')", before="")
    for one, *deps in (("top",), ("left", "top"), ("right", "top"), ("bottom", "left", "right")):
        chancy.workflow.add(getattr(chancy, one), one, deps)
    return {"etl": etl.workflow, "graft": graft.workflow, "asking": asking.flow, "chancy": chancy.workflow}
