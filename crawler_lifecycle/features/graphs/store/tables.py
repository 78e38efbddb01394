"""Tables of graphs, their steps and results."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Text, UniqueConstraint

from crawler_lifecycle.store.columns import (
    Bytes,
    Json,
    Long,
    UtcTime,
    Words,
    counted_key,
    given_key,
    life_columns,
    list_indexes,
    new_table,
    owner_columns,
    owner_key,
    project_column,
    required,
    same_columns,
    stop_columns,
)

#: The columns of ``graph_step`` that the engine changes. ``Step`` has fields with the same names.
MOVING = (
    "state",
    "attempt",
    "tries",
    "not_before",
    "batch",
    "alternative",
    "run_id",
    "run_attempt",
    "ending",
    "outcome",
    "reason",
)

graph = new_table(
    "graph",
    counted_key("graph_id"),
    # The uid identifies the graph. A restored database may assign its number again.
    required("graph_uid", String(32)),
    project_column(),
    required("graph_key", String(200)),
    Column("name", Words(200)),
    # The fingerprint of the whole spec, which identifies a repeated start.
    required("fingerprint", String(64)),
    required("pages", Integer),
    required("options", Json),
    Column("context", Json),
    required("state", String(20)),
    # The number of steps in each state, at the last change to the graph.
    Column("counts", Json),
    Column("cause", Long),
    *owner_columns(),
    # Previous owners whose graph was taken over, and whose late claims are refused.
    required("former_owners", Json),
    required("next_batch", BigInteger),
    # The latest commands from people, and their results: [[request id, result], ...].
    required("commands", Json),
    *stop_columns(),
    required("tags", Json),
    Column("waiting_for", Long),
    Column("requested_by", Words(255)),
    Column("parent", String(255)),
    # Events up to pruned_through may have been removed. Steps and results were removed at
    # pruned_at.
    Column("pruned_through", BigInteger),
    Column("pruned_at", UtcTime),
    *life_columns(),
    UniqueConstraint("graph_key"),
    *list_indexes("graph_id", "project", "project state", "state", "name"),
)


graph_page = new_table(
    "graph_page",
    # The pages of a draft. They are deleted when the graph starts.
    owner_key("graph.graph_id"),
    given_key("page", Integer),
    required("data", Bytes),
)

graph_step = new_table(
    "graph_step",
    owner_key("graph.graph_id"),
    # The position of the step: steps are numbered from 0 in the order in which they were added.
    given_key("number", Integer),
    required("path", Text),
    required("path_hash", String(32)),
    required("kind", String(20)),
    # The number of the sub-graph or grafting step that contains the step.
    Column("parent", Integer),
    # All other fields that do not change while the step is executing, such as its dependencies and
    # options. Defaults are left out.
    Column("shape", Json),
    required("job", Json),
    required("state", String(20)),
    required("attempt", Integer),
    required("tries", Integer),
    required("snoozed", Integer),
    Column("not_before", UtcTime),
    # The call that is executing the step and has not returned yet.
    Column("batch", BigInteger),
    # The alternative of resources that the step uses now.
    Column("alternative", Integer),
    # run_id is the run or the manager that the step started. run_attempt is the last attempt of
    # that run whose end was handled. begun_attempt is the attempt of the step that started the run.
    Column("run_id", BigInteger),
    required("run_attempt", Integer),
    required("begun_attempt", Integer),
    required("ending", Boolean),
    Column("outcome", Words(200)),
    Column("reason", Long),
    Column("errors", Json),
    Column("result_bytes", BigInteger),
    # The attempt that grafted steps, and the fingerprint of these steps.
    Column("graft_attempt", Integer),
    Column("graft_digest", String(64)),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("graph_id", "path_hash"),
    Index(None, "graph_id", "parent"),
    Index(None, "graph_id", "batch"),
    # Counts of steps, and searches for executing or ending crawls, read only this index.
    Index("ix_graph_step_states", "graph_id", "kind", "state", "ending"),
)

graph_change = new_table(
    "graph_change",
    # A worktable, whose rows exist only inside one transaction (see steps.py). A column that is
    # named like a column of graph_step has the same type.
    owner_key("graph.graph_id"),
    given_key("number", Integer),
    *same_columns(
        graph_step,
        "shape",
        *MOVING,
        "errors",
        "started_at",
        "ended_at",
        "result_bytes",
    ),
)

graph_result = new_table(
    "graph_result",
    # A step's result, compressed and split into parts.
    owner_key("graph.graph_id"),
    given_key("number", Integer),
    given_key("part", Integer),
    required("data", Bytes),
)

graph_log = new_table(
    "graph_log",
    owner_key("graph.graph_id"),
    required("log_tail", Text),
)
