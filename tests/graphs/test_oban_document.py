"""The examples of Oban Pro's documentation, with only their imports changed (rows O-… of the
rules).

| the document's | test |
|---|---|
| basic usage, `@worker()`, `job.meta["name"]`, `enqueue_many` (O-02, O-15) | `test_o02_basic_usage` |
| sequential, fan-out, fan-in, diamond (O-02): all in one graph | `test_o02_basic_usage` |
| sub-workflows (O-03) | `test_o03_sub_workflows` |
| collection fan-out, list and dict (O-04) | `test_o04_collections` |
| cascades, a result with a `datetime` (O-05) | `test_o05_an_etl_pipeline` |
| context (O-06) | `test_o06_context` |
| fan-out cascades, list and dict (O-05) | `test_o05_fan_out` |
| grafts (O-07) | `test_o07_a_graft` |
| id, name (O-01) | `test_o01_id_and_name` |
| `ignore_cancelled`, `ignore_discarded` (O-02, O-13) | `test_o13_ignoring` |
| `for_job`, handles, jobs, status (O-08, O-09, O-10) | `test_o08_introspection` |
| `to_graph`, `to_dot`, `to_mermaid` (O-14) | `test_o14_pictures` |
| `cancel_jobs`, `retry_jobs` (O-11, O-12) | `test_o11_cancel_and_retry` |
"""

from __future__ import annotations

from datetime import datetime

import pytest

from crawler_lifecycle.graphs.testing import Memory
from tests.graphs.support import play


def test_o02_basic_usage(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    module = play("""
from oban import worker
from oban_pro import Workflow

@worker()
class StepWorker:
    async def process(self, job):
        print(f"Executing: {job.meta['name']}")

workflow = (
    Workflow()
    .add("a", StepWorker.new({}))
    .add("b", StepWorker.new({}), deps="a")
    .add("c", StepWorker.new({}), deps="b")
    .add("d", StepWorker.new({}), deps="b")
    .add("e", StepWorker.new({}), deps=["c", "d"])
)
await oban.enqueue_many(workflow)
""")
    assert module.workflow.wait().state == "completed"
    printed = [line.removeprefix("Executing: ") for line in capsys.readouterr().out.splitlines()]
    assert printed[:2] == ["a", "b"]
    assert sorted(printed[2:4]) == ["c", "d"]
    assert printed[4:] == ["e"]


def test_o03_sub_workflows(memory: Memory) -> None:
    """Setup, then all of extract, then all of notify, then finalize."""
    module = play("""
from oban_pro import Workflow

# Create reusable sub-workflows
extract_flow = (
    Workflow()
    .add("extract", ExtractWorker.new({"source": "database"}))
    .add("transform", TransformWorker.new({"type": "normalize"}), deps="extract")
)
notify_flow = (
    Workflow()
    .add("prepare", PrepareWorker.new({"template": "report"}))
    .add("send", SendWorker.new({"method": "email"}), deps="prepare")
)
# Compose into a main workflow
workflow = (
    Workflow()
    .add("setup", SetupWorker.new({"mode": "initialize"}))
    .add_workflow("extract", extract_flow, deps="setup")
    .add_workflow("notify", notify_flow, deps="extract")
    .add("finalize", CleanupWorker.new({"mode": "cleanup"}), deps="notify")
)
await oban.enqueue_many(workflow)
""")
    status = module.workflow.wait()
    expected = [
        "setup",
        "extract/extract",
        "extract/transform",
        "notify/prepare",
        "notify/send",
        "finalize",
    ]
    assert memory.calls == expected
    assert (status.total, status.counts) == (6, {"completed": 6})
    assert {name: sub.total for name, sub in status.subs.items()} == {"extract": 2, "notify": 2}
    assert module.workflow.all_recorded()["extract"] == {
        "extract": {"source": "database"},
        "transform": {"type": "normalize"},
    }


def test_o04_collections(memory: Memory) -> None:
    module = play("""
items = [11, 12, 13]
# Fan-out with numbered jobs
numbered = (
    Workflow()
    .add("setup", SetupWorker.new({}))
    .add_many("process", [ProcessWorker.new({"item": id}) for id in items], deps="setup")
    .add("finish", FinishWorker.new({}), deps="process")
)
# Fan-out with named jobs
named = (
    Workflow()
    .add_many("fetch", {
        "users": FetchWorker.new({"table": "users"}),
        "orders": FetchWorker.new({"table": "orders"}),
    })
    .add("merge", MergeWorker.new({}), deps="fetch")
)
""")
    assert module.numbered.start().wait().state == "completed"
    assert memory.calls == ["setup", "process/0", "process/1", "process/2", "finish"]
    assert module.numbered.get_recorded("process") == {str(n): {"item": 11 + n} for n in range(3)}
    memory.calls.clear()
    assert module.named.start().wait().subs["fetch"].counts == {"completed": 2}
    assert memory.calls == ["fetch/users", "fetch/orders", "merge"]


ETL = """
from oban_pro import Workflow

saved = []

async def fetch_data(source):
    return [f"{source}-{n}" for n in range(3)]

def process(record):
    return record.upper()

async def save_to_database(records):
    saved.extend(records)

async def extract(context):
    source = context["source"]
    return {"records": await fetch_data(source), "extracted_at": datetime.now()}

async def transform(context):
    records = context["extract"]["records"]
    return {"transformed": [process(rec) for rec in records]}

async def load(context):
    records = context["transform"]["transformed"]
    await save_to_database(records)
    return {"loaded": len(records)}

workflow = (
    Workflow()
    .add_context({"source": "api", "batch_id": 123})
    .add_cascade("extract", extract)
    .add_cascade("transform", transform, deps="extract")
    .add_cascade("load", load, deps="transform")
)
await oban.enqueue_many(workflow)
"""


def test_o05_an_etl_pipeline(memory: Memory) -> None:
    """The result of a function is recorded, and keeps its type: here, a ``datetime``."""
    module = play(ETL)
    assert module.workflow.wait().state == "completed"
    assert module.saved == ["API-0", "API-1", "API-2"]
    assert type(module.workflow.get_recorded("extract")["extracted_at"]) is datetime
    assert module.workflow.get_recorded("load") == {"loaded": 3}


def test_o06_context(memory: Memory) -> None:
    module = play("""
def step_1_func(context):
    return dict(context)

workflow = (
    Workflow()
    .add_context({"user_id": 123, "batch_size": 100, "environment": "production"})
    .add_cascade("step_1", step_1_func)
)
""")
    context = {"user_id": 123, "batch_size": 100, "environment": "production"}
    module.workflow.start().wait()
    assert module.workflow.get_recorded("step_1") == context
    assert module.workflow.get_context() == context
    assert (
        play("workflow = Workflow().add('a', Worker.new({}))").workflow.start().get_context()
        is None
    )


def test_o05_fan_out(memory: Memory) -> None:
    module = play("""
async def process_user(user_id, context):
    batch_id = context["batch_id"]
    return {"user_id": user_id, "processed": True}

async def summarize(context):
    # Results from fan-out are indexed by id or dict key, context["0"], context["1"], etc.
    results = context["process"]
    return sum(1 for res in results.values() if res["processed"])

user_ids = [1, 2, 3, 4, 5]
workflow = (
    Workflow()
    .add_context({"batch_id": 456})
    .add_cascade("process", (user_ids, process_user))
    .add_cascade("summarize", summarize, deps="process")
)

async def fetch_from_source(url, context):
    return url + "page"

async def merge_results(context):
    return (context["fetch"]["wiki"], context["fetch"]["docs"])

sources = {"wiki": "https://w/", "docs": "https://d/"}
named = (
    Workflow()
    .add_cascade("fetch", (sources, fetch_from_source))
    .add_cascade("merge", merge_results, deps="fetch")
)
""")
    module.workflow.start().wait()
    assert module.workflow.get_recorded("summarize") == 5
    assert module.workflow.get_recorded("process")["4"] == {"user_id": 5, "processed": True}
    assert [job.name for job in module.workflow.all_jobs(deps_of="summarize")] == [
        "0",
        "1",
        "2",
        "3",
        "4",
    ]
    module.named.start().wait()
    assert module.named.get_recorded("merge") == ["https://w/page", "https://d/page"]


GRAFT = """
accounts = {123: [7, 8, 9]}

async def get_user_ids_for_account(account_id):
    return accounts[account_id]

@worker()
class UserNotifier:
    async def process(self, job):
        # Fetch user IDs at runtime: this data wasn't available when workflow was created
        user_ids = await get_user_ids_for_account(job.args["account_id"])
        # Build the sub-workflow dynamically
        sub_workflow = Workflow()
        for user_id in user_ids:
            sub_workflow.add(str(user_id), NotifyWorker.new({"user_id": user_id}))
        # Attach the sub-workflow to this graft point
        await oban.enqueue_many(Workflow.apply_graft(job, sub_workflow))

workflow = (
    Workflow()
    .add("setup", SetupWorker.new({}))
    .add_graft("notify", UserNotifier.new({"account_id": 123}), deps="setup")
    .add("summary", SummaryWorker.new({}), deps="notify")
)
await oban.enqueue_many(workflow)
"""


def test_o07_a_graft(memory: Memory) -> None:
    """Dependent steps wait for the grafter and for everything that it attached."""
    module = play(GRAFT)
    status = module.workflow.wait()
    assert memory.calls == ["setup", "notify", "notify/7", "notify/8", "notify/9", "summary"]
    assert (status.state, status.total, status.subs["notify"].total) == ("completed", 6, 3)
    assert module.workflow.get_recorded("notify") == {str(n): {"user_id": n} for n in (7, 8, 9)}


def test_o07_a_graft_of_nothing_is_done_at_once(memory: Memory) -> None:
    """Ambiguity 6: an empty graft, and a grafter that never grafts, block nothing."""
    for source in (
        GRAFT.replace("[7, 8, 9]", "[]"),
        GRAFT.replace("await oban.enqueue_many(Workflow.apply", "(Workflow.apply"),
    ):
        memory.calls.clear()
        assert play(source).workflow.wait().state == "completed"
        assert memory.calls == ["setup", "notify", "summary"]


def test_o01_id_and_name(memory: Memory) -> None:
    """An id makes a start idempotent; a name need not be unique."""
    module = play("""
custom = Workflow(id="custom-unique-id")
named = Workflow(name="nightly-etl")
again = Workflow(name="nightly-etl")
for one in (custom, named, again):
    one.add("only", Worker.new({"n": 1}))
    await oban.enqueue_many(one)
await oban.enqueue_many(Workflow(id="custom-unique-id").add("only", Worker.new({"n": 1})))
""")
    assert (module.custom.id, module.custom.name, module.named.name) == (
        "custom-unique-id",
        None,
        "nightly-etl",
    )
    assert len({module.custom.id, module.named.id, module.again.id}) == 3
    assert module.custom.wait().counts == {"completed": 1}
    assert memory.calls == ["only"]


def test_o13_ignoring(memory: Memory) -> None:
    source = """
whole = (Workflow(ignore_cancelled=True, ignore_discarded=True)
    .add("step_1", Worker.new({"fails": True}))
    .add("step_2", Worker.new({}), deps="step_1"))
each = (Workflow()
    .add("step_1", Worker.new({}))
    .add("step_2", Worker.new({"fails": True}), deps="step_1", ignore_cancelled=True)
    .add("step_3", Worker.new({}), deps="step_2", ignore_discarded=True))
"""
    module = play(source)
    assert module.whole.start().wait().counts == {"completed": 1, "discarded": 1}
    each = module.each.start()
    each.cancel_jobs(names=["step_1"])
    assert each.wait().counts == {"completed": 1, "cancelled": 1, "discarded": 1}
    assert [one.state for one in each.all_jobs()] == ["cancelled", "discarded", "completed"]


ASKING = """
told = {}

@worker()
class MyWorker:
    async def process(self, job):
        workflow = Workflow.for_job(job)
        # Now you can use workflow methods
        status = await workflow.status()
        all_jobs = await workflow.all_jobs()
        # Get a single job by name
        extract_job = await workflow.get_job("extract")
        # Get only specific named jobs
        some_jobs = await workflow.all_jobs(names=["extract", "transform"])
        # Get only the dependencies of the current job
        dep_jobs = await workflow.all_jobs(deps_of=job)
        told.update(locals(), missing=await workflow.get_job("nobody"))
        told["recorded"] = await workflow.get_recorded("extract")
        told["of_deps"] = await workflow.all_recorded(deps_of=job)

flow = (
    Workflow(id="known-workflow-id", name="known")
    .add("extract", ExtractWorker.new({"n": 1}))
    .add("transform", TransformWorker.new({"n": 2}), deps="extract")
    .add("mine", MyWorker.new({}), deps="transform")
    .add("later", Worker.new({}), deps="mine")
)
await oban.enqueue_many(flow)

"""


def test_o08_introspection(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    """Every query of the document, awaited within a running job."""
    module = play(
        ASKING
        + """await flow.wait()

workflow = Workflow(id="known-workflow-id")
status = await workflow.status()
print(status.state) # "executing", "completed", "cancelled", or "discarded"
print(status.total) # Total number of jobs
print(status.counts) # Dict of counts by state: {"completed": 5, "executing": 2, ...}
print(status.duration) # Time from start to completion (if finished)
print(status.started_at) # When the first job started
print(status.stopped_at) # When the last job finished (if complete)
print(status.subs) # Dict of sub-workflow statuses
unknown = await Workflow(id="nobody's").status()
"""
    )
    told = module.told
    assert told["status"].state == "executing"
    assert (told["status"].duration, told["status"].stopped_at) == (None, None)
    assert told["status"].counts == {"completed": 2, "executing": 1, "suspended": 1}
    assert [job.name for job in told["all_jobs"]] == ["extract", "transform", "mine", "later"]
    assert (told["extract_job"].state, told["extract_job"].args) == ("completed", {"n": 1})
    assert [job.name for job in told["some_jobs"]] == ["extract", "transform"]
    assert [job.name for job in told["dep_jobs"]] == ["transform"]
    assert (told["missing"], told["recorded"], told["of_deps"]) == (
        None,
        {"n": 1},
        {"transform": {"n": 2}},
    )
    state, total, counts, duration, started, stopped, subs = capsys.readouterr().out.splitlines()
    assert (state, total, counts, duration, subs) == (
        "completed",
        "4",
        "{'completed': 4}",
        "0:00:00",
        "{}",
    )
    assert started == stopped
    assert (module.status.id, module.status.name) == ("known-workflow-id", "known")
    assert (module.unknown.state, module.unknown.total) == ("unknown", 0)


def test_o11_cancel_and_retry(memory: Memory) -> None:
    """From within a job.

    Final jobs are not counted; a running one is cancelled at once, although its code continues.
    """
    module = play("""
told = {}

@worker()
class Canceller:
    async def process(self, job):
        workflow = Workflow.for_job(job)
        # Cancel only specific named jobs
        told["some"] = await workflow.cancel_jobs(names=["step_2", "step_3"])
        # Cancel all jobs in the workflow
        told["all"] = await workflow.cancel_jobs()
        told["went on"] = job.cancelled()

workflow = (
    Workflow()
    .add("step_1", Worker.new({}))
    .add("canceller", Canceller.new({}), deps="step_1")
    .add("step_2", Worker.new({}), deps="canceller")
    .add("step_3", Worker.new({}), deps="canceller")
    .add("step_4", Worker.new({}), deps="canceller")
)
await oban.enqueue_many(workflow)
status = await workflow.wait()
# Retry only specific named jobs
some = await workflow.retry_jobs(names=["canceller"])
# Retry all retryable jobs in the workflow
count = await workflow.retry_jobs()
""")
    assert module.told == {"some": 2, "all": 2, "went on": True}
    assert (module.status.state, module.status.counts) == (
        "cancelled",
        {"completed": 1, "cancelled": 4},
    )
    assert (module.some, module.count) == (1, 3)
    assert module.workflow.get_job("canceller").state == "available"
    assert module.workflow.get_job("step_2").state == "suspended"


PICTURED = """
workflow = (
    Workflow()
    .add("setup", SetupWorker.new({}))
    .add("process_a", ProcessWorker.new({}), deps="setup")
    .add("process_b", ProcessWorker.new({}), deps="setup")
    .add("finish", FinishWorker.new({}), deps=["process_a", "process_b"])
)
print(workflow.to_mermaid())
"""
MERMAID = """flowchart TD
setup["setup (SetupWorker)"]
process_a["process_a (ProcessWorker)"]
process_b["process_b (ProcessWorker)"]
finish["finish (FinishWorker)"]
setup --> process_a
setup --> process_b
process_a --> finish
process_b --> finish
"""


def test_o14_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte except for indentation, which the document has lost."""
    module = play(PICTURED)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(lines).strip() == MERMAID.strip()
    assert 'setup" -> "process_a"' in module.workflow.to_dot()
    graph = module.workflow.to_graph()
    assert graph.vertices == {
        "setup": "SetupWorker",
        "process_a": "ProcessWorker",
        "process_b": "ProcessWorker",
        "finish": "FinishWorker",
    }
    assert graph.edges == [
        ("setup", "process_a"),
        ("setup", "process_b"),
        ("process_a", "finish"),
        ("process_b", "finish"),
    ]
    nested = module.Workflow().add_workflow("sub", module.workflow).to_graph()
    assert nested.vertices["sub"] == graph
