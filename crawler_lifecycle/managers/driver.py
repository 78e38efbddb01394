"""Creates an object of a user's class and calls its methods, both in a worker's process and in
``simulate``.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.starts import once
from crawler_lifecycle.features.managers.domain.jobs import JobDefaults, merged, params_of_yield
from crawler_lifecycle.features.managers.domain.manager import (
    CHOICES,
    PAGE_BYTES,
    PAGE_ITEMS,
    Decision,
    Facts,
    Page,
    SourceItem,
)

from .base import BaseLoopScript, BaseScript, option_parser
from .crawl import CrawlManager
from .cycle import Cycle, building
from .generator import GeneratorCrawlManager
from .manager import WorkFlowManager
from .options import OptionParser, parse
from .platform import Platform
from .savepoint import check_state, no_coroutine, undone_on_error, where
from .types import ClassError

if TYPE_CHECKING:
    from asyncio import Runner

#: The maximum number of seconds for reading one page of the source. ``PAGE_S`` is short, because
#: hooks wait for the page. ``ONLY_PAGE_S`` is for a manager without loop_mode, which has one cycle.
#: No hook waits during this cycle, and items that it does not read are never read.
PAGE_S = 1.0
ONLY_PAGE_S = 30.0
#: The maximum number of characters in the sentence about why a manager is waiting. The error of a
#: source may be longer.
_WAITING_MAX = 1000
#: The outcome of a manager whose own class made it fail.
FAILED = "failed"


class Driver:
    """One object of a user's class, from its creation to its end.

    Methods raise ``ClassError`` if the class fails.
    """

    def __init__(
        self, cls: type[BaseScript], platform: Platform, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not issubclass(cls, BaseLoopScript):
            raise ClassError(
                f"{cls.__name__}: the class has no cycles; derive it from a manager or "
                "BaseLoopScript"
            )
        _check_class(cls)
        self._platform = platform
        self._clock = clock
        self._loop: Runner | None = None
        with building(platform):
            self.script = self._user("__init__", cls)
        if not hasattr(self.script, "_cycle"):
            raise ClassError(
                f"{cls.__name__}.__init__ does not call super().__init__(); add the call"
            )
        self._source: Iterator[Any] | None = None
        self._read = 0
        """The number of yields that were read from ``_source``."""
        self._kept = json.dumps(self.script.state, sort_keys=True)
        """The state in the latest decision."""
        self._last: Decision | None = None
        """The decision of the last cycle, or ``None`` before that cycle has ended."""
        self._leaving = False
        """True if the class wants no further cycle, so that only jobs that end are still
        handled.
        """

    def begin(self) -> None:
        """Call ``on_start``, and the resume hooks if another process had the manager before.

        The next decision contains their results.
        """
        script = self.script
        self._platform.entering("on_start")
        self._user("on_start", script.on_start)
        if isinstance(script, WorkFlowManager) and script.is_resumed:
            self._platform.entering("resume_workflow")
            self._user("resume_workflow", script.resume_workflow)
        self._user("on_start", check_state, script.state)

    @property
    def failed_outcomes(self) -> list[str]:
        """The outcomes that are failures for this object. Raises ``ClassError``."""
        given = getattr(self.script, "failed_outcomes", [])
        if not isinstance(given, list | tuple | set | frozenset) or not all(
            isinstance(job, str) for job in given
        ):
            raise ClassError(
                f"failed_outcomes: {given!r:.80} is not allowed; give a list of strings"
            )
        return sorted(given)

    def page(self, after: int) -> Page:
        """Read the yields after this position, within the limits of 500 items, about 256 KiB, and
        ``PAGE_S`` or ``ONLY_PAGE_S``.

        If the generator is already beyond this position, it is started again.
        """
        script = self.script
        if not isinstance(script, GeneratorCrawlManager):
            return Page(position=after, exhausted=True)
        self._platform.entering("set_parameters_gen")
        until = self._clock() + (PAGE_S if script.args.loop_mode else ONLY_PAGE_S)
        size = 0
        items: list[SourceItem] = []
        try:
            defaults = script._defaults()
            if self._source is None or after < self._read:
                self._source = _source_of(script)
                self._read = 0
            while len(items) < PAGE_ITEMS and size < PAGE_BYTES and self._clock() < until:
                try:
                    given = next(self._source)
                except StopIteration:
                    return Page(items, max(self._read, after), exhausted=True)
                self._read += 1
                if self._read <= after:
                    continue
                item = _item(self._read, given, defaults)
                if (
                    item.job is not None
                    and script._acquired
                    and item.job.identity in script._acquired
                ):
                    item = replace(item, known=True)
                if item.error is not None and script.on_item_error == "stop":
                    return Page(items, self._read - 1, error=item.error)
                items.append(item)
                size += _size(item)
        except (Exception, SystemExit) as error:
            said = f"position {self._read + 1}: set_parameters_gen failed: {where(error)}"
            return Page(
                items,
                max(self._read, after),
                error=f"{said}; correct it and start the manager again",
            )
        return Page(items, max(self._read, after))

    def cycle(self, facts: Facts) -> Decision:
        """Execute one cycle and return its decision.

        The caller commits the whole decision before the next cycle.
        """
        script = self.script
        before, script._cycle = script._cycle, Cycle.of(facts, self._platform)
        cycle = script._cycle
        cycle.clock, cycle.began, cycle.report = (
            self._clock,
            self._clock(),
            lambda: self._platform.did(self._done()),
        )
        if not before.begun:
            cycle.carry(before, self._platform)
        if isinstance(script, WorkFlowManager):
            script._hold_acquired()
        limit = script.args.max_running_time
        if limit and facts.now - script._start.started_at > limit:
            return self._ended()
        self._platform.entering("workflow_loop")
        has_hooks = isinstance(script, CrawlManager)
        if not has_hooks:
            script._leave_ends()
        again = False
        if self._leaving or self._user("base_loop_tasks", script.base_loop_tasks):
            again = not self._leaving and bool(self._user("workflow_loop", script.workflow_loop))
            if has_hooks and cycle.ends and not (cycle.hooked or cycle.failed):
                # A user's workflow_loop might not call it, so that ended jobs would keep their
                # slots.
                self._user("check_running_jobs", script.check_running_jobs)
            if again and not isinstance(script, GeneratorCrawlManager):
                script._start_waiting()  # jobs that found no free slot when they were scheduled
        try:
            check_state(script.state)
        except InvalidRequest as error:
            raise ClassError(f"workflow_loop: {error}") from None
        if facts.source_error is not None and not cycle.window.live and not cycle.window.waiting:
            again = False
        self._leaving = not (again and script.args.loop_mode)
        if not self._leaving or cycle.ends or cycle.failed or facts.more_ended:
            return self._decided(over=False)
        if facts.source_error is not None:
            script.close_reason = script.close_reason or FAILED
        return self._ended(facts.source_error)

    def close(self, reason: str | None = None) -> Decision:
        """Call ``on_close`` and return the final decision.

        After the last cycle, the decision contains that cycle too. After a stop, the close reason
        is ``reason`` unless the class has set one.
        """
        script = self.script
        last = self._last
        if last is None:
            facts = script._cycle.facts
            facts = Facts(
                facts.manager_id, facts.attempt, self._platform.now(), facts.next_seq, paused=True
            )
            script._cycle = Cycle.of(facts, None)
            script._cycle.begun = True
            script.close_reason = script.close_reason or reason
        try:
            with undone_on_error(script):
                self._platform.entering("on_close")
                key = f"manager/{script._start.manager_id}/close/{script._start.attempt}"
                self._user("on_close", script.on_close, key=key)
                self._user("on_close", check_state, script.state)
        finally:
            if self._loop is not None:
                self._loop.close()
        decided = self._decided(over=True)
        if last is None:
            return decided
        return replace(
            decided, error=last.error, state=last.state if decided.state is None else decided.state
        )

    # --- the user's code --------------------------------------------------------------------------

    def _user(
        self, method: str, call: Callable[..., Any], *args: Any, key: str | None = None
    ) -> Any:
        """Call a method of the class and return its result. A coroutine is awaited.

        ``key`` is the same in each execution, so graphs that the method starts get their ids from
        it. Raises ``ClassError`` for any error of the method.
        """
        try:
            with once(key):
                answer = call(*args)
                if inspect.iscoroutine(answer):
                    if self._loop is None:
                        # Asyncio takes a quarter of an idle process's memory.
                        from asyncio import Runner

                        self._loop = Runner()
                    answer = self._loop.run(answer, context=copy_context())
                return no_coroutine(method, answer)
        except ClassError:
            raise
        except (Exception, SystemExit) as error:
            raise ClassError(f"{method} raised {where(error)}") from error

    def _ended(self, error: str | None = None) -> Decision:
        self._last = self._decided(over=True, error=error)
        return self._last

    def _done(self) -> Decision:
        """Return the decisions made so far."""
        script = self.script
        cycle = self.script._cycle
        state = json.dumps(script.state, sort_keys=True)
        return Decision(
            hooked=cycle.hooked,
            failed=cycle.failed,
            added=list(cycle.window.added),
            picked=list(cycle.window.picked),
            flow_tags=cycle.flow_tags,
            state=json.loads(state) if state != self._kept else None,
            stats=script.stats.get_stats(),
            close_reason=script.close_reason,
        )

    def _decided(self, *, over: bool, error: str | None = None) -> Decision:
        script = self.script
        cycle = self.script._cycle
        window = cycle.window
        cap = self._user("max_running_jobs", script._cap)
        self._user("close_reason", script.set_close_reason, script.close_reason)
        wishes = (
            script.args.loop_mode,
            cycle.again_s,
            window.again_s(cap),
            0.0 if cycle.ends else None,
        )
        again_s = min(wish for wish in wishes if wish is not None)
        nothing = f"its class has nothing to start now; the next cycle begins within {again_s:g} s"
        done, self._kept = self._done(), json.dumps(script.state, sort_keys=True)
        return replace(
            done,
            delayed=window.delayed,
            over=over,
            error=error if over else cycle.error,
            waiting=None
            if over
            else (cycle.waiting or window.sentence(cap) or nothing)[:_WAITING_MAX],
            again_s=None if over else again_s,
        )


def parser_of(cls: type[BaseScript]) -> OptionParser:
    """Return the parser of a class's command line without creating an object.

    Raises ``ClassError``.
    """
    try:
        return option_parser(cls.__new__(cls), hosted=True)
    except ClassError:
        raise
    except (Exception, SystemExit) as error:
        raise ClassError(f"add_argparser_options raised {where(error)}") from error


def identity_of(cls: type[BaseScript], argv: list[str], tags: list[str]) -> tuple[str, str | None]:
    """Return name and flow id of a manager with these options and tags.

    The name comes from a tag ``NAME=``, or else from the class or the argument. The flow id comes
    from a tag ``FLOW_ID=``, or else from the option. ``None`` means that the caller must create one
    (S-05, S-06). Raises ``ClassError`` if the options are wrong or there is no name.
    """
    own = dict(reversed([tag.split("=", 1) for tag in tags if "=" in tag]))
    parser = parser_of(cls)
    args = parse(parser, argv, cls.PROGRAMS)
    name = own.get("NAME") or cls.name or getattr(args, "name", None)
    if not name:
        parser.error(
            "the manager has no name; set the class attribute name, or give it as an argument"
        )
    return name, own.get("FLOW_ID") or args.flow_id


def _check_class(cls: type[BaseScript]) -> None:
    for attribute, choices in CHOICES.items():
        value = getattr(cls, attribute, choices[0])
        if value not in choices:
            raise ClassError(
                f"{attribute}: {value!r} is not allowed; give one of {', '.join(choices)}"
            )
    for attribute in ("MAX_RETRIES", "retry_delay", "retry_delay_factor", "retry_delay_max"):
        value = getattr(cls, attribute, 0)
        number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        if not number and not isinstance(value, property):
            raise ClassError(f"{attribute}: {value!r} is not allowed; give a number from 0")


def _source_of(script: GeneratorCrawlManager) -> Iterator[Any]:
    source = no_coroutine("set_parameters_gen", script.set_parameters_gen())
    if isinstance(source, str | bytes | Mapping) or not hasattr(source, "__iter__"):
        raise ClassError(f"it returned a {type(source).__name__}; make it yield dictionaries")
    return iter(source)


def _item(position: int, given: object, defaults: JobDefaults) -> SourceItem:
    try:
        params = params_of_yield(given)
        return SourceItem(position, merged(params, params.pop("spider", None), defaults))
    except Exception as error:  # for example a value that cannot be copied or is nested too deeply
        said = str(error) if isinstance(error, InvalidRequest) else where(error)
        return SourceItem(position, None, f"position {position}: {said}")


def _size(item: SourceItem) -> int:
    """Return the approximate size of an item's JSON in bytes."""
    if item.job is None:
        return 200
    job = item.job
    texts = [*job.spider_args.items(), *job.job_settings.items()]
    return (
        150
        + sum(len(name) + len(value) + 8 for name, value in texts)
        + sum(len(tag) + 4 for tag in job.tags)
    )
