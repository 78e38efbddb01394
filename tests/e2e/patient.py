"""A crawler for tests of stops: it waits, logs every stop signal, and ends normally a moment after
the first.

In that moment, a second signal can arrive. With ``deaf``, it logs signals and continues. Its log
stays open whatever happens to its folder. With a file ``enough`` next to its items, it finishes.
"""

import json
import os
import signal
import sys
import time

args = json.loads(os.environ.get("CRAWL_ARGS") or "{}")
heard = []


def note(number, frame):
    heard.append(number)
    print(f"signal {number} at {time.time():.6f}", flush=True)


signal.signal(signal.SIGTERM, note)
print("begins", flush=True)
with open(os.path.join(os.environ["CRAWL_FILES_DIR"], "items.jsonl"), "w") as file:
    file.write("{}\n")
enough = os.path.join(os.environ["CRAWL_FILES_DIR"], "enough")
end = time.monotonic() + float(args.get("seconds") or 3600)
while time.monotonic() < end and not os.path.exists(enough) and (not heard or args.get("deaf")):
    time.sleep(min(1.0, max(end - time.monotonic(), 0.01)))
if heard and not args.get("deaf"):
    time.sleep(0.3)
    print("shutdown", flush=True)
    sys.exit(11)
print("finished", flush=True)
