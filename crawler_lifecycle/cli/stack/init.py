"""``crawlctl init``: creates a folder to start with."""

from __future__ import annotations

import os
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

from crawler_lifecycle.cli.output import emit
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import say

from .layout import TEMPLATE


def init(folder: Path = Path(), /) -> None:
    """Create a folder with a catalogue, crawlers, a manager, a graph, a schedule and a test for
    them.

    No file is replaced: a folder that contains one of these files is refused.

    Parameters
    ----------
    folder
        folder to create; default: this one
    """
    files = [file.relative_to(TEMPLATE) for file in sorted(TEMPLATE.rglob("*")) if file.is_file()]
    files = [file for file in files if "__pycache__" not in file.parts]
    if there := sorted(
        {file.parts[0] for file in files if os.path.lexists(folder / file.parts[0])}
    ):
        raise CommandFailed(
            Exit.NOT_IN_THIS_STATE,
            f"{folder.absolute()} already has {', '.join(there)}",
            "init replaces nothing",
            "crawlctl init ANOTHER_FOLDER",
        )
    try:
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TEMPLATE / file, folder / file)
    except OSError as error:
        raise CommandFailed(
            Exit.ERROR, f"{folder} cannot be written", str(error), "give another folder"
        ) from None
    names = [str(folder / file) for file in files]
    emit(
        {"folder": str(folder.absolute()), "files": names},
        names=names,
        table=lambda: print("\n".join(names)),
    )
    if lacking := [name for name in ("pytest", "scrapy") if find_spec(name) is None]:
        say(f"not installed here, see README.md: {', '.join(lacking)}")
    say(f"next: {'' if folder == Path() else f'cd {shlex.quote(str(folder))} && '}crawlctl dev")
