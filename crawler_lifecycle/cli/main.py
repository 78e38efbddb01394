"""``crawlctl``: the table of verbs, and the entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.features.feature import VerbGroup

from . import exits, output, session
from .problems import CommandFailed, Exit, WrongUsage

#: Verb -> the name of its function or its group of verbs, and its line in the help. The function is
#: imported when the verb is called, so that one verb's imports do not slow down other verbs.
RUNS = {
    "start": ("runs.start:start", "Start a run of a crawler."),
    "stop": ("runs.verbs:stop", "Ask runs to end gracefully."),
    "force-stop": ("runs.verbs:force_stop", "End runs at once, and kill their crawlers."),
    "resume": ("runs.verbs:resume", "Continue a run that has ended, as its next attempt."),
    "delete": (
        "runs.verbs:delete",
        "Delete the data of ended runs; a short record of each run stays.",
    ),
    "poll": ("runs.verbs:poll", "Poll the tasks of a run on the cluster now."),
    "wait": ("runs.verbs:wait", "Wait for the end of a run; the exit code shows its outcome."),
    "watch": ("runs.watch:watch", "Watch a run until its end, or all live runs."),
    "list": ("runs.verbs:list_runs", "List runs, newest first."),
    "get": ("runs.verbs:get", "Describe a run; without one, list runs."),
    "describe": ("runs.verbs:describe", "Show everything about a run on one screen."),
    "tasks": ("runs.tasks:app", "List the tasks of a run, or add tasks to it (tasks add)."),
    "timeline": (
        "runs.verbs:timeline",
        "List everything that happened to a run, and how late it was recorded.",
    ),
    "corrections": (
        "runs.verbs:corrections",
        "List recorded statuses that did not match reality, and for how long.",
    ),
    "pools": (
        "runs.verbs:pools",
        "List the pools, and which runs hold or wait for their slots.",
    ),
    "quotas": (
        "runs.verbs:quotas",
        "List the quotas that apply to your next start, and how much of each is used.",
    ),
    "logs": ("runs.logs:logs", "Show the log of a task, or follow it."),
    "items": ("runs.items:items", "Show the items that a run found, or write them to a file."),
    "files": ("runs.files:files", "List the supporting files of a run; show or download one."),
    "export": ("runs.files:export", "Show the export of a run; send it again, or download it."),
}
SERVICES = {
    "access": (
        "admin.access:access",
        "List what people and tokens did through the gateway, newest first.",
    ),
    "audit": (
        "admin.audit:audit",
        "Compare the database, the cluster and Temporal, and repair differences.",
    ),
    "dev": ("stack.dev:dev", "Run everything on this machine until Ctrl-C."),
    "init": (
        "stack.init:init",
        "Create a folder with crawlers, a manager, a graph, a schedule and a test.",
    ),
    "worker": ("admin.services:worker", "Run a worker."),
    "gateway": (
        "admin.services:gateway_app",
        "Run the gateway (HTTP API), or create a token (gateway token new).",
    ),
    "scheduler": ("admin.services:scheduler", "Run the scheduler service."),
    "doctor": (
        "doctor.verb:doctor",
        "Check everything that an installation needs, and show what to fix.",
    ),
}
PROGRAM = {
    "completion": ("program:completion", "Print the completion script for bash, zsh or fish."),
    "version": ("program:show_version", "Show the version of this program."),
}
CRAWLER = {
    "list": ("runs.verbs:crawlers", "List the crawlers in the catalogue."),
    "describe": ("runs.verbs:describe_crawler", "Show one crawler from the catalogue."),
    "check": ("runs.check:check", "Use real runs to check that a crawler meets the contract."),
}
POOL = {
    "set": ("runs.pools:set_pool", "Create a pool in the database, or change it."),
    "delete": ("runs.pools:delete", "Delete a pool from the database."),
}
DB = {
    "upgrade": ("admin.services:db_upgrade", "Upgrade the database's schema to this version."),
    "current": ("admin.services:db_current", "Show the schema version of the database."),
    "check": (
        "admin.services:db_check",
        "Fail unless the database has the schema of this version.",
    ),
    "backup": (
        "admin.db_copies:backup",
        "Write a complete copy of the database to a file, while all services are running.",
    ),
    "restore": (
        "admin.db_copies:restore",
        "Replace the database with a copy, after its services have ended.",
    ),
    "prune": (
        "admin.db_prune:prune",
        "Remove details of runs that ended long ago; the records of these runs stay.",
    ),
}
TOKEN = {
    "create": ("admin.access:create", "Create a token in the database; it is shown only once."),
    "list": ("admin.access:list_tokens", "List the tokens in the database."),
    "revoke": ("admin.access:revoke", "Revoke a token; gateways refuse it within seconds."),
}
CLUSTER = {
    "release": (
        "admin.cluster:release",
        "Remove our finalizer from pods whose end will not be recorded.",
    ),
    "gc": (
        "admin.cluster_gc:collect",
        "Remove files of old runs from the shared volume and object storage.",
    ),
}
NOUNS = (
    VerbGroup("crawler", "The catalogue of crawlers.", CRAWLER),
    VerbGroup("pool", "Pools: named shares of the slots.", POOL),
    VerbGroup("token", "Tokens in the database, for clients of the gateway.", TOKEN, "Services"),
    VerbGroup("db", "The database.", DB, "Services"),
    VerbGroup("cluster", "The Kubernetes cluster.", CLUSTER, "Services"),
)
ROOM = "crawler_lifecycle.cli"
ALIASES = {"list": "ls", "tasks": "ps", "force-stop": "terminate"}


def build() -> App:
    """Return the application. It contains the names of the verbs; the modules of a verb are
    imported when the verb is called.
    """
    app = App(
        name="crawlctl",
        help="Run crawls, and show their real state.",
        help_epilogue=session.HELP,
        help_format="markdown",
        version=session.installed,
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        # Without this, each option that takes a list would get an additional option `--empty-NAME`.
        default_parameter=Parameter(negative=()),
    )
    for title, verbs in (("Runs", RUNS), ("Services", SERVICES), ("This program", PROGRAM)):
        for name, (function, text) in verbs.items():
            app.command(
                f"{ROOM}.{function}", name=name, help=text, group=title, alias=ALIASES.get(name)
            )
    for noun in NOUNS:
        _add(app, noun, lambda function: f"{ROOM}.{function}")
    for feature in FEATURES:
        for name, (function, text) in feature.verbs.items():
            app.command(feature.function(function), name=name, help=text, group="Services")
        for noun in feature.nouns:
            _add(app, noun, feature.function)
    return app


def _add(app: App, noun: VerbGroup, full_name: Callable[[str], str]) -> None:
    known = noun.name in app
    below = (
        app[noun.name]
        if known
        else App(name=(noun.name, *noun.aliases), help=noun.help, group=noun.panel)
    )
    for name, (function, line) in noun.verbs.items():
        below.command(full_name(function), name=name, help=line)
    if not known:
        app.command(below)


def check_words(words: Sequence[str]) -> None:
    """Raise ``CommandFailed`` for an argument that is not valid UTF-8, because it could not be sent
    or stored.
    """
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode("utf-8", "backslashreplace").decode()
            raise WrongUsage(
                f"argument {number}: {shown!r} is not valid UTF-8",
                "write it in UTF-8; if it is the name of a file, rename the file",
            ) from None


def run(words: Sequence[str]) -> int:
    """Execute one command line.

    Return its exit code, which is 0 if the verb returns no exit code. No error shows a traceback.
    """
    try:
        os.getcwd()  # the verb and its child processes search for modules there first
        check_words(words)
        options, rest = session.split(words)
        session.begin(options)
        result = build()(rest)
    except CommandFailed as failure:
        return _fail(failure.code, str(failure))
    except CycloptsError as error:
        verb = " ".join(error.command_chain or ())
        return _fail(
            Exit.USAGE, f"{error}\n  next: {' '.join(('crawlctl', *verb.split(), '--help'))}"
        )
    except KeyboardInterrupt:
        return _fail(Exit.INTERRUPTED, "interrupted")
    except BrokenPipeError:  # `crawlctl list | head`
        return Exit.DONE
    except OSError as error:
        what = (
            f"{error.filename or 'the working directory, or the output'}: {error.strerror or error}"
        )
        return _fail(
            Exit.ERROR,
            f"{what}\n  next: check that it exists, and that this user and the disk allow it",
        )
    except LifecycleError as error:
        return _fail(Exit.ERROR, str(error))
    except Exception as error:
        # A service writes the traceback to its log.
        if sys.flags.dev_mode or sys.excepthook is not sys.__excepthook__:
            raise
        fix = "report it, with the output after export PYTHONDEVMODE=1"
        return _fail(
            Exit.ERROR, f"a defect of crawlctl: {type(error).__name__}: {error}\n  next: {fix}"
        )
    return int(result) if isinstance(result, int) else Exit.DONE


def _fail(code: int, text: str) -> int:
    print(f"crawlctl: {output.clean(text, lines=True)}", file=sys.stderr)
    return code


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the console script and end the process.

    Other programs pass the command line in ``words``.

    A character that the terminal cannot show, or an undecodable part of a file name, is escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    exits.leave(run(sys.argv[1:] if words is None else words))


def first() -> NoReturn:
    """Run the console script that has the name of the package.

    Without arguments, the script starts the whole stack with a demo.
    """
    main(sys.argv[1:] or ("dev", "--demo", "--kill"))


if __name__ == "__main__":
    main()
