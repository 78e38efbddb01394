"""Run tasks from ``tasks.toml`` that are not targets of make: ``python3 -m tools NAME ARGUMENTS``.

Without arguments, it lists the tasks. It uses only the standard library, because most tasks begin
with ``make env``.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TASKS = tomllib.loads(Path(__file__).with_name("tasks.toml").read_text())
#: Tasks that install what a machine lacks, so they do not need the environment.
FIRST = {"image-deps"}


def main(arguments: list[str]) -> int:
    """Run the named task in the root of the checkout.

    The exit code is that of the task, or 2 if there is no such task.
    """
    name = arguments[0] if arguments else "--help"
    if name not in TASKS:
        print("\n".join(f"python3 -m tools {task:20}{TASKS[task]['help']}" for task in TASKS))
        return 0 if name in ("-h", "--help") else 2
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env = kept | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    script = TASKS[name]["run"] if name in FIRST else f"make --quiet env >&2\n{TASKS[name]['run']}"
    return subprocess.call(["bash", "-euc", script, *arguments], cwd=ROOT, env=env)  # noqa: S607


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
