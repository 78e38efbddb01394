"""Titles and pictures of the pages of a site, which Playwright takes in the Chromium of this
machine.

To run it by hand, use ``python main.py``. If the service runs it, its arguments come as JSON, its
results are written to a folder that is kept, and SIGTERM ends it after the current page. A resumed
crawl continues from there.
"""

import json
import os
import signal
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

from playwright.sync_api import Error, sync_playwright

ARGS = json.loads(os.environ.get("CRAWL_ARGS", "{}"))
SITE = ARGS.get("site", "http://127.0.0.1:8400/")
FILES = Path(os.environ.get("CRAWL_FILES_DIR", "."))
PLACE = Path(os.environ.get("CRAWL_STATE_DIR", "."), "place.json")
STATS = Path(os.environ.get("CRAWL_STATS_FILE", os.devnull))

stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True
    print("stopping after this page", flush=True)


def replace(file: Path, content: object) -> None:
    unfinished = file.with_name(f"{file.name}.tmp")
    unfinished.write_text(json.dumps(content))
    unfinished.replace(file)


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    resumed = os.environ.get("CRAWL_RESUME") == "1" and PLACE.exists()
    place = (
        json.loads(PLACE.read_text())
        if resumed
        else {"waiting": [SITE], "known": [SITE], "pages": 0, "errors": 0}
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=ARGS.get("browser", "/usr/bin/chromium")
        )
        page = browser.new_page()
        page.set_default_timeout(10_000)  # A page that hangs delays a stop by no more than this.
        while place["waiting"] and place["pages"] < int(ARGS.get("max_pages", 20)) and not stopping:
            url = place["waiting"][0]
            try:
                page.goto(url)
                print(url, flush=True)
                links = page.eval_on_selector_all("a[href]", "found => found.map(one => one.href)")
                page.screenshot(path=FILES / "pages" / f"{place['pages']:04}.png")
                with (FILES / "items.jsonl").open("a") as items:
                    items.write(json.dumps({"url": url, "title": page.title()}) + "\n")
                place["pages"] += 1
            except Error as error:
                if not browser.is_connected():
                    raise
                print(f"{url}: {error}", flush=True)
                links = []
                place["errors"] += 1
            for link in dict.fromkeys(urldefrag(one).url for one in links):
                if urlsplit(link).netloc == urlsplit(SITE).netloc and link not in place["known"]:
                    place["known"].append(link)
                    place["waiting"].append(link)
            page.wait_for_timeout(int(ARGS.get("delay_ms", 0)))
            # An address leaves the list when its page is done, so a stop or a kill loses nothing.
            place["waiting"].pop(0)
            replace(PLACE, place)
            if STATS.name != "null":
                replace(
                    STATS, {"pages": place["pages"], "errors": place["errors"], "resumed": resumed}
                )
        browser.close()


if __name__ == "__main__":
    main()
