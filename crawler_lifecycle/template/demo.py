"""A crawler without a framework.

It serves a small site to itself, so that it needs no network, and crawls it.

It gets its arguments in CRAWL_ARGS, writes its items to CRAWL_FILES_DIR and its counters to
CRAWL_STATS_FILE. To crawl a site of your own, replace `DemoSite` and `read`.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ARGS = json.loads(os.environ.get("CRAWL_ARGS", "{}"))
PAGES = int(ARGS.get("pages", 30))
DELAY = float(ARGS.get("delay", 0.1))
FILES = Path(os.environ.get("CRAWL_FILES_DIR", "."))
STATE = Path(os.environ.get("CRAWL_STATE_DIR", "."))
STATS = Path(os.environ.get("CRAWL_STATS_FILE", "stats.json"))


class DemoSite(BaseHTTPRequestHandler):
    """A site whose page N links to the pages 2N and 2N+1."""

    def do_GET(self) -> None:
        n = int(self.path.strip("/") or 1)
        links = "".join(f'<a href="/{m}">page {m}</a> ' for m in (2 * n, 2 * n + 1) if m <= PAGES)
        body = f"<title>Page {n}</title><p>{'word ' * (n % 7 + 3)}</p>{links}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *about: object) -> None:
        """Print nothing, because the log is for the crawl."""


def read(port: int, path: str) -> str:
    """Return the text of one page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def write(file: Path, value: object) -> None:
    """Replace a file atomically, so that nobody reads an incomplete file."""
    file.with_suffix(".new").write_text(json.dumps(value))
    file.with_suffix(".new").replace(file)


def main() -> int:
    """Crawl each page once. Return 0, or 11 after a request to stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    site = ThreadingHTTPServer(("127.0.0.1", 0), DemoSite)
    threading.Thread(target=site.serve_forever, daemon=True).start()

    # After a resume, continue from the saved position.
    place = STATE / "place.json"
    resumed = os.environ.get("CRAWL_RESUME") == "1" and place.exists()
    done, waiting = json.loads(place.read_text()) if resumed else (0, ["/"])

    with (FILES / "items.jsonl").open("a") as items:  # one JSON object per line
        while waiting and not stop.is_set():
            path = waiting.pop(0)
            text = read(site.server_address[1], path)
            title = re.findall("<title>(.*?)</title>", text)[0]
            items.write(
                json.dumps({"url": path, "title": title, "words": text.count("word")}) + "\n"
            )
            items.flush()
            waiting += re.findall('href="(.*?)"', text)
            done += 1
            print(f"{path} was read: {title}, {len(waiting)} waiting", flush=True)
            write(STATS, {"pages": done, "items": done, "resumed": resumed})
            write(place, [done, waiting])
            time.sleep(DELAY)
    return 11 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
