"""Jobs of a crawl manager, which are made from yields, overrides and the manager's options (S-31,
S-50), and their retries.

A class gives a mapping of Python values; a ``Job`` contains only strings. The functions raise
``InvalidRequest`` with the field, the value and the fix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from crawler_lifecycle.domain.bounds import check_name, check_number, check_text, refusal
from crawler_lifecycle.domain.code import VERSION_MAX
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import TAG_MAX, TAGS_MAX

from .manager import BUILT_IN, Job, job_text
from .scrapy_cloud import UNITS

#: Keys of a yield or an override that are not arguments of the spider.
PARAMS = (
    "units",
    "tags",
    "job_settings",
    "project_id",
    "spider_args",
    "priority",
    "pool",
    "version",
)
#: The maximum number of tags that a manager itself adds to a job: flow, parent, number, and the
#: source of a retry.
_OUR_TAGS = 4
SPIDER_MAX = 200
#: The maximum number of bytes of JSON for one job's arguments and settings.
JOB_BYTES = 64 * 1024
_DELAY_MAX_S = 366 * 86_400
_JOBSEQ = re.compile(r"JOBSEQ=([0-9]{1,18})(?:\.r([0-9]{1,9}))?")
RETRIED_FROM = "RETRIED_FROM="
#: Prefixes of tags that only the manager sets. Such tags in an override are ignored.
_SET_BY_MANAGER = ("JOBSEQ=", "FLOW_ID=", "PARENT_NAME=")


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """The manager's options that apply to every job."""

    spider: str | None = None
    spider_args: Mapping[str, Any] = field(default_factory=dict)
    job_settings: Mapping[str, Any] = field(default_factory=dict)
    units: int | None = None
    project_id: str | None = None
    tags: Sequence[str] = ()
    """Tags of all jobs."""
    priority: int | None = None
    pool: str | None = None
    version: str | None = None


def params_of_yield(given: object) -> dict[str, Any]:
    """Return a yield of ``set_parameters_gen`` as an override (S-50).

    Arguments in ``spider_args`` override arguments at the top level. The result is a deep copy
    (S-D7).
    """
    if not isinstance(given, Mapping):
        raise refusal("yield", given, 'yield a dictionary of spider arguments, such as {"page": 1}')
    params: dict[str, Any] = deepcopy(dict(given))
    spider_args = {
        name: params.pop(name) for name in list(params) if name not in PARAMS and name != "spider"
    }
    return {
        **params,
        "spider_args": {**spider_args, **_mapping("spider_args", params.get("spider_args"))},
    }


def override_of(given: object) -> dict[str, Any]:
    """Return a copy of an override that a class returned; ``None`` becomes an empty override."""
    if given is not None and not isinstance(given, Mapping):
        raise refusal(
            "job_args_override", given, "give a dictionary with spider_args, tags, units …, or None"
        )
    return dict(given or {})


def merged(override: Mapping[str, Any], spider: str | None, defaults: JobDefaults) -> Job:
    """Return the effective job of an override (S-31).

    Arguments come from the manager's options, from the other keys of the override, and from its
    ``spider_args``; later sources override earlier ones. Settings of the override replace settings
    of the options. Units of the options apply only if the override has none.
    """
    beside = {name: override[name] for name in override if name not in PARAMS and name != "spider"}
    spider_args = {
        **defaults.spider_args,
        **beside,
        **_mapping("spider_args", override.get("spider_args")),
    }
    settings = {**defaults.job_settings, **_mapping("job_settings", override.get("job_settings"))}
    given = {name: value for name, value in override.items() if value is not None}
    units = given.get("units", defaults.units)
    check_number("units", units, UNITS)
    priority = given.get("priority", defaults.priority)
    if priority is not None:
        check_number("priority", priority)
    pool = given.get("pool", defaults.pool)
    check_name("pool", pool, or_none=True)
    version = given.get("version", defaults.version)
    check_text("version", version, VERSION_MAX)
    job = Job(
        spider=_spider(spider or override.get("spider") or defaults.spider),
        spider_args=_texts("spider_args", spider_args),
        job_settings=_texts("job_settings", settings),
        tags=_tags(override.get("tags"), defaults.tags),
        units=units,
        project_id=_project(given.get("project_id", defaults.project_id)),
        priority=priority,
        pool=pool,
        version=version,
    )
    if (size := len(json.dumps([job.spider_args, job.job_settings]))) > JOB_BYTES:
        raise InvalidRequest(
            f"spider_args: {size} bytes of JSON with the settings are too many; give {JOB_BYTES}"
        )
    return job


def base_of(plan: str, options: Mapping[str, Any]) -> Job:
    """Return the common fields of jobs that users add, from the options of their manager.

    Only the built-in manager has its spider among the options. For other classes, each job names
    its spider.
    """
    argv = options.get("argv")
    argv = [str(word) for word in argv] if isinstance(argv, list) else []
    given = options_of(argv)
    units, priority = (
        int(text) if (text := given.get(name, "")).isascii() and text.isdecimal() else None
        for name in ("--units", "--priority")
    )
    return Job(
        spider=argv[0] if plan == BUILT_IN and argv else "",
        spider_args=_object(given.get("--spider-args")),
        job_settings=_object(given.get("--job-settings")),
        units=units,
        project_id=given.get("--project-id"),
        priority=priority,
        pool=given.get("--pool"),
        version=given.get("--version"),
    )


def laid_over(base: Job, job: Job) -> Job:
    """Return a job that a user added, with the manager's options (``base``) as defaults."""
    return Job(
        spider=job.spider or base.spider,
        spider_args={**base.spider_args, **job.spider_args},
        job_settings={**base.job_settings, **job.job_settings},
        tags=job.tags,
        units=job.units if job.units is not None else base.units,
        project_id=job.project_id or base.project_id,
        priority=job.priority or base.priority,
        pool=job.pool or base.pool,
        version=job.version or base.version,
    )


def params_of(job: Job) -> dict[str, Any]:
    """Return a copy of a job in the form for hooks and predicates, with the keys of
    ``FullJobParams``.
    """
    return {name: value for name, value in asdict(job).items() if value is not None}


def retry_params(
    params: Mapping[str, Any], retry: int, key: str, override: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of a job's next try (S-58, S-59).

    ``override`` is the result of ``get_retry_override``.
    """
    if not isinstance(override, Mapping):
        raise refusal(
            "get_retry_override", override, "return a dictionary of the changed parameters, or {}"
        )
    change = deepcopy(dict(override))
    made = deepcopy(dict(params))
    tags = [tag for tag in made.get("tags") or [] if not str(tag).startswith(RETRIED_FROM)]
    tags.append(f"{RETRIED_FROM}{key}")
    tags += [tag for tag in change.pop("tags", None) or [] if tag not in tags]
    spider_args = {**(made.get("spider_args") or {}), "retry_num": str(retry)}
    spider_args |= _mapping("spider_args", change.pop("spider_args", None))
    settings = {
        **(made.get("job_settings") or {}),
        **_mapping("job_settings", change.pop("job_settings", None)),
    }
    return {**made, **change, "tags": tags, "spider_args": spider_args, "job_settings": settings}


def retry_delay(first_s: float, factor: float, most_s: float, retry: int) -> float:
    """Return the seconds to wait before a retry.

    The first delay is multiplied by the factor for each further retry. The result is limited to
    ``most_s`` seconds and to a year.
    """
    try:
        return min(first_s * factor ** (retry - 1), most_s, _DELAY_MAX_S)
    except OverflowError:
        return min(most_s, _DELAY_MAX_S)


def jobseq_of(tags: Iterable[str]) -> tuple[int, int] | None:
    """Return the number and the retry from the ``JOBSEQ`` tag of a job (S-57), or ``None`` if there
    is no such tag.
    """
    for tag in tags:
        if found := _JOBSEQ.fullmatch(tag):
            return int(found[1]), int(found[2] or 0)
    return None


def child_tags(
    own: Iterable[str], given: Iterable[str], flow_id: str | None, name: str | None
) -> list[str]:
    """Return the tags of a job and of its manager, sorted and without duplicates (S-07)."""
    tags = {*own, *given}
    if flow_id:
        tags.add(f"FLOW_ID={flow_id}")
        if name:
            tags.add(f"PARENT_NAME={name}")
    return sorted(tags)


def check_tag(field_name: str, tag: object) -> str:
    """Return the tag. Raises ``InvalidRequest`` unless a run can have it."""
    check_text(field_name, tag, TAG_MAX, needed=True)
    return str(tag)


def _spider(spider: object) -> str:
    if spider is None or spider == "":
        raise InvalidRequest(
            "spider: missing; set the class attribute spider, or give each job a key 'spider'"
        )
    check_text("spider", spider, SPIDER_MAX, needed=True)
    return str(spider)


def _mapping(field_name: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refusal(field_name, value, "give a dictionary")
    return value


def _texts(field_name: str, values: Mapping[Any, Any]) -> dict[str, str]:
    """Return the values as strings, by name. Values of ``None`` are left out."""
    texts = {}
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise refusal(f"{field_name} key", name, "names are strings")
        _check_text(f"{field_name} key", name)
        if value is not None:
            texts[name] = _check_text(
                f"{field_name}.{name[:80]}", job_text(f"{field_name}.{name[:80]}", value)
            )
    return texts


def _check_text(field_name: str, text: str) -> str:
    """Return the string. Raises ``InvalidRequest`` unless every process and database accepts it."""
    if "\0" in text or (not text.isascii() and text != text.encode("utf-8", "replace").decode()):
        raise refusal(field_name, text, "leave out NUL characters and lone surrogates")
    return text


def _tags(tags: object, given: Sequence[str]) -> list[str]:
    """Return the job's own tags, excluding the tags that its manager sets."""
    if tags is None:
        return []
    if not isinstance(tags, list | tuple | set | frozenset):
        raise refusal("tags", tags, 'give a list of strings, such as ["A=1"]')
    ordered = sorted(tags, key=str) if isinstance(tags, set | frozenset) else tags
    checked = [check_tag(f"tags[{n}]", tag) for n, tag in enumerate(ordered)]
    own = [
        tag
        for tag in dict.fromkeys(checked)
        if not tag.startswith(_SET_BY_MANAGER) and tag not in given
    ]
    if len(own) > (most := TAGS_MAX - _OUR_TAGS - len(given)):
        raise InvalidRequest(f"tags: {len(own)} tags are too many; give at most {most}")
    return own


def _project(project_id: object) -> str | None:
    if project_id is None:
        return None
    if (
        isinstance(project_id, bool)
        or not isinstance(project_id, int | str)
        or not 0 < len(str(project_id)) <= 100
    ):
        raise refusal("project_id", project_id, "give the number or the alias of a project")
    return str(project_id)


def options_of(argv: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line with their values, which follow a space or an equals
    sign.
    """
    separate = {name: value for name, value in pairwise(argv) if name.startswith("--")}
    return separate | {
        name: value
        for name, _, value in (word.partition("=") for word in argv if word.startswith("--"))
        if value
    }


def _object(text: str | None) -> dict[str, str]:
    """Return the values of a JSON object on a command line as strings. Invalid JSON gives no
    values, because the class refuses it.
    """
    try:
        found = json.loads(text or "{}")
        return {name: job_text(name, value) for name, value in found.items() if value is not None}
    except (AttributeError, ValueError, InvalidRequest):
        return {}
