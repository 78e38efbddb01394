"""The picture in the quickstart: the frame of a screen that it shows, and that the SVG loads
nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from examples.picture import frames, svg

ROOT = Path(__file__).parents[2]
ERASED = "\r\x1b[2K\x1b[1A\x1b[2K"
SVG = "{http://www.w3.org/2000/svg}"


def words(text: str) -> str:
    """Return what a person reads in an SVG."""
    found = " ".join(
        element.text or "" for element in ElementTree.fromstring(text).iter(f"{SVG}text")
    )
    return re.sub(r"\s+", " ", found)


def test_only_frames_that_were_completed_count() -> None:
    written = f"\x1b[?25lone\r\n\x1b[31mred\x1b[0m{ERASED}two\r\nlines{ERASED}thr"
    assert frames(written) == ["one\n\x1b[31mred\x1b[0m", "two\nlines"]


def test_the_svg_shows_command_and_frame_and_loads_nothing() -> None:
    picture = svg("run 7\n\x1b[31mFAILED\x1b[0m", "crawlctl watch 7")
    assert "$ crawlctl watch 7 run 7 FAILED" in words(picture)
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", picture)
    assert "@import" not in picture


def test_the_picture_in_the_quickstart_is_small_and_shows_a_correction() -> None:
    (named,) = re.findall(
        r"!\[[^]]+\]\((\S+\.svg)\)", (ROOT / "docs" / "quickstart.md").read_text()
    )
    picture = (ROOT / "docs" / named).read_text()
    assert len(picture) < 40_000
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", picture)
    shown = words(picture)
    assert shown.count("crawlctl watch") == 2
    assert "RUNNING was untrue for" in shown
