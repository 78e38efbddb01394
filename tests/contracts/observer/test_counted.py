"""What every observer reads from executing crawlers.

Simulated nodes have no logs, so this test excludes them.
"""

from __future__ import annotations

from crawler_lifecycle.domain.task import Phase
from tests.clusters.local.local_fixture import wait_until
from tests.contracts.observer.observer_harness import RUN, Harness, Told
from tests.support.run_refs import run_ref


def test_counters_of_what_executes_can_be_read(harness: Harness) -> None:
    observer = harness.observer()
    with Told(observer).watching():
        assert observer.counted() == []
        harness.start()
        harness.until(Phase.EXECUTING)
        harness.count(7)
        wait_until(lambda: [one.counters.pages for one in observer.counted()] == [7])
        [one] = observer.counted()
        assert (one.run, one.attempt, one.index) == (run_ref(RUN), 1, 0)
        harness.finish()
        harness.until(Phase.ENDED, Phase.GONE)
        wait_until(lambda: observer.counted() == [])
