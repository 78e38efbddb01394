"""shub-workflow's ``GraphManager``, ``Task`` and ``SpiderTask``, which make a ``Workflow``.

Each task becomes a crawl. The crawler has the name of the spider, or the name of the script with
the kind ``command``. If several tasks have the same next task, the next task waits for all of them.
Features that graphs do not have are refused. docs/graphs.md lists the names that are left out.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.unknown import suggest

from .jobs import NewJob, crawl
from .workflow import AnyOrder, Workflow, new_id

#: The package and version whose names this module has.
FOLLOWS = "shub-workflow 1.14.44.3"
#: The exit codes of ``run``, which are the same as those of ``crawlctl``.
_FAILED = 5
_STOPPED = 6


class BaseTask:
    """A node of the graph. The method ``jobs`` returns the node's jobs."""

    def __init__(
        self,
        task_id: str,
        *,
        tags: Sequence[str] | None = None,
        units: int | None = None,
        retries: int = 1,
        **unknown: Any,
    ) -> None:
        for name in (option for option, value in unknown.items() if value):
            raise refusal(
                f"task {task_id!r}: {name}",
                unknown[name],
                _INSTEAD.get(name, "no parameter has this name"),
            )
        if not task_id or task_id == "retry" or "." in task_id:
            raise refusal("task_id", task_id, 'give a string without a dot, and not "retry"')
        self.task_id = task_id
        self.tags = list(tags or ())
        self.units = units
        self.retries = retries
        self.next_tasks: list[BaseTask] = []
        self.waits_for: list[BaseTask] = []
        self.required_resources: list[Mapping[str, Any]] = []

    def add_next_task(self, task: BaseTask) -> None:
        """Add a task that starts after this task has succeeded."""
        self.next_tasks.append(task)

    def add_wait_for(self, task: BaseTask) -> None:
        """Let this task wait until another task has ended, successfully or not."""
        self.waits_for.append(task)

    def add_required_resources(self, resources_dict: Mapping[str, Any]) -> None:
        """Add an alternative of the resources that the task needs.

        All jobs of the task share the amounts.
        """
        self.required_resources.append(resources_dict)

    def jobs(self, tags: Sequence[str]) -> list[NewJob]:
        """Return the task's jobs. Subclasses must implement this method."""
        raise NotImplementedError

    def _crawl(
        self, name: str, args: Mapping[str, Any], tags: Sequence[str], **more: Any
    ) -> NewJob:
        if self.units:
            more["resources"] = {"memory": f"{self.units}Gi"}
        return crawl(name, args=args, tags=sorted({*tags, *self.tags}), **more)


_INSTEAD = {
    "on_finish": (
        "leave it out; a function can choose by the outcome: Workflow.add_graft with "
        "ignore_discarded=True"
    ),
    "wait_time": "leave it out; the step of a Workflow takes not_before",
    "retry_args": "leave it out; a retry resumes the run with its own arguments",
    "project_id": "leave it out; there are no projects, so name the crawler",
}


class Task(BaseTask):
    """A task that runs a script with options.

    Each line of ``command`` is one run; all lines run in parallel.
    """

    def __init__(
        self, task_id: str, command: str, init_args: Iterable[Any] = (), **options: Any
    ) -> None:
        super().__init__(task_id, **options)
        if "{{" in command or "{%" in command:
            raise refusal(
                f"task {task_id!r}: command",
                command,
                "templates are not supported; give the final command lines",
            )
        self.command = command
        self.init_args = [str(word) for word in init_args]

    def jobs(self, tags: Sequence[str]) -> list[NewJob]:
        lines = [shlex.split(line) for line in self.command.splitlines() if line.strip()]
        found = []
        for n, (script, *words) in enumerate(lines):
            name = script.removeprefix("py:").removesuffix(".py")
            own = f"{self.task_id}.{n}" if len(lines) > 1 else self.task_id
            found.append(
                self._crawl(name, self._args([*words, *self.init_args]), [*tags, f"TASK_ID={own}"])
            )
        return found

    def _args(self, words: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        left = iter(words)
        for word in left:
            name, equals, value = word.partition("=")
            if not name.startswith("--"):
                raise refusal(
                    f"task {self.task_id!r}: init_args",
                    word,
                    "give options: --name=value, or --name value",
                )
            found[name[2:].replace("-", "_")] = value if equals else next(left, "true")
        return found


class SpiderTask(BaseTask):
    """A task that runs a spider with arguments."""

    _OPTIONS = ("tags", "units", "retries", *_INSTEAD)

    def __init__(
        self, task_id: str, spider: str, job_settings: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        super().__init__(
            task_id, **{name: more.pop(name) for name in self._OPTIONS if name in more}
        )
        self.spider = spider
        self.job_settings = job_settings or {}
        self.spider_args = more

    def jobs(self, tags: Sequence[str]) -> list[NewJob]:
        settings = {"settings": {name: str(value) for name, value in self.job_settings.items()}}
        more = settings if self.job_settings else {}
        return [
            self._crawl(self.spider, self.spider_args, [*tags, f"TASK_ID={self.task_id}"], **more)
        ]


class GraphManager:
    """Base class of users' graphs.

    A subclass defines ``configure_workflow``, which returns the root tasks.

    >>> from crawler_lifecycle.graphs.shub import GraphManager, SpiderTask
    >>> class Nightly(GraphManager):
    ...     name = "nightly"
    ...     def configure_workflow(self):
    ...         shop = SpiderTask("shop", "shop.com", country="de")
    ...         shop.add_next_task(SpiderTask("feed", "feed.com"))
    ...         return [shop]
    >>> Nightly(["--root-jobs"]).workflow().to_graph().edges
    [('shop', 'feed')]
    """

    name: str | None = None
    default_max_jobs = 1000

    def __init__(self, argv: Sequence[str] | None = None) -> None:
        for hook in ("add_argparser_options", "bad_outcome_hook", "on_close", "on_start"):
            if hasattr(self, hook):
                raise InvalidRequest(
                    f"{hook}: a graph never calls it; docs/graphs.md explains what to use instead"
                )
        self.args = self.parser().parse_args(sys.argv[1:] if argv is None else argv)
        if bool(self.args.root_jobs) == bool(self.args.starting_job):
            self.parser().error("give either --root-jobs or --starting-job, and not both")
        self.flow_id = self.args.flow_id or new_id()

    def configure_workflow(self) -> Iterable[BaseTask]:
        raise NotImplementedError

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument(
            "--root-jobs", action="store_true", help="start with the tasks of configure_workflow"
        )
        parser.add_argument(
            "--starting-job", "-s", action="append", default=[], help="start with this task"
        )
        parser.add_argument(
            "--only-starting-jobs", action="store_true", help="run no next tasks and no retries"
        )
        parser.add_argument(
            "--skip-job", action="append", default=[], help="skip this task and its next tasks"
        )
        parser.add_argument("--comment", help="this option has no effect")
        parser.add_argument("--flow-id")
        parser.add_argument("--children-tag", "-t", action="append", default=[])
        parser.add_argument("--max-running-jobs", type=int, default=self.default_max_jobs)
        return parser

    def workflow(self) -> Workflow:
        """Return the graph.

        Raises ``SystemExit`` for an unknown task, and ``InvalidRequest`` for an invalid graph.
        """
        if not self.name:
            raise InvalidRequest(
                "name: a GraphManager needs a name; set the attribute name of the class"
            )
        chosen, before = self._reached()
        tags = [*self.args.children_tag, f"FLOW_ID={self.flow_id}", f"PARENT_NAME={self.name}"]
        found = AnyOrder(
            self.name, id=f"{self.name}.{self.flow_id}", max_parallel=self.args.max_running_jobs
        )
        for task in chosen.values():
            deps = [job for job in before.get(task.task_id, ()) if job in chosen]
            deps += [self._after(found, name) for name in task.waits_for if name.task_id in chosen]
            self._add(found, task, deps, tags)
        return found

    def run(self) -> None:
        """Start the graph and wait for its end. Raises ``SystemExit`` unless it completes."""
        workflow = self.workflow().start()
        print(f"graph {workflow.id}", flush=True)
        state = workflow.wait().state
        if state != "completed":
            raise SystemExit(_STOPPED if state == "cancelled" else _FAILED)

    def _reached(self) -> tuple[dict[str, BaseTask], dict[str, list[str]]]:
        """Return the tasks to run by id, and for each next task the ids of the tasks that precede
        it.
        """
        known = dict[str, BaseTask]()
        before = dict[str, list[str]]()
        roots = list(self.configure_workflow())
        everything = list(roots)
        for task in everything:  # the loop appends to the list
            there = known.setdefault(task.task_id, task)
            if there is not task:
                raise InvalidRequest(
                    f"task_id: two tasks have the id {task.task_id!r}; give one of them another id"
                )
            for fromkey in dict.fromkeys(task.next_tasks):
                if task.task_id not in before.setdefault(fromkey.task_id, []):
                    before[fromkey.task_id].append(task.task_id)
                    everything.append(fromkey)
        for name in (*self.args.starting_job, *self.args.skip_job):
            if name not in known:
                self.parser().error(f"there is no task {name!r}; {suggest(name, sorted(known))}")
        begin = [known[name] for name in self.args.starting_job] or roots
        chosen = dict[str, BaseTask]()
        for task in begin:  # the loop appends to the list
            if task.task_id not in chosen and task.task_id not in self.args.skip_job:
                chosen[task.task_id] = task
                begin += [] if self.args.only_starting_jobs else task.next_tasks
        return chosen, before

    @staticmethod
    def _after(found: Workflow, task: BaseTask) -> str:
        """Add a step that completes at the end of the task, successful or not. Return its name."""
        name = f"after {task.task_id}"
        found.add_many(
            name, [], task.task_id, ignore_cancelled=True, ignore_discarded=True, replace=True
        )
        return name

    def _add(self, found: Workflow, task: BaseTask, deps: list[str], tags: list[str]) -> None:
        jobs = task.jobs(tags)
        needs = [
            {name: Fraction(str(n)) / len(jobs) for name, n in resource.items()}
            for resource in task.required_resources
        ]
        tries = 1 if self.args.only_starting_jobs else task.retries + 1
        jobs = [
            job.having(max_attempts=tries, **({"resources": needs} if needs else {}))
            for job in jobs
        ]
        if len(jobs) == 1:
            found.add(task.task_id, jobs[0], deps)
        else:
            found.add_many(task.task_id, jobs, deps)
