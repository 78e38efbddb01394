"""Many windows side by side: with HTTP/1.1, a browser has six connections to a host for all of
them.
"""

from __future__ import annotations

from playwright.sync_api import expect

from tests.e2e.harness import Harness
from tests.ui.browser import Visitor
from tests.ui.test_runs import now, start

WINDOWS = 8


def test_eight_windows_follow_a_log_and_a_run(harness: Harness, visitor: Visitor) -> None:
    run_id = start(harness)
    windows = [visitor.context.new_page() for _ in range(WINDOWS)]
    for window in windows:
        window.goto(f"/runs/{run_id}/log")
        expect(window.get_by_text("New lines are shown as they arrive.")).to_be_visible()
    run = visitor.context.new_page()
    run.goto(f"/runs/{run_id}")
    assert run.evaluate(
        "performance.getEntriesByType('resource').every((one) => !/events|follow/.test(one.name))"
    )
    harness.gateway.stop(run_id, reason="for all to see")
    expect(now(run)).to_contain_text("stopped")
    for window in windows:
        expect(window.locator("#log-now")).to_contain_text("CANCELLED")
        expect(window.get_by_text("This is the end of the log.")).to_be_visible()
