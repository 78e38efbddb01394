"""Whose turn comes first where more wait than a worker has places for."""

from __future__ import annotations

from crawler_lifecycle.domain.names import QUEUE_CLUSTER, QUEUE_CONTROL, QUEUE_MAIN
from crawler_lifecycle.workflows.policies import config


def _turn(name: str, queue: str) -> int:
    options = config(name)
    assert options["task_queue"] == queue, name
    turn = options["priority"].priority_key
    assert turn is not None, name  # it would be the workflow's
    return turn


def test_a_stop_comes_before_a_look_and_a_look_before_a_start() -> None:
    look, begun = _turn("get_active_running_tasks", QUEUE_MAIN), _turn("add_workflow_id", QUEUE_MAIN)
    assert look < begun < _turn("create_history_id", QUEUE_MAIN)
    assert _turn("get_history_statuses_to_sync", QUEUE_CLUSTER) < _turn("run_onetime_crawler", QUEUE_CLUSTER)
    # On the control queue there are looks of stopped runs as well.
    for name in ("record_stop", "cancel_queued_tasks", "k8_stop_task", "k8_stop_pod", "record_graph_stop"):
        assert _turn(name, QUEUE_CONTROL) < look
