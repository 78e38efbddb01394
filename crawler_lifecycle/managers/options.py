"""Command lines of managers: parsing, named command lines (``--program``), and the start of a
manager.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from crawler_lifecycle.domain.crawlers.importable import check_program, importable_name

from .types import ClassError


class OptionParser(ArgumentParser):
    """Parses options.

    In a worker (``hosted``), a wrong option raises ``ClassError`` instead of ending the process.
    """

    def __init__(self, description: str | None, hosted: bool, prog: str) -> None:
        super().__init__(prog=prog, description=description)
        self._hosted = hosted

    def error(self, message: str) -> NoReturn:
        if self._hosted:
            raise ClassError(f"options: {message}; {' '.join(self.format_usage().split())}")
        super().error(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if self._hosted:
            raise ClassError(
                f"options: {message or 'they only ask for help; leave out -h and --help'}"
            )
        super().exit(status, message)

    def _print_message(self, message: str, file: Any = None) -> None:
        if not self._hosted:
            super()._print_message(message, file)


def parse(
    parser: OptionParser, argv: Sequence[str] | None, programs: Mapping[str, Mapping[str, Any]]
) -> Namespace:
    """Parse a command line. Options on the command line override options of the named program
    (S-10).
    """
    given = list(sys.argv[1:] if argv is None else argv)
    first = OptionParser(None, True, parser.prog)
    first.allow_abbrev = False
    first.add_argument("--program", "-g")
    first.add_argument("--program-variables", "-v", default="")
    try:
        chosen, rest = first.parse_known_args(
            [text for text in given if text not in ("-h", "--help")]
        )
    except ClassError:
        return parser.parse_args(given)
    if chosen.program is None:
        return parser.parse_args(given)
    if chosen.program not in programs:
        known = (
            "; ".join(
                f"{name}: {program.get('description', '')}" for name, program in programs.items()
            )
            or "none"
        )
        parser.error(
            f"--program {chosen.program} is not defined; use one of these programs: {known}"
        )
    values = _variables(parser, chosen.program_variables)
    line = programs[chosen.program]["command_line"]
    try:
        stored = [str(word).format(**values) for word in line]
    except (KeyError, IndexError, ValueError) as error:
        parser.error(
            f"--program {chosen.program} needs the variable {error}; give it with -v name:value"
        )
    args = parser.parse_args([*stored, *rest])
    args.program = chosen.program
    args.program_variables = chosen.program_variables
    return args


def json_object(parser: ArgumentParser, option: str, text: str) -> dict[str, Any]:
    """Return the JSON object in an option's value; any other value is an error of the parser."""
    try:
        found = json.loads(text)
    except ValueError as error:
        parser.error(
            f'{option}: {text[:100]!r} is not JSON ({error}); give an object, such as {{"page": 1}}'
        )
    if not isinstance(found, dict):
        parser.error(
            f'{option}: {text[:100]!r} is not allowed; give a JSON object, such as {{"page": 1}}'
        )
    return found


def _variables(parser: ArgumentParser, text: str) -> dict[str, str]:
    values = {}
    for pair in filter(None, text.split(",")):
        name, colon, value = pair.partition(":")
        if not colon or not name:
            parser.error(
                f"--program-variables: {pair[:100]!r} is not allowed; give name:value,name:value"
            )
        values[name] = value
    return values


def start_from_here(cls: type, name: str, flow_id: str | None) -> None:
    """Start the manager with the options of this command line, and show it until its end.

    The manager executes on a user-code worker, which must have the module. A separate process
    executes ``crawlctl manager start --watch``. So the address, token and exit codes are the same,
    and this process need not load ``crawlctl``. Ctrl-C ends the display, but not the manager.
    Raises ``SystemExit`` unless the manager completed.
    """
    import subprocess  # a manager in a worker does not need it

    check_program("run() is called")
    named = ["--name", name] if name else []
    flow = ["--flow", flow_id] if flow_id else []
    crawlctl = [sys.executable, "-m", "crawler_lifecycle.cli"]
    start = [
        *crawlctl,
        "manager",
        "start",
        importable_name(cls),
        "--watch",
        *named,
        *flow,
        "--",
        *sys.argv[1:],
    ]
    child = subprocess.Popen(start)
    code = None
    while code is None:
        with suppress(KeyboardInterrupt):  # the child gets the same signal and ends on its own
            code = child.wait()
    if code:  # after a signal the code is negative; a shell reports 128 plus the signal
        raise SystemExit(code if code > 0 else 128 - code)
