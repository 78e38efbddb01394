"""Every stable code of a problem document: what it means and what to do. docs/problems.md is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: What ``type`` begins with in a problem document; the code follows.
TYPE_PREFIX = "urn:problem-type:crawler-lifecycle:"


@dataclass(frozen=True, slots=True)
class Kind:
    """One code. ``retry`` is what a program should do without asking anybody."""

    statuses: tuple[int, ...]
    title: str
    meaning: str
    cure: str
    retry: str = "Do not repeat it unchanged."


_SAME_KEY = "Repeat it unchanged after `Retry-After`, a start under the same `Idempotency-Key`."
_LATER = "Repeat it unchanged after `Retry-After`."

CODES: Mapping[str, Kind] = {
    # --- the request itself ---
    "bad_request": Kind(
        (400,),
        "Bad request",
        "The bytes are no HTTP/1.1 request: a broken head, a head over 32 KiB, two lengths, or something that is not "
        "HTTP at all.",
        "Use an HTTP library. If you do, look at what a proxy between you and the service changes.",
    ),
    "duplicate_header": Kind(
        (400,),
        "Duplicate header",
        "A header that must come once came twice, such as `Authorization` or `Idempotency-Key`. Two readers could take "
        "different ones, so neither is taken.",
        "Send the header that `detail` names once.",
    ),
    "invalid_json": Kind(
        (400,),
        "Invalid JSON",
        "The body is no JSON, no UTF-8, holds NaN or Infinity, or gives a key twice.",
        "`detail` names line and column, or the key. Let a JSON library write the body.",
    ),
    "invalid_request": Kind(
        (422,),
        "Invalid request",
        "The request can be read, but a field or parameter has a value that can never work, is unknown, or is missing. "
        "Nothing was changed.",
        "`errors` lists each field with its value and the cure; `detail` shows the first. Unknown fields are refused "
        "on purpose: a misspelt filter would otherwise answer with everything.",
    ),
    "unsupported_type": Kind(
        (415,), "Unsupported type", "The body is not declared as JSON.", "Send `Content-Type: application/json`."
    ),
    "too_large": Kind(
        (413,),
        "Too large",
        "The body is over its limit: 2 MiB where tasks are listed, 1 MiB elsewhere.",
        "Send tasks in several requests: start with the first page and add the others with `POST /v1/runs/{id}/tasks`.",
    ),
    "uri_too_long": Kind(
        (414,), "URI too long", "Path and query together are over 8 KiB.", "Filter by fewer values at once."
    ),
    "headers_too_large": Kind(
        (431,), "Headers too large", "There are more than 100 headers, or they are over 32 KiB.", "Send fewer."
    ),
    "too_slow": Kind(
        (408,),
        "Too slow",
        "The body was not complete 20 s after the head.",
        "Send it faster or in smaller parts.",
        _SAME_KEY,
    ),
    "not_found": Kind(
        (404,), "Not found", "There is no such path.", "`GET /openapi.json` lists the paths. Look for a missing `/v1`."
    ),
    "method_not_allowed": Kind(
        (405,),
        "Method not allowed",
        "The path exists and does not take this method.",
        "The header `Allow` names the methods it takes.",
    ),
    "http_error": Kind(
        (400,), "HTTP error", "The request was refused before it reached an operation.", "`detail` says why."
    ),
    # --- who asks ---
    "unauthenticated": Kind(
        (401,),
        "Unauthenticated",
        "There is no bearer token in the request.",
        "Send `Authorization: Bearer TOKEN`. `crawlctl gateway token new` makes one; whoever runs the service lets it "
        "in.",
    ),
    "invalid_token": Kind(
        (401,),
        "Invalid token",
        "The token is unknown: mistyped, taken back, or made for another service.",
        "Get a new one from whoever runs the service. A token is read again about a second after its file changed.",
    ),
    "token_expired": Kind(
        (401,), "Token expired", "The token was right until its date passed.", "Get a new one with a later `expires`."
    ),
    "forbidden": Kind(
        (403,),
        "Forbidden",
        "The token is right, but its role does not cover this operation; or it is a crawler's own token, which adds "
        "tasks to its own run, reads its stop and does nothing else.",
        "`detail` names the role that is needed: `read` to look, `operate` to change.",
    ),
    "foreign_host": Kind(
        (403,),
        "Foreign host",
        "The header `Host` names something that this service does not answer to. An open gateway answers to this "
        "machine only, so that no web page can reach it through a name of its own (DNS rebinding).",
        "Call it as 127.0.0.1 or localhost, or add the name to `LIFECYCLE_GATEWAY__HOSTS` of a gateway with tokens.",
    ),
    "foreign_origin": Kind(
        (403,),
        "Foreign origin",
        "A web page of another origin sent the request.",
        "Call from your server, or serve the page under the gateway's own host.",
    ),
    "rate_limited": Kind(
        (429,),
        "Rate limited",
        "This token asked more often than it may; reads and writes are counted apart. Or too many wrong tokens "
        "came from this address.",
        "Wait for `Retry-After`. Poll with `If-None-Match`, or read `GET /v1/events` instead of polling.",
        _SAME_KEY,
    ),
    "too_many_at_once": Kind(
        (429,),
        "Too many at once",
        "This token has as many requests or streams open as it may have.",
        "Reuse connections, close streams that nobody reads, and send fewer requests side by side.",
        _SAME_KEY,
    ),
    # --- runs ---
    "run_not_found": Kind((404,), "Run not found", "No run has this id.", "`GET /v1/runs` lists what there is."),
    "task_not_found": Kind(
        (404,),
        "Task not found",
        "The run has no such task, or no task at all yet.",
        "`GET /v1/runs/{id}/tasks` lists its tasks.",
    ),
    "log_not_found": Kind(
        (404,),
        "Log not found",
        "The task exists and has no log: it was never deployed, or its log was not kept.",
        "Look at the task's `outcome` and `cause`. While the task is QUEUED or PENDING, ask again later.",
    ),
    "file_not_found": Kind(
        (404,),
        "File not found",
        "No such regular file of a task can be read here: there is none, or the tasks execute elsewhere.",
        "`GET /v1/runs/{id}/files` lists what can. Once the run has ended, `GET /v1/runs/{id}/archive` has the rest.",
    ),
    "archive_not_found": Kind(
        (404,),
        "Archive not found",
        "There is no zip of supporting files for this attempt: it is not exported yet, or there were no files.",
        "`exports` of `GET /v1/runs/{id}` says how the export goes. `POST /v1/runs/{id}/export` does it again.",
    ),
    "audit_not_found": Kind(
        (404,),
        "Audit not found",
        "No report of this audit is kept: it is still going on, or its report is older than 30 days.",
        "Ask again in a few seconds. `GET /v1/audit` without an id has the newest report.",
    ),
    "manager_not_found": Kind(
        (404,), "Manager not found", "No crawl manager has this id.", "`GET /v1/managers` lists what there is."
    ),
    "schedule_not_found": Kind(
        (404,), "Schedule not found", "No schedule has this name.", "`GET /v1/schedules` lists what there is."
    ),
    "webhook_not_found": Kind(
        (404,), "Webhook not found", "No webhook has this name.", "`GET /v1/webhooks` lists what there is."
    ),
    "graph_not_found": Kind(
        (404,), "Graph not found", "No graph has this id.", "`GET /v1/graphs` lists what there is."
    ),
    "step_not_found": Kind(
        (404,),
        "Step not found",
        "The graph has no step of this path, or its steps were removed long after its end.",
        "`GET /v1/graphs/{id}/steps` lists its steps.",
    ),
    "result_not_found": Kind(
        (404,),
        "Result not found",
        "The step has recorded nothing: it has not completed, or what it does gives no result.",
        "`state` and `result_bytes` of `GET /v1/graphs/{id}/step` say whether there will be one.",
    ),
    "unknown_plan": Kind(
        (422,),
        "Unknown plan",
        "No plans worker has registered this class, or the module of this function. Nothing else can be started, "
        "whatever a request names.",
        "`GET /v1/plans` lists what there is; `LIFECYCLE_PLANS__MODULES` of the worker names the modules.",
    ),
    "plan_unusable": Kind(
        (422,),
        "Plan unusable",
        "A plans worker knows this class and cannot use it: its module cannot be imported, or it has no name.",
        "`detail` has the worker's words. Mend the class; the worker looks again when it starts.",
    ),
    "unknown_crawler": Kind(
        (422,),
        "Unknown crawler",
        "The catalogue of the scheduler service has no crawler of this name.",
        "`GET /v1/crawlers` lists the names.",
    ),
    "idempotency_mismatch": Kind(
        (422,),
        "Idempotency mismatch",
        "This `Idempotency-Key`, or this id of a graph, was used before with another body. Nothing was changed.",
        "Use a new key or id for a new request, and the same body for a repeat.",
    ),
    "duplicate_request": Kind(
        (409, 422),
        "Duplicate request",
        "This request id belongs to another request, or the run under it to another workflow.",
        "Use a new request id.",
    ),
    "not_in_this_state": Kind(
        (409,),
        "Not in this state",
        "The run exists and what was asked does not fit its status: resuming a run that goes on, looking at one that "
        "has ended, adding tasks to one that is being stopped.",
        "Read `status` of the run; `detail` says what would fit.",
    ),
    "too_many_open": Kind(
        (409,),
        "Too many open",
        "As many managers, graphs, schedules or webhooks are open as this installation allows (`LIFECYCLE_LIMITS__…`).",
        "`detail` names the limit and how many there are. Wait for an end, stop or delete what is no longer needed, or "
        "have the limit raised.",
        _SAME_KEY,
    ),
    "already_completed": Kind(
        (409,),
        "Already completed",
        "The run is COMPLETED, so there is nothing left to resume.",
        "Send `rerun: true` to execute all of it again, or start a new run.",
    ),
    "run_is_live": Kind(
        (409,), "Run is live", "Another workflow works on this run.", "Wait for its end, or stop it first."
    ),
    "fenced": Kind(
        (409,),
        "Fenced",
        "The run went on as another attempt while this was being done.",
        "Read the run again and decide anew.",
    ),
    "overtaken": Kind(
        (503,),
        "Overtaken",
        "A look came too late: one that was ordered after it is on record.",
        "Repeat it: a new look may write.",
    ),
    # --- what the service needs ---
    "store_unavailable": Kind(
        (503,),
        "Store unavailable",
        "The database does not answer. Nothing was accepted.",
        "`/readyz` and `crawlctl doctor` say what is wrong.",
        _SAME_KEY,
    ),
    "store_refused": Kind(
        (503,),
        "Store refused",
        "The database answers, and refused one statement of ours. Nothing was accepted.",
        "`detail` names the statement: look whether another program changed the tables or holds the row, and tell us.",
        _SAME_KEY,
    ),
    "temporal_unavailable": Kind(
        (503,),
        "Temporal unavailable",
        "Temporal does not answer. A start was recorded, `run_id` names it, and it is carried out as soon as Temporal "
        "is back, without another request; `detail` says so.",
        "`/readyz` says what is wrong.",
        _SAME_KEY,
    ),
    "plans_unknown": Kind(
        (503,),
        "Plans unknown",
        "No plans worker has told yet what the class or the module is: the first one is about to read it. Nothing was "
        "accepted.",
        "Wait for a worker of the role `plans`; a manager can be started before, with a `name` of yours.",
        _SAME_KEY,
    ),
    "scheduler_unavailable": Kind(
        (503,),
        "Scheduler unavailable",
        "The scheduler service does not answer, and this gateway has not read its catalogue since it started, or the "
        "crawler is not in what it read. Nothing was accepted.",
        "Look at the scheduler service's `/readyz` and at `LIFECYCLE_SCHEDULER__URL`.",
        _SAME_KEY,
    ),
    "cluster_unavailable": Kind(
        (503,),
        "Cluster unavailable",
        "The scheduler service cannot reach the cluster.",
        "Look at the cluster; workers repeat the deployment by themselves.",
        _LATER,
    ),
    "archive_unavailable": Kind(
        (503,),
        "Archive unavailable",
        "The place where zips are kept, or where tasks upload their files, does not answer or cannot be used.",
        "Look at `LIFECYCLE_ARCHIVE__URL` or `LIFECYCLE_CLUSTER__FILES_URL`, at the bucket or folder it names, and at "
        "the gateway's credentials.",
        _LATER,
    ),
    "overloaded": Kind(
        (503,),
        "Overloaded",
        "The process serves as many requests, streams or large bodies as it can hold.",
        "Run another gateway beside it, or find out who sends so much: the log names callers.",
        _SAME_KEY,
    ),
    "row_unreadable": Kind(
        (500,),
        "Row unreadable",
        "A row in the database holds what cannot be, because a person or another program wrote it. Nothing is written "
        "over it; everything else goes on.",
        "`detail` names table, key, column, value and the cure. Once the row is mended, the run goes on by itself "
        "([operations](operations.md)).",
        "Tell whoever runs the service.",
    ),
    "row_missing": Kind(
        (404,),
        "Row missing",
        "The row of a run is gone: the database was restored from an older copy, or made anew.",
        "`crawlctl audit --adopt` takes up again what executes.",
        "Do not repeat it.",
    ),
    "row_edited": Kind(
        (500,),
        "Row edited",
        "Only one of a run's attempt and owner changed, which no takeover does: a person or another program wrote it.",
        "`detail` names the value that belongs there.",
        "Tell whoever runs the service.",
    ),
    "internal_error": Kind(
        (500,),
        "Internal error",
        "A bug in the service.",
        "Its log has the details under the `http_request` that `detail` and the header `X-Request-Id` name; please "
        "report them.",
        "Repeat it once, under the same `Idempotency-Key`.",
    ),
    # --- the scheduler service, and errors that stay inside the engine ---
    "deployment_expired": Kind(
        (410, 503),
        "Deployment expired",
        "The deployment call came after its `expires_at`; a stop may have overtaken it. Nothing was created.",
        "Workers ask again with a new time. A client of your own does the same, if the run still wants it.",
    ),
    "other_place": Kind(
        (421,),
        "Other place",
        "The caller of the scheduler service would look for the tasks in another namespace, or on another cluster, "
        "than where the service creates them. Nothing was created.",
        "`detail` names both. Set `LIFECYCLE_CLUSTER__NAMESPACE` and the kubeconfig of workers and service alike.",
        "Repeat it with growing pauses: somebody has to change a setting.",
    ),
    "call_too_large": Kind(
        (503,),
        "Call too large",
        "The scheduler service, or a proxy before it, takes no deployment call of this size. No task was refused.",
        "Workers send fewer tasks at once by themselves. `detail` names the task that is too large alone: raise the "
        "limit there, or put its arguments into a file that the crawler fetches.",
        _SAME_KEY,
    ),
    "meant_elsewhere": Kind(
        (503,),
        "Meant elsewhere",
        "The scheduler service creates its tasks in another place than the workers look into, so it created none.",
        "As for `other_place`, which is what the service itself answers.",
        _SAME_KEY,
    ),
    "deployment_refused": Kind(
        (409,),
        "Deployment refused",
        "The scheduler service says that this deployment can never work.",
        "`cause` of the task has its words.",
    ),
    "catalogue_error": Kind(
        (409,),
        "Catalogue error",
        "crawlers.yaml cannot be used.",
        "`detail` names the line; docs/crawlers.md has every key.",
    ),
    "not_started": Kind(
        (503,), "Not started", "The main task does not run yet.", "The engine asks again by itself.", _LATER
    ),
    "nothing_deployed": Kind(
        (503,), "Nothing deployed", "No task could be deployed yet.", "The engine asks again by itself.", _LATER
    ),
    "not_delivered": Kind(
        (503,),
        "Not delivered",
        "An event or push was not taken by its receiver.",
        "`deliveries` of the run shows each try; it is repeated by itself and can be sent again.",
        _LATER,
    ),
}


def title(code: str) -> str:
    """The title of a code."""
    kind = CODES.get(code)
    return kind.title if kind else code.replace("_", " ").capitalize()


def render() -> str:
    """docs/problems.md."""
    parts = [_HEAD]
    for code in sorted(CODES):
        kind = CODES[code]
        statuses = " or ".join(str(status) for status in kind.statuses)
        parts.append(
            f"## {code}\n\nStatus {statuses} · `{TYPE_PREFIX}{code}`\n\n{kind.meaning}\n\n"
            f"**What to do.** {kind.cure}\n\n**A program:** {kind.retry}\n"
        )
    return "\n".join(parts)


_HEAD = """# Problem documents

<!-- Made from crawler_lifecycle/web/problem_codes.py by `make openapi`; edit that one. -->

Every answer with a status from 400 on is a problem document (RFC 9457, `application/problem+json`):

```json
{
  "type": "urn:problem-type:crawler-lifecycle:run_not_found",
  "title": "Run not found",
  "status": 404,
  "detail": "run 4711 does not exist; GET /v1/runs lists what there is",
  "code": "run_not_found"
}
```

`code` is stable: programs may branch on it. `detail` is for people and says what to do; its words may change. `run_id`
is there when the problem is about a run that exists, `errors` (a list of `field`, `message` and `value`) when fields
are wrong. The header `X-Request-Id` names the request; the service's log has the same name as `http_request`.

Gateway and scheduler service share these codes, one section each.
"""
