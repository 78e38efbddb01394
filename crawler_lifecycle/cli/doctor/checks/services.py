"""Checks of catalogue, scheduler service, gateway, archive, events and pushes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from crawler_lifecycle import compose
from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli.doctor.line import Level, Line, counted
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.domain.crawlers.pod import Owned
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.access import tokens
from crawler_lifecycle.settings import Settings

from .clock import clock_line


def check_catalogue(context: Context) -> Sequence[Line]:
    """Whether the catalogue can be read; what is wrong is named with its line."""
    settings = context.known
    owned = settings.owned
    lines = [_catalogue(settings.crawlers, owned, required="crawlers" in settings.model_fields_set)]
    if settings.more_crawlers is not None:
        lines.append(_catalogue(settings.more_crawlers, owned, required=True))
    return lines


def _catalogue(path: Path, owned: Owned, *, required: bool) -> Line:
    if not path.exists() and not required:
        cure = "write one (docs/crawlers.md), or set LIFECYCLE_CRAWLERS, where our scheduler service runs"
        return Line("catalogue", "warn", f"there is no {path} here", cure)
    try:
        found = load(path, owned)
    except LifecycleError as error:
        return Line("catalogue", "bad", str(error), f"mend {path}")
    if not found:
        return Line("catalogue", "warn", f"{path} declares no crawler", "declare one (docs/crawlers.md)")
    return Line("catalogue", "ok", f"{path}: {counted(len(found), 'crawler')}")


def check_scheduler(context: Context) -> Sequence[Line]:
    """Whether the scheduler service answers, and which crawlers it offers."""
    settings = context.known
    url = settings.scheduler.url
    quick = settings.model_copy(
        update={
            "scheduler": settings.scheduler.model_copy(
                update={"timeout_s": min(settings.scheduler.timeout_s, context.call_s)}
            )
        }
    )
    try:
        crawlers = compose.build_scheduler(quick).crawlers()
    except LifecycleError as error:
        cure = "crawlctl scheduler starts ours; LIFECYCLE_SCHEDULER__URL says where yours is"
        return [Line("scheduler", "bad", str(error), cure)]
    if not crawlers:
        return [Line("scheduler", "warn", f"{url} answers, but offers no crawler", "give it a catalogue")]
    return [Line("scheduler", "ok", f"{url} answers, {counted(len(crawlers), 'crawler')}")]


# --- gateway -------------------------------------------------------------------------------------------------------


def check_tokens(context: Context) -> Sequence[Line]:
    """Whether the file of tokens lets somebody in, where a gateway of this machine has one."""
    path = context.known.gateway.tokens_file
    if path is None:
        return []
    try:
        entries = tokens.read(path)
    except tokens.TokenFileError as error:
        what, _, cure = str(error).rpartition("; ")
        return [Line("tokens", "bad", what or cure, cure if what else f"mend {path}")]
    now = datetime.now(UTC)
    over = [entry.caller.name for entry in entries if entry.expires is not None and entry.expires <= now]
    if over:
        cure = "remove their lines; crawlctl gateway token new makes new ones"
        level: Level = "bad" if len(over) == len(entries) else "warn"
        return [Line("tokens", level, f"{path}: expired for {', '.join(over)}", cure)]
    return [Line("tokens", "ok", f"{path}: {counted(len(entries), 'token')}")]


def check_gateway(context: Context) -> Sequence[Line]:
    """Whether the gateway answers, what it lacks, whether it lets us in, and its clock."""
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
        return [Line("gateway", "bad", f"{url} cannot be reached: {why}", cure)]
    lines = [_readiness(url, ready), authorisation_line(allowed.status_code, bool(context.token))]
    if (date := ready.headers.get("date")) is not None:
        lines += _clock(date, before, after)
    return lines


def gateway_url(settings: Settings) -> str:
    """Where the gateway is, as far as settings tell."""
    listen = settings.gateway
    return listen.url or f"http://{'127.0.0.1' if listen.host in ('', '0.0.0.0', '::') else listen.host}:{listen.port}"  # noqa: S104


def _readiness(url: str, answer: httpx.Response) -> Line:
    try:
        checks = answer.json()["checks"]
        missing = [f"{name}: {state}" for name, state in checks.items() if state != "ok"]
    except (ValueError, KeyError, TypeError, AttributeError):
        kind = answer.headers.get("content-type", "nothing that says what it is")
        what = f"{url} is no gateway of ours: /readyz is answered with HTTP {answer.status_code}, {kind}"
        return Line("gateway", "bad", what, "set LIFECYCLE_GATEWAY__URL")
    if missing:
        return Line("gateway", "bad", f"{url} is not ready: {'; '.join(missing)}", "mend what it lacks")
    return Line("gateway", "ok", f"{url} is ready")


def authorisation_line(status: int, token: bool) -> Line:
    """What the answer to a plain read says about our token."""
    shown = "the token" if token else "no token"
    if status == 200:
        return Line("gateway", "ok", f"lets us in with {shown}")
    if status == 401:
        cure = "set LIFECYCLE_GATEWAY__TOKEN or give --token-file; crawlctl gateway token new makes a token"
        return Line("gateway", "bad", f"does not let us in with {shown} (HTTP 401)", cure)
    if status == 403:
        return Line(
            "gateway", "bad", f"refuses us with {shown} (HTTP 403)", "use the name it answers to, and a right role"
        )
    return Line("gateway", "warn", f"answers a plain read with HTTP {status}", "look into its log")


def _clock(date: str, before: float, after: float) -> Sequence[Line]:
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return ()
    # The header's second has begun by up to one second, and the answer was on its way.
    return (clock_line("the gateway", theirs + 0.5 - (before + after) / 2, 0.5 + (after - before) / 2),)


# --- where things are sent -----------------------------------------------------------------------------------------


def check_archive(context: Context) -> Sequence[Line]:
    """Whether archives can be written, by a probe."""
    url = context.known.archive.url
    return [_asked("archive", url, context.known, lambda settings: compose.build_archive(settings).check())]


def check_events(context: Context) -> Sequence[Line]:
    """Whether events can be sent, without sending one."""
    url = context.known.events.url
    return [_asked("events", url, context.known, lambda settings: compose.build_sink(settings).check())]


def check_pushes(context: Context) -> Sequence[Line]:
    """Whether pushes reach the servers of front ends."""

    def ask(settings: Settings) -> str:
        return "; ".join(notifier.check() for notifier in compose.build_notifiers(settings))

    return [_asked("pushes", "", context.known, ask)]


def _asked(name: str, url: str, settings: Settings, ask: Callable[[Settings], str]) -> Line:
    try:
        # Whoever only looks must leave nothing behind, so what is not there yet is not made.
        missing = _missing(url)
        if missing is not None:
            return _to_be_made(name, missing)
        return Line(name, "ok", ask(settings))
    except LifecycleError as error:
        # Their texts name the cure behind the last semicolon.
        what, _, cure = str(error).rpartition("; ")
        return Line(name, "bad", what or cure, cure if what else None)


def _missing(url: str) -> Path | None:
    """The file or folder of a ``file:`` URL, when it is not there."""
    if not url.startswith("file:///"):
        return None
    path = Path(unquote(urlsplit(url).path))
    return None if path.exists() else path


def _to_be_made(name: str, path: Path) -> Line:
    there = next(one for one in path.parents if one.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Line(name, "ok", f"{path} is not there yet and can be made")
    cure = f"let this user write there, or set LIFECYCLE_{name.upper()}__URL"
    return Line(name, "bad", f"{path} is not there, and {there} does not let us make it", cure)
