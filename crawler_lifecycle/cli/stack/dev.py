"""``crawlctl dev``: runs the whole stack on this machine until Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Literal

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.admin.audit import audit
from crawler_lifecycle.cli.admin.services import hide, keep_files_private
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.machine import LOOPBACK
from crawler_lifecycle.cli.output import clean
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.runs.items import items
from crawler_lifecycle.cli.runs.texts import RUN
from crawler_lifecycle.cli.session import begin, current, load_settings, say
from crawler_lifecycle.dev_json import LOOPBACK_WEBHOOKS, user
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.settings import PREFIX

from . import copies, layout
from .stack import Stack
from .supervise import SILENT_S, PartFailed

#: How many items from the example crawl are printed.
ITEMS_SHOWN = 3

#: Seconds until the first check for today's copy of the database, and between later checks.
COPY_S = 60

#: Signals that end the stack.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Setting that the stack chooses itself -> the corresponding option.
_OPTIONS = {
    "LIFECYCLE_DATABASE__URL": "--database",
    "LIFECYCLE_CLUSTER__KIND": "--cluster",
    "LIFECYCLE_CLUSTER__STATE_DIR": "--state-dir",
}


def dev(
    *,
    state_dir: Path = Path(".crawl"),
    services: int = 0,
    ports: Literal["usual", "free"] = "usual",
    database: str | None = None,
    archive: str | None = None,
    events: str | None = None,
    crawlers: Path | None = None,
    site: Path | None = None,
    ui: bool = False,
    metrics: bool = False,
    kill: bool = False,
    demo: bool = False,
    recreate: bool = False,
    cluster: Literal["local", "kubernetes"] = "local",
    kubeconfig: Path | None = None,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    address: str | None = None,
) -> None:
    """Run Temporal, database, scheduler service, gateway, worker and a demo site until Ctrl-C.

    A part that ends is restarted on the same port. Crawls continue after the stack ends, and the
    next start adopts them. With --site, the catalogue contains the crawler `site`, which follows
    every link: crawlctl start site. Crawl managers and graphs in modules of this folder can be
    started (crawlctl manager plan). New and changed modules are reloaded.
    LIFECYCLE_USER_CODE__MODULES sets other modules.

    With --cluster kubernetes, crawls are Jobs on that cluster. All other parts still run on this
    machine, where pods cannot fetch deployed code, so crawlers need images.

    Parameters
    ----------
    state_dir
        folder for all files of the stack
    services
        number of services on the demonstration site; 0: all
    ports
        default ports if free, or any free ports
    database
        database URL; default: SQLite in the state directory
    archive
        URL for archives; default: folder in the state directory
    events
        URL for events; default: file in the state directory
    crawlers
        catalogue of crawlers; default: ./crawlers.yaml, else the examples
    site
        folder of HTML pages to serve and crawl, instead of the demonstration site
    ui
        run Temporal's UI, too; any web page can call this UI
    metrics
        open a port with the worker's metrics
    kill
        end running crawls, too, when the stack ends
    demo
        run an example crawler, and show its result
    recreate
        start from scratch; the files in the state directory are moved to a subfolder
    cluster
        execute crawls as processes on this machine, or as pods
    kubeconfig
        kubeconfig of the cluster; default: that of kubectl
    context
        context of the kubeconfig; default: the current context
    namespace
        namespace of the crawls; default: crawls
    image
        image for crawlers without an image in the catalogue
    address
        address of this machine that pods can reach; the site listens there
    """
    begun = time.monotonic()
    keep_files_private()
    hide()
    pods = _cluster(
        cluster, ClusterAccess(kubeconfig, context, namespace, image, address or LOOPBACK)
    )
    folder = None if site is None else _site_folder(site)
    _take_settings({"--database": database, "--cluster": cluster})
    archive = archive or os.environ.get("LIFECYCLE_ARCHIVE__URL") or None
    events = events or os.environ.get("LIFECYCLE_EVENTS__URL") or None
    _check_places(archive, events)
    plan = layout.Layout(
        state_dir,
        services=services,
        only_free_ports=ports == "free",
        database=database,
        crawlers=crawlers,
        site=folder,
        kubernetes=pods,
        archive=archive,
        events=events,
        recreate=recreate,
        demanded=[name for name, wanted in (("temporal_ui", ui), ("metrics", metrics)) if wanted],
    )
    stack = Stack(plan, say=say, silent_s=SILENT_S)
    for number in ENDING:
        signal.signal(number, _leave)
    try:
        stack.start()
        print(banner(stack, time.monotonic() - begun), flush=True)
        begin(replace(current(), gateway_url=stack.addresses["gateway"]))
        adopt_restored(stack)
        if demo:
            show_demo(stack)
        while True:
            for _ in range(COPY_S):
                # signal.pause() would miss a signal that arrives just before the call
                time.sleep(1)
                stack.tell_catalogue()
            if database is None:
                copies.make(plan.database_file, say=say)
    except KeyboardInterrupt:
        pass
    except PartFailed as failure:
        raise CommandFailed(
            Exit.ERROR, str(failure), None, f"ls {stack.state_dir / 'logs'}"
        ) from None
    for number in ENDING:
        signal.signal(number, lambda number, frame: stack.hurry())
    say("shutting down; press Ctrl-C again to end at once")
    _report(stack.stop(kill_crawls=kill), kill, state_dir)


def banner(stack: Stack, seconds: float) -> str:
    """Return the lines to print at the start: addresses, and the next command."""
    from crawler_lifecycle.store.engine import masked

    known = stack.addresses
    lines = [
        f"web UI     {known['gateway']}/",
        f"gateway    {known['gateway']}",
        f"temporal   {known['temporal']}",
        f"its UI     {known['temporal_ui']}",
        f"metrics    {known['metrics']}",
        f"scheduler  {known['scheduler']}",
        f"site       {known['site']}",
        f"database   {masked(known['database'] or '')}",
        f"archive    {known['archive']}",
        f"state      {stack.state_dir}",
    ]
    if known["cluster"] == "kubernetes":
        which = known["context"] or known["kubeconfig"] or "current context"
        lines.insert(5, f"cluster    kubernetes, {which}, namespace {known['cluster_namespace']}")
    lines = [line for line in lines if not line.endswith(" None")]
    example = f"start {stack.first}" if stack.first else "crawler list"
    if stack.layout.site is not None:
        example = f"start {layout.SITE_CRAWLER}"
    return "\n".join((*lines, f"ready in {seconds:.1f} s; next: {_crawlctl(stack)} {example}"))


def _crawlctl(stack: Stack) -> str:
    """Return the command that, called in this folder, finds this stack."""
    here = stack.state_dir == Path(".crawl").absolute()
    return "crawlctl" if here else f"crawlctl --gateway {stack.addresses['gateway']}"


def adopt_restored(stack: Stack) -> None:
    """Adopt executing tasks that a restored database does not contain, once after ``crawlctl db
    restore``.
    """
    file = stack.layout.database_file
    mark = file.with_name(file.name + sqlite_files.RESTORED)
    if not mark.exists():
        return
    say(
        f"the database was restored from {mark.read_text()}; adopting running tasks that it does "
        "not contain"
    )
    try:
        audit(adopt=True)
        mark.unlink()
    except CommandFailed as failure:
        say(f"nothing was adopted: {clean(failure, lines=True)}")


def show_demo(stack: Stack) -> None:
    """Run the first example crawler, and print its result and the next command.

    An error does not end the stack.
    """
    url = str(stack.addresses["gateway"])
    crawlctl = _crawlctl(stack)
    if stack.first is None:
        return say(
            f"this folder contains a catalogue, so no example is run; next: {crawlctl} crawler list"
        )
    try:
        with current().gateway() as gateway:
            run_id = gateway.start(
                {"crawler": stack.first, "requested_by": user()}, str(uuid.uuid4())
            )["run_id"]
            say(f"run {run_id} of the example crawler {stack.first} has begun: {url}/runs/{run_id}")
            run, _ = RUN.wait_for(gateway, run_id, "ended")
        found = f"{count(run['pages'], 'page')}, {count(run['items'], 'item')}, such as"
        print(
            f"\nrun {run_id} is {run['status']}: "
            f"{found if run['status'] == 'COMPLETED' else clean(run['cause'])}"
        )
        sys.stdout.flush()
        items(run_id, limit=ITEMS_SHOWN)
    except CommandFailed as failure:
        return say(f"the example crawler has no result: {clean(failure, lines=True)}")
    script = Path(sys.executable).with_name("crawlctl")
    # uvx changes PATH only for this process, so the command must contain uvx.
    known = "UV" not in os.environ and shutil.which("crawlctl") == str(script)
    lines = [] if known or not script.exists() else [f"alias crawlctl={shlex.quote(str(script))}"]
    lines += [
        f"{crawlctl} describe {run_id}",
        f"{crawlctl} start {stack.first} --watch",
        "crawlctl init my-crawls",
    ]
    print(
        f"\nnext: open {url}/ in a browser, or type in another terminal, in this folder:",
        *lines,
        sep="\n  ",
    )
    print("Ctrl-C ends everything", flush=True)
    return None


def _cluster(cluster: str, given: ClusterAccess) -> ClusterAccess | None:
    """Return the Kubernetes cluster that the options name; ``None`` for a local cluster.

    Raises ``CommandFailed`` if options for Kubernetes are given with a local cluster.
    """
    if cluster == "kubernetes":
        if given.address == LOOPBACK:
            say(
                "pods cannot reach the site on loopback; set --address to an address of this "
                "machine that they can"
            )
        return given
    usual = asdict(ClusterAccess())
    for name, value in asdict(given).items():
        if value != usual[name]:
            raise WrongUsage(f"--{name} needs --cluster kubernetes", "add --cluster kubernetes")
    return None


def _site_folder(folder: Path) -> Path:
    """Check the folder to serve, and return it. Raises ``CommandFailed``."""
    from importlib.util import find_spec

    from . import site  # imported here, because it loads Starlette and uvicorn

    try:
        checked = site.check(folder)
    except site.Unusable as error:
        raise WrongUsage(f"--site: {error}") from None
    if find_spec("scrapy") is None:
        raise CommandFailed(
            Exit.ERROR,
            "--site: its crawler needs Scrapy, which is not installed",
            None,
            "pip install 'crawler-lifecycle[dev]'",
        )
    if not (checked / site.INDEX).is_file():
        say(f"{folder} has no {site.INDEX}: its start page lists its pages")
    return checked


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check_places(archive: str | None, events: str | None) -> None:
    """Check the addresses for archives and events. Raises ``CommandFailed`` for an invalid one."""
    if archive is None and events is None:
        return
    from crawler_lifecycle import compose  # imported here, because it loads every adapter
    from crawler_lifecycle.domain.errors import InvalidRequest
    from crawler_lifecycle.settings import UrlSettings

    settings = load_settings()
    try:
        for name, url, build in (
            ("archive", archive, compose.build_archive),
            ("events", events, compose.build_sink),
        ):
            if url is not None:
                build(settings.model_copy(update={name: UrlSettings(url=url)}))
    except InvalidRequest as error:
        raise WrongUsage(str(error), "correct --archive and --events") from None


def _take_settings(chosen: Mapping[str, str | None]) -> None:
    """Check the settings in the environment, and copy the settings that the stack uses to
    environment variables.

    ``chosen`` contains the values of the options. Raises ``CommandFailed`` for a setting that the
    stack chooses itself, unless an option with the same value is given.
    """
    wrong = [name for name in ("LIFECYCLE_CONFIG",) if os.environ.get(name)]
    tree = {} if wrong else load_settings().model_dump(exclude_unset=True)
    for name in (*layout.OWN, *layout.TAKEN, layout.MODULES, LOOPBACK_WEBHOOKS):
        value: object = tree
        for part in name.removeprefix(PREFIX).lower().split("__"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            continue
        if name not in layout.OWN:
            os.environ[name] = str(value) if isinstance(value, str | Path) else json.dumps(value)
        elif value != chosen.get(_OPTIONS.get(name, "")):
            wrong.append(name)
    if wrong:
        options = "".join(f"; use {_OPTIONS[name]} instead" for name in wrong if name in _OPTIONS)
        raise WrongUsage(
            f"{', '.join(wrong)}: crawlctl dev chooses this itself, so it must not be set",
            f"unset {' '.join(wrong)}{options}",
        )
    for name in sorted(os.environ):
        if name.startswith("TEMPORAL_"):
            say(f"{name} is not used: crawlctl dev has its own Temporal server")


def _report(going_on: int | None, kill: bool, state_dir: Path) -> None:
    if going_on is None:
        say("ended; the gateway did not respond, so crawls may still be running")
    elif going_on == 0:
        say("ended; no crawl is running")
    elif kill:
        say(f"ended; {count(going_on, 'run')} could not be stopped in time")
    else:
        again = (
            "crawlctl dev"
            if state_dir == Path(".crawl")
            else f"crawlctl dev --state-dir {state_dir}"
        )
        say(
            f"ended; {count(going_on, 'run continues', 'runs continue')}; next: {again} "
            f"adopts them, {again} --kill also ends them"
        )
    sys.stderr.flush()
