"""A crawler that continues where it was: it writes each step into a journal, until a file says
"over".
"""

import json
import os
import pathlib
import time

journal = pathlib.Path(json.loads(os.environ["CRAWL_ARGS"])["journal"])
state = pathlib.Path(os.environ["CRAWL_STATE_DIR"], "step")
step = int(state.read_text()) if state.exists() and os.environ["CRAWL_RESUME"] == "1" else 0
about = [int(os.environ["CRAWL_TASK_INDEX"]), int(os.environ["CRAWL_ATTEMPT"]), os.getpid()]
while not journal.with_suffix(".over").exists():
    with journal.open("a") as file:
        file.write(json.dumps([*about, step]) + "\n")
    time.sleep(0.1)
    step += 1
    state.with_suffix(".new").write_text(str(step))
    state.with_suffix(".new").rename(state)
