"""HTTP errors: exit code, cause and next step for each answer that is no success."""

from __future__ import annotations

import json
import shlex
from urllib.parse import unquote

import httpx

from crawler_lifecycle.cli.problems import CommandFailed, Exit

#: Status of an answer -> what it means for the command. Everything else is an error of the service.
_EXITS = {
    400: Exit.USAGE,
    401: Exit.NOT_AUTHORISED,
    403: Exit.NOT_AUTHORISED,
    404: Exit.NOT_FOUND,
    409: Exit.NOT_IN_THIS_STATE,
    413: Exit.USAGE,
    422: Exit.USAGE,
    429: Exit.UNREACHABLE,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}

_UNKNOWN_CALLER = (
    "set LIFECYCLE_GATEWAY__TOKEN or give --token-file FILE; crawlctl gateway token new makes a token, and whoever "
    "runs the gateway enters it there"
)
_WRONG_ROLE = "use a token with a higher role (read < operate < admin); crawlctl gateway token new makes one"
_LATER = "try again in a moment; crawlctl dev starts a gateway on this machine"


def unreachable() -> str:
    """What to do about a gateway that does not answer."""
    return "crawlctl dev (starts one on this machine), or name yours with --gateway or LIFECYCLE_GATEWAY__URL"


def refusal(answer: httpx.Response, method: str, path: str) -> CommandFailed:
    """The problem document of an answer as an error for people. The answer's body must have been read."""
    try:
        problem = json.loads(answer.content)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    code = _EXITS.get(answer.status_code, Exit.ERROR)
    what = str(problem.get("detail") or problem.get("title") or f"{method} {path}: HTTP {answer.status_code}")
    name = problem.get("code")
    others = [f"{e.get('field')}: {e.get('message')}" for e in problem.get("errors") or () if isinstance(e, dict)][1:]
    why = "; ".join(([f"{name} (HTTP {answer.status_code})"] if name else []) + others) or None
    return CommandFailed(code, what, why, _next_step(code, name, path, answer))


def _next_of(noun: str, code: Exit, name: object, number: str | None) -> str | None:
    """The same about a manager, a graph, a schedule or a webhook."""
    if name in ("unknown_plan", "plan_unusable"):
        return "crawlctl doctor, which tells what plans workers serve" if noun == "graph" else "crawlctl manager plan"
    if name == f"{noun}_not_found":
        return f"crawlctl {noun} list"
    if name == "unknown_crawler":
        return "crawlctl crawler list"
    if code in (Exit.NOT_FOUND, Exit.NOT_IN_THIS_STATE) and number:
        return f"crawlctl {noun} describe {shlex.quote(unquote(number))}" + (" --steps all" if noun == "graph" else "")
    return None


def _next_step(code: Exit, name: object, path: str, answer: httpx.Response) -> str | None:
    subject, number = (*path.split("/")[2:4], None, None)[:2]
    run_id = number if subject == "runs" else None
    if subject in ("managers", "graphs", "schedules", "webhooks") and (
        found := _next_of(subject[:-1], code, name, number)
    ):
        return found
    if code is Exit.NOT_FOUND and run_id:
        return "crawlctl list" if name == "run_not_found" else f"crawlctl tasks {run_id}"
    if code is Exit.NOT_IN_THIS_STATE and run_id:
        if name == "already_completed":
            return f"crawlctl resume {run_id} --rerun"
        return f"crawlctl describe {run_id}"
    if code is Exit.USAGE and path == "/v1/runs" and answer.request.method == "POST":
        return "crawlctl crawler list, crawlctl start --help"
    if code is Exit.NOT_AUTHORISED:
        return _UNKNOWN_CALLER if answer.status_code == 401 else _WRONG_ROLE
    if code is Exit.UNREACHABLE:
        wait = answer.headers.get("retry-after", "")
        return f"try again in {wait} s" if wait.isdecimal() else _LATER
    return None
