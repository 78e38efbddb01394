"""In-memory tests of the manager and the graph, without a service and with a simulated clock.

Start them with: pytest
"""

from __future__ import annotations

import graphs
import managers

from crawler_lifecycle.graphs.testing import in_memory
from crawler_lifecycle.managers.testing import simulate


def test_the_manager_runs_each_size_once() -> None:
    record = simulate(managers.Sizes)
    assert [job.spider_args["pages"] for job in record.scheduled] == ["5", "10", "20"]
    assert record.most_live == 2


def test_a_run_that_fails_is_tried_once_more() -> None:
    assert len(simulate(managers.Sizes, outcomes={1: "failed"}).scheduled) == 4


def test_the_graph_reports_about_both_crawls() -> None:
    with in_memory(crawls={"demo": {"outcome": "finished", "pages": 5}}):
        workflow = graphs.nightly("20").start()
        assert workflow.wait().state == "completed"
        assert workflow.get_recorded("report") == "5 and 5 pages"


def test_there_is_no_report_when_a_crawl_failed() -> None:
    with in_memory(crawls={"demo": "failed"}):
        workflow = graphs.nightly().start()
        assert workflow.wait().state == "discarded"
