"""Checks of catalogue, scheduler service, gateway, archive, events and pushes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from crawler_lifecycle import compose
from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli.doctor.report import Check, Context, Line, bad, clock_line, counted, of_error, ok, warn
from crawler_lifecycle.dev_json import folder_of
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.names import STACK_HEADER
from crawler_lifecycle.domain.pools import DEFAULT
from crawler_lifecycle.gateway.access.tokens import TokenFileError, read
from crawler_lifecycle.settings import Settings


def check_catalogue(context: Context) -> Sequence[Line]:
    """Check that the catalogues can be read. An error names the line."""
    settings = context.known
    files = [settings.crawlers, *([settings.more_crawlers] if settings.more_crawlers is not None else [])]
    return [_catalogue(path, settings) for path in files]


def _catalogue(path: Path, settings: Settings) -> Line:
    declare = "declare one (docs/crawlers.md)"
    if not path.exists() and path == settings.crawlers and "crawlers" not in settings.model_fields_set:
        return warn("catalogue", f"there is no {path} here", f"{declare}, or set LIFECYCLE_CRAWLERS")
    try:
        found = load(path, settings.owned)
    except LifecycleError as error:
        return bad("catalogue", str(error), f"correct {path}")
    if not found:
        return warn("catalogue", f"{path} declares no crawler", declare)
    return ok("catalogue", f"{path}: {counted(len(found), 'crawler')}")


def check_scheduler(context: Context) -> Sequence[Line]:
    """Check that the scheduler service answers and offers crawlers."""
    settings = context.known
    least = {"timeout_s": min(settings.scheduler.timeout_s, context.call_s)}
    quick = settings.model_copy(update={"scheduler": settings.scheduler.model_copy(update=least)})
    try:
        with closing(compose.build_scheduler(quick)) as scheduler:
            crawlers = scheduler.crawlers()
    except LifecycleError as error:
        cure = "start it with crawlctl scheduler, or set LIFECYCLE_SCHEDULER__URL to your own"
        return [bad("scheduler", str(error), cure)]
    if not crawlers:
        return [warn("scheduler", f"{settings.scheduler.url} answers, but offers no crawler", "give it a catalogue")]
    return [ok("scheduler", f"{settings.scheduler.url} answers, {counted(len(crawlers), 'crawler')}")]


def check_quotas(context: Context) -> Sequence[Line]:
    """Check that each quota names a token or a pool that exists. Tokens are known where their file can be read."""
    settings, known = context.known, {"pool": {DEFAULT, *context.known.pools}}
    try:
        if (file := settings.gateway.tokens_file) is not None:
            known["token"] = {entry.caller.name for entry in read(file)}
    except TokenFileError as error:
        return [of_error("quotas", error)]
    # People of an issuer are not known here.
    holders = [key.partition(":") for key in settings.quotas if not key.startswith("token:oidc:")]
    wrong = [f"{kind} {name}" for kind, _, name in holders if name not in {"*", *known.get(kind, {name})}]
    cure = "correct the name in LIFECYCLE_QUOTAS, or remove the entry"
    return [warn("quotas", f"a quota is for {one}, and there is no such {one.split()[0]}", cure) for one in wrong]


# --- gateway -------------------------------------------------------------------------------------------------------


def check_gateway(context: Context) -> Sequence[Line]:
    """Check that the gateway answers, is ready, accepts our token, and has the right time."""
    url = gateway_url(context.known).rstrip("/")
    headers = {"Authorization": f"Bearer {context.token}"} if context.token else {}
    try:
        checked = httpx.URL(url).scheme == "https"
        with httpx.Client(
            base_url=url, timeout=context.call_s, headers=headers, trust_env=False, verify=checked
        ) as http:
            before = time.time()
            ready = http.get("/readyz")
            after = time.time()
            allowed = http.get("/v1/runs", params={"page_size": 1})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        cure = "start it with crawlctl gateway, or set LIFECYCLE_GATEWAY__URL to its address"
        return [bad("gateway", f"{url} cannot be reached: {why}", cure)]
    stack = context.known.stack
    if stack and ready.headers.get(STACK_HEADER) != stack:
        what = f"{url} does not belong to the stack of {folder_of(stack)}"
        return [bad("gateway", what, "start that stack: crawlctl dev")]
    lines = [_readiness(url, ready), authorisation_line(allowed, token=bool(context.token))]
    try:
        theirs = parsedate_to_datetime(ready.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return lines
    # The header has whole seconds, and its time may be any moment of the call: take the middle of both.
    return [*lines, clock_line("the gateway", theirs + 0.5 - (before + after) / 2, 0.5 + (after - before) / 2)]


def gateway_url(settings: Settings) -> str:
    """Return the address of the gateway from the settings."""
    listen = settings.gateway
    return listen.url or f"http://{'127.0.0.1' if listen.host in ('', '0.0.0.0', '::') else listen.host}:{listen.port}"  # noqa: S104


def _readiness(url: str, answer: httpx.Response) -> Line:
    try:
        checks = answer.json()["checks"]
        missing = [f"{name}: {state}" for name, state in checks.items() if state != "ok"]
    except (ValueError, KeyError, TypeError, AttributeError):
        kind = answer.headers.get("content-type", "no content type")
        what = f"{url} is not our gateway: /readyz answers with HTTP {answer.status_code}, {kind}"
        return bad("gateway", what, "set LIFECYCLE_GATEWAY__URL")
    if missing:
        return bad("gateway", f"{url} is not ready: {'; '.join(missing)}", "correct what is missing")
    return ok("gateway", f"{url} is ready")


def authorisation_line(answer: httpx.Response, *, token: bool) -> Line:
    """Return the finding about our token, by the answer to a simple read. The gateway itself reports an expired one."""
    shown, status = "the token" if token else "no token", answer.status_code
    if status == 200:
        return ok("gateway", f"it accepts requests with {shown}")
    try:
        why = f": {answer.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        why = ""
    if status == 401:
        cure = "set LIFECYCLE_GATEWAY__TOKEN or give --token-file; crawlctl gateway token new makes a token"
        refused = "it does not accept the token" if token else "it needs a token"
        return bad("gateway", f"{refused} (HTTP 401){why}", cure)
    if status == 403:
        cure = "use a host name that the gateway accepts, and a token with the right role"
        return bad("gateway", f"it refuses a read with {shown} (HTTP 403){why}", cure)
    return warn("gateway", f"it answers a read with HTTP {status}{why}", "read its log")


# --- where things are sent -----------------------------------------------------------------------------------------


def _asking(name: str, url: Callable[[Settings], str], ask: Callable[[Settings], str]) -> Check:
    def look(context: Context) -> Sequence[Line]:
        try:
            # The doctor must not create files or folders that do not exist yet.
            missing = _missing(url(context.known))
            return [ok(name, ask(context.known)) if missing is None else _to_be_made(name, missing)]
        except LifecycleError as error:
            return [of_error(name, error)]

    return Check(name, look)


#: The check of an archive writes and removes a file. The checks of events and pushes send nothing.
SINKS = (
    _asking("archive", lambda settings: settings.archive.url, lambda settings: compose.build_archive(settings).check()),
    _asking("events", lambda settings: settings.events.url, lambda settings: compose.build_sink(settings).check()),
    _asking(
        "pushes",
        lambda settings: "",
        lambda settings: "; ".join(notifier.check() for notifier in compose.build_notifiers(settings)),
    ),
)


def _missing(url: str) -> Path | None:
    """Return the file or folder of a ``file:`` URL if it does not exist."""
    path = Path(unquote(urlsplit(url).path))
    return path if url.startswith("file:///") and not path.exists() else None


def _to_be_made(name: str, path: Path) -> Line:
    there = next(one for one in path.parents if one.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ok(name, f"{path} does not exist yet, but can be created")
    cure = f"let this user write there, or set LIFECYCLE_{name.upper()}__URL"
    return bad(name, f"{path} does not exist, and this user cannot create it in {there}", cure)
