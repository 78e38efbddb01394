"""``crawlctl``: the table of verbs, and how a call ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from . import exits, output, session
from .problems import CommandFailed, Exit

#: Verb -> its function (or group of verbs) by name, and its line in the help. They are imported when their verb is
#: called: what one verb needs must not slow down the others.
RUNS = {
    "start": ("runs.start:start", "Start a run of a crawler."),
    "stop": ("runs.verbs:stop", "Ask runs to end in order."),
    "force-stop": ("runs.verbs:force_stop", "End runs at once, killing what they execute."),
    "resume": ("runs.verbs:resume", "Go on with a run that has ended, as its next attempt."),
    "delete": ("runs.verbs:delete", "Delete all that ended runs brought; a stub of each stays."),
    "look": ("runs.verbs:look", "Have the cluster asked about a run now."),
    "wait": ("runs.verbs:wait", "Wait for a run; the exit code tells how it ended."),
    "watch": ("runs.watch:watch", "Watch a run to its end, or all live runs."),
    "list": ("runs.verbs:list_runs", "List runs, newest first."),
    "get": ("runs.verbs:get", "Describe a run; without one, list runs."),
    "describe": ("runs.verbs:describe", "Show everything about a run on one screen."),
    "tasks": ("runs.tasks:app", "List the tasks of a run; tasks add gives it more."),
    "timeline": ("runs.verbs:timeline", "List everything that happened to a run, and how late it was recorded."),
    "corrections": ("runs.verbs:corrections", "List recorded statuses that were untrue, and for how long."),
    "logs": ("runs.logs:logs", "Show the log of a task, or follow it."),
    "items": ("runs.items:items", "Show the items that a run found, or write them into a file."),
    "files": ("runs.files:files", "List the supporting files of a run, show or fetch one."),
    "export": ("runs.files:export", "Show what was exported of a run; send it again, or fetch it."),
}
SERVICES = {
    "audit": ("admin.audit:audit", "Compare database, cluster and Temporal, and put right what differs."),
    "dev": ("stack.dev:dev", "Run everything on this machine until Ctrl-C."),
    "worker": ("admin.services:worker", "Run a worker."),
    "gateway": ("admin.services:gateway_app", "Run the gateway (HTTP API); gateway token new makes tokens."),
    "scheduler": ("admin.services:scheduler", "Run the scheduler service."),
    "doctor": ("doctor.verb:doctor", "Check everything that a run needs, and say what to do about it."),
}
PROGRAM = {
    "completion": ("program:completion", "Print the completion script of bash, zsh or fish."),
    "version": ("program:show_version", "Show the version of this program."),
}
CRAWLER = {
    "list": ("runs.verbs:crawlers", "List the crawlers that can be run."),
    "describe": ("runs.verbs:describe_crawler", "Show one crawler of the catalogue."),
}
MANAGER = {
    "start": ("managers.start:start", "Start a manager: of a class, or a crawler once for each item."),
    "list": ("managers.verbs:list_managers", "List managers, newest first."),
    "describe": ("managers.verbs:describe", "Show everything about a manager, and its jobs."),
    "watch": ("managers.verbs:watch", "Watch a manager to its end."),
    "wait": ("managers.verbs:wait", "Wait for a manager; the exit code tells how it ended."),
    "stop": ("managers.verbs:stop", "Ask managers to end, with their runs."),
    "force-stop": ("managers.verbs:force_stop", "End managers and their runs at once."),
    "pause": ("managers.verbs:pause", "Have managers start nothing more for now."),
    "resume": ("managers.verbs:resume", "Let a paused manager go on, or one that has ended begin its next attempt."),
    "add": ("managers.start:add", "Give a manager more jobs."),
    "cap": ("managers.verbs:cap", "Set how many runs a manager may have at once."),
    "logs": ("managers.verbs:logs", "Show what the class of a manager printed last."),
    "plan": ("managers.plan:plan", "Show what a class would schedule; without one, list the classes there are."),
}
GRAPH = {
    "start": ("graphs:start", "Start a graph: of a module that builds it, or of a file."),
    "list": ("graphs:list_graphs", "List graphs, newest first."),
    "describe": ("graphs:describe", "Show everything about a graph, and its steps."),
    "watch": ("graphs:watch", "Watch a graph to its end."),
    "wait": ("graphs:wait", "Wait for a graph; the exit code tells how it ended."),
    "stop": ("graphs:stop", "Ask graphs to end, with all that they execute; or cancel some of their steps."),
    "force-stop": ("graphs:force_stop", "End graphs and all that they execute at once."),
    "retry": ("graphs:retry", "Let steps begin anew, also of a graph that has ended."),
    "step": ("graphs:step", "Show one step, what it waits for, how it failed, and its result."),
    "render": ("graphs:render", "Draw a graph for Graphviz or Mermaid."),
}
SCHEDULE = {
    "create": ("schedules:create", "Make a schedule: of a crawler, or of a file."),
    "list": ("schedules:list_schedules", "List schedules."),
    "describe": ("schedules:describe", "Show everything about a schedule, and what lies ahead."),
    "update": ("schedules:update", "Change when a schedule is due, and what happens then."),
    "pause": ("schedules:pause", "Have due times begin nothing for now."),
    "resume": ("schedules:resume", "Let a paused schedule go on."),
    "trigger": ("schedules:trigger", "Have a schedule be due now."),
    "backfill": ("schedules:backfill", "Have past due times begin that began nothing."),
    "due": ("schedules:due", "List due times, each with what became of it."),
    "delete": ("schedules:delete", "Delete a schedule; its due times stay on record."),
}
WEBHOOK = {
    "create": ("webhooks:create", "Make a webhook: who is told, and of what."),
    "list": ("webhooks:list_webhooks", "List webhooks."),
    "describe": ("webhooks:describe", "Show everything about a webhook, and how it stands."),
    "update": ("webhooks:update", "Change where a webhook leads, and what it is told of."),
    "pause": ("webhooks:pause", "Have nothing told to a webhook for now."),
    "resume": ("webhooks:resume", "Let a paused webhook go on."),
    "test": ("webhooks:try_out", "Tell a webhook of an event that is for it alone."),
    "deliveries": ("webhooks:deliveries", "List what was told to a webhook, or tried to be."),
    "delete": ("webhooks:delete", "Delete a webhook; its deliveries stay on record."),
}
DB = {
    "upgrade": ("admin.services:db_upgrade", "Bring the database's schema to this version."),
    "current": ("admin.services:db_current", "Show the schema version of the database."),
    "check": ("admin.services:db_check", "Fail unless the database has the schema of this version."),
    "prune": ("admin.db_prune:prune", "Remove what runs that ended long ago left and nobody needs; the record stays."),
}
CLUSTER = {
    "release": ("admin.cluster:release", "Take our finalizer from pods that nobody will record any more."),
    "tidy": ("admin.cluster_tidy:tidy", "Remove what old runs left on the shared volume and in object storage."),
}
ROOM = "crawler_lifecycle.cli"
ALIASES = {"list": "ls", "tasks": "ps", "force-stop": "terminate"}


def build() -> App:
    """The application: verbs by name, everything else imported later."""
    app = App(
        name="crawlctl",
        help="Run crawls and know the truth about them.",
        help_epilogue=session.HELP,
        help_format="markdown",
        version=session.installed,
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        # Lists would get a `--empty-NAME` beside them, which nobody needs.
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
        ("webhook", WEBHOOK, "Webhooks: others are told what happens, signed."),
        ("db", DB, "The database."),
        ("cluster", CLUSTER, "The Kubernetes cluster."),
    )
    for group, verbs, text in groups:
        below = App(
            name=group, help=text, group="Runs" if group in ("crawler", "manager", "graph", "schedule") else "Services"
        )
        for name, (function, line) in verbs.items():
            below.command(f"{ROOM}.{function}", name=name, help=line)
        app.command(below)
    return app


def check_words(words: Sequence[str]) -> None:
    """Raise ``CommandFailed`` for a word whose bytes are no text: it could be sent nowhere and written nowhere."""
    for place, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode("utf-8", "backslashreplace").decode()
            cure = "write it in UTF-8; a file with such a name has to be renamed"
            raise CommandFailed(Exit.USAGE, f"argument {place}: {shown!r} is no text", None, cure) from None


def run(words: Sequence[str]) -> int:
    """Carry out one command line; the exit code. Problems are told on standard error, never as a traceback."""
    try:
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
    return int(result) if isinstance(result, int) else Exit.DONE


def _fail(code: int, text: str) -> int:
    print(f"crawlctl: {output.clean(text, lines=True)}", file=sys.stderr)
    return code


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the console script; other programs give the words themselves."""
    exits.leave(run(sys.argv[1:] if words is None else words))


if __name__ == "__main__":
    main()
