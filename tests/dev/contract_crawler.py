"""A crawler without a site that follows docs/contract.md, or breaks it as its first argument says.

It ends by itself only in a run after a resumed one, so that no check comes too late to stop it.
"""

import json
import os
import shutil
import signal
import sys
import time

HOW = sys.argv[1]
FILES, STATE, STATS = (
    os.environ[f"CRAWL_{name}"] for name in ("FILES_DIR", "STATE_DIR", "STATS_FILE")
)
PLACE, FIRST = os.path.join(STATE, "place"), os.environ["CRAWL_ATTEMPT"] == "1"
# A hidden folder, because other files in the working folder are reported as not kept.
RESUMED_BEFORE = f".resumed/{HOW}"
stops: list[int] = []


def tell(pages: int, **more: object) -> None:
    with open(STATS + ".new", "w") as file:
        json.dump({"pages": pages, "items": pages, **more}, file)
    os.replace(STATS + ".new", STATS)


signal.signal(
    signal.SIGTERM, signal.SIG_IGN if HOW == "deaf" else lambda number, frame: stops.append(number)
)
resumed = os.environ["CRAWL_RESUME"] == "1" and os.path.exists(PLACE)
pages = 0
if resumed and HOW != "forgetful":
    with open(PLACE) as kept:
        pages = int(kept.read())
most = 1_000_000
if FIRST and os.path.exists(RESUMED_BEFORE):
    most = 0 if HOW == "silent" else 5
if not FIRST:
    os.makedirs(".resumed", exist_ok=True)
    with open(RESUMED_BEFORE, "w"):
        pass
while not stops and pages < most:
    pages += FIRST or pages != 1  # a crawler that begins again stays there, however late a poll is
    with open(os.path.join(FILES, "items.jsonl"), "a") as feed:
        feed.write(json.dumps({"page": pages}) + "\n")
    tell(pages, resumed=resumed)
    time.sleep(0.2)
with open(PLACE, "w") as kept:
    kept.write(str(pages))
tell(pages, resumed=resumed, finish_reason="shutdown" if stops else "finished")
if HOW == "silent" and not stops:
    shutil.rmtree(os.path.dirname(FILES))  # the folder of the runner's summary
