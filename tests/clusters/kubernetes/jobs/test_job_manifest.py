"""What holds for every Job, whatever is requested."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.transport import ANSWER_MAX
from crawler_lifecycle.clusters.kubernetes.files import layout
from crawler_lifecycle.clusters.kubernetes.jobs.manifest import MANIFEST_MAX, job_for, spec_hash
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import PodOptions, PodVolume, Sidecar
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.resources import Resources, parse_cpu, parse_memory
from crawler_lifecycle.domain.run import TASK_BYTES_MAX, Limits
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from tests.support.examples import examples
from tests.support.job_cases import DIGEST, FAR, Case, Rules, cases, crawler, deployment

_LABEL_NAME = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    [found] = pod_of(job)["containers"]
    return dict(found)


def env_of(job: dict[str, Any]) -> dict[str, Any]:
    entries = container_of(job)["env"]
    found = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}
    assert len(found) == len(entries), "a variable is there twice"
    return found


def expanded(text: str, known: dict[str, str]) -> str:
    """Return what the kubelet makes of a value or an argument
    (third_party/forked/golang/expansion/expand.go).
    """
    out, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            rest = text[at + 1 :]
            end = rest.find(")")
            if rest[0] == "$":
                out, at = out + "$", at + 2
            elif rest[0] == "(" and end >= 0:
                out, at = out + known.get(rest[1:end], f"$({rest[1:end]})"), at + 2 + end
            else:
                out, at = out + "$" + rest[0], at + 2
        else:
            out, at = out + text[at], at + 1
    return out


def check(job: dict[str, Any]) -> None:
    """Check the rules of RFC 1123, of the API, and our own."""
    assert _NAME.fullmatch(job["metadata"]["name"])
    for meta in (job["metadata"], job["spec"]["template"]["metadata"]):
        for name, value in meta["labels"].items():
            assert _LABEL_NAME.fullmatch(name), name
            assert _LABEL_VALUE.fullmatch(value), value
    assert len(json.dumps(job, ensure_ascii=False).encode()) <= MANIFEST_MAX
    spec, pod, container = job["spec"], pod_of(job), container_of(job)
    assert (spec["backoffLimit"], spec["podReplacementPolicy"], pod["restartPolicy"]) == (
        0,
        "Failed",
        "Never",
    )
    assert (spec["parallelism"], spec["completions"]) == (1, 1)
    assert "podFailurePolicy" not in spec
    assert spec["ttlSecondsAfterFinished"] == 7 * 86_400, "whoever records the end sets less"
    assert job["spec"]["template"]["metadata"]["finalizers"] == [labels.FINALIZER]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"].get("runAsUser") != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        **{"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True},
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    allowed = {"persistentVolumeClaim", "emptyDir", "secret", "configMap"}
    assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])
    assert all(v["emptyDir"].get("sizeLimit") for v in pod["volumes"] if "emptyDir" in v)
    assert {m["name"] for m in container["volumeMounts"]} <= {v["name"] for v in pod["volumes"]}
    names = {
        labels.RUN,
        labels.ATTEMPT,
        labels.TASK,
        labels.TASK_ID,
        labels.CRAWLER,
        labels.TRIGGER,
    }
    on_pod = job["spec"]["template"]["metadata"]["labels"]
    assert {n: job["metadata"]["labels"][n] for n in names} == {n: on_pod[n] for n in names}
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    assert set(limits) <= set(requests), "a limit without a request becomes the request"
    for name, parse in (("cpu", parse_cpu), ("memory", parse_memory)):
        if name in limits:
            assert (parse(requests[name]) or 0) <= (parse(limits[name]) or 0)


@pytest.mark.parametrize("name", cases())
def test_every_case_is_a_job(name: str) -> None:
    check(cases()[name].job())


# --- any text, any number -------------------------------------------------------------------------

TEXT = st.text(max_size=40)
ANY = st.text(st.characters(codec=None), max_size=20)  # lone surrogates as well
PAIRS = st.dictionaries(ANY, ANY, max_size=4)
TASKS = st.tuples(st.integers(1, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1))


def _explains(refusal: InvalidRequest, field: str) -> None:
    assert re.search(field, str(refusal)), f"no field is named: {refusal}"


@settings(max_examples=examples(80))
@given(
    spider=st.none() | ANY,
    given_args=PAIRS,
    config=PAIRS,
    env=PAIRS,
    secrets=PAIRS,
    image=st.none() | ANY | st.just(DIGEST),
    command=st.lists(ANY, min_size=1, max_size=3),
    scrapy=st.booleans(),
    project=st.none() | ANY,
)
def test_any_text_gives_a_job_or_a_clear_refusal(
    spider: str | None,
    given_args: dict[str, str],
    config: dict[str, str],
    env: dict[str, str],
    secrets: dict[str, str],
    image: str | None,
    command: list[str],
    scrapy: bool,
    project: str | None,
) -> None:
    kind: dict[str, Any] = {} if scrapy else {"kind": CrawlerKind.COMMAND, "command": command}
    declared = {key: Argument() for key in given_args}
    try:
        made = CrawlerDefinition(
            "shops",
            **{
                "spider": spider,
                "args": declared,
                "settings": config,
                "env": env,
                "secrets": secrets,
                "image": image,
            },
            **kind,
            kubernetes=PodOptions(project=project),
        )
        job = Case(made, deployment(args=given_args), rules=Rules(image=None)).job()
    except InvalidRequest as error:
        _explains(error, r"(args|env|secrets|image|command|CRAWL_\w+|the Job (has|holds))")
        return
    check(job)
    json.dumps(job, ensure_ascii=False).encode()
    known = {"HOME": "wrong", "PATH": "wrong", "": "wrong"}
    env_there = env_of(job)
    assert json.loads(expanded(env_there["CRAWL_ARGS"], known)) == given_args
    assert json.loads(expanded(env_there["CRAWL_SETTINGS"], known)) == config
    for key, value in env.items():
        if key not in secrets:
            assert expanded(env_there[key], known) == value
    words = [expanded(word, known) for word in container_of(job)["command"]]
    assert words[:4] == ["python3", "-I", "-S", layout.RUNNER]
    if not scrapy:
        assert words[words.index("--") + 1 :] == command


@settings(max_examples=examples(80))
@given(
    task=TASKS,
    grace=st.floats(0, 1e6),
    timeout=st.none() | st.floats(0.001, 1e9),
    start=st.none() | st.floats(0.001, 1e9),
    cpu=st.none() | st.floats(1e-6, 1e20),
    memory=st.none() | st.floats(1e-3, 1e25),
)
def test_any_number_gives_a_job_or_a_clear_refusal(
    task: tuple[int, int, int],
    grace: float,
    timeout: float | None,
    start: float | None,
    cpu: float | None,
    memory: float | None,
) -> None:
    run_id, index, attempt = task
    try:
        asked = deployment(
            run_id=run_id,
            limits=Limits(stop_grace_s=grace, run_timeout_s=timeout, start_timeout_s=start),
            resources=Resources(
                None if cpu is None else str(cpu), None if memory is None else str(memory)
            ),
        )
        job = Case(crawler(), asked, QueuedTask(1, index, {}, attempt=attempt)).job()
    except InvalidRequest as error:
        _explains(error, r"(limits\.\w+|resources\.\w+): ")
        return
    check(job)
    pod = pod_of(job)
    assert grace <= pod["terminationGracePeriodSeconds"] < 2**31
    assert ("activeDeadlineSeconds" in pod) is (timeout is not None)
    if timeout is not None:
        assert (
            timeout < pod["activeDeadlineSeconds"] <= job["spec"]["activeDeadlineSeconds"] < 2**31
        )


@given(st.lists(TASKS, min_size=2, max_size=6, unique=True))
def test_distinct_tasks_have_distinct_names_and_places(tasks: list[tuple[int, int, int]]) -> None:
    made = [
        Case(
            *(
                crawler(),
                deployment(run_id=run),
                QueuedTask(1, index, {}, attempt=attempt),
                Rules(volume_claim="data"),
            )
        ).job()
        for run, index, attempt in tasks
    ]
    assert len({job["metadata"]["name"] for job in made}) == len(tasks)
    files = [container_of(job)["volumeMounts"][0]["subPath"] for job in made]
    assert len(set(files)) == len(tasks)
    assert not any(a != b and b.startswith(f"{a}/") for a in files for b in files), (
        "one task's files lie in another's"
    )


# --- the single rules -----------------------------------------------------------------------------


def test_the_whole_contract_is_in_the_environment() -> None:
    asked = deployment(
        limits=Limits(run_timeout_s=60), resume=True, args={"a": "1"}, settings={"S": "2"}
    )
    asked = replace(asked, record={"request_id": "nightly-7"})
    found = env_of(
        Case(
            crawler(args={"a": Argument()}, resources=Resources("1", "64Mi"), resumable=True), asked
        ).job()
    )
    assert found == {
        "HOME": "/tmp",
        **{"CRAWL_RUN_ID": "7", "CRAWL_RUN_UID": f"{7:032x}", "CRAWL_TASK_ID": "70"},
        **{"CRAWL_REQUEST_ID": "nightly-7", "CRAWL_TASK_INDEX": "0", "CRAWL_ATTEMPT": "1"},
        **{
            "CRAWL_CRAWLER": "shops",
            "CRAWL_ARGS": '{"a": "1"}',
            "CRAWL_SETTINGS": '{"S": "2"}',
            "CRAWL_RESUME": "1",
        },
        **{"CRAWL_FILES_DIR": "/crawl/files", "CRAWL_STATE_DIR": "/crawl/state"},
        **{
            "CRAWL_STATS_FILE": "/tmp/crawl-stats.json",
            "CRAWL_SUMMARY_FILE": "/dev/termination-log",
        },
        **{"CRAWL_STOP_SIGNAL": "SIGTERM", "CRAWL_STOP_GRACE_S": "30", "CRAWL_END_GRACE_S": "10"},
        **{"CRAWL_RUN_TIMEOUT_S": "60", "CRAWL_MEMORY_LIMIT": str(64 * 2**20)},
    }


def test_only_a_crawler_that_can_resume_is_asked_to() -> None:
    assert env_of(Case(crawler(), deployment(resume=True)).job())["CRAWL_RESUME"] == "0"


def test_nobody_but_us_sets_the_contract() -> None:
    given = {"CRAWL_ARGS": "stolen", "CRAWL_GATEWAY_URL": "http://g.example"}
    found = env_of(Case(crawler(), deployment(), public=given, secret_names=["CRAWL_RUN_ID"]).job())
    assert (found["CRAWL_ARGS"], found["CRAWL_RUN_ID"], found["CRAWL_GATEWAY_URL"]) == (
        "{}",
        "7",
        "http://g.example",
    )


def test_secrets_are_references_only() -> None:
    made = cases()["uploads_with_tokens"].job()
    reference = {"secretKeyRef": {"name": "crawl-7-0-1", "key": "CRAWL_TOKEN"}}
    assert env_of(made)["CRAWL_TOKEN"] == reference
    own = env_of(Case(crawler(secrets={"KEY": "secret:shop.keys/api_key"}), deployment()).job())
    assert own["KEY"] == {"secretKeyRef": {"name": "shop.keys", "key": "api_key"}}


@pytest.mark.parametrize(
    "text", ["env:KEY", "secret:name", "secret:/key", "secret:Name/key", "secret:a/b/c", "hunter2"]
)
def test_a_secret_that_is_no_reference_is_refused_and_not_passed_on(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"secrets\.'KEY': .*secret:NAME/KEY"):
        Case(crawler(secrets={"KEY": text}), deployment()).job()


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        (DIGEST, "IfNotPresent"),
        ("crawl.test/crawler:1", "IfNotPresent"),
        ("crawl.test/crawler", "Always"),
        ("crawl.test/crawler:latest", "Always"),
        ("registry.example:5000/crawler", "Always"),
        ("registry.example:5000/crawler:2", "IfNotPresent"),
    ],
)
def test_an_image_is_used_as_it_is_named_and_pulled_accordingly(image: str, policy: str) -> None:
    found = container_of(Case(crawler(image=image), deployment()).job())
    assert (found["image"], found["imagePullPolicy"]) == (image, policy)


@pytest.mark.parametrize(
    "image", ["", "a b", "crawler@sha256:12", "crawler@md5:" + "0" * 64, "x" * 1025]
)
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(InvalidRequest, match="image: "):
        Case(crawler(image=image), deployment()).job()


def test_the_catalogues_image_counts_before_that_of_the_settings() -> None:
    assert (
        container_of(Case(crawler(), deployment(), rules=Rules(image=DIGEST)).job())["image"]
        != DIGEST
    )
    assert (
        container_of(Case(crawler(image=None), deployment(), rules=Rules(image=DIGEST)).job())[
            "image"
        ]
        == DIGEST
    )
    with pytest.raises(InvalidRequest, match=r"image: missing; .*LIFECYCLE_CLUSTER__IMAGE"):
        Case(crawler(image=None), deployment()).job()


@pytest.mark.parametrize(
    ("limits", "wished", "requests"),
    [
        (Resources(), Resources(), {"cpu": "50m", "memory": "128Mi"}),
        (Resources("1", "1Gi"), Resources(), {"cpu": "250m", "memory": "1Gi"}),
        (Resources("20m", "1e9"), Resources(), {"cpu": "10m", "memory": "1000000000"}),
        (Resources("1", "1Gi"), Resources("0.5", "256Mi"), {"cpu": "500m", "memory": "256Mi"}),
        (Resources("1", "128Mi"), Resources("2", "256Mi"), {"cpu": "1", "memory": "128Mi"}),
        (Resources(), Resources("2", "256Mi"), {"cpu": "2", "memory": "256Mi"}),
    ],
)
def test_what_is_reserved(limits: Resources, wished: Resources, requests: dict[str, str]) -> None:
    found = container_of(
        Case(crawler(resources=limits, kubernetes=PodOptions(requests=wished)), deployment()).job()
    )
    assert found["resources"]["requests"] == {**requests, "ephemeral-storage": "0"}


def test_memory_that_is_reserved_without_a_limit_is_the_limit() -> None:
    """Otherwise a LimitRange would set its own (512Mi in deploy/), and a pod that reserves more is
    refused.
    """
    wish = PodOptions(requests=Resources(memory="1Gi"))
    container = container_of(
        Case(crawler(resources=Resources(), kubernetes=wish), deployment()).job()
    )
    assert (
        container["resources"]["limits"]["memory"]
        == container["resources"]["requests"]["memory"]
        == "1Gi"
    )
    assert {"name": "CRAWL_MEMORY_LIMIT", "value": str(2**30)} in container["env"]
    smaller = deployment(resources=Resources(memory="512Mi"))
    container = container_of(Case(crawler(resources=Resources(), kubernetes=wish), smaller).job())
    assert (
        container["resources"]["limits"]["memory"]
        == container["resources"]["requests"]["memory"]
        == "512Mi"
    )
    tiny = Case(
        crawler(resources=Resources(), kubernetes=PodOptions(requests=Resources(memory="1Mi"))),
        deployment(),
    )
    with pytest.raises(InvalidRequest, match=r"kubernetes\.requests\.memory: '1Mi' is not allowed"):
        tiny.job()


def test_a_request_that_lowers_memory_below_its_shm_is_refused() -> None:
    made = crawler(resources=Resources(memory="2Gi"), kubernetes=PodOptions(shm="1Gi"))
    with pytest.raises(
        InvalidRequest, match=r"kubernetes\.shm: '1Gi' is above resources\.memory \('512Mi'\)"
    ):
        Case(made, deployment(resources=Resources(memory="512Mi"))).job()


@pytest.mark.parametrize(
    ("sidecar", "words"),
    [
        (Sidecar("a", "a b"), r"kubernetes\.sidecars\[0\]\.image: 'a b' is not a valid image"),
        (
            Sidecar("a", "a", resources=Resources(memory="1")),
            r"sidecars\[0\]\.resources\.memory: '1' .* at least 4Mi",
        ),
    ],
)
def test_a_sidecar_that_cannot_start_is_refused(sidecar: Sidecar, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Case(crawler(kubernetes=PodOptions(sidecars=[sidecar])), deployment()).job()


def test_the_calls_limits_count_before_the_catalogues() -> None:
    asked = deployment(resources=Resources(memory="1Gi"))
    found = Case(crawler(resources=Resources("1", "512Mi")), asked).job()
    limits = container_of(found)["resources"]["limits"]
    assert (limits["cpu"], limits["memory"], env_of(found)["CRAWL_MEMORY_LIMIT"]) == (
        "1",
        "1Gi",
        str(2**30),
    )


@pytest.mark.parametrize("text", ["1", "0.5", "4194303"])
def test_memory_that_no_container_can_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"resources\.memory: .* at least 4Mi"):
        Case(crawler(resources=Resources(memory=text)), deployment()).job()


def test_scheduled_and_one_time_runs_differ_in_label_and_priority() -> None:
    rules = Rules(scheduled_priority_class="crawl-low", onetime_priority_class="crawl-high")
    by_clock = Case(crawler(), deployment(scheduled=True), rules=rules).job()
    by_hand = Case(crawler(), deployment(), rules=rules).job()
    assert [job["metadata"]["labels"][labels.TRIGGER] for job in (by_clock, by_hand)] == [
        "scheduled",
        "onetime",
    ]
    assert [pod_of(job)["priorityClassName"] for job in (by_clock, by_hand)] == [
        "crawl-low",
        "crawl-high",
    ]
    urgent, later = (deployment(priority=n) for n in (1, 2))
    mapped = replace(rules, priority_classes={1: "crawl-first"})
    classes = [
        pod_of(Case(crawler(), one, rules=mapped).job())["priorityClassName"]
        for one in (urgent, later)
    ]
    assert classes == ["crawl-first", "crawl-high"]
    own = crawler(kubernetes=PodOptions(priority_class="mine"))
    assert pod_of(Case(own, deployment(), rules=rules).job())["priorityClassName"] == "mine"


def test_a_queue_holds_the_job() -> None:
    job = Case(crawler(kubernetes=PodOptions(queue="crawls")), deployment()).job()
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "crawls"
    rules = Rules(queue_priority_classes={1: "first"})
    for queue, priority, of_kueue in (("crawls", 1, "first"), ("crawls", 2, None), (None, 1, None)):
        case = Case(
            crawler(kubernetes=PodOptions(queue=queue)), deployment(priority=priority), rules=rules
        )
        assert case.job()["metadata"]["labels"].get("kueue.x-k8s.io/priority-class") == of_kueue
    assert "suspend" not in Case(crawler(), deployment()).job()["spec"]


@pytest.mark.parametrize(
    ("rules", "runner", "seconds"),
    [
        (Rules(), True, 41),
        (Rules(files_url="s3://a/b"), True, 91),
        (Rules(files_url="s3://a/b"), False, 31),
    ],
)
def test_the_grace_is_the_crawlers_and_what_the_runner_needs_after_it(
    rules: Rules, runner: bool, seconds: int
) -> None:
    made = crawler(kind=CrawlerKind.COMMAND, command=["true"], kubernetes=PodOptions(runner=runner))
    job = Case(made, deployment(limits=Limits(stop_grace_s=30.5)), rules=rules).job()
    assert pod_of(job)["terminationGracePeriodSeconds"] == seconds


def test_no_grace_is_never_a_deletion_without_the_nodes_word() -> None:
    made = crawler(kind=CrawlerKind.COMMAND, command=["true"], kubernetes=PodOptions(runner=False))
    job = Case(made, deployment(limits=Limits(stop_grace_s=0))).job()
    assert pod_of(job)["terminationGracePeriodSeconds"] == 1


def test_an_image_without_our_runner_says_so_and_speaks_by_its_log() -> None:
    job = cases()["without_runner"].job()
    assert job["metadata"]["annotations"][labels.RUNNER] == "false"
    assert job["spec"]["template"]["metadata"]["annotations"][labels.RUNNER] == "false"
    found = container_of(job)
    assert found["command"] == ["python", "fetch.py", "--all", "$$(PATH)"]
    assert found["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert not {"CRAWL_END_GRACE_S", "CRAWL_RUN_TIMEOUT_S"} & set(env_of(job))


def test_where_a_runner_is_no_log_stands_in_for_its_summary() -> None:
    job = cases()["plain"].job()
    assert container_of(job)["terminationMessagePolicy"] == "File"
    assert container_of(job)["terminationMessagePath"] == env_of(job)["CRAWL_SUMMARY_FILE"]
    assert labels.RUNNER not in job["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("project", "working_dir", "told"),
    [(None, None, "."), ("crawlers", None, "crawlers"), ("/app", "/app", "/app")],
)
def test_the_folder_a_crawler_starts_in(
    project: str | None, working_dir: str | None, told: str
) -> None:
    found = container_of(Case(crawler(kubernetes=PodOptions(project=project)), deployment()).job())
    assert found.get("workingDir") == working_dir
    assert f"--project={told}" in found["command"]


def test_without_a_runner_nobody_resolves_a_relative_folder() -> None:
    options = PodOptions(runner=False, project="jobs")
    with pytest.raises(InvalidRequest, match=r"kubernetes\.project: 'jobs' is a relative path"):
        Case(
            crawler(kind=CrawlerKind.COMMAND, command=["true"], kubernetes=options), deployment()
        ).job()


def test_wrong_arguments_are_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidRequest, match=r"args\.nonsense: unknown"):
        Case(crawler(), deployment(args={"nonsense": "1"})).job()


def test_what_the_installation_owns_is_refused_whoever_read_the_catalogue() -> None:
    """The settings of the scheduler service may have changed, or the catalogue may be somebody
    else's.
    """
    rules = Rules(volume_claim="data", pull_secrets=["registry"])
    for options, secrets, words in (
        (
            PodOptions(volumes=[PodVolume("a", "/a", claim="data", sub_path=".")]),
            {},
            r"volumes\[0\]\.claim: 'data'",
        ),
        (
            PodOptions(volumes=[PodVolume("a", "/a", secret="registry")]),
            {},
            r"volumes\[0\]\.secret: 'registry'",
        ),
        (
            PodOptions(service_account="gateway"),
            {},
            r"kubernetes\.service_account: 'gateway' is an account of this",
        ),
        (PodOptions(), {"KEY": "secret:registry/.dockerconfigjson"}, r"secrets\.KEY: 'registry'"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            Case(crawler(kubernetes=options, secrets=secrets), deployment(), rules=rules).job()


def test_what_is_too_much_is_refused_with_its_size() -> None:
    big = crawler(args={"x": Argument()})
    with pytest.raises(
        InvalidRequest, match=r"args: \d+ bytes of arguments and settings .*; at most 65536"
    ):
        Case(big, deployment(args={"x": "y" * 70_000})).job()
    env = {f"E{n}": "y" * (12_000 + n) for n in range(10)}
    with pytest.raises(
        InvalidRequest,
        match=r"the Job has \d+ bytes .*; at most 114688 .* variable is E9 \(120\d\d bytes\)",
    ):
        Case(crawler(env=env), deployment()).job()
    # The server writes six bytes for each of these.
    with pytest.raises(InvalidRequest, match="the Job has"):
        Case(crawler(env={"E": "<" * 20_000}), deployment()).job()


def test_a_page_of_the_largest_jobs_fits_into_an_answer() -> None:
    """``test_manifests_dry_run`` shows that the server adds less than 8 KiB (defaults, managed
    fields, a status).

    Whatever fits into a request fits into a Job.
    """
    assert 500 * (MANIFEST_MAX + 16 * 1024) <= ANSWER_MAX
    largest = crawler(args={"x": Argument()}, settings={"s": "1"})
    for text in (
        "x",
        "/",
        "é",
        "漢",
        '{"a": "https://b.example/c"}',
    ):
        half = text * (TASK_BYTES_MAX // len(json.dumps(text)[1:-1]) * 2 // 3 - 20)
        check(
            Case(
                largest, deployment(args={"x": half}, settings={"t": half[: len(half) // 3]})
            ).job()
        )


# --- the hash -------------------------------------------------------------------------------------


def _hash(task: QueuedTask | None = None, of: CrawlerDefinition | None = None, **asked: Any) -> str:
    return spec_hash(deployment(**asked), of or crawler(), task or QueuedTask(70, 0, {}))


def test_the_hash_tells_apart_what_was_asked_for() -> None:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    args = crawler(args={"a": Argument("0")})
    found = [
        _hash(),
        _hash(run_id=8),
        _hash(QueuedTask(70, 0, {}, attempt=2)),
        _hash(QueuedTask(71, 0, {})),
        _hash(QueuedTask(70, 1, {})),
        _hash(QueuedTask(70, 0, {"a": "1"}), args),
        _hash(QueuedTask(70, 0, {"a": "2"}), args),
        _hash(settings={"A": "1"}),
        _hash(scheduled=True),
        _hash(scheduled=True, due_at=due),
        _hash(scheduled=True, due_at=due + timedelta(hours=1)),
        _hash(crawler="other"),
    ]
    assert len(set(found)) == len(found)


def test_the_hash_is_the_same_for_every_try_of_the_call() -> None:
    """With another replica, a later deadline or a changed catalogue, a call still recognizes its
    own Job.
    """
    before = crawler(args={"a": Argument("old"), "b": Argument()}, settings={"DELAY": "1"})
    after = replace(
        before, args={**before.args, "a": Argument("new")}, settings={"DELAY": "2"}, image=DIGEST
    )
    first = spec_hash(
        deployment(settings={"DELAY": "1"}), before, QueuedTask(70, 0, {"a": "old", "b": "x"})
    )
    later = deployment(
        settings={"DELAY": "2"}, expires_at=FAR + timedelta(seconds=30), resources=Resources("1")
    )
    assert spec_hash(later, after, QueuedTask(70, 0, {"b": "x", "a": "new"})) == first


def test_a_volume_of_the_catalogue_is_mounted() -> None:
    options = PodOptions(
        volumes=[PodVolume("models", "/models", claim="models", sub_path="v1", read_only=True)]
    )
    job = Case(crawler(kubernetes=options), deployment()).job()
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in pod_of(job)[
        "volumes"
    ]
    mount = {"name": "models", "mountPath": "/models", "subPath": "v1", "readOnly": True}
    assert mount in container_of(job)["volumeMounts"]


def test_the_settings_of_an_installation_are_what_a_job_needs() -> None:
    from crawler_lifecycle.settings import ClusterSettings

    whole = ClusterSettings(image=DIGEST, volume_claim="data", pull_secrets=["a"])
    made: Deployment = deployment()
    check(job_for(made, crawler(), made.tasks[0], whole))
