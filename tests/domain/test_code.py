"""The code of a task, as nodes and folders report it."""

from __future__ import annotations

import re

import pytest

from crawler_lifecycle.domain.code import (
    IMAGE_ID,
    Code,
    check_names,
    code_of_image,
    full_prefix,
)
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.runner.tree import Leaf, tree_digest

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(("image_id", "code"), [
    (f"docker-pullable://registry/shop@{DIGEST}", Code(DIGEST)),
    (f"registry:5000/a/shop@{DIGEST}", Code(DIGEST)),
    (DIGEST, Code(DIGEST, note=IMAGE_ID)),
    (f"docker://{DIGEST}", Code(DIGEST, note=IMAGE_ID)),
    ("", None),
    (None, None),
    ("registry/shop:latest", None),
    ("registry/shop@sha256:123", None),
])  # fmt: skip
def test_the_image_id_of_every_runtime(image_id: str | None, code: Code | None) -> None:
    assert code_of_image(image_id, None, None) == code


def test_a_version_is_known_before_the_image() -> None:
    assert code_of_image("", "7", "abcdef0") == Code(None, "7", "abcdef0")


def test_impossible_reports_are_left_out() -> None:
    said = {"digest": DIGEST.upper(), "version": 7, "commit": "main", "note": "x\0" * 200}
    assert Code.of(said) == Code(note="x" * 100)
    assert Code.of({"digest": None, "version": ""}) is None
    assert Code.of([DIGEST]) is None


@pytest.mark.parametrize("names", [("", None), ("x" * 101, None), ("a\nb", None), (None, "main")])
def test_names_of_an_entry_are_bounded(names: tuple[str | None, str | None]) -> None:
    with pytest.raises(InvalidRequest, match=r"^(version|commit): .* is not allowed; give "):
        check_names(*names)


def test_a_digest_is_named_by_its_beginning() -> None:
    assert full_prefix("012345") == full_prefix(" SHA256:012345 ") == "sha256:012345"
    for text in ("", "01234", "main", DIGEST + "0", "012345%"):
        with pytest.raises(InvalidRequest, match=re.escape(f"code: {text!r} is not allowed")):
            full_prefix(text)


def test_a_tree_is_its_paths_contents_and_executable_bits_in_any_order() -> None:
    leaves = [Leaf(b"a", b"-", b"1"), Leaf(b"b", b"-", b"2")]
    assert tree_digest(leaves) == tree_digest(leaves[::-1])
    others = [
        [Leaf(b"a", b"x", b"1"), leaves[1]],
        [Leaf(b"c", b"-", b"1"), leaves[1]],
        [Leaf(b"a", b"-", b"3"), leaves[1]],
        leaves[:1],
        [],
    ]
    assert len({tree_digest(one) for one in [leaves, *others]}) == 6
