"""The runner uploads supporting files to object storage: a real S3 server that checks signatures,
over faulty connections.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.adapters.archive.bundles import NOTHING, UNFINISHED, S3Bundles
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.files import FilesMissing, FileSource
from crawler_lifecycle.runner.bundle import PART_BYTES, Bundle
from crawler_lifecycle.runner.safe_directory import SafeDirectory
from crawler_lifecycle.runner.upload import Upload
from tests.runner.runner_fixture import EAGER_PART_BYTES, RunnerFixture, wait_until
from tests.support.faulty_http import Answer, FaultyServer, serving
from tests.support.run_refs import run_ref
from tests.support.s3 import Bucket, S3Server, rclone_s3, use_aws
from tests.support.s3_faults import Fault, FaultProxy, fault_proxy

pytestmark = pytest.mark.processes

TOKEN = "files.7.3.2.mac"
WRITE = """
import os, pathlib, random
folder = pathlib.Path(os.environ["CRAWL_FILES_DIR"])
assert "CRAWL_UPLOAD_TOKEN" not in os.environ, "the token is the runner's alone"
(folder / "sub").mkdir()
(folder / "sub" / "a.txt").write_text("a" * 1000)
(folder / "empty").touch()
"""


class StubGateway(FaultyServer):
    """The gateway's part: tickets for one task, for whoever has its token."""

    def __init__(self, bundles: S3Bundles) -> None:
        super().__init__()
        self._bundles = bundles
        self.parts: list[int | None] = []

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        assert (method, target) == ("POST", "/v1/runs/7/tasks/3/attempts/2/files")
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(
                403,
                json.dumps({"detail": "another task's token"}).encode(),
                "application/problem+json",
            )
        asked = json.loads(body)
        self.parts.append(asked["part"])
        ticket = self._bundles.ticket(run_ref(7), 3, 2, asked["part"], asked["bytes"], asked["md5"])
        told = {
            "url": ticket.url,
            "headers": dict(ticket.headers),
            "expires_at": ticket.expires_at.isoformat(),
        }
        return Answer(200, json.dumps(told).encode())


class Way:
    """A bucket, the connection to it, and the gateway that permits uploads."""

    def __init__(self, bucket: Bucket, proxy: FaultProxy) -> None:
        self.bucket = bucket
        self.proxy = proxy
        self.bundles = S3Bundles(f"s3://{bucket.name}/files")
        self.stub = StubGateway(self.bundles)

    def environment(self, **more: str) -> dict[str, str]:
        url = f"{self.stub.url}/v1/runs/7/tasks/3/attempts/2/files"
        return {
            "CRAWL_UPLOAD_URL": url,
            "CRAWL_UPLOAD_TOKEN": TOKEN,
            "CRAWL_END_GRACE_S": "120",
            **more,
        }

    def contents(self) -> dict[str, bytes]:
        """Return the files of the bundle, as any tar program reads them."""
        with tarfile.open(fileobj=io.BytesIO(b"".join(self.bundles.read(run_ref(7), 3, 2)))) as tar:
            return {
                m.name: file.read()
                for m in tar
                if m.isreg() and (file := tar.extractfile(m)) is not None
            }

    def archived(self, folder: Path) -> tuple[ExportResult, zipfile.ZipFile]:
        archive = open_archive((folder / "archive").as_uri())
        source = FileSource("task-3", bundle=lambda: self.bundles.read(run_ref(7), 3, 2))
        result = archive.store("7/2/x.zip", [source], {}, lambda *_: None)
        return result, zipfile.ZipFile(io.BytesIO(b"".join(archive.open(result.url))))

    def keys(self) -> list[str]:
        keys = self.bucket.keys()
        return [key.removeprefix(f"files/{run_ref(7)}/3/2/") for key in keys]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with rclone_s3() as running:
        yield running


@pytest.fixture
def way(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    with fault_proxy(server.url) as proxy:
        use_aws(monkeypatch, proxy.url)
        made = Way(server.bucket(), proxy)
        with serving(made.stub):
            yield made


def _fill(folder: Path, parts: int, part: int = EAGER_PART_BYTES) -> dict[str, bytes]:
    """Write files that cannot be compressed, for this number of parts."""
    content = {f"page-{n}": random.Random(n).randbytes(part - part // 80) for n in range(parts)}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return content


def test_what_the_crawler_left_is_in_the_archive_afterwards(
    fixture: RunnerFixture, way: Way, tmp_path: Path
) -> None:
    assert fixture.python(WRITE, **way.environment()) == 0
    assert fixture.summary()["files"] == {"uploaded": True, "files": 2, "bytes": 1000}
    assert way.contents() == {"empty": b"", "sub/a.txt": b"a" * 1000}
    assert way.keys() == ["bundle.json", "part-00000"]
    assert b"were uploaded: 2 files, 1000 bytes" in fixture.output
    assert TOKEN.encode() not in fixture.output
    result, zipped = way.archived(tmp_path)
    assert zipped.read("task-3/sub/a.txt") == b"a" * 1000
    assert (result.files, result.note) == (2, None)


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("../moved", path), None]
)
@pytest.mark.parametrize(("name", "left"), [("b", ["a", "c", "sub/d"]), ("sub", ["a", "b", "c"])])
def test_something_else_takes_the_place_of_what_was_looked_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    left: list[str],
    make: Callable[[str], None] | None,
) -> None:
    """A process that the crawler left running may do that; the other files are still sent, and none
    from elsewhere.
    """
    files, look, parts = tmp_path / "files", SafeDirectory.stat, list[bytes]()
    (files / "sub").mkdir(parents=True)
    for path in ("a", "b", "c", "sub/d"):
        (files / path).write_text(path)

    def late(folder: SafeDirectory, asked: str) -> os.stat_result | None:
        found = look(folder, asked)
        if asked == name:
            os.rename(files / name, tmp_path / "moved")
            if make is not None:
                make(str(files / name))
        return found

    bundle = Bundle(str(files))
    monkeypatch.setattr(SafeDirectory, "stat", late)
    bundle.send(lambda number, part: parts.append(part))
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as tar:
        assert tar.getnames() == left
    an_empty_folder = name == "sub" and make is os.mkdir
    assert (bundle.files, bundle.left_out) == (len(left), 0 if an_empty_folder else 1)


def test_of_a_huge_folder_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / f"{number}").touch()
    monkeypatch.setattr("crawler_lifecycle.runner.bundle.NAMES_MAX", 3)
    bundle = Bundle(str(tmp_path))
    assert bundle.send(lambda number, part: None)["files"] == 3
    assert (bundle.files, bundle.left_out) == (3, 2)


def test_a_crawler_that_left_nothing_is_not_taken_for_one_that_uploaded_nothing(
    fixture: RunnerFixture, way: Way
) -> None:
    with pytest.raises(FilesMissing, match="nothing was uploaded"):
        way.bundles.read(run_ref(7), 3, 2)
    assert fixture.python("", **way.environment()) == 0
    assert fixture.summary()["files"] == {"uploaded": True, "files": 0, "bytes": 0}
    assert way.keys() == ["bundle.json"]
    assert way.contents() == {}


def test_many_parts_come_together_again(fixture: RunnerFixture, way: Way) -> None:
    content = _fill(fixture.files, 2, PART_BYTES)
    assert fixture.python("", **way.environment()) == 0
    assert way.contents() == content
    assert way.stub.parts == [0, 1, None]


def test_whatever_lies_there_is_taken_and_no_link_is_followed(
    fixture: RunnerFixture, way: Way, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    long = "x" * 120 + "/" + "y" * 200
    (fixture.files / long).parent.mkdir()
    (fixture.files / long).write_bytes(b"long")
    with open(os.fsencode(fixture.files) + b"/\xff\xfe", "wb") as file:
        file.write(b"bytes")
    (fixture.files / "link").symlink_to(tmp_path / "secret")
    (fixture.files / "around").symlink_to(fixture.files)
    os.mkfifo(fixture.files / "pipe")
    with open(fixture.files / "holes", "wb") as file:
        file.truncate(2 * 2**30)
    assert fixture.python("", **way.environment()) == 0
    assert fixture.summary()["files"] == {"uploaded": True, "files": 5, "bytes": 9, "left_out": 1}
    result, zipped = way.archived(tmp_path)
    assert sorted(zipped.namelist()) == ["manifest.json", "task-3/%FF%FE", f"task-3/{long}"]
    manifest = json.loads(zipped.read("manifest.json"))
    assert {entry["name"]: entry["reason"] for entry in manifest["skipped"]} == {
        "task-3/around": "a symbolic link",
        "task-3/link": "a symbolic link",
        "task-3/pipe": "a named pipe",
        "task-3": "its runner left out 1 file: too large, too many, or unreadable",
    }
    assert result.note is not None


# --- nothing of it changes how the crawl went -----------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "told", "code"),
    [
        *(
            (Answer(403, b'{"detail": "no leave"}'), "the gateway returned 403: no leave", code)
            for code in (0, 18)
        ),
        (
            Answer(200, b'{"url": "ftp://x/y", "headers": {}}'),
            "'ftp://x/y' is not an HTTP address",
            0,
        ),
    ],
)
def test_a_gateway_that_gives_no_leave_changes_nothing_but_the_words(
    fixture: RunnerFixture, way: Way, fault: Answer, told: str, code: int
) -> None:
    way.stub.faults.append(fault)
    stopping = {"CRAWL_STOP_GRACE_S": "120"}
    process = fixture.start_python(
        STUBBORN.replace("sys.exit(0)", f"sys.exit({code})"), **way.environment(**stopping)
    )
    process.send_signal(signal.SIGTERM)
    assert fixture.finish(process) == (11 if code == 0 else 13)
    _nothing_was_uploaded(fixture, way, told)


@pytest.mark.parametrize("code", [0, 1])
def test_a_gateway_that_says_nonsense_is_asked_until_time_is_up(
    fixture: RunnerFixture, way: Way, code: int
) -> None:
    way.stub.faults.extend([Answer(200, b"[]")] * 1000)
    grace = {"CRAWL_STOP_GRACE_S": "0.1", "CRAWL_END_GRACE_S": "0.1"}
    argv = ["command", "--", sys.executable, "-c", f"raise SystemExit({code})"]
    process = fixture.start(*argv, **way.environment(**grace))
    wait_until(lambda: way.stub.requests >= 2)  # so the response to the first was read
    process.send_signal(signal.SIGTERM)
    assert fixture.finish(process) == code
    _nothing_was_uploaded(
        fixture, way, "there was no time left: the gateway's response cannot be read"
    )


def _nothing_was_uploaded(fixture: RunnerFixture, way: Way, told: str) -> None:
    assert told in fixture.summary()["files"]["why"]
    assert f"were not uploaded: {fixture.summary()['files']['why']}".encode() in fixture.output
    with pytest.raises(FilesMissing) as missing:
        way.bundles.read(run_ref(7), 3, 2)
    assert str(missing.value) == NOTHING


STUBBORN = """
import os, signal, sys, time
def stop(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
with open(os.environ["CRAWL_FILES_DIR"] + "/ready", "w") as file:  # a file that nobody closes swallows the exit
    file.write("there")
while True: time.sleep(0.1)  # a signal that comes just before a sleep is slept over
"""


NOWHERE = "http://127.0.0.1:9/v1/x"


def test_nobody_there_costs_nothing_else(fixture: RunnerFixture) -> None:
    nowhere = {"CRAWL_UPLOAD_URL": NOWHERE, "CRAWL_UPLOAD_TOKEN": "t"}
    stopping = {"CRAWL_STOP_GRACE_S": "0.1", "CRAWL_END_GRACE_S": "0.1"}
    process = fixture.start("command", "--", sys.executable, "-c", "", **nowhere, **stopping)
    wait_until(fixture.summary_file.exists)
    process.send_signal(signal.SIGTERM)
    assert fixture.finish(process) == 0
    assert fixture.summary()["files"]["why"].startswith("there was no time left")
    assert fixture.python("", CRAWL_UPLOAD_URL="nonsense", CRAWL_UPLOAD_TOKEN="t") == 0
    assert "the address of the gateway cannot be used" in fixture.summary()["files"]["why"]


def test_nobody_there_is_told(tmp_path: Path) -> None:
    upload = Upload(str(tmp_path), NOWHERE, "t")
    upload.start(time.monotonic() + 600)
    wait_until(lambda: "the gateway cannot be reached" in upload.result()["why"])
    upload.hurry(time.monotonic())
    wait_until(upload.over)
    assert upload.result()["why"].startswith(
        "there was no time left: the gateway cannot be reached: "
    )


def test_a_lost_answer_is_asked_for_again_and_nothing_is_there_twice(
    fixture: RunnerFixture, way: Way
) -> None:
    content = _fill(fixture.files, 2)
    way.stub.faults.extend(["drop", Answer(503, b"{}", headers={"Retry-After": "1"})])
    way.proxy.faults = [
        Fault("drop_answer", "PutObject"),
        Fault("damage", "PutObject"),
        Fault("status", "PutObject", status=403, code="RequestExpired"),
    ]
    assert fixture.python("", eager=True, **way.environment()) == 0
    assert fixture.summary()["files"]["uploaded"] is True
    assert way.contents() == content
    assert (
        way.keys() == ["bundle.json", "part-00000", "part-00001", "part-00002"][: len(way.keys())]
    )


@pytest.mark.parametrize("seed", range(3))
def test_spoiled_at_random_it_is_whole_in_the_end_or_says_that_it_is_not(
    fixture: RunnerFixture, way: Way, seed: int
) -> None:
    content = _fill(fixture.files, 2)
    way.proxy.seeded(seed, 0.4, ("slow_down", "reset", "drop_answer", "internal", "damage"))
    assert fixture.python("", eager=True, **way.environment()) == 0
    way.proxy.calm()
    if fixture.summary()["files"]["uploaded"]:
        assert way.contents() == content
    else:
        with pytest.raises(FilesMissing):
            way.contents()


def test_storage_that_refuses_is_told_with_its_own_code(fixture: RunnerFixture, way: Way) -> None:
    way.proxy.faults = [Fault("status", "PutObject", times=99, status=403, code="AccessDenied")]
    assert fixture.python(WRITE, **way.environment()) == 0
    assert fixture.summary()["files"] == {
        "uploaded": False,
        "why": "object storage returned 403 AccessDenied",
    }
    assert way.keys() == []


# --- time -----------------------------------------------------------------------------------------


def test_an_upload_that_hangs_ends_with_the_grace_and_says_so(
    fixture: RunnerFixture, way: Way
) -> None:
    way.proxy.faults = [Fault("hang", "PutObject", times=99)]
    grace = {"CRAWL_STOP_GRACE_S": "1", "CRAWL_END_GRACE_S": "1.5"}
    # However long the crawler itself takes to end, which is another matter.
    process = fixture.start_python(STUBBORN, patient_until="never", **way.environment(**grace))
    process.send_signal(signal.SIGTERM)
    assert fixture.finish(process) == 11
    assert fixture.summary()["files"]["uploaded"] is False
    assert fixture.summary()["files"]["why"].startswith("there was no time left")


def test_a_stop_that_comes_during_the_upload_of_a_finished_crawl_shortens_it_alone(
    fixture: RunnerFixture, way: Way
) -> None:
    way.proxy.faults = [Fault("hang", "PutObject", times=99)]
    grace = {"CRAWL_STOP_GRACE_S": "0.5", "CRAWL_END_GRACE_S": "0.5"}
    process = fixture.start(
        "command", "--", sys.executable, "-c", WRITE, **way.environment(**grace)
    )
    wait_until(lambda: way.proxy.calls["PutObject"])
    assert fixture.summary()["files"] == {
        "uploaded": False,
        "why": "the runner was killed while it uploaded them",
    }
    process.send_signal(signal.SIGTERM)
    assert fixture.finish(process) == 0  # it had finished before anybody asked
    assert fixture.summary()["finish_reason"] == "finished"
    assert fixture.summary()["files"]["uploaded"] is False


def test_killed_outright_it_has_uploaded_nothing_and_the_end_says_which_part_is_there(
    fixture: RunnerFixture, way: Way
) -> None:
    content = _fill(fixture.files, 3)
    way.proxy.faults = [Fault("hang", "PutObject", times=99, skip=2)]
    process = fixture.start(
        "command", "--", sys.executable, "-c", "", eager=True, **way.environment()
    )
    wait_until(lambda: way.proxy.calls["PutObject"] >= 3)
    process.kill()
    fixture.finish(process)
    assert way.keys() == ["part-00000", "part-00001"]
    with pytest.raises(FilesMissing, match=UNFINISHED):
        way.contents()
    result, zipped = way.archived(fixture.files.parent)
    assert zipped.read("task-3/page-0") == content["page-0"]
    assert result.note is not None
    assert UNFINISHED in result.note


def test_a_crawler_that_ignores_the_stop_is_killed_in_time_for_its_files(
    fixture: RunnerFixture, way: Way
) -> None:
    deaf = STUBBORN.replace("sys.exit(0)", "pass")
    process = fixture.start_python(deaf, **way.environment(CRAWL_STOP_GRACE_S="0.5"))
    process.send_signal(signal.SIGTERM)
    assert fixture.finish(process) == 13
    summary = fixture.summary()
    assert summary["files"]["uploaded"] is True
    assert summary["message"] == "It was still running 0.5 s after the stop signal and was killed"
    assert summary["signal"] == signal.SIGKILL
    assert way.contents() == {"ready": b"there"}


# --- leave is for one object, for its bytes, and for a while --------------------------------------


def test_leave_for_one_part_writes_nothing_else(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    from base64 import b64encode
    from hashlib import md5
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    def digest(data: bytes) -> str:
        return b64encode(md5(data, usedforsecurity=False).digest()).decode()

    def put(url: str, body: bytes, headers: dict[str, str]) -> int:
        request = Request(url, data=body, method="PUT", headers={"Content-Type": "x/y", **headers})
        try:
            with urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code

    ticket = way.bundles.ticket(run_ref(7), 3, 2, 0, 4, digest(b"part"))
    mine = {name: value for name, value in ticket.headers.items() if name != "Content-Length"}
    elsewhere = ticket.url.replace("/3/2/part-00000", "/4/1/part-00000")
    assert elsewhere != ticket.url
    for url, body, headers in [
        (elsewhere, b"part", mine),
        (ticket.url.replace("part-00000", "part-00001"), b"part", mine),
        (ticket.url, b"evil", mine),
        (ticket.url, b"evil", {"Content-MD5": digest(b"evil")}),
        (ticket.url, b"much more", mine),
        (ticket.url.replace("X-Amz-Expires=300", "X-Amz-Expires=86400"), b"part", mine),
    ]:
        assert put(url, body, headers) in (400, 403), (url, body)
    assert way.keys() == []
    monkeypatch.setattr("crawler_lifecycle.adapters.archive.bundles.TICKET_S", 1)
    late = way.bundles.ticket(run_ref(7), 3, 2, 0, 4, digest(b"part"))
    time.sleep(2.1)
    assert put(late.url, b"part", mine) in (400, 403)
    assert way.keys() == []
    assert put(ticket.url, b"part", mine) == 200
    assert put(ticket.url, b"part", mine) == 200  # the same upload again changes nothing
    assert way.keys() == ["part-00000"]


def test_a_storage_that_cannot_be_read_now_is_not_taken_for_missing_files(
    fixture: RunnerFixture, way: Way
) -> None:
    assert fixture.python(WRITE, **way.environment()) == 0
    for fault in (
        Fault("slow_down", times=99),
        Fault("status", times=99, status=403, code="AccessDenied"),
    ):
        way.proxy.faults = [fault]
        with pytest.raises(NotDelivered, match="files of a task cannot be read"):
            way.bundles.read(run_ref(7), 3, 2)
    way.proxy.faults = []
    key = f"files/{run_ref(7)}/3/2/part-00000"
    way.bucket.client.put_object(Bucket=way.bucket.name, Key=key, Body=b"another content")
    with pytest.raises(FilesMissing, match="damaged"):
        b"".join(way.bundles.read(run_ref(7), 3, 2))
    way.bucket.client.put_object(
        Bucket=way.bucket.name, Key=f"files/{run_ref(7)}/3/2/bundle.json", Body=b"[]"
    )
    with pytest.raises(FilesMissing, match="damaged"):
        way.bundles.read(run_ref(7), 3, 2)


@pytest.mark.parametrize("url", ["file:///x", "s3://", "s3://Bucket", "s3://bucket/../x", ""])
def test_a_place_that_is_none_is_refused_by_its_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_CLUSTER__FILES_URL"):
        S3Bundles(url)
