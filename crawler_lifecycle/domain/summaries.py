"""Summaries of our workflows, which Temporal's UI shows next to their ids.

They are made of the workflow ids, so they contain no arguments and no secrets.
"""

from __future__ import annotations

import json
import re

#: The maximum length of a summary in bytes, as JSON. The server accepts 400 bytes, and refuses to
#: start a workflow with more. Encryption adds about 100.
BYTES_MAX = 200

#: The forms of our workflow ids, and the summary for each. The first form that fits is used.
_FORMS = (
    (r"crawl/([^/]+)/schedule/([^/]+)/.+", r"\1 · schedule \2"),
    (r"crawl/([^/]+)/.+", r"\1"),
    (r"crawl-export/(manager|graph)s/([0-9]+)-.+", r"\1 \2 · event of its end"),
    (r"crawl-export/([0-9]+)-.+/([0-9]+)", r"run \1 · export of attempt \2"),
    (r"crawl-delete/([0-9]+)-.+", r"run \1 · deletion"),
    (r"crawl-audit/(.+)", r"audit · \1"),
    (r"crawl-due/(.+)-(.{20})", r"schedule \1 · due \2"),
    (r"crawl-inspection/sha256:(.{12}).+", r"inspection of code \1"),
    (r"crawl-webhook/(.+)", r"webhook \1"),
    (r"manager/([^/]+)/(.+)", r"manager \1 · flow \2"),
    (r"graph/(.+)", r"graph \1"),
    (r"graph-batch/(.+)/([0-9]+)", r"graph \1 · call \2"),
)


def summary_of(workflow_id: str, run_id: int | None = None) -> str:
    """Return the summary of a workflow that we start. That of a run begins with its number."""
    text = workflow_id
    for form, words in _FORMS:
        found = re.fullmatch(form, workflow_id, re.DOTALL)
        if found is not None:
            text = found.expand(words)
            break
    if run_id is not None:
        text = f"run {run_id} · {text}"
    while len(json.dumps(text)) > BYTES_MAX:
        text = text[:-1]
    return text
