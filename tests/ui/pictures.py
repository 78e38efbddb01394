"""``python -m tests.ui.pictures FOLDER``: pictures of the web UI for the documentation, taken from
a real stack.

It starts a stack and creates the scene of ``scene.py``. In addition, a crawler finds less than
before, and a worker is down at a due time, so that a schedule misses it. This takes some minutes.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e.harness import Harness, until
from tests.ui.browser import Visitor, chromium
from tests.ui.people import start
from tests.ui.scene import PAGES, prepare

#: The pictures of docs/web-ui.md: the page, the heading at which it begins (or its head), and the
#: number of pixels shown.
SHOWN: dict[str, tuple[str, str | None, int]] = {
    "waiting": ("waiting", None, 330),
    "stopped": ("stopped", None, 330),
    "killed": ("killed", "Recorded and true status", 220),
    "fleet": ("fleet", None, 700),
    "crawler": ("crawler", None, 700),
    "missed": ("due-times", None, 330),
    "graph": ("graph", None, 420),
    "log": ("log", None, 420),
    "items": ("items", None, 360),
}
WIDTH = 1440
#: Letters are sharp at this quality, and a picture has some 30 KB.
QUALITY = 80


def give_less(harness: Harness) -> None:
    """Let the last run of a crawler find far less than the earlier ones."""
    for pages in ("20", "20", "20", "20", "5"):
        run_id = start(harness, "operations", args={"max_pages": pages}, tags=["shops"])
        until(lambda one=run_id: harness.status(one) == "COMPLETED", "its end")  # type: ignore[misc]


def take(page: Page, heading: str | None, height: int) -> bytes:
    """Take a picture of what somebody sees after scrolling there."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.wait_for_timeout(1500)  # the stream has delivered what was new by then
    if heading:
        page.get_by_role("heading", name=heading, exact=True).evaluate("e => e.scrollIntoView()")
    shot = page.context.new_cdp_session(page).send(
        "Page.captureScreenshot", {"format": "webp", "quality": QUALITY}
    )
    return base64.b64decode(shot["data"])


def miss_a_due_time(harness: Harness) -> None:
    """Let a schedule of every minute miss a due time, because no worker is running."""
    about = {
        "run": {"crawler": "plain", "args": {"max_pages": "3"}},
        "every_s": 60,
        "catch_up_s": 10,
    }
    harness.gateway.put("/v1/schedules/nightly", about)
    lines = lambda: harness.gateway.get("/v1/schedules/nightly/firings")["firings"]  # noqa: E731
    until(
        lambda: [line for line in lines() if line["decision"] == "started"],
        "a due time that begins a run",
    )
    worker = harness.stack.supervisor._kept["worker"].part
    harness.undeploy("worker")
    now = datetime.now(UTC)
    time.sleep(60 - now.second + 20)
    harness.stack.supervisor.start([worker])
    harness.stack.supervisor.wait_healthy(["worker"])
    until(
        lambda: [line for line in lines() if line["decision"] == "missed"],
        "the line of the missed due time",
    )
    past = {"part_unwell", "poll_overdue"}
    kinds = lambda: {one["kind"] for one in harness.gateway.get("/v1/incidents")["incidents"]}  # noqa: E731
    until(lambda: not past & kinds() and "schedule_missed" in kinds(), "the incidents of now")


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.ui.pictures", description=__doc__)
    parser.add_argument("folder", type=Path)
    target = parser.parse_args().folder
    target.mkdir(parents=True, exist_ok=True)
    os.environ["LIFECYCLE_CLUSTER__SLOTS"] = "16"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        harness = Harness(Path(folder) / "state")
        try:
            harness.start()
            give_less(harness)
            scene = prepare(harness)
            miss_a_due_time(harness)
            with chromium() as browser:
                visitor = Visitor(
                    browser, str(harness.stack.addresses["gateway"]), {"color_scheme": "light"}
                )
                first = visitor.open("/")
                expect(first.get_by_text("the parts are being checked")).to_have_count(0)
                first.close()
                for name, (what, heading, height) in SHOWN.items():
                    page = visitor.open(PAGES[what].format(**scene))
                    (target / f"{name}.webp").write_bytes(take(page, heading, height))
                    page.close()
                visitor.leave()
        finally:
            harness.end()
    kilobytes = sum(file.stat().st_size for file in target.glob("*.webp")) / 1024
    print(f"{target}: {len(SHOWN)} pictures, {kilobytes:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
