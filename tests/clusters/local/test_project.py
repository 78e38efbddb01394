"""The digest and the commit of a project folder."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.folders import project
from crawler_lifecycle.clusters.local.folders.project import NoDigest, ProjectFolder, commit_of
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.runner.package import Package

A, B = "a" * 40, "b" * 64


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "spiders").mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]")
    (folder / "spiders" / "shop.py").write_text("class Shop: ...")
    (folder / "latest").symlink_to("spiders")
    return folder


def digest(folder: Path) -> str:
    caches = folder.parent / "caches"
    caches.mkdir(exist_ok=True)
    return ProjectFolder(str(folder), str(caches)).digest()


def test_equal_folders_have_equal_digests(shop: Path) -> None:
    copy = shop.parent / "elsewhere"
    shutil.copytree(shop, copy, symlinks=True)
    assert digest(copy) == digest(shop)


def test_a_folder_has_the_digest_of_its_package(shop: Path) -> None:
    (shop / "latest").unlink()
    (shop / "run.sh").touch(mode=0o755)
    file = io.BytesIO()
    pack(shop, file)
    assert Package(file).digest() == digest(shop)


@pytest.mark.parametrize("path", [
    ".git/HEAD", ".scrapy/httpcache/x", "spiders/__pycache__/shop.pyc", "shop.egg-info/PKG-INFO", "crawl.log",
    "items.jl", "logs/a", "storage/a.json", "node_modules/a/index.js",
])  # fmt: skip
def test_caches_and_what_crawls_write_do_not_count(shop: Path, path: str) -> None:
    before = digest(shop)
    (shop / path).parent.mkdir(parents=True, exist_ok=True)
    (shop / path).write_text("x")
    assert digest(shop) == before


@pytest.mark.parametrize("path", ["spiders/storage/__init__.py", "spiders/seeds.jsonl"])
def test_names_of_data_below_the_folder_are_code(shop: Path, path: str) -> None:
    before = digest(shop)
    (shop / path).parent.mkdir(parents=True, exist_ok=True)
    (shop / path).write_text("x")
    assert digest(shop) != before


def test_every_change_of_code_counts(shop: Path) -> None:
    found = [digest(shop)]
    spider = shop / "spiders" / "shop.py"
    times = spider.stat()
    spider.write_text("class Show: ...")
    os.utime(spider, ns=(times.st_atime_ns, times.st_mtime_ns))
    found.append(digest(shop))
    spider.chmod(0o755)
    found.append(digest(shop))
    spider.rename(shop / "spiders" / "other.py")
    found.append(digest(shop))
    (shop / "latest").unlink()
    (shop / "latest").symlink_to("/etc")
    found.append(digest(shop))
    assert len(set(found)) == len(found)


def test_what_is_not_a_file_is_neither_read_nor_waited_for(shop: Path) -> None:
    before = digest(shop)
    os.mkfifo(shop / "pipe")
    assert digest(shop) == before


def test_an_unchanged_file_is_read_only_once(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "SETTLED_NS", -1)
    before = digest(shop)
    monkeypatch.setattr(ProjectFolder, "_read", None)
    assert digest(shop) == before
    for cache in (shop.parent / "caches").iterdir():
        cache.write_text('{"scrapy.cfg": [1]}')
    monkeypatch.undo()
    assert digest(shop) == before


@pytest.mark.parametrize(("limit", "value", "words"), [
    ("FILES_MAX", 2, "more than 2 files"),
    ("BYTES_MAX", 20, "more than 0 MiB"),
    ("SECONDS_MAX", -1.0, "could not be read within"),
])  # fmt: skip
def test_a_folder_that_is_too_large_has_no_digest(
    shop: Path, limit: str, value: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, limit, value)
    with pytest.raises(NoDigest, match=words):
        digest(shop)


def test_a_folder_that_is_gone_has_no_digest(shop: Path) -> None:
    shutil.rmtree(shop)
    with pytest.raises(NoDigest, match="cannot be read"):
        digest(shop)


def test_the_commit_of_a_repository_with_refs_packed_refs_or_none(shop: Path) -> None:
    git = shop.parent / ".git"
    assert commit_of(str(shop)) is None or not git.exists()
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text(f"{B}\n")
    assert commit_of(str(shop)) == B
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(str(shop)) is None, "there is no commit yet"
    (git / "packed-refs").write_text(
        f"# pack-refs\n{B} refs/heads/not/refs/heads/main\n{A} refs/heads/main\n"
    )
    assert commit_of(str(shop)) == A
    (git / "refs" / "heads" / "main").write_text(f"{B}\n")
    assert commit_of(str(shop)) == B
    for head in ("ref: refs/../../shop/scrapy.cfg", "ref: /etc/passwd", "nonsense", ""):
        (git / "HEAD").write_text(head)
        assert commit_of(str(shop)) is None


def test_the_commit_of_a_worktree(shop: Path) -> None:
    git = shop.parent / "main" / ".git"
    own = git / "worktrees" / "shop"
    own.mkdir(parents=True)
    (git / "packed-refs").write_text(f"{A} refs/heads/topic\n")
    (own / "HEAD").write_text("ref: refs/heads/topic\n")
    (own / "commondir").write_text("../..\n")
    (shop / ".git").write_text(f"gitdir: {own}\n")
    assert commit_of(str(shop)) == A
