"""Crawler definitions (the entries of ``crawlers.yaml``), and the checks of requests against
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, ClassVar

from crawler_lifecycle.domain.bounds import STRICT, check_name, refusal
from crawler_lifecycle.domain.code import NEWEST, CodeVersions, check_names
from crawler_lifecycle.domain.coverage import ExpectedCoverage, OnViolation
from crawler_lifecycle.domain.ends import Ends
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.hosts import host_of
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.retries import DEFAULT, Retries
from crawler_lifecycle.domain.run import Limits, RunRequest, check_sites, check_sizes
from crawler_lifecycle.domain.unknown import advise, suggest
from crawler_lifecycle.runner.item_files import declared

from .arguments import Argument, ArgumentType, check_declared, check_value
from .pod import PodOptions, check_labels, check_secret
from .settings import check_allowed, check_settings

#: Prefixes of variables that a catalogue entry may not set: variables in the process contract, and
#: variables that change which code a process executes.
RESERVED_ENV_PREFIXES = ("CRAWL_", "LD_", "PYTHON", "KUBERNETES_")
#: Arguments that every crawler accepts without a declaration. Managers send the number of a retry
#: in ``retry_num``. A spider that does not declare ``retry_num`` does not receive it
#: (``runner/inject``).
GIVEN_TO_ALL: Mapping[str, Argument] = {"retry_num": Argument(type=ArgumentType.INTEGER)}
#: The maximum length of an entry in the database, as JSON.
DOCUMENT_MAX = 64 * 1024
#: The maximum number of wrong arguments that one error names.
_ERRORS_MAX = 20


class CrawlerKind(StrEnum):
    """The kind of a crawler, which determines how it is started."""

    SCRAPY = "scrapy"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class CrawlerDefinition:
    """One entry in the catalogue. docs/crawlers.md explains each field (section 5.8 of the
    contract).
    """

    __pydantic_config__: ClassVar = STRICT

    name: str
    kind: CrawlerKind = CrawlerKind.SCRAPY
    project: str | None = None
    package: str | None = None
    """The deployed package with the crawler's code. ``project`` is then a folder inside it."""
    spider: str | None = None
    command: list[str] = field(default_factory=list)
    image: str | None = None
    version: str | None = None
    """The name that the author gives to this state of the code."""
    commit: str | None = None
    """The git commit of the code, for images. Project folders have it in their ``.git``."""
    args: dict[str, Argument] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    allow_settings: list[str] = field(default_factory=list)
    """Names of settings that a request may set, in addition to ``settings.DEFAULT``."""
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    stop_signal: str = "SIGTERM"
    resumable: bool = False
    partial_ok: bool = False
    splits: bool | None = None
    """True if tasks with the same arguments divide the work by their index. ``None`` means that the
    entry does not set this field.
    """
    items: Any = True
    """``False`` means that the runner counts no items in feeds, and adds no feed to a Scrapy
    project without feeds. An object defines which files contain items, and how the files are read
    (``runner/item_files.py``).
    """
    limits: dict[str, float | None] = field(default_factory=dict)
    pool: str | None = None
    """The pool for the crawler's runs, unless the request names a pool."""
    sites: list[str] | dict[str, str] = field(default_factory=list)
    """The hosts that the crawler visits. ``{from: start_url}`` takes them from an argument."""
    retries: Retries = field(default_factory=Retries)
    ends: Ends = field(default_factory=Ends)
    """The meanings of the crawler's exit codes and finish reasons."""
    files_max: int | None = None
    expect: dict[str, int | float | dict[str, int | float]] = field(default_factory=dict)
    """The requirements for a run: counts, and shares of items with a value in each field
    (``domain/coverage.py``).
    """
    on_violation: OnViolation = OnViolation.ATTENTION
    kubernetes: PodOptions = field(default_factory=PodOptions)
    number: int | None = None
    """The version of an entry of the database. Only we set it."""

    def __post_init__(self) -> None:
        try:
            self._check()
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.name}: {error}") from None
        Limits(**self.limits)  # type: ignore[arg-type]

    def _check(self) -> None:
        if self.kind is CrawlerKind.COMMAND and not self.command:
            raise InvalidRequest(
                "command: missing; a crawler of kind 'command' needs an argument list"
            )
        if self.kind is CrawlerKind.SCRAPY and self.command:
            raise InvalidRequest("command: not for kind 'scrapy'; give project and spider")
        if self.stop_signal not in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
            fix = "give SIGTERM, SIGINT, SIGQUIT, SIGUSR1 or SIGUSR2"
            raise InvalidRequest(f"stop_signal: {self.stop_signal!r} is not allowed; {fix}")
        check_names(self.version, self.commit)
        if self.package is not None:
            self._check_package()
        if not self.kubernetes.runner:
            self._check_without_runner()
        for key in (*self.env, *self.secrets):
            if key.upper().startswith(RESERVED_ENV_PREFIXES):
                section = "env" if key in self.env else "secrets"
                raise InvalidRequest(
                    f"{section}.{key}: names that begin with {', '.join(RESERVED_ENV_PREFIXES)} "
                    "are reserved; choose another name"
                )
        for key, text in self.secrets.items():
            check_secret(f"secrets.{key}", text)
        check_allowed(self.allow_settings)
        for key, argument in self.args.items():
            check_declared(f"args.{key}", argument)
        check_sizes(_defaults(self), self.settings)
        self.expected.check()
        if self.kind is CrawlerKind.SCRAPY:
            self.ends.check_scrapy()
        if not isinstance(self.items, bool):
            try:
                declared(self.items)
            except ValueError as error:
                raise InvalidRequest(f"items{error}") from None
            if "key" in self.items and not self.kubernetes.runner:
                raise InvalidRequest(
                    "items.key: no items are counted where 'kubernetes.runner' is false; "
                    "remove it, "
                    "or set kubernetes.runner to true"
                )
        check_name("pool", self.pool, or_none=True)
        self._check_sites()
        check_retries(self.retries, self.resources.memory)
        self.kubernetes.check_shm(self.resources.memory or self.kubernetes.requests.memory)
        known = [f.name for f in fields(Limits)]
        unknown = sorted(set(self.limits) - set(known))
        if unknown:
            raise InvalidRequest(f"limits.{unknown[0]}: unknown; known: {', '.join(known)}")

    def _check_package(self) -> None:
        check_name("package", self.package)
        folder = PurePosixPath(self.project or ".")
        if folder.is_absolute() or ".." in folder.parts:
            raise refusal(
                "project", self.project, "give a folder inside the package, such as . or shop"
            )
        if not self.kubernetes.runner:
            raise InvalidRequest(
                "package: our runner fetches the code, so kubernetes.runner must not be false; "
                "remove one of them"
            )

    def _check_sites(self) -> None:
        if isinstance(self.sites, dict):
            source = self.sites.get("from")
            if len(self.sites) != 1 or source not in self.args:
                raise refusal(
                    "sites",
                    self.sites,
                    "give a list of hosts, or from: and an argument that the entry declares",
                )
        else:
            check_sites("sites", self.sites)
            for n, site in enumerate(self.sites):
                host_of(site, f"sites[{n}]")

    def sites_of(self, request: RunRequest) -> list[str]:
        """Return the sites of a request that names none."""
        if not isinstance(self.sites, dict):
            return self.sites
        source = self.sites["from"]
        default = None if source in request.args else self.args[source].default
        return [f"{{{source}}}", *([] if default is None else [default])]

    def _check_without_runner(self) -> None:
        if self.kind is CrawlerKind.SCRAPY:
            raise InvalidRequest(
                "kubernetes.runner: a crawler of kind 'scrapy' needs our runner; leave it out, or "
                "give kind 'command'"
            )
        if self.stop_signal != "SIGTERM":
            raise InvalidRequest(
                f"stop_signal: {self.stop_signal!r} cannot be sent where 'kubernetes.runner' is "
                "false; "
                "leave it out and set the image's STOPSIGNAL"
            )
        if self.expect:
            raise InvalidRequest(
                "expect: nothing is counted where 'kubernetes.runner' is false; remove expect, "
                "or set kubernetes.runner to true"
            )

    @property
    def expected(self) -> ExpectedCoverage:
        """The requirements for the crawler's runs."""
        fail = self.on_violation is OnViolation.FAIL
        return ExpectedCoverage.of(self.expect, fail=fail, watched=self.kind is CrawlerKind.SCRAPY)

    @property
    def spider_name(self) -> str:
        """The spider's name inside its project. The default is the crawler's name."""
        return self.spider or self.name


def unknown(name: object, known: Iterable[str], problem: str | None) -> str:
    """Return the advice about an unknown crawler: the name that was probably meant and the
    catalogue's ``problem``, if any. The crawler may be defined in a newer entry that cannot be
    read.
    """
    advice = suggest(name, sorted(known))
    return f"{advice}; {problem}" if problem else advice


def unknown_argument(crawler: CrawlerDefinition, name: str) -> str:
    """Return the message about an argument that the crawler does not declare."""
    advice = advise(name, sorted(crawler.args))
    return f"unknown argument of crawler {crawler.name!r}; {advice}"


def check_retries(policy: Retries, memory: str | None = None) -> None:
    """Raise ``InvalidRequest`` for keys in an operator's policy that contradict each other, or that
    are not labels.
    """
    policy.over(DEFAULT).check(memory)
    if policy.retry_on is not None:
        check_labels("retries.retry_on.node_selector", policy.retry_on.node_selector)


def _defaults(crawler: CrawlerDefinition) -> dict[str, str]:
    return {name: arg.default for name, arg in crawler.args.items() if arg.default is not None}


def effective_args(crawler: CrawlerDefinition, *layers: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments of one task: the defaults, overridden by each layer in turn.

    Raises ``InvalidRequest`` with all undeclared arguments, values that their declarations do not
    allow, and missing required arguments.
    """
    merged = _defaults(crawler)
    errors: list[str] = []
    for layer in layers:
        for name, value in layer.items():
            merged[name] = value
            try:
                _check_argument(crawler, name, value)
            except InvalidRequest as error:
                errors.append(str(error))
    for name, arg in crawler.args.items():
        if arg.required and name not in merged:
            errors.append(f"args.{name}: missing; crawler {crawler.name!r} requires it")
    if errors:
        raise InvalidRequest(*errors[:_ERRORS_MAX])
    return merged


def _check_argument(crawler: CrawlerDefinition, name: str, value: str) -> None:
    declared = crawler.args.get(name) or GIVEN_TO_ALL.get(name)
    if declared is None:
        raise InvalidRequest(f"args.{name}: {unknown_argument(crawler, name)}")
    if "\0" in value:
        raise InvalidRequest(
            f"args.{name}: {value!r} contains a NUL character, which no process can receive"
        )
    check_value(f"args.{name}", declared, value)


def effective_settings(crawler: CrawlerDefinition, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the crawler's settings, overridden by the settings in a request. Raises
    ``InvalidRequest`` for a setting that a request may not set.
    """
    check_settings(settings, crawler.settings, crawler.allow_settings)
    return {**crawler.settings, **settings}


def given_to_task(
    crawler: CrawlerDefinition,
    args: Mapping[str, str],
    settings: Mapping[str, str],
    own: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the arguments and settings for the process of one task.

    ``own`` contains the task's own arguments. Raises ``InvalidRequest`` for all errors, even for
    arguments that are too large, because the catalogue may have changed since the request was
    accepted.
    """
    complete = effective_args(crawler, args, own)
    set_ = {**crawler.settings, **settings}
    check_sizes(complete, set_)
    return complete, set_


def args_of_tasks(
    crawler: CrawlerDefinition, args: Mapping[str, str], tasks: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """Return the complete arguments of each task: the run's arguments, overridden by the task's own
    arguments. Raises ``InvalidRequest``, which names the task by its position unless one of the
    run's arguments is wrong.
    """
    complete = []
    for n, own in enumerate(tasks):
        try:
            complete.append(effective_args(crawler, args, own))
        except InvalidRequest as error:
            texts = []
            for text in error.texts:
                named = text.partition(": ")[0].removeprefix("args.")
                where = "" if named in args and named not in own else f"tasks[{n}]."
                texts.append(where + text)
            raise InvalidRequest(*texts) from None
    return complete


def check_tasks(
    crawler: CrawlerDefinition,
    args: Mapping[str, str],
    settings: Mapping[str, str],
    tasks: Sequence[Mapping[str, str]] | None,
) -> None:
    """Raise ``InvalidRequest`` unless the crawler accepts these arguments, settings and tasks.

    The error names the task. Raise it too for a task whose arguments and settings are too large,
    and for two tasks that would do the same work. ``tasks`` contains each task's own arguments,
    which override the run's arguments.
    """
    if tasks is None:
        effective_args(crawler, args)
    else:
        complete = args_of_tasks(crawler, args, tasks)
        if crawler.splits is False:
            _refuse_the_same_twice(crawler, complete)
    effective_settings(crawler, settings)
    check_sizes({**_defaults(crawler), **args}, {**crawler.settings, **settings}, tasks)


def check_request(crawler: CrawlerDefinition, request: RunRequest) -> None:
    """Raise the errors of ``check_tasks`` for a request with its tasks."""
    tasks = None if request.tasks is None else [task.args for task in request.tasks]
    check_tasks(crawler, request.args, request.settings, tasks)


def _refuse_the_same_twice(crawler: CrawlerDefinition, tasks: Sequence[Mapping[str, str]]) -> None:
    first: dict[tuple[tuple[str, str], ...], int] = {}
    for n, own in enumerate(tasks):
        before = first.setdefault(tuple(sorted(own.items())), n)
        if before != n:
            raise InvalidRequest(
                f"tasks[{n}]: the same arguments as tasks[{before}], and crawler {crawler.name!r} "
                "does not split its "
                "work, so both would do the same work; start it without tasks, or give each task "
                "its own arguments"
            )


def completed(
    request: RunRequest, crawler: CrawlerDefinition, versions: CodeVersions
) -> RunRequest:
    """Return the request, with the crawler's limits, pool and sites where the caller gave none, and
    with the code that executes.

    Raises ``InvalidRequest`` if the request's retry policy contradicts the crawler's policy, or if
    there is no such version.
    """
    request = pinned(request, crawler, versions)
    if request.retries is not None:
        resources = request.resources.over(crawler.resources)
        request.retries.over(crawler.retries).over(DEFAULT).check(resources.memory)
    request = with_limits(request, crawler.limits)
    if crawler.sites and not request.sites:
        request = replace(request, sites=crawler.sites_of(request))
    return request if request.pool or not crawler.pool else replace(request, pool=crawler.pool)


def pinned(request: RunRequest, crawler: CrawlerDefinition, versions: CodeVersions) -> RunRequest:
    """Return the request with the version that it names, or else the current one, and its digest.

    Raises ``InvalidRequest`` if there is no such version, or if the sender gave what only
    we set.
    """
    for name in ("code", "canary"):
        if getattr(request, name) is not None:
            raise refusal(name, getattr(request, name), "leave it out and name the version")
    if crawler.package is not None:
        wanted = None if request.version == NEWEST else request.version
        code = versions.find(crawler.package, wanted)
        canary = versions.open_canary(crawler.package) if request.version is None else None
        return replace(request, version=code.version, code=code.digest, canary=canary)
    if crawler.number is not None:
        wanted = request.version
        canary = versions.open_canary(crawler.name, of_entry=True) if wanted is None else None
        if wanted is None or wanted == NEWEST:
            wanted = str(crawler.number)
        versions.check_entry(crawler.name, wanted)
        return replace(request, version=wanted, canary=canary)
    if request.version is not None:
        raise refusal(
            "version",
            request.version,
            f"crawler {crawler.name!r} executes no deployed package, and its entry is in a file, "
            "so leave it out",
        )
    return request


def overridden(stored: CrawlerDefinition, file: CrawlerDefinition) -> CrawlerDefinition:
    """Return the entry of a file that names a package, with what the deployment of the package
    declared and the file leaves out: arguments, spider and folder. Any other entry of a file stays
    as it is.
    """
    if file.package is None:
        return file
    project = file.project or stored.project
    pod = file.kubernetes
    return replace(
        file,
        args=file.args or stored.args,
        spider=file.spider or stored.spider,
        project=project,
        kubernetes=replace(pod, project=pod.project or project),
    )


def merged(
    file: Iterable[CrawlerDefinition], stored: Mapping[str, CrawlerDefinition]
) -> dict[str, CrawlerDefinition]:
    """Return the crawlers of a file by name, followed by those that only the database has."""
    found = {
        crawler.name: overridden(stored[crawler.name], crawler)
        if crawler.name in stored
        else crawler
        for crawler in file
    }
    return {**found, **{name: entry for name, entry in stored.items() if name not in found}}


def with_limits(request: RunRequest, limits: Mapping[str, float | None]) -> RunRequest:
    """Return the request, with these limits in place of the general defaults. Unknown names are
    ignored. Even a limit that the caller explicitly set to the general default is replaced, because
    the two cases cannot be distinguished.
    """
    general = Limits()
    known = {f.name for f in fields(Limits)}
    own: dict[str, Any] = {
        name: value
        for name, value in limits.items()
        if name in known and getattr(request.limits, name) == getattr(general, name)
    }
    return replace(request, limits=replace(request.limits, **own)) if own else request
