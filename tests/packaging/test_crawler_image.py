"""The crawler's Dockerfile, and the archive that the tests assemble from it.

It is never built here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.kubernetes.files import layout
from tests.support.crawler_image import (
    FOLDER,
    PACKAGES,
    REFERENCE,
    ROOT,
    assemble,
    install,
    locked,
    recipe,
    steps,
)
from tests.support.oci import assert_as_made, blob, manifest_of


def test_the_runner_lies_where_jobs_start_it_and_nothing_runs_as_root() -> None:
    made = recipe()
    assert ("crawler_lifecycle/runner", layout.RUNNER) in made.copies
    assert made.entrypoint[-1] == layout.RUNNER
    assert made.user == "1000:1000"
    assert made.env["PYTHONPATH"] == PACKAGES
    assert made.env["HOME"] == layout.TMP_MOUNT
    assert made.base == "${RUNTIME_IMAGE}"


def test_the_base_is_that_of_the_services() -> None:
    of_services = [
        rest for name, rest in steps(ROOT / "Dockerfile") if name == "ARG" and "_IMAGE" in rest
    ]
    assert [rest for name, rest in steps() if name == "ARG"] == of_services


def test_packages_come_by_hash_and_the_lock_is_a_part_of_the_large_one() -> None:
    [run] = [rest for name, rest in steps() if name == "RUN" and "install --no" in rest]
    for option in (
        "--require-hashes",
        "--only-binary :all:",
        f"--target {PACKAGES}",
        "-r requirements.lock",
    ):
        assert option in run
    text, large = (
        (FOLDER / "requirements.lock").read_text(),
        (ROOT / "locks" / "all.lock").read_text(),
    )
    pins = list(locked())
    assert len(pins) == len(
        re.findall(r"==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text.replace(" ; ", ";"))
    )
    assert [pin for pin in pins if f"{pin[0]}=={pin[1]}" not in large] == []
    assert "scrapy" in dict(pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        line
        for line in (FOLDER / "requirements.in").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert wanted == project["optional-dependencies"]["scrapy"]


def test_what_is_copied_exists_and_gets_past_its_dockerignore() -> None:
    let_in = [
        line[1:]
        for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
        if line[:1] == "!"
    ]
    copied = [
        rest.split()[0]
        for name, rest in steps()
        if name == "COPY" and not rest.startswith("--from")
    ]
    assert sorted(copied) == sorted(let_in)
    assert all((ROOT / source).exists() for source in copied)


def test_an_instruction_that_the_assembler_does_not_know_is_an_error() -> None:
    for more in (
        ("RUN", "apt-get update"),
        ("ADD", "x y"),
        ("COPY", "--chown=1 x y"),
        ("HEALTHCHECK", "NONE"),
    ):
        with pytest.raises(ValueError, match="not understood"):
            recipe([*steps(), more])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assemble(tmp_path_factory.mktemp("image") / "crawler.tar")


@pytest.mark.slow
def test_the_archive_is_what_the_dockerfile_says(archive: Path) -> None:
    made = recipe()
    with tarfile.open(archive) as tar:
        manifest, name = manifest_of(tar)
        assert name == REFERENCE
        assert_as_made(tar, manifest, made)
        with tarfile.open(fileobj=blob(tar, manifest["layers"][-1]["digest"])) as layer:
            names = set(layer.getnames())
            sizes = {entry.name: entry.size for entry in layer if entry.isfile()}
    for source, place in made.copies:
        if source == PACKAGES:
            continue
        for file in (ROOT / source).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                assert (
                    sizes[f"{place.lstrip('/')}/{file.relative_to(ROOT / source)}"]
                    == file.stat().st_size
                )
    assert "opt/crawl-packages/scrapy/__init__.py" in names
    assert not [
        name for name in names if "__pycache__" in name or name.startswith("opt/crawl-packages/bin")
    ]
    assert not [
        name for name in names if re.search(r"crawl-packages/(pip|setuptools|wheel)(/|-)", name)
    ]


@pytest.mark.slow
def test_the_packages_are_complete(tmp_path: Path) -> None:
    install(tmp_path / "packages")
    code = "import scrapy, scrapy.crawler, lxml.etree, twisted.internet.reactor, cryptography.x509; print(scrapy.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "packages"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(tmp_path)), done.stderr
