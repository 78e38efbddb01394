"""The archive that the tests assemble from the Dockerfile: the same layout, user, entry point and
environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support import service_image
from tests.support.crawler_image import ROOT, steps
from tests.support.oci import assert_as_made, blob, manifest_of
from tests.support.service_image import BUILD_ID, REFERENCE, STATE, VENV, assemble, recipe

DOCKERFILE = steps(ROOT / "Dockerfile")


def test_the_recipe_is_the_dockerfiles() -> None:
    made = recipe()
    assert (made.user, made.workdir, made.entrypoint) == (
        "65532:65532",
        "/var/lib/crawler-lifecycle",
        ["crawlctl"],
    )
    assert made.copies == {
        VENV: (VENV, (0, 0)),
        STATE: ("/var/lib/crawler-lifecycle", (65532, 65532)),
    }
    assert made.env["TEMPORAL_WORKER_BUILD_ID"] == BUILD_ID
    assert made.env["PATH"].startswith(f"{VENV}/bin:")
    assert made.base == "${RUNTIME_IMAGE}"


@pytest.mark.parametrize(
    "more",
    [
        ("RUN", "apt-get update"),
        ("ADD", "x y"),
        ("COPY", "x y"),
        ("COPY", "--from=build /x /y"),
        ("VOLUME", "/x"),
    ],
)
def test_an_instruction_that_the_assembler_does_not_know_is_an_error(more: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="not understood"):
        recipe([*DOCKERFILE, more])


def test_a_build_stage_that_the_assembler_does_not_know_is_an_error() -> None:
    second = [n for n, (name, _) in enumerate(DOCKERFILE) if name == "FROM"][1]
    for other in (
        [*DOCKERFILE[:second], ("RUN", "true"), *DOCKERFILE[second:]],
        [(name, rest.replace("65532 -m", "1000 -m")) for name, rest in DOCKERFILE],
        [step for step in DOCKERFILE if step[1] != "locks/image.lock ./"],
    ):
        with pytest.raises(ValueError, match="build stage"):
            recipe(other)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assemble(tmp_path_factory.mktemp("image") / "service.tar")


@pytest.mark.slow
def test_the_archive_is_what_the_dockerfile_says(archive: Path) -> None:
    made = recipe()
    with tarfile.open(archive) as tar:
        manifest, name = manifest_of(tar)
        assert name == REFERENCE
        assert_as_made(tar, manifest, made)
        entries: dict[str, tarfile.TarInfo] = {}
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(tar, layer["digest"])) as inside:
                entries |= {one.name: one for one in inside}
                if f"{VENV[1:]}/bin/crawlctl" in entries and layer is manifest["layers"][-2]:
                    script = inside.extractfile(f"{VENV[1:]}/bin/crawlctl")
                    assert script is not None
                    assert script.read().splitlines()[0] == f"#!{VENV}/bin/python".encode()
    state = entries["var/lib/crawler-lifecycle"]
    assert (state.uid, state.gid, state.mode) == (65532, 65532, 0o750)
    assert {one.uid for name, one in entries.items() if name != state.name} == {0}, (
        "nothing else is its user's to change"
    )
    assert entries[f"{VENV[1:]}/bin/crawlctl"].mode == 0o755
    site = service_image.site_packages()[1:]
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    for module in ("crawler_lifecycle/worker/process", "temporalio/common", "pymysql/connections"):
        folder, _, name = module.rpartition("/")
        assert {f"{site}/{module}.py", f"{site}/{folder}/__pycache__/{name}.{tag}.pyc"} <= set(
            entries
        )
    assert f"{site}/kubernetes/client/api/batch_v1_api.pyc" in entries, "compiled, without its text"
    assert not [
        name
        for name in entries
        if re.search(r"site-packages/(pip|setuptools|pytest|scrapy)(/|-)", name)
    ]


@pytest.mark.slow
def test_the_locked_packages_are_enough(archive: Path, tmp_path: Path) -> None:
    """Every process of ours is imported without the environment of the tests."""
    with tarfile.open(archive) as tar:
        layers = manifest_of(tar)[0]["layers"]
        for layer in layers[1:3]:
            with tarfile.open(fileobj=blob(tar, layer["digest"])) as inside:
                inside.extractall(tmp_path, filter="fully_trusted")
    site = tmp_path / service_image.site_packages()[1:]
    code = (
        "import crawler_lifecycle.worker.process, crawler_lifecycle.gateway.serve, crawler_lifecycle.scheduler.serve,"
        " boto3, kubernetes, pusher, opentelemetry.sdk, pymysql, alembic; print(crawler_lifecycle.__file__)"
    )
    clean = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=clean, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(site)), done.stderr
