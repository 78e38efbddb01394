"""The registration of this feature."""

from crawler_lifecycle.domain.incident import IncidentKind
from crawler_lifecycle.features.feature import Feature, VerbGroup

GRAPHS = Feature(
    "graphs",
    tables=("store.tables",),
    subject="store.tables:graph.c.graph_key",
    retain="store.retention:RETENTION",
    nouns=(
        VerbGroup(
            "graph",
            "Graphs: runs and functions with dependencies.",
            {
                "start": (
                    "cli:start",
                    "Start a graph that a module builds, or a graph from a file.",
                ),
                "list": ("cli:list_graphs", "List graphs, newest first."),
                "describe": ("cli:describe", "Show everything about a graph, and its steps."),
                "watch": ("cli:watch", "Watch a graph until its end."),
                "wait": (
                    "cli:wait",
                    "Wait for the end of a graph; the exit code shows its outcome.",
                ),
                "stop": (
                    "cli:stop",
                    "Ask graphs and everything that they execute to end, or cancel some of "
                    "their steps.",
                ),
                "force-stop": (
                    "cli:force_stop",
                    "End graphs and everything that they execute at once.",
                ),
                "retry": ("cli:retry", "Retry steps, even if the graph has ended."),
                "approve": (
                    "cli:approve",
                    "Approve a step that is waiting for approval, or reject it with --reject.",
                ),
                "step": (
                    "cli:step",
                    "Show one step: what it is waiting for, its errors, and its result.",
                ),
                "render": ("cli:render", "Draw a graph for Graphviz or Mermaid."),
            },
        ),
    ),
    routes=(
        "gateway.routes:add_commands",
        "gateway.routes:add_graphs",
        "gateway.routes:add_steps",
        "gateway.routes:add_results",
    ),
    pages=("gateway.beginning:add_beginning", "gateway.ui:add_graphs"),
    workflows=("workflows.graph:GraphWorkflow", "workflows.graph:GraphBatchWorkflow"),
    activities="compose:activities",
    recover="compose:recover",
    audited="activities.graphs:SOURCES",
    conditions={"graph": "gateway.conditions:conditions"},
    kinds=(IncidentKind("graph_failed", "Graph {} failed", act="retry"),),
)
