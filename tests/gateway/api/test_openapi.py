"""The documents from which clients are generated: OpenAPI, and the page of problem codes."""

from __future__ import annotations

import ast
import functools
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.features.sites.gateway import closings
from crawler_lifecycle.gateway.access.operations import ACCESS
from crawler_lifecycle.gateway.api.openapi import fields, meanings, parts
from crawler_lifecycle.web.problem_codes import CODES
from crawler_lifecycle.web.problems import of_error, snake
from tests.gateway.gateway_harness import Harness
from tests.gateway.packages.test_packages import zipped
from tools import openapi

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "crawler_lifecycle"
FIX = "run `python3 -m tools openapi` and commit what it writes"


@pytest.fixture(scope="module")
def text() -> str:
    """The document as a file, which takes a second to make."""
    return openapi.document()


@pytest.fixture(scope="module")
def document(text: str) -> Any:
    return json.loads(text)


def _operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]


# --- what is committed ----------------------------------------------------------------------------


def test_the_committed_document_is_the_one_that_is_served(client: TestClient, text: str) -> None:
    assert (DOCS / "openapi.json").read_text() == text, FIX
    assert client.get("/openapi.json").json() == json.loads(text)


def test_the_command_writes_both_documents(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openapi, "document", lambda: text)
    assert openapi.main(str(tmp_path)) == 0
    for name in ("openapi.json", "problems.md"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), FIX
    assert openapi.main(str(tmp_path / "missing")) == 1


# --- what it says ---------------------------------------------------------------------------------


def test_every_operation_has_a_stable_name_words_and_its_problems(document: Any) -> None:
    names = [operation["operationId"] for _, _, operation in _operations(document)]
    assert len(names) == len(set(names))
    # Neither the web UI nor scrapyd's API is a part of it.
    described = {name for name, access in ACCESS.items() if not access.page and not access.basic}
    assert set(names) == described - {"openapi"}
    for path, method, operation in _operations(document):
        assert operation["description"].endswith("."), (path, method)
        assert re.fullmatch(r"[a-z][A-Za-z]+", operation["operationId"])
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        access = ACCESS[operation["operationId"]]
        wanted = {"400", "401", "403", "422", "429", "503"} if access.role else set()
        wanted |= {"404"} if "_id}" in path else set()
        assert wanted <= set(operation["responses"]), operation["operationId"]
        assert operation["security"] == ([{"bearer": [access.role]}] if access.role else [])


def test_what_has_a_validator_takes_it_back(document: Any) -> None:
    reads = [
        item["get"]
        for item in document["paths"].values()
        if "304" in item.get("get", {}).get("responses", {})
    ]
    assert len(reads) == 32
    for operation in reads:
        assert "If-None-Match" in [parameter["name"] for parameter in operation["parameters"]]
        assert all("ETag" in operation["responses"][status]["headers"] for status in ("200", "304"))


def test_it_is_a_valid_openapi_document(document: Any) -> None:
    openapi_spec_validator.validate(document)


def test_clients_get_groups_usual_headers_and_one_class_for_a_name(document: Any) -> None:
    """Client generators group by tags, and number classes of the same name."""
    tags = {tag for _, _, operation in _operations(document) for tag in operation["tags"]}
    assert {"runs", "managers", "graphs", "schedules", "webhooks", "service"} <= tags
    headers = {
        parameter["name"]
        for _, _, operation in _operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "header"
    }
    assert headers == {"Idempotency-Key", "If-None-Match", "Last-Event-ID", "Range"}
    schemas = document["components"]["schemas"]
    assert not [name for name in schemas if name.endswith(("-Input", "-Output")) or "__" in name]
    titled = {key: value.get("title", key) for key, value in schemas.items()}
    assert titled == {key: key for key in schemas}
    assert '"title": "StartRun"' not in json.dumps(document["paths"])


def test_every_reference_leads_somewhere(document: Any) -> None:
    text = json.dumps(document)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found = document
        for part in reference.split("/"):
            assert part in found, reference
            found = found[part]
    assert "HTTPValidationError" not in text
    assert "x-definitions" not in text


def test_bodies_take_no_field_that_is_not_declared(document: Any) -> None:
    for _, _, operation in _operations(document):
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            schema = document["components"]["schemas"].get(
                schema.get("$ref", "").rpartition("/")[2], schema
            )
            assert schema["additionalProperties"] is False, operation["operationId"]


def _validator(document: Any, schema: Any) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


def test_every_body_has_examples_and_they_fit(document: Any) -> None:
    seen = set()
    for _, _, operation in _operations(document):
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            assert content["examples"], operation["operationId"]
            for example in content["examples"].values():
                _validator(document, content["schema"]).validate(example["value"])
            seen.add(operation["operationId"])
    assert seen == set(parts()["examples"])
    for response in document["components"]["responses"].values():
        content = response["content"]["application/problem+json"]
        _validator(document, content["schema"]).validate(content["example"])


def test_the_examples_start_runs_of_the_example_crawlers(
    harness: Harness, client: TestClient
) -> None:
    from crawler_lifecycle.adapters.catalogue import YamlCatalogue

    harness.scheduler.catalogue.crawlers = {
        c.name: c for c in YamlCatalogue(ROOT / "examples" / "crawlers.yaml").all()
    }
    for example in parts()["examples"]["startRun"].values():
        answer = client.post("/v1/runs", json=example["value"])
        assert answer.status_code == 202, answer.text


def test_answers_hold_what_is_declared_and_nothing_else(
    harness: Harness,
    client: TestClient,
    document: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closings, "WAIT_S", 0.0)
    run_id = client.post("/v1/runs", json={"crawler": "plain", "tags": ["t"]}).json()["run_id"]
    harness.claim(run_id)
    harness.deploy(run_id)
    client.post(f"/v1/runs/{run_id}/stop", json={"reason": "r"})
    manager_id = client.post("/v1/managers", json={"crawler": "plain", "tags": ["t"]}).json()[
        "manager_id"
    ]
    client.post(f"/v1/managers/{manager_id}/jobs", json={"jobs": [{}]})
    client.post(f"/v1/managers/{manager_id}/stop", json={"reason": "r"})
    graph = {"path": "a", "kind": "crawl", "job": {"crawler": "plain"}}
    client.post(
        "/v1/graphs", json={"id": "g", "steps": [graph], "tags": ["t"], "context": {"k": 1}}
    )
    client.post("/v1/graphs/g/stop", json={"reason": "r"})
    client.put(
        "/v1/schedules/s",
        json={"run": {"crawler": "plain"}, "cron": "30 2 * * *", "time_zone": "Europe/Berlin"},
    )
    client.post("/v1/schedules/s/trigger")
    client.put(
        "/v1/webhooks/s", json={"url": "https://hooks.example.com/", "secrets": ["env:CRAWL_HOOK"]}
    )
    client.post("/v1/webhooks/s/test")
    client.put("/v1/sites/s.example", json={"tasks": 2, "requests_per_s": 10})
    client.post("/v1/sites/s.example/close", json={"for_s": 60})
    harness.store.entries.set_entry("s", {"name": "s", "spider": "s"}, None)
    client.put("/v1/packages/s/versions/s", content=zipped(tmp_path / "s"))
    now = harness.clock.now
    needs = IncidentCondition("crawler_failing", "crawlers/plain", "default", "boom", now, now)
    harness.store.incidents.record_conditions([needs], lambda row: False)
    harness.store.user_code.register_user_code(
        "w", [UserCodeRow("a:B", "manager", None, "", "f", [{"name": "--x"}])]
    )
    seen = 0
    for path, method, operation in _operations(document):
        content = operation["responses"].get("200", {}).get("content", {})
        if method != "get" or set(content) != {"application/json"}:
            continue
        path = (
            path.replace("{run_id}", str(run_id))
            .replace("{manager_id}", str(manager_id))
            .replace("{incident_id}", "1")
            .replace("{site}", "s.example")
            .replace("{id}", "g")
            .replace("{index}", "0")
            .replace("{attempt}", "1")
        )
        for name in ("name", "crawler", "package", "version"):
            path = path.replace(f"{{{name}}}", "s")
        answer = client.get(path, params={"path": "a"} if path.endswith("/step") else {})
        assert answer.status_code == 200, path
        schema = content["application/json"]["schema"]
        _validator(document, schema).validate(answer.json())
        _declared(document, schema, answer.json(), path)
        seen += 1
    assert seen >= 13


def _declared(document: Any, schema: Any, value: Any, where: str) -> None:
    """Check that every key of a response is a property of its schema, and vice versa."""
    for option in schema.get("anyOf", [schema]):
        if "$ref" in option:
            found = document["components"]["schemas"][option["$ref"].rpartition("/")[2]]
            if isinstance(value, dict) and "properties" in found:
                assert set(value) == set(found["properties"]), where
                for name, inner in found["properties"].items():
                    _declared(document, inner, value[name], f"{where}.{name}")
        if isinstance(value, list) and "items" in option:
            for item in value:
                _declared(document, option["items"], item, f"{where}[]")


# --- problem codes --------------------------------------------------------------------------------


@functools.cache
def _used() -> list[tuple[str, int | None, str]]:
    return list(_calls())


def _calls() -> Iterator[tuple[str, int | None, str]]:
    """Return every problem code that our code can send, with its position and its status."""
    helpers = {"unavailable": 503, "unauthorised": 401, "too_many": 429, "_foreign": 403}
    named = re.compile(rf"\b({'|'.join(['Problem', 'existing', *helpers])})\(")
    for file in PACKAGE.rglob("*.py"):
        source = file.read_text()
        for node in ast.walk(ast.parse(source)) if named.search(source) else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            values = [a.value if isinstance(a, ast.Constant) else None for a in node.args[:2]]
            where = f"{file.relative_to(ROOT)}:{node.lineno}"
            if node.func.id == "Problem" and len(values) == 2 and isinstance(values[1], str):
                yield where, values[0] if isinstance(values[0], int) else None, values[1]
            elif node.func.id in helpers and values and isinstance(values[0], str):
                yield where, helpers[node.func.id], values[0]
            elif node.func.id == "existing" and isinstance(values[0], str):
                yield where, 404, f"{values[0]}_not_found"


def _errors() -> Iterator[type[LifecycleError]]:
    import crawler_lifecycle.temporal.errors  # declares one of them

    assert crawler_lifecycle.temporal.errors
    found = [LifecycleError]
    while found:
        error = found.pop()
        found += error.__subclasses__()
        # HTTP responses are made from errors of our package, not of other tests' fakes.
        if error is not LifecycleError and error.__module__.startswith("crawler_lifecycle."):
            yield error


def test_every_code_that_is_answered_is_in_the_table_with_its_status() -> None:
    used = _used()
    assert len(used) > 30
    for where, status, code in used:
        assert code in CODES, f"{where}: {code} is not in problem_codes.toml"
        if status is not None:
            assert status in CODES[code].statuses, f"{where}: {code} with {status}"


def test_every_error_of_ours_has_its_code() -> None:
    for error in _errors():
        problem = of_error(error("text"))
        assert problem.code in CODES, (
            f"{error.__name__}: {problem.code} is not in problem_codes.toml"
        )
        assert problem.status in CODES[problem.code].statuses, (error, problem.status)


def test_the_table_names_no_code_that_nobody_answers() -> None:
    from crawler_lifecycle.gateway.named import NamedCommands
    from crawler_lifecycle.web.problems import _CODES

    answered = (
        {code for _, _, code in _used()} | {snake(e.code) for e in _errors()} | set(_CODES.values())
    )
    answered |= {f"{commands.noun}_not_found" for commands in NamedCommands.__subclasses__()}
    assert set(CODES) - answered <= {"http_error"}


def test_every_code_says_what_to_do() -> None:
    for code, kind in CODES.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)
        for text in (kind.meaning, kind.fix, kind.retry):
            assert text.endswith("."), (code, text)


def test_no_answer_of_json_is_without_a_type(document: Any) -> None:
    """A generated client knows the fields of every response."""
    schemas = document["components"]["schemas"]
    #: Free-form data from crawlers, catalogues and the cluster; a request has the schema of its
    #: start.
    free = {
        "RunDetail.request",
        "CorrectionRow.evidence",
        "FindingRow.evidence",
        "TimelineEntry.evidence",
    }
    free |= {"TimelineEntry.record"}
    #: Types that only Kubernetes defines.
    free |= {"PodOptions.affinity", "PodOptions.topology_spread", "PodOptions.dns_config"}
    #: Results of users' classes, and arguments of any kind.
    free |= {
        "StartGraph.steps",
        "StartGraph.context",
        "ContextAnswer.context",
        "StepRow.job",
        "StepRow.errors",
    }
    #: The definitions that are put, which have their own types there.
    free |= {"Schedule.definition", "ScheduleDetail.definition", "AcceptedSchedule.definition"}
    free |= {"Webhook.definition", "AcceptedWebhook.definition"}
    free |= {"PackageVersion.spiders", "ChangedVersion.spiders", "PutCrawler.entry"}
    free |= {"CatalogueEntry.document", "ChangedEntry.document", "EntryVersion.document"}
    free |= {"SiteRow.limits", "Site.limits", "ChangedSite.limits"}
    free |= {
        "ManagerDetail.state",
        "UserCodeAnswer.options",
        "NewJob.spider_args",
        "NewJob.job_settings",
    }

    def untyped(schema: Any, where: str) -> Iterator[str]:
        if "$ref" in schema:
            return
        for part in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())):
            yield from untyped(part, where)
        if schema.get("type") == "object" and "properties" not in schema and where not in free:
            more = schema.get("additionalProperties", True)
            yield from [where] if more is True or more == {} else untyped(more, where)

    found = [
        told
        for name, schema in schemas.items()
        for field, inner in schema.get("properties", {}).items()
        for told in untyped(inner, f"{name}.{field}")
    ]
    assert set(found) - free == set()
    detail = schemas["RunDetail"]["properties"]
    for field, kind in {
        "exports": "Export",
        "deliveries": "Delivery",
        "cancellations": "Cancellation",
    }.items():
        assert detail[field]["items"] == {"$ref": f"#/components/schemas/{kind}Entry"}
    crawlers = schemas["CrawlerList"]["properties"]["crawlers"]["items"]
    assert crawlers == {"$ref": "#/components/schemas/CrawlerDefinition"}
    assert set(schemas["Argument"]["properties"]) == {
        "type",
        "description",
        "choices",
        "default",
        "required",
    }


def test_an_archive_is_bytes(document: Any) -> None:
    answers = document["paths"]["/v1/runs/{run_id}/archive"]["get"]["responses"]
    kinds = ("application/zip", "application/octet-stream")
    assert answers["200"]["content"] == {
        kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds
    }


def test_each_field_and_parameter_says_what_it_means(document: Any) -> None:
    known: dict[str, set[str]] = {}
    for where, name, field in fields(document):
        assert field.get("description"), f"{where}.{name}: write its meaning into fields.toml"
        known.setdefault(where, set()).add(name)
    tables = tomllib.loads((PACKAGE / "gateway/api/fields.toml").read_text())
    for name in tables.pop("any"):
        assert any(
            name in of and name not in meanings().get(where, {}) for where, of in known.items()
        ), f"any.{name}"
    for names, table in tables.items():
        missing = set(table) - set().union(*(known[name] for name in names.split()))
        assert not missing, f"[{names}] has meanings of fields that do not exist: {missing}"
