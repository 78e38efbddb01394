"""``crawlctl``: the table of verbs, and the entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from crawler_lifecycle.domain.errors import LifecycleError

from . import exits, output, session
from .problems import CommandFailed, Exit, WrongUsage

#: Verb -> the name of its function (or of its group of verbs), and its line in the help. The function is imported when
#: its verb is called, because the imports of one verb must not slow down the others.
RUNS = {
    "start": ("runs.start:start", "Start a run of a crawler."),
    "stop": ("runs.verbs:stop", "Ask runs to end gracefully."),
    "force-stop": ("runs.verbs:force_stop", "End runs at once, and kill their crawlers."),
    "resume": ("runs.verbs:resume", "Continue a run that has ended, as its next attempt."),
    "delete": ("runs.verbs:delete", "Delete the data of ended runs; a short record of each stays."),
    "look": ("runs.verbs:look", "Check the tasks of a run on the cluster now."),
    "wait": ("runs.verbs:wait", "Wait for the end of a run; the exit code says how it ended."),
    "watch": ("runs.watch:watch", "Watch a run until its end, or all live runs."),
    "list": ("runs.verbs:list_runs", "List runs, newest first."),
    "get": ("runs.verbs:get", "Describe a run; without one, list runs."),
    "describe": ("runs.verbs:describe", "Show everything about a run on one screen."),
    "tasks": ("runs.tasks:app", "List the tasks of a run, or add tasks to it (tasks add)."),
    "timeline": ("runs.verbs:timeline", "List everything that happened to a run, and how late it was recorded."),
    "corrections": ("runs.verbs:corrections", "List recorded statuses that were untrue, and for how long."),
    "pools": ("runs.verbs:pools", "List the pools, who holds their places, and who waits for them."),
    "quotas": ("runs.verbs:quotas", "List the quotas that hold for your next start, and what is used."),
    "logs": ("runs.logs:logs", "Show the log of a task, or follow it."),
    "items": ("runs.items:items", "Show the items that a run found, or write them into a file."),
    "files": ("runs.files:files", "List the supporting files of a run; show or download one."),
    "export": ("runs.files:export", "Show the export of a run; send it again, or download it."),
}
SERVICES = {
    "access": ("admin.access:access", "List what people and tokens did through the gateway, newest first."),
    "audit": ("admin.audit:audit", "Compare database, cluster and Temporal, and repair differences."),
    "dev": ("stack.dev:dev", "Run everything on this machine until Ctrl-C."),
    "init": ("stack.init:init", "Make a folder with crawlers, a manager, a graph, a schedule and a test."),
    "worker": ("admin.services:worker", "Run a worker."),
    "gateway": ("admin.services:gateway_app", "Run the gateway (HTTP API), or make a token (gateway token new)."),
    "scheduler": ("admin.services:scheduler", "Run the scheduler service."),
    "mcp": ("mcp:mcp", "Offer runs to an assistant as tools (Model Context Protocol)."),
    "doctor": ("doctor.verb:doctor", "Check everything that a run needs, and show what to do."),
}
PROGRAM = {
    "completion": ("program:completion", "Print the completion script of bash, zsh or fish."),
    "version": ("program:show_version", "Show the version of this program."),
}
CRAWLER = {
    "list": ("runs.verbs:crawlers", "List the crawlers that can be run."),
    "describe": ("runs.verbs:describe_crawler", "Show one crawler of the catalogue."),
    "check": ("runs.check:check", "Check that a crawler keeps the contract, with real runs."),
}
MANAGER = {
    "start": ("managers.start:start", "Start a manager for a class, or for a crawler that runs once for each item."),
    "list": ("managers.verbs:list_managers", "List managers, newest first."),
    "describe": ("managers.verbs:describe", "Show everything about a manager, and its jobs."),
    "watch": ("managers.verbs:watch", "Watch a manager until its end."),
    "wait": ("managers.verbs:wait", "Wait for the end of a manager; the exit code says how it ended."),
    "stop": ("managers.verbs:stop", "Ask managers and their runs to end."),
    "force-stop": ("managers.verbs:force_stop", "End managers and their runs at once."),
    "pause": ("managers.verbs:pause", "Pause managers: they start no more runs until they are resumed."),
    "resume": ("managers.verbs:resume", "Resume a paused manager, or start the next attempt of one that has ended."),
    "add": ("managers.start:add", "Add jobs to a manager."),
    "cap": ("managers.verbs:cap", "Set how many runs a manager may have at once."),
    "logs": ("managers.verbs:logs", "Show the last output of a manager's class."),
    "plan": ("managers.plan:plan", "Show the jobs that a class would schedule; without a class, list the classes."),
}
GRAPH = {
    "start": ("graphs:start", "Start a graph that a module builds, or a graph from a file."),
    "list": ("graphs:list_graphs", "List graphs, newest first."),
    "describe": ("graphs:describe", "Show everything about a graph, and its steps."),
    "watch": ("graphs:watch", "Watch a graph until its end."),
    "wait": ("graphs:wait", "Wait for the end of a graph; the exit code says how it ended."),
    "stop": ("graphs:stop", "Ask graphs and everything that they execute to end, or cancel some of their steps."),
    "force-stop": ("graphs:force_stop", "End graphs and everything that they execute at once."),
    "retry": ("graphs:retry", "Retry steps, also of a graph that has ended."),
    "step": ("graphs:step", "Show one step: what it waits for, its errors, and its result."),
    "render": ("graphs:render", "Draw a graph for Graphviz or Mermaid."),
}
SCHEDULE = {
    "create": ("schedules:create", "Create a schedule for a crawler, or from a file."),
    "list": ("schedules:list_schedules", "List schedules."),
    "describe": ("schedules:describe", "Show everything about a schedule, and its next due times."),
    "update": ("schedules:update", "Change the due times of a schedule, and its rules for overlaps."),
    "pause": ("schedules:pause", "Pause a schedule: due times start nothing until it is resumed."),
    "resume": ("schedules:resume", "Resume a paused schedule."),
    "trigger": ("schedules:trigger", "Start the target of a schedule now."),
    "backfill": ("schedules:backfill", "Start past due times that started nothing."),
    "due": ("schedules:due", "List due times with their results."),
    "delete": ("schedules:delete", "Delete a schedule; its recorded due times stay."),
}
WEBHOOK = {
    "create": ("webhooks:create", "Create a webhook: its receiver, and the events that it gets."),
    "list": ("webhooks:list_webhooks", "List webhooks."),
    "describe": ("webhooks:describe", "Show everything about a webhook, and its state."),
    "update": ("webhooks:update", "Change the receiver or the events of a webhook."),
    "pause": ("webhooks:pause", "Pause a webhook: it delivers nothing until it is resumed."),
    "resume": ("webhooks:resume", "Resume a paused webhook."),
    "test": ("webhooks:try_out", "Send a test event to a webhook."),
    "deliveries": ("webhooks:deliveries", "List deliveries of a webhook, also failed ones."),
    "delete": ("webhooks:delete", "Delete a webhook; its recorded deliveries stay."),
}
DB = {
    "upgrade": ("admin.services:db_upgrade", "Upgrade the database's schema to this version."),
    "current": ("admin.services:db_current", "Show the schema version of the database."),
    "check": ("admin.services:db_check", "Fail unless the database has the schema of this version."),
    "backup": ("admin.db_copies:backup", "Write a whole copy of the database into a file, while everything runs."),
    "restore": ("admin.db_copies:restore", "Replace the database with a copy, while its services have ended."),
    "prune": ("admin.db_prune:prune", "Remove details of runs that ended long ago; their records stay."),
}
TOKEN = {
    "create": ("admin.access:create", "Create a token that the database keeps; shown only once."),
    "list": ("admin.access:list_tokens", "List the tokens that the database keeps."),
    "revoke": ("admin.access:revoke", "Revoke a token; gateways refuse it within seconds."),
}
CLUSTER = {
    "release": ("admin.cluster:release", "Remove our finalizer from pods that will not be recorded any more."),
    "tidy": ("admin.cluster_tidy:tidy", "Remove files of old runs from the shared volume and object storage."),
}
ROOM = "crawler_lifecycle.cli"
ALIASES = {"list": "ls", "tasks": "ps", "force-stop": "terminate"}


def build() -> App:
    """Return the application: it knows the names of the verbs, and imports the rest later."""
    app = App(
        name="crawlctl",
        help="Run crawls, and see their true state.",
        help_epilogue=session.HELP,
        help_format="markdown",
        version=session.installed,
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        # Without this, each option with a list would get an additional `--empty-NAME`.
        default_parameter=Parameter(negative=()),
    )
    for title, verbs in (("Runs", RUNS), ("Services", SERVICES), ("This program", PROGRAM)):
        for name, (function, text) in verbs.items():
            app.command(f"{ROOM}.{function}", name=name, help=text, group=title, alias=ALIASES.get(name))
    groups = (
        ("crawler", CRAWLER, "The catalogue of crawlers."),
        ("manager", MANAGER, "Crawl managers: streams of runs."),
        ("graph", GRAPH, "Graphs: runs and functions with dependencies."),
        ("schedule", SCHEDULE, "Schedules: runs, managers and graphs at due times."),
        ("webhook", WEBHOOK, "Webhooks and alerts: events for other systems, messages for people."),
        ("token", TOKEN, "Tokens that the database keeps, for clients of the gateway."),
        ("db", DB, "The database."),
        ("cluster", CLUSTER, "The Kubernetes cluster."),
    )
    for group, verbs, text in groups:
        below = App(
            name=(group, "alert") if group == "webhook" else group,
            help=text,
            group="Runs" if group in ("crawler", "manager", "graph", "schedule") else "Services",
        )
        for name, (function, line) in verbs.items():
            below.command(f"{ROOM}.{function}", name=name, help=line)
        app.command(below)
    return app


def check_words(words: Sequence[str]) -> None:
    """Raise ``CommandFailed`` for an argument that is not valid UTF-8: it could not be sent or stored."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode("utf-8", "backslashreplace").decode()
            cure = "write it in UTF-8; if it is the name of a file, rename the file"
            raise WrongUsage(f"argument {number}: {shown!r} is not valid UTF-8", cure) from None


def run(words: Sequence[str]) -> int:
    """Execute one command line. Return its exit code, 0 if the verb has none. No error shows a traceback."""
    try:
        os.getcwd()  # a verb, and the processes that it starts, begin their search there
        check_words(words)
        options, rest = session.split(words)
        session.begin(options)
        result = build()(rest)
    except CommandFailed as failure:
        return _fail(failure.code, str(failure))
    except CycloptsError as error:
        verb = " ".join(error.command_chain or ())
        return _fail(Exit.USAGE, f"{error}\n  next: {' '.join(('crawlctl', *verb.split(), '--help'))}")
    except KeyboardInterrupt:
        return _fail(Exit.INTERRUPTED, "interrupted")
    except BrokenPipeError:  # `crawlctl list | head`
        return Exit.DONE
    except OSError as error:
        what = f"{error.filename or 'the working directory, or the output'}: {error.strerror or error}"
        return _fail(Exit.ERROR, f"{what}\n  next: check that it exists, and that this user and the disk allow it")
    except LifecycleError as error:
        return _fail(Exit.ERROR, str(error))
    except Exception as error:
        if sys.flags.dev_mode or sys.excepthook is not sys.__excepthook__:  # a service writes the stack into its log
            raise
        cure = "report it, with what is shown after export PYTHONDEVMODE=1"
        return _fail(Exit.ERROR, f"a defect of crawlctl: {type(error).__name__}: {error}\n  next: {cure}")
    return int(result) if isinstance(result, int) else Exit.DONE


def _fail(code: int, text: str) -> int:
    print(f"crawlctl: {output.clean(text, lines=True)}", file=sys.stderr)
    return code


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the console script and end the process. Other programs pass the command line in ``words``.

    A letter that the terminal cannot show, or a part of a file name that is no text, is written as its code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    exits.leave(run(sys.argv[1:] if words is None else words))


def first() -> NoReturn:
    """Run the console script that has the name of the package. Without words it shows everything at work."""
    main(sys.argv[1:] or ("dev", "--demo", "--kill"))


if __name__ == "__main__":
    main()
