"""``python -m tools.faults.table --seed S --seeds N --minutes M`` prints the table of
docs/faults.md, in Markdown.

For each seed, it executes our service with scrapyd next to it, and plain Jobs with our service next
to them, one test run after the other, and adds up the figures. Exit code 1 means that a test run
found something, or did not reach its end. The table contains everything that was executed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.faults.oracle import ALIVE, DEAD, WAITING, Figure, per_thousand

#: The figures of each side. For maximum figures, the largest value counts. All other figures are
#: added up.
COLUMNS = ("tasks", ALIVE, f"{ALIVE}, tasks", DEAD, f"{DEAD}, tasks", WAITING, "lost", "doubled")
GREATEST = ("longest", "oldest poll")
CALM = "calm"
#: Seconds without a fault at the beginning of each test run. Otherwise, there is too little time
#: between faults for the row without a fault.
CALM_S = 60
#: The rows of docs/faults.md depend on what a kill or a freeze affected.
WHOM = {"crawler": "of crawler", "controllers": "of controllers", "temporal": "of Temporal"}
SERVERS = ("postgres", "mariadb", "s3")
#: The test runs of a seed: the module, its arguments, the title of the rows, and the two sides.
PLAYS = (
    ("tools.faults", ("--scrapyd",), "on one machine, ours/scrapyd", ("ours", "scrapyd")),
    ("tools.faults.jobs", (), "on Kubernetes, ours/plain Job", ("ours", "a plain Job")),
)


def lines(figure: Figure) -> Iterator[str]:
    """Return the figure of one side, for people."""
    columns = (*COLUMNS, *GREATEST)
    yield f"{'in the time of':40} " + " ".join(
        f"{name:>{len(name)}}" for name in (*columns, "for 1,000")
    )
    for label, row in sorted(figure.items()):
        values = [*(row.get(name, 0.0) for name in columns), per_thousand(row)]
        yield f"{label:40} " + " ".join(
            f"{value:{len(name)}.{0 if value == int(value) else 1}f}"
            for name, value in zip((*columns, "for 1,000"), values, strict=True)
        )


def by_kind(label: str) -> str:
    """Return the row of the table for this fault."""
    kind, _, whom = label.partition(" of ")
    if label == CALM:
        return "no fault"
    if kind in ("kill", "freeze") or kind.startswith(("long", "blind")):
        return f"{kind} {WHOM.get(whom, 'of a server' if whom in SERVERS else 'of one of our processes')}"
    return kind if kind not in ("delete", "evict", "cut off", "loss") else label


def together(figures: Sequence[Figure]) -> Figure:
    """Combine several test runs, by the rows of the table."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for figure in figures:
        for label, values in figure.items():
            row = found[by_kind(label)]
            for name, value in values.items():
                row[name] = max(row[name], value) if name in GREATEST else row[name] + value
    return {label: dict(row) for label, row in found.items()}


def markdown(title: str, ours: Figure, theirs: Figure) -> Iterator[str]:
    """Return a table with both sides in each cell."""
    heads = (
        "tasks",
        "untrue, for 1,000",
        "lost",
        "doubled",
        f"{ALIVE}, s (tasks)",
        f"{DEAD}, s (tasks)",
    )
    yield f"| {title} | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(heads)
    rows = sorted({*ours, *theirs} - {"no fault"})
    for label in [*rows, "no fault"]:
        sides = [side.get(label, {}) for side in (ours, theirs)]
        cells = [_cell(sides, "tasks"), "/".join(f"{per_thousand(row):,.0f}" for row in sides)]
        cells += [_cell(sides, "lost"), _cell(sides, "doubled")]
        cells += [
            f"{_cell(sides, name)} ({_cell(sides, f'{name}, tasks')})" for name in (ALIVE, DEAD)
        ]
        yield f"| {label} | " + " | ".join(cells) + " |"


def _cell(sides: Sequence[dict[str, float]], name: str) -> str:
    return "/".join(f"{row.get(name, 0.0):,.0f}" for row in sides)


def save(file: Path | None, **sides: Figure) -> None:
    """Keep the figures of a test run for the table."""
    if file is not None:
        file.write_text(json.dumps(sides))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults.table", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=3.0, help="of each play")
    parser.add_argument(
        "--dev", action="store_true", help="Temporal is the dev server of its SDK, not production's"
    )
    chosen = parser.parse_args()
    red, tables = [], []
    with tempfile.TemporaryDirectory() as folder:
        for module, words, title, (left, right) in PLAYS:
            figures = []
            for seed in range(chosen.seed, chosen.seed + chosen.seeds):
                file = Path(folder) / f"{module}-{seed}"
                asked = [
                    sys.executable,
                    "-m",
                    module,
                    "--seed",
                    str(seed),
                    "--minutes",
                    str(chosen.minutes),
                    *words,
                ]
                asked += ["--calm", str(CALM_S)]
                asked += ["--dev"] if chosen.dev and module == "tools.faults" else []
                if subprocess.run([*asked, "--figures", str(file)], check=False).returncode:
                    red.append(f"{module}, seed {seed}")
                if file.exists():
                    figures.append(json.loads(file.read_text()))
            tables.append(
                "\n".join(
                    markdown(title, *(together([one[s] for one in figures]) for s in (left, right)))
                )
            )
    print("\n\n".join(["", *tables, *(f"RED: {one}" for one in red)]))
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
