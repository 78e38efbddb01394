"""Verbs about the program itself: ``version`` and ``completion``."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from . import session as options
from .output import emit, show_facts
from .session import installed, say

Shell = Literal["bash", "zsh", "fish"]

_HINTS = {
    "bash": "next: crawlctl completion bash > ~/.local/share/bash-completion/completions/crawlctl",
    "zsh": "next: save it as _crawlctl in a folder of $fpath",
    "fish": "next: crawlctl completion fish > ~/.config/fish/completions/crawlctl.fish",
}


def completion(shell: Shell, /) -> None:
    """Print the completion script of a shell.

    Parameters
    ----------
    shell
        bash, zsh or fish
    """
    from .main import build

    app = build()

    # ``session.split`` removes the options of every verb from the command line before cyclopts sees
    # it. So these options are added here for the generator of completions.
    @app.meta.default
    def everywhere(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        output: Annotated[
            Literal[options.FORMATS] | None,  # type: ignore[valid-type]
            Parameter(name=["--output", "-o"], help="format"),
        ] = None,
        gateway: Annotated[str | None, Parameter(help="address of the gateway")] = None,
        token_file: Annotated[Path | None, Parameter(help="file with the token")] = None,
        timeout: Annotated[str | None, Parameter(help="longest time to wait")] = None,
        time_format: Annotated[
            Literal[options.TIME_FORMATS] | None,  # type: ignore[valid-type]
            Parameter(help="format of times"),
        ] = None,
        no_color: Annotated[bool, Parameter(help="no colours")] = False,
        quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], help="data only")] = False,
    ) -> None:
        raise AssertionError("only the signature is used")

    print(app.meta.generate_completion(prog_name="crawlctl", shell=shell), end="")
    say(_HINTS[shell])


def show_version() -> None:
    """Show the versions and paths of this program and of Python."""
    document = {
        "version": installed(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "package": str(Path(options.__file__).parents[1]),
    }
    table = list(document.items())
    emit(document, names=[document["version"]], table=lambda: show_facts(table))
