"""Helpers for tests of graphs: one graph of the test's own, driven through the port as the
activities do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from crawler_lifecycle.domain.names import graph_workflow_id, manager_workflow_id
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.domain.values import decode, unpacked
from crawler_lifecycle.features.graphs.domain.commands import step_manager, step_request_id
from crawler_lifecycle.features.graphs.domain.engine import PickedSteps, StepEnd
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
    StepState,
)
from crawler_lifecycle.features.graphs.ports import (
    ExecutionEnd,
    GraphFence,
    GraphRow,
    NewGraph,
    StepRow,
    StepWork,
)
from crawler_lifecycle.features.managers.ports import ManagerFence, NewManager
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.contracts.store.harness import Harness, request

KEY = "nightly/shops"
MINE = Owner(graph_workflow_id(KEY), "chain-g1")
NEXT = Owner(graph_workflow_id(KEY), "chain-g2")
DONE = StepState.COMPLETED


def step(path: str, *deps: str, **fields: Any) -> StepSpec:
    """A function."""
    return StepSpec(
        path, StepKind.FUNCTION, {"call": "shop.steps:work", "args": {"path": path}}, deps, **fields
    )


def group(path: str, *deps: str, **fields: Any) -> StepSpec:
    return StepSpec(path, StepKind.GRAPH, fields.pop("job", {}), deps, **fields)


def crawl(path: str, *deps: str, **fields: Any) -> StepSpec:
    return StepSpec(path, StepKind.CRAWL, {"crawler": "services"}, deps, **fields)


def manager(path: str, *deps: str, **job: Any) -> StepSpec:
    return StepSpec(path, StepKind.MANAGER, {"plan": "shop:Stream", **job}, deps)


def approval(path: str, *deps: str, **job: Any) -> StepSpec:
    return StepSpec(path, StepKind.APPROVAL, job, deps)


def chain(length: int) -> list[StepSpec]:
    return [step(f"s{n}", *([f"s{n - 1}"] if n else [])) for n in range(length)]


def announced(spec: GraphSpec, key: str = KEY, pages: int = 1, **fields: Any) -> NewGraph:
    return NewGraph(key, fingerprint(spec), pages, options=spec.options, **fields)


@dataclass
class Graphed:
    """A graph that its workflow owns."""

    harness: Harness
    fence: GraphFence

    @classmethod
    def made(
        cls, harness: Harness, steps: Sequence[StepSpec], key: str = KEY, **fields: Any
    ) -> Graphed:
        context = fields.pop("context", {})
        spec = GraphSpec(steps, GraphOptions(**fields), context)
        pages = encode_pages(spec)
        graphs = harness.store.graphs
        row, _ = graphs.reserve_graph(announced(spec, key, len(pages)))
        for page, data in enumerate(pages):
            graphs.add_graph_page(row.graph_id, page, data)
        graphs.make_graph(row.graph_id)
        return cls.claimed(harness, row.graph_id, Owner(graph_workflow_id(key), MINE.first_run_id))

    @classmethod
    def claimed(cls, harness: Harness, graph_id: int, owner: Owner) -> Graphed:
        row = harness.store.graphs.claim_graph(graph_id, owner)
        return cls(harness, GraphFence(graph_id, row.attempt, owner.first_run_id))

    @property
    def id(self) -> int:
        return self.fence.graph_id

    @property
    def row(self) -> GraphRow:
        row = self.harness.store.graphs.get_graph(self.id)
        assert row is not None
        return row

    def step(self, path: str) -> StepRow:
        [found] = self.harness.store.graphs.list_steps(self.id, paths=[path])
        return found

    def states(self) -> dict[str, StepState | str]:
        return {one.path: one.state for one in self.harness.store.graphs.list_steps(self.id)}

    def advance(self, *released: int) -> PickedSteps:
        """Do what the activity does in one transaction."""
        ends = self.harness.store.graphs.runs_ended(self.fence)
        now = self.harness.clock.now

        def how(graph: Any) -> PickedSteps:
            graph.released(released)
            graph.ended(ends)
            many = {"answered": 16, "ended": 10_000}  # short functions, and a pool with many slots
            picked: PickedSteps = graph.pick(now, batches=500, begin=100, **many)
            return picked

        return self.harness.store.graphs.change(self.fence, how)

    def work(self, batch: int) -> list[StepWork]:
        return self.harness.store.graphs.batch(self.fence, batch)

    def begin(self, *work: StepWork, done: Sequence[ExecutionEnd] = ()) -> set[int]:
        return self.harness.store.graphs.record(self.fence, done, work)

    def end(
        self, work: StepWork, state: StepState = DONE, result: bytes | None = None, **fields: Any
    ) -> ExecutionEnd:
        """Return how an execution ended, for the record."""
        if state in (StepState.RETRYABLE, StepState.SCHEDULED):
            fields.setdefault("not_before", self.harness.clock.now + timedelta(seconds=5))
        end = StepEnd(work.number, work.attempt, state, **fields)
        return ExecutionEnd(
            end, None if result is None else [result], len(result or b""), error=end.reason
        )

    def execute(
        self, *released: int, state: StepState = DONE, result: bytes | None = b"{}"
    ) -> list[str]:
        """Execute everything that waits to be called, one after the other.

        Return the paths in order. ``released`` is the number of earlier calls.
        """
        ran, picked = list[str](), self.advance(*released)
        while picked.batches:
            for batch in picked.batches:
                done: list[ExecutionEnd] = []
                for one in self.work(batch.number):
                    began = self.begin(one, done=done)
                    ran += [one.path] if began else []
                    done = (
                        [self.end(one, state, result if state is DONE else None)] if began else []
                    )
                self.begin(done=done)
            picked = self.advance(*(batch.number for batch in picked.batches))
        return ran

    def begin_runs(self, told: bool = True) -> dict[str, Fence]:
        """Start the run of every crawl that was picked.

        Without ``told``, no step learns about it.
        """
        found = {}
        for one in self.harness.store.graphs.to_begin(self.fence):
            asked = request(crawler="services", parent=graph_workflow_id(self.row.key))
            row, _ = self.harness.store.initiation.reserve_run(
                asked, step_request_id(self.row.key, one.path, one.attempt)
            )
            assert not told or self.harness.store.graphs.run_begun(
                self.fence, one.number, row.run_id
            )
            owner = Owner(f"crawl/{row.request_id}", f"chain-{row.run_id}")
            handle = self.harness.store.initiation.claim_run(
                replace(asked, run_id=row.run_id), owner, lambda _: False
            )
            fence = Fence(row.run_id, handle.attempt, owner.first_run_id, row.run_uid)
            self.harness.deploy(fence)
            self.harness.execute(fence)
            found[one.path] = fence
        return found

    def finish(self, run: Fence, failed: Sequence[int] = ()) -> None:
        """Let the run of a crawl end, and deliver its archive."""
        self.harness.finish(run, failed)
        self.deliver(run)

    def deliver(self, run: Fence) -> None:
        archive = ExportResult(f"s3://crawls/{run.run_id}/{run.attempt}", 100, 1, "00")
        self.harness.store.exports.record_export(run, "exported", archive, None)

    def recorded(self, path: str) -> Any:
        """Return the result of a step, or ``None`` if it has none."""
        row = self.step(path)
        parts = self.harness.store.graphs.result(self.id, row.number)
        return None if row.result_bytes is None else decode(b"".join(unpacked(parts)))

    def begin_managers(self, told: bool = True) -> dict[str, ManagerFence]:
        """Create every manager that was picked, with its workflow."""
        found, managers = {}, self.harness.store.managers
        for one in self.harness.store.graphs.to_begin(self.fence):
            name, flow_id = step_manager(self.row.graph_uid, one.number, one.job)
            new = NewManager(name, flow_id, one.job["plan"], parent=graph_workflow_id(self.row.key))
            row, _ = managers.reserve_manager(new)
            assert not told or self.harness.store.graphs.run_begun(
                self.fence, one.number, row.manager_id
            )
            owner = Owner(manager_workflow_id(name, flow_id), f"chain-{one.path}-{one.attempt}")
            row = managers.claim_manager(row.manager_id, owner)
            found[one.path] = ManagerFence(row.manager_id, row.attempt, owner.first_run_id)
        return found
