"""``crawlctl deploy``: what it sends, the version it chooses, and what it refuses."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path

import pytest
import respx

from crawler_lifecycle.runner.package import Package
from tests.cli.cli_answers import PACKAGE
from tests.cli.cli_support import Crawlctl

ANSWER = PACKAGE | {"told": "It is now current."}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "Shop"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "a.pyc").touch()
    (folder / "crawl.py").write_text("print()\n")
    return folder


def test_a_folder_is_sent_with_the_version_of_its_contents_or_commit(
    gateway: respx.MockRouter, crawlctl: Crawlctl, project: Path
) -> None:
    route = gateway.put(path__startswith="/v1/packages/shop/versions/").respond(json=ANSWER)
    done = crawlctl("deploy", str(project), "--by", "eve")
    assert (done.code, "It is now current." in done.err) == (0, True)
    sent = route.calls.last.request
    code = Package(io.BytesIO(sent.read()))
    assert code.paths == ["crawl.py"]
    version = code.digest().removeprefix("sha256:")[:12]
    assert sent.url.path == f"/v1/packages/shop/versions/{version}"
    assert dict(sent.url.params) == {"requested_by": "eve"}

    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(project)]
    (project / ".gitignore").write_text("__pycache__\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    head = [*git, "rev-parse", "HEAD"]
    commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    crawlctl("deploy", str(project), "--as", "shop", "--force")
    sent = route.calls.last.request
    assert sent.url.path == f"/v1/packages/shop/versions/{commit[:12]}"
    assert (sent.url.params["commit"], sent.url.params["force"]) == (commit, "true")
    (project / "crawl.py").write_text("print(2)\n")
    crawlctl("deploy", str(project))
    sent = route.calls.last.request
    assert "commit" not in sent.url.params
    assert commit[:12] not in sent.url.path


def test_a_version_that_was_deployed_before_becomes_current(
    gateway: respx.MockRouter, crawlctl: Crawlctl, project: Path, tmp_path: Path
) -> None:
    egg = tmp_path / "shop.egg"
    with zipfile.ZipFile(egg, "w") as archive:
        archive.writestr("shop/__init__.py", "")
    gateway.put("/v1/packages/shop/versions/7").respond(json=ANSWER | {"current": False})
    use = gateway.post("/v1/packages/shop/use").respond(json=ANSWER)
    assert crawlctl("deploy", str(egg), "--version", "7", "-o", "name").out == "2026-11-20\n"
    assert use.called


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("missing", "is neither a folder nor"),
        ("file.txt", "is neither a folder nor"),
        ("empty", "there are no files to deploy"),
        ("Bad name", "give one with --as"),
        ("slip.zip", "leads out of the folder"),
    ],
)
def test_what_cannot_be_deployed_is_told_and_not_sent(
    crawlctl: Crawlctl, tmp_path: Path, source: str, said: str
) -> None:
    for folder in ("empty", "Bad name"):
        (tmp_path / folder).mkdir()
    (tmp_path / "file.txt").touch()
    with zipfile.ZipFile(tmp_path / "slip.zip", "w") as archive:
        archive.writestr("../a.py", "")
    done = crawlctl("deploy", str(tmp_path / source))
    assert done.code == 2
    assert said in done.err


def test_the_traceback_of_a_project_that_cannot_be_imported_is_shown(
    gateway: respx.MockRouter, crawlctl: Crawlctl, project: Path
) -> None:
    problem = "the project cannot be imported: File a.py, line 1\nImportError: no shop"
    answer = {"code": "invalid_request", "status": 422, "detail": f"body: {problem}"}
    gateway.put(path__startswith="/v1/packages/").respond(422, json=answer)
    done = crawlctl("deploy", str(project))
    assert done.code == 2
    assert "File a.py, line 1" in done.err
    assert "ImportError: no shop" in done.err
