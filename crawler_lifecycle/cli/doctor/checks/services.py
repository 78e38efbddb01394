"""Checks of catalogue, scheduler service, gateway, archive, events and pushes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from crawler_lifecycle import compose
from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli.doctor.report import Check, Context, Line, bad, clock_line, counted, of_error, ok, warn
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.settings import Settings


def check_catalogue(context: Context) -> Sequence[Line]:
    """Check whether the catalogue can be read; what is wrong is named with its line."""
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
        return bad("catalogue", str(error), f"mend {path}")
    if not found:
        return warn("catalogue", f"{path} declares no crawler", declare)
    return ok("catalogue", f"{path}: {counted(len(found), 'crawler')}")


def check_scheduler(context: Context) -> Sequence[Line]:
    """Check whether the scheduler service answers, and which crawlers it offers."""
    settings = context.known
    least = {"timeout_s": min(settings.scheduler.timeout_s, context.call_s)}
    quick = settings.model_copy(update={"scheduler": settings.scheduler.model_copy(update=least)})
    try:
        crawlers = compose.build_scheduler(quick).crawlers()
    except LifecycleError as error:
        cure = "crawlctl scheduler starts ours; LIFECYCLE_SCHEDULER__URL says where yours is"
        return [bad("scheduler", str(error), cure)]
    if not crawlers:
        return [warn("scheduler", f"{settings.scheduler.url} answers, but offers no crawler", "give it a catalogue")]
    return [ok("scheduler", f"{settings.scheduler.url} answers, {counted(len(crawlers), 'crawler')}")]


# --- gateway -------------------------------------------------------------------------------------------------------


def check_gateway(context: Context) -> Sequence[Line]:
    """Check whether the gateway answers, what it lacks by its own word, whether it lets us in, and its clock."""
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
        cure = "crawlctl gateway starts one; LIFECYCLE_GATEWAY__URL says where it is"
        return [bad("gateway", f"{url} cannot be reached: {why}", cure)]
    lines = [_readiness(url, ready), authorisation_line(allowed, token=bool(context.token))]
    try:
        theirs = parsedate_to_datetime(ready.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return lines
    # The header's second has begun by up to one second, and the answer was on its way.
    return [*lines, clock_line("the gateway", theirs + 0.5 - (before + after) / 2, 0.5 + (after - before) / 2)]


def gateway_url(settings: Settings) -> str:
    """The address of the gateway, as far as settings tell."""
    listen = settings.gateway
    return listen.url or f"http://{'127.0.0.1' if listen.host in ('', '0.0.0.0', '::') else listen.host}:{listen.port}"  # noqa: S104


def _readiness(url: str, answer: httpx.Response) -> Line:
    try:
        checks = answer.json()["checks"]
        missing = [f"{name}: {state}" for name, state in checks.items() if state != "ok"]
    except (ValueError, KeyError, TypeError, AttributeError):
        kind = answer.headers.get("content-type", "nothing that says what it is")
        what = f"{url} is no gateway of ours: /readyz is answered with HTTP {answer.status_code}, {kind}"
        return bad("gateway", what, "set LIFECYCLE_GATEWAY__URL")
    if missing:
        return bad("gateway", f"{url} is not ready: {'; '.join(missing)}", "mend what it lacks")
    return ok("gateway", f"{url} is ready")


def authorisation_line(answer: httpx.Response, *, token: bool) -> Line:
    """The line about our token, by the answer to a plain read; the gateway says by itself that it has expired."""
    shown, status = "the token" if token else "no token", answer.status_code
    if status == 200:
        return ok("gateway", f"lets us in with {shown}")
    try:
        why = f": {answer.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        why = ""
    if status == 401:
        cure = "set LIFECYCLE_GATEWAY__TOKEN or give --token-file; crawlctl gateway token new makes a token"
        return bad("gateway", f"does not let us in with {shown} (HTTP 401){why}", cure)
    if status == 403:
        return bad(
            "gateway", f"refuses us with {shown} (HTTP 403){why}", "use the name it answers to, and a right role"
        )
    return warn("gateway", f"answers a plain read with HTTP {status}{why}", "look into its log")


# --- where things are sent -----------------------------------------------------------------------------------------


def _asking(name: str, url: Callable[[Settings], str], ask: Callable[[Settings], str]) -> Check:
    def look(context: Context) -> Sequence[Line]:
        try:
            # Whoever only looks must leave nothing behind, so what is not there yet is not made.
            missing = _missing(url(context.known))
            return [ok(name, ask(context.known)) if missing is None else _to_be_made(name, missing)]
        except LifecycleError as error:
            return [of_error(name, error)]

    return Check(name, look)


#: An archive is probed by a file, a bus and a server of pushes without sending anything.
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
    """The file or folder of a ``file:`` URL, when it is not there."""
    path = Path(unquote(urlsplit(url).path))
    return path if url.startswith("file:///") and not path.exists() else None


def _to_be_made(name: str, path: Path) -> Line:
    there = next(one for one in path.parents if one.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ok(name, f"{path} is not there yet and can be made")
    cure = f"let this user write there, or set LIFECYCLE_{name.upper()}__URL"
    return bad(name, f"{path} is not there, and {there} does not let us make it", cure)
