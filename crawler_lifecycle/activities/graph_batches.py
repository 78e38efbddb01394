"""One call of functions of a graph: steps of one batch, one after the other, in a process of users' code."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import activity

from crawler_lifecycle.ports.store.graphs import GraphFence


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Input of ``run_graph_batch``: which steps (``GraphStore.batch``), and as who the workflow owns the graph."""

    fence: GraphFence
    batch: int


@dataclass
class GraphBatchActivities:
    """The activity of workers that call functions (``names.functions_queue``)."""

    @activity.defn(name="run_graph_batch", no_thread_cancel_exception=True)
    def run_graph_batch(self, order: BatchOrder) -> None:
        """Call the functions of a batch. It answers after a while, whatever is left: that is released and picked again.

        Asked by Temporal to cancel, it kills: the graph is stopped by force.
        Second execution: what the first one began and did not end begins again as the next attempt.
        """
        raise NotImplementedError
