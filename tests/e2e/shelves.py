"""A crawler that finds two shelves and passes each to a task of its own, which writes what it got."""

import json
import os
import urllib.error
import urllib.request

args = json.loads(os.environ["CRAWL_ARGS"])
files = os.environ["CRAWL_FILES_DIR"]
if "shelf" in args:
    with open(os.path.join(files, "shelf.txt"), "w") as file:
        file.write(args["shelf"])
else:
    url = f"{os.environ['CRAWL_GATEWAY_URL']}/v1/runs/{os.environ['CRAWL_RUN_ID']}/tasks"
    head = {
        "Authorization": "Bearer " + os.environ["CRAWL_TOKEN"],
        "Content-Type": "application/json",
        "Idempotency-Key": "shelves",
    }
    body = json.dumps({"tasks": [{"args": {"shelf": n}} for n in ("7", "8")]}).encode()
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body, head)))
    assert [task["index"] for task in answer["tasks"]] == [1, 2], answer
    # The token permits nothing else.
    try:
        urllib.request.urlopen(urllib.request.Request(url.replace("/tasks", "/stop"), b"{}", head))
    except urllib.error.HTTPError as error:
        if error.code != 403:
            raise
    else:
        raise SystemExit("the token stopped the run")
