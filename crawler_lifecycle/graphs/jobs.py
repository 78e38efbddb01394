"""Turns the functions, workers, crawls and managers that users write into jobs for the spec of a
step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.crawlers.arguments import as_text
from crawler_lifecycle.domain.crawlers.importable import importable_name
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import ChildTask, Limits, RunRequest
from crawler_lifecycle.domain.unknown import advise
from crawler_lifecycle.domain.values import to_json
from crawler_lifecycle.features.graphs.domain.spec import StepKind

#: The options of a step that can also be given with its job.
JOB_OPTIONS = (
    "timeout_s",
    "max_attempts",
    "backoff_s",
    "priority",
    "not_before",
    "queue",
    "resources",
)
#: The priority of a step (0 is first, 9 is last) by the priority of a run (1 is first, 5 is last).
STEP_PRIORITY = {run: 2 * (run - 1) for run in range(1, 6)}
#: The fields of a run that the graph itself sets.
_OF_THE_GRAPH = ("run_id", "rerun", "request_id", "parent", "code")
_RUN_FIELDS = {field.name for field in fields(RunRequest)} - {"crawler", "args", *_OF_THE_GRAPH}

C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class NewJob:
    """The job of a step, with the step options that were given with the job.

    >>> from crawler_lifecycle.graphs import crawl
    >>> crawl("shop.com").having(max_attempts=3).options
    {'max_attempts': 3}
    """

    kind: StepKind
    job: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def having(self, **options: Any) -> NewJob:
        """Return the same job with these options added or replaced.

        Raises ``InvalidRequest`` for an unknown option.
        """
        return replace(self, options={**self.options, **step_options(options)})


def crawl(name: str, *, args: Mapping[str, Any] | None = None, **request: Any) -> NewJob:
    """Return a job that runs a crawler. Raises ``InvalidRequest``.

    - ``name`` is the crawler.
    - ``args`` are its arguments. A value can be a number, and an argument that is ``None`` is left
      out.
    - ``request`` contains further fields of ``RunRequest`` (``settings``, ``tasks``, ``limits``,
      ``priority`` …). ``limits``, ``resources`` and each task can be dictionaries.

    >>> from crawler_lifecycle.graphs import crawl
    >>> crawl("shop.com", args={"page": 7}, limits={"run_timeout_s": 3600.0}).job
    {'crawler': 'shop.com', 'limits': {'run_timeout_s': 3600.0}, 'args': {'page': '7'}}
    """
    for key in request:
        if key in _OF_THE_GRAPH:
            raise refusal(
                key, request[key], "leave it out: the graph sets this field of its crawls"
            )
        if key not in _RUN_FIELDS:
            raise refusal(
                key,
                request[key],
                f"a run does not have this field; {advise(key, sorted(_RUN_FIELDS))}",
            )
    given = dict(request)
    if args:
        given["args"] = {
            str(name): as_text(value) for name, value in args.items() if value is not None
        }
    built = dict(given)
    for key, kind in (("limits", Limits), ("resources", Resources)):
        if isinstance(built.get(key), Mapping):
            built[key] = _made(key, kind, built[key])
    if isinstance(built.get("tasks"), Sequence):
        built["tasks"] = [
            _made("tasks", ChildTask, task) if isinstance(task, Mapping) else task
            for task in built["tasks"]
        ]
    checked = RunRequest(crawler=name, **built)
    job = {"crawler": name} | {field: _plain(getattr(checked, field)) for field in given}
    options = {"priority": STEP_PRIORITY[checked.priority]} if "priority" in given else {}
    return NewJob(StepKind.CRAWL, job, options)


def manager(
    plan: type | str,
    *,
    argv: Sequence[str] = (),
    name: str | None = None,
    flow_id: str | None = None,
    tags: Sequence[str] = (),
) -> NewJob:
    """Return a job that runs a crawl manager.

    - ``plan`` is its class, or ``module:Class``.
    - ``argv`` are the words of its command line.
    - ``name`` is its name. The default is the name of its class.
    - ``flow_id`` is its flow. The default is the flow of the graph.
    - ``tags`` are the tags of the manager.

    >>> from crawler_lifecycle.graphs import manager
    >>> manager("shops.managers:Shops", argv=["--country", "de"], flow_id="2026-11").job
    {'plan': 'shops.managers:Shops', 'options': {'argv': ['--country', 'de']}, 'flow_id': '2026-11'}
    """
    words = {"name": name, "flow_id": flow_id, "tags": list(tags)}
    job = {
        "plan": plan if isinstance(plan, str) else importable_name(plan),
        "options": {"argv": [str(word) for word in argv]},
        **{word: value for word, value in words.items() if value},
    }
    return NewJob(StepKind.MANAGER, job)


def approval(*, timeout: float | None = None) -> NewJob:
    """Return a job that waits until somebody approves or rejects it (``crawlctl graph approve``).

    - ``timeout`` is the number of seconds after which a step without a decision is discarded. By
      default, the step waits without limit.

    The result has ``approved``, ``by``, ``at`` and ``note``. If a person rejects the step, it is
    discarded.

    >>> from crawler_lifecycle.graphs import Workflow, approval, crawl
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> workflow = Workflow().add("review", approval(timeout=86_400))
    >>> workflow = workflow.add("publish", crawl("feed"), "review")
    >>> with in_memory(approvals={"review": True}):
    ...     print(workflow.start().wait().state)
    completed
    """
    return NewJob(StepKind.APPROVAL, {} if timeout is None else {"timeout_s": timeout})


def function(
    called: Callable[..., Any], style: str, args: Mapping[str, Any] | None = None, **more: Any
) -> NewJob:
    """Return a job that calls a function of a module.

    ``style`` defines how it is called: ``plain`` with ``args`` by name, ``cascade`` with the
    context, and ``item`` with an item and the context. Raises ``InvalidRequest`` for a lambda or a
    nested function, and ``NoValue`` for arguments that cannot be written as JSON.
    """
    job = {"call": importable_name(called), "style": style, "label": called.__name__}
    _check_signature(called, style, args or {})
    if args:
        job["args"] = to_json(dict(args), "args")
    return NewJob(StepKind.FUNCTION, job | more)


def _check_signature(called: Callable[..., Any], style: str, args: Mapping[str, Any]) -> None:
    given = {"cascade": ["context"], "item": ["item", "context"]}.get(style, [])
    try:
        inspect.signature(called).bind(*given, **(args if style == "plain" else {}))
    except TypeError as error:
        how = f"{called.__name__}({', '.join(given or [f'{name}=…' for name in args])})"
        raise InvalidRequest(
            f"it is called as {how}: {error}; change its parameters or its arguments"
        ) from None
    except ValueError:  # some functions written in C have no signature
        return


def worker(**options: Any) -> Callable[[C], C]:
    """Return a decorator for a class with a method ``process(self, job)``. Then ``new(args,
    **options)`` creates a job.

    ``options`` are the defaults of each job: options of a step, ``scheduled_at``, ``scheduled_in``
    (seconds) and ``meta``.

    >>> from crawler_lifecycle.graphs import Record, Workflow, worker
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> @worker(max_attempts=3)
    ... class Double:
    ...     def process(self, job):
    ...         return Record(2 * job.args["n"])
    >>> with in_memory():
    ...     workflow = Workflow().add("twice", Double.new({"n": 21})).start()
    ...     _ = workflow.wait()
    ...     print(workflow.get_recorded("twice"))
    42
    """
    step_options({name: value for name, value in options.items() if name != "meta"})

    def decorated(cls: C) -> C:
        if not callable(getattr(cls, "process", None)):
            raise InvalidRequest(
                f"{cls.__name__}: the class has no method process(self, job); add one"
            )
        made: Any = cls
        made.new = classmethod(_new)
        made.worker_options = options
        return cls

    return decorated


def _new(cls: Any, /, args: Mapping[str, Any] | None = None, **options: Any) -> NewJob:
    """Return a job of this worker, whose ``process`` finds the arguments in ``job.args``."""
    chosen = {**cls.worker_options, **options}
    meta = chosen.pop("meta", None)
    job = {"call": importable_name(cls), "style": "worker", "label": cls.__name__}
    for name, value in (("args", args), ("meta", meta)):
        if value:
            job[name] = to_json(dict(value), name)
    return NewJob(StepKind.FUNCTION, job).having(**chosen)


def job_of(thing: Any, args: Mapping[str, Any] | None = None, style: str = "plain") -> NewJob:
    """Return the job for a function, a worker class or a ``NewJob``.

    Raises ``InvalidRequest`` for anything else.
    """
    if isinstance(thing, NewJob):
        found = thing
    elif hasattr(thing, "worker_options"):
        return _new(thing, args)
    elif callable(thing) and not isinstance(thing, type):
        return function(thing, style, args)
    else:
        fix = "give a function, a worker's .new(…), crawl(…), manager(…), approval(…) or a Workflow"
        raise InvalidRequest(f"job: {thing!r:.100} cannot be the job of a step; {fix}")
    if args:
        raise InvalidRequest(
            "args: only a function takes them; leave them out, this job has its own arguments"
        )
    return found


def step_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as fields of a ``StepSpec``.

    Raises ``InvalidRequest`` for an unknown option.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "scheduled_at":
            found["not_before"] = value
        elif name in ("schedule_in", "scheduled_in"):
            try:
                found["not_before"] = datetime.now(UTC) + (
                    value if isinstance(value, timedelta) else timedelta(seconds=value)
                )
            except (TypeError, OverflowError):
                raise refusal(name, value, "give seconds, or a timedelta") from None
        elif name == "queue":
            found[name] = None if value == "default" else value
        elif name == "resources":
            found[name] = _alternatives(value)
        elif name in JOB_OPTIONS:
            found[name] = value
        else:
            raise refusal(
                name,
                value,
                f"a step does not have this option; use one of {', '.join(JOB_OPTIONS)}",
            )
    return found


def amount(name: str, value: Any) -> str:
    """Return an exact amount of a resource as a string for a spec.

    Raises ``InvalidRequest`` for a ``float``.
    """
    if isinstance(value, float) or not isinstance(value, int | str | Fraction | Decimal):
        raise refusal(
            f"resources: {name}",
            value,
            'give a whole number, a Fraction, or a string such as "1/3" or "0.5"',
        )
    return str(Fraction(value)) if isinstance(value, Decimal) else str(value)


def _alternatives(value: Any) -> tuple[dict[str, str], ...]:
    several = [value] if isinstance(value, Mapping) else value
    if not isinstance(several, Sequence) or not all(isinstance(job, Mapping) for job in several):
        raise refusal(
            "resources",
            value,
            'give amounts by name, such as {"browser": 1}, or a list of alternatives',
        )
    return tuple({str(name): amount(name, job[name]) for name in job} for job in several)


def _made(name: str, kind: type, given: Mapping[str, Any]) -> Any:
    try:
        return kind(**given)
    except TypeError:
        raise refusal(
            name, given, f"give only {', '.join(field.name for field in fields(kind))}"
        ) from None


def _plain(value: Any) -> Any:
    """Return a field of a request as JSON, omitting values that equal their defaults."""
    if is_dataclass(value):
        default = {field.name: field.default for field in fields(value)}
        found = {name: _plain(getattr(value, name)) for name in default}
        return {name: inner for name, inner in found.items() if inner != default[name]}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return dict(value) if isinstance(value, Mapping) else value
