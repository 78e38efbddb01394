"""The built-in manager, which runs one crawler once for each job that is sent to it. Users need not
write a class for this manager.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping
from typing import Any

from .generator import GeneratorCrawlManager
from .types import FullJobParams


class RunEach(GeneratorCrawlManager):
    """Runs a crawler for each item that is sent, such as a line of a file, and ends after the last
    item.
    """

    name = "each"
    loop_mode = 60

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        add = self.argparser.add_argument
        add(
            "--retries",
            type=_whole,
            default=0,
            help="Maximum number of retries of a failed job. Default: %(default)s",
        )
        add(
            "--retry-delay",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="Seconds before the first retry.",
        )
        add(
            "--max-per-key",
            type=_name_and_number,
            metavar="ARGUMENT=NUMBER",
            help="Maximum number of jobs at once per value of this argument, such as domain=2.",
        )

    def parse_args(self) -> Namespace:
        args = super().parse_args()
        if not 0 <= args.retry_delay <= 30 * 86_400:
            self.argparser.error(
                f"--retry-delay: {args.retry_delay!r} is not allowed; give seconds, at most 30 days"
            )
        self.MAX_RETRIES = args.retries
        self.retry_delay = args.retry_delay
        return args

    def set_parameters_gen(self) -> Iterable[Mapping[str, Any]]:
        """Return nothing, because all jobs are sent by users."""
        return ()

    def cap_key(self, params: FullJobParams) -> str | None:
        """Return the name and value of the argument in ``--max-per-key``."""
        if self.args.max_per_key is None:
            return None
        name, self.max_per_key = self.args.max_per_key
        value = params["spider_args"].get(name)
        return None if value is None else f"{name}={value}"

    def workflow_loop(self) -> bool:
        """Work like a generator manager, but keep waiting without jobs until the list of jobs is
        closed.
        """
        if super().workflow_loop() or self._cycle.facts.sealed:
            return not self._cycle.window.over
        self._cycle.waiting = "it is waiting for jobs, or for a report that no more jobs will come"
        return True


def _whole(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 1000:
        raise ArgumentTypeError(f"{text[:50]!r} is not allowed; give a whole number from 0 to 1000")
    return number


def _name_and_number(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isascii() or not number.isdigit() or not 0 < int(number) <= 100_000:
        raise ArgumentTypeError(
            f"{text[:100]!r} is not allowed; give an argument and a number, such as domain=2"
        )
    return name, int(number)
