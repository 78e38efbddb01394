"""Tables of graphs, their steps and results."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint

from crawler_lifecycle.store.columns import (
    Bytes,
    Json,
    Key,
    Long,
    UtcTime,
    Words,
    life_columns,
    new_table,
    same_columns,
    stop_columns,
)

graph = new_table(
    "graph",
    Column("graph_id", Key, primary_key=True, autoincrement=True),
    # The uid of the graph: a number is given out again after a restore of the database.
    Column("graph_uid", String(32), nullable=False),
    Column("graph_key", String(200), nullable=False),
    Column("name", Words(200)),
    # Of the whole spec, so that a repeated start is recognised.
    Column("fingerprint", String(64), nullable=False),
    Column("pages", Integer, nullable=False),
    Column("options", Json, nullable=False),
    Column("context", Json),
    Column("state", String(20), nullable=False),
    # Of its steps by state, at the last change of the graph.
    Column("counts", Json),
    Column("cause", Long),
    Column("attempt", Integer, nullable=False),
    Column("owner_workflow_id", String(1000)),
    Column("owner_run_id", String(64)),
    # Owners from which it was taken: a late claim of theirs is refused.
    Column("former_owners", Json, nullable=False),
    Column("next_batch", BigInteger, nullable=False),
    # The latest commands of people, with the answers: [[request id, answer], ...].
    Column("commands", Json, nullable=False),
    *stop_columns(),
    Column("tags", Json, nullable=False),
    Column("waiting_for", Long),
    Column("requested_by", Words(255)),
    Column("parent", String(255)),
    # Its events up to this number may be gone, and its steps, since then.
    Column("pruned_through", BigInteger),
    Column("pruned_at", UtcTime),
    *life_columns(),
    UniqueConstraint("graph_key"),
    Index(None, "state", "graph_id"),
    Index(None, "name", "graph_id"),
)


def _graph_id() -> Column[int]:
    return Column("graph_id", Key, ForeignKey("graph.graph_id"), primary_key=True, autoincrement=False)


def _number() -> Column[int]:
    return Column("number", Integer, primary_key=True, autoincrement=False)


graph_page = new_table(
    "graph_page",
    # The pages of a draft, until it is complete.
    _graph_id(),
    Column("page", Integer, primary_key=True, autoincrement=False),
    Column("data", Bytes, nullable=False),
)

graph_step = new_table(
    "graph_step",
    _graph_id(),
    # Its position in the order in which steps were added, from 0.
    _number(),
    Column("path", Text, nullable=False),
    Column("path_hash", String(32), nullable=False),
    Column("kind", String(20), nullable=False),
    # The number of the graph, or the grafting step, around it.
    Column("parent", Integer),
    # All other fields that do not change while it runs, if given: its dependencies, its options.
    Column("shape", Json),
    Column("job", Json, nullable=False),
    Column("state", String(20), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("snoozed", Integer, nullable=False),
    Column("not_before", UtcTime),
    # The call that it was given to, while that has not answered.
    Column("batch", BigInteger),
    # Its present alternative of resources.
    Column("alternative", Integer),
    # The run of a crawl, or the manager; its attempt whose end was handled last; and the step's own attempt that began
    # it.
    Column("run_id", BigInteger),
    Column("run_attempt", Integer, nullable=False),
    Column("begun_attempt", Integer, nullable=False),
    Column("ending", Boolean, nullable=False),
    Column("outcome", Words(200)),
    Column("reason", Long),
    Column("errors", Json),
    Column("result_bytes", BigInteger),
    # The attempt that grafted, and the fingerprint of its graft.
    Column("graft_attempt", Integer),
    Column("graft_digest", String(64)),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("graph_id", "path_hash"),
    Index(None, "graph_id", "parent"),
    Index(None, "graph_id", "batch"),
    # Counting reads only this index; so does the search for executing or ending crawls.
    Index("ix_graph_step_states", "graph_id", "kind", "state", "ending"),
)

graph_change = new_table(
    "graph_change",
    # A worktable: rows live inside one transaction only (see steps.py). The columns that it shares with
    # graph_step have the same names and types.
    _graph_id(),
    _number(),
    *same_columns(graph_step, "shape", "state", "attempt", "tries", "not_before", "batch", "alternative", "run_id"),
    *same_columns(graph_step, "run_attempt", "ending", "outcome", "reason", "errors"),
    *same_columns(graph_step, "started_at", "ended_at", "result_bytes"),
)

graph_result = new_table(
    "graph_result",
    # The result of a step, compressed, in parts.
    _graph_id(),
    _number(),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("data", Bytes, nullable=False),
)

graph_log = new_table(
    "graph_log",
    _graph_id(),
    Column("log_tail", Text, nullable=False),
)
