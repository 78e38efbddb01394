"""The content of the site: botocore's API models, which are read from disk only when a page needs
them.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import botocore  # type: ignore[import-untyped]

DATA = Path(botocore.__file__).parent / "data"

# A small site should also be useful. Therefore, these services are well known, of moderate size,
# and spread over the alphabet, so that crawls of letter ranges (a-f, g-l, m-r, s-z) all find pages.
# A site of N services uses the first N of them.
FIRST_CHOICE = (
    "sqs",
    "dax",
    "polly",
    "glacier",
    "sns",
    "ecr",
    "organizations",
    "kinesis",
    "xray",
    "firehose",
    "mq",
    "health",
)

# Topics by words in service ids. A service gets the first topic that matches.
TOPICS = {
    "machine-learning": "bedrock comprehend forecast frauddetector lex machinelearning personalize "
    "polly rekognition "
    "sagemaker textract transcribe translate kendra lookout",
    "databases": (
        "dax db dynamo elasticache keyspaces memorydb neptune rds redshift simpledb timestream"
    ),
    "storage": "backup ebs efs fsx glacier s3 snow storage datasync ecr",
    "messaging": "sns sqs ses mq event pinpoint connect chime notifications scheduler pipes",
    "analytics": (
        "athena emr firehose glue kafka kinesis lakeformation opensearch quicksight datazone"
    ),
    "security": (
        "acm cert detective guardduty iam inspector kms macie secret security shield "
        "signer sso sts waf"
    ),
    "networking": (
        "apigateway cloudfront directconnect elb globalaccelerator network route53 vpc appmesh"
    ),
    "compute": "batch ec2 ecs eks lambda lightsail apprunner elasticbeanstalk autoscaling",
    "devices": "iot greengrass robomaker panorama groundstation location",
    "media": "media ivs elastictranscoder",
    "developers": "code cloudformation xray amplify proton devops fis cloud9",
    "management": "budgets cloudtrail cloudwatch config control cost health logs organizations "
    "resource service ssm "
    "support trustedadvisor marketplace billing",
}
OTHER_TOPIC = "other"


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter of an operation or a field of its answer."""

    name: str
    type: str
    required: bool
    documentation: str


@dataclass(frozen=True, slots=True)
class Fault:
    """An error with which an operation may answer."""

    name: str
    status: int | None
    documentation: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a service, ready to be rendered."""

    name: str
    method: str
    uri: str
    documentation: str
    deprecated: bool
    inputs: tuple[Member, ...]
    outputs: tuple[Member, ...]
    faults: tuple[Fault, ...]


class Service:
    """One service, with its raw model. Its operations are computed on demand."""

    def __init__(self, service_id: str, model: dict[str, Any]) -> None:
        self.id = service_id
        self._model = model
        self._shapes: dict[str, dict[str, Any]] = model["shapes"]
        metadata: dict[str, Any] = model["metadata"]
        self.title = title_of(metadata, service_id)
        self.protocol = str(metadata.get("protocol", "unknown"))
        self.api_version = str(metadata.get("apiVersion", "unknown"))
        self.documentation = str(model.get("documentation") or "")

    @cached_property
    def operations(self) -> tuple[str, ...]:
        """Return the names of all operations, sorted."""
        return tuple(sorted(self._model["operations"]))

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """Return the operations by the thing on which they act: CreateQueue, DeleteQueue and
        ListQueues belong together.
        """
        families: dict[str, list[str]] = {}
        for name in self.operations:
            families.setdefault(noun_of(name), []).append(name)
        return families

    def summary(self, operation: str) -> str:
        """Return the documentation of an operation from the model, for lists that show its first
        sentence.
        """
        return str(self._model["operations"][operation].get("documentation") or "")

    def related(self, operation: str, limit: int = 8) -> list[str]:
        """Return other operations on the same thing."""
        return [name for name in self.families[noun_of(operation)] if name != operation][:limit]

    def operation(self, name: str) -> Operation:
        """Return one operation by name. Raises KeyError if the service has no operation with this
        name.
        """
        raw: dict[str, Any] = self._model["operations"][name]
        http = raw.get("http", {})
        return Operation(
            name=name,
            method=str(http.get("method", "POST")),
            uri=str(http.get("requestUri", "/")),
            documentation=str(raw.get("documentation") or ""),
            deprecated=bool(raw.get("deprecated")),
            inputs=tuple(self._members(raw.get("input"))),
            outputs=tuple(self._members(raw.get("output"))),
            faults=tuple(self._fault(reference["shape"]) for reference in raw.get("errors", ())),
        )

    def _members(self, reference: dict[str, Any] | None) -> Iterator[Member]:
        if reference is None:
            return
        shape = self._shapes[reference["shape"]]
        required = set(shape.get("required", ()))
        for name, member in shape.get("members", {}).items():
            target = self._shapes[member["shape"]]
            documentation = str(member.get("documentation") or target.get("documentation") or "")
            yield Member(name, self._type(member["shape"]), name in required, documentation)

    def _type(self, shape_name: str) -> str:
        shape = self._shapes[shape_name]
        kind = str(shape["type"])
        if kind == "list":
            return f"list of {self._shapes[shape['member']['shape']]['type']}"
        if kind == "map":
            return f"map of {self._shapes[shape['value']['shape']]['type']}"
        return kind

    def _fault(self, shape_name: str) -> Fault:
        shape = self._shapes[shape_name]
        status = shape.get("error", {}).get("httpStatusCode")
        return Fault(shape_name, status, str(shape.get("documentation") or ""))


def title_of(metadata: dict[str, Any], service_id: str) -> str:
    """Return the name that a person would use for the service."""
    return str(metadata.get("serviceFullName") or metadata.get("serviceAbbreviation") or service_id)


def noun_of(operation: str) -> str:
    """Return the thing on which an operation acts: its name without the verb and without the
    plural.
    """
    words = re.findall(r"[A-Z][a-z0-9]*|[a-z0-9]+", operation)
    return "".join(words[1:] or words).removesuffix("s").lower()


def topic_of(service_id: str) -> str:
    """Return the topic under which the category pages list a service."""
    for topic, words in TOPICS.items():
        if any(word in service_id for word in words.split()):
            return topic
    return OTHER_TOPIC


def _model_file(service_id: str) -> Path | None:
    """Return the file of the newest model of a service. botocore has shipped models both plain and
    compressed.
    """
    for version in sorted((DATA / service_id).iterdir(), reverse=True):
        for name in ("service-2.json.gz", "service-2.json"):
            if (file := version / name).is_file():
                return file
    return None


@lru_cache(maxsize=64)
def load(service_id: str) -> Service:
    """Read a whole model. This takes between one and thirty milliseconds, so recently used models
    are cached.
    """
    file = _model_file(service_id)
    if file is None:
        raise KeyError(service_id)
    content = file.read_bytes()
    return Service(
        service_id, json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
    )


@cache
def title(service_id: str) -> str:
    """Return the title of a service from the first kilobytes of its model, because a list must not
    load a complete model for each line.
    """
    file = _model_file(service_id)
    if file is None:
        raise KeyError(service_id)
    with file.open("rb") as stream:
        head = stream.read(4096)
    if file.suffix == ".gz":
        head = zlib.decompressobj(wbits=31).decompress(head)
    text = head.decode("utf-8", errors="ignore")
    start = text.find('"metadata":')
    if start >= 0:
        try:
            metadata, _ = json.JSONDecoder().raw_decode(text, text.index("{", start))
        except ValueError:
            pass  # The metadata is longer than the part that was read, and the complete model contains all of it.
        else:
            return title_of(metadata, service_id)
    return load(service_id).title


class Catalogue:
    """The services of one site: all installed services, or a chosen number of them."""

    def __init__(self, limit: int = 0) -> None:
        installed = sorted(
            entry.name for entry in DATA.iterdir() if entry.is_dir() and _model_file(entry.name)
        )
        self.services: tuple[str, ...] = tuple(sorted(_choose(installed, limit)))
        self._known = frozenset(self.services)
        self.topics: dict[str, list[str]] = {}
        for service_id in self.services:
            self.topics.setdefault(topic_of(service_id), []).append(service_id)

    def __contains__(self, service_id: str) -> bool:
        return service_id in self._known

    def service(self, service_id: str) -> Service:
        """Return a service of this site. Raises KeyError if the site does not have the service,
        even if botocore does.
        """
        if service_id not in self._known:
            raise KeyError(service_id)
        return load(service_id)


def _choose(installed: list[str], limit: int) -> list[str]:
    """Return the services of a site of this size, always the same ones. 0 means all."""
    if limit <= 0 or limit >= len(installed):
        return installed
    present = set(installed)
    chosen = [service_id for service_id in FIRST_CHOICE if service_id in present][:limit]
    rest = [service_id for service_id in installed if service_id not in chosen]
    missing = limit - len(chosen)
    return chosen + [rest[index * len(rest) // missing] for index in range(missing)]
