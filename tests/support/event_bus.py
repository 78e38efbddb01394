"""Two versions of EventBridge: moto over HTTP, and a fake of its JSON API that drops, refuses and
hangs as AWS does.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3.session
import pytest

from tests.support import s3
from tests.support.faulty_http import Answer, FaultyServer, serving

REGION = "eu-central-1"
ACCOUNT = "123456789012"
ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "AKIDEXAMPLE", "canary-secret-key", "canary-session-token"
BUS = "crawls"
BUS_ARN = f"arn:aws:events:{REGION}:{ACCOUNT}:event-bus/{BUS}"

#: What boto3 needs, and what keeps it from this machine's own configuration and from the network.
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_SESSION_TOKEN": SESSION_TOKEN,
    "AWS_REGION": REGION,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
#: What must not be set at the same time.
AWS_UNSET = (
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_EVENTBRIDGE",
)


def use_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of a process that sends to EventBridge."""
    for name in AWS_UNSET:
        monkeypatch.delenv(name, raising=False)
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3.session, "Session", s3.session)


class EventBusServer(FaultyServer):
    """``PutEvents`` and ``DescribeEventBus``; ``details`` contains what arrived on the bus, in
    order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.buses = {BUS, BUS_ARN, "default"}
        self.entries: list[dict[str, Any]] = []
        self.failed_entry: tuple[str, str] | None = None
        self.operations: list[str] = []
        self.may_describe = True

    @property
    def details(self) -> list[dict[str, Any]]:
        return [json.loads(entry["Detail"]) for entry in self.entries]

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        assert headers["x-amz-security-token"] == SESSION_TOKEN
        assert f"Credential={ACCESS_KEY}/" in headers["authorization"]
        operation = headers["x-amz-target"].removeprefix("AWSEvents.")
        self.operations.append(operation)
        request = json.loads(body)
        return (
            self._describe(request["Name"])
            if operation == "DescribeEventBus"
            else self._put(request["Entries"])
        )

    def _describe(self, name: str) -> Answer:
        if not self.may_describe:
            return aws_error(
                "AccessDeniedException", f"User: arn:aws:iam::{ACCOUNT}:user/x is not authorized"
            )
        if name not in self.buses:
            return aws_error("ResourceNotFoundException", f"Event bus {name} does not exist.")
        return _json({"Name": name, "Arn": BUS_ARN})

    def _put(self, entries: list[dict[str, Any]]) -> Answer:
        if not 1 <= len(entries) <= 10 or sum(map(entry_size, entries)) >= 256 * 1024:
            return aws_error(
                "ValidationException", "Total size of the entries in the request is over the limit."
            )
        answers = []
        for entry in entries:
            if self.failed_entry is not None:
                answers.append(
                    dict(zip(("ErrorCode", "ErrorMessage"), self.failed_entry, strict=True))
                )
                continue
            assert isinstance(json.loads(entry["Detail"]), dict)
            answers.append({"EventId": str(uuid.uuid4())})
            if (
                entry["EventBusName"] in self.buses
            ):  # AWS also accepts events for a missing bus and drops them
                self.entries.append(entry)
        failed = sum("ErrorCode" in answer for answer in answers)
        return _json({"FailedEntryCount": failed, "Entries": answers})


def entry_size(entry: dict[str, Any]) -> int:
    """Apply the rule of "Calculating PutEvents event entry size"."""
    texts = [
        entry["Source"],
        entry["DetailType"],
        entry.get("Detail", ""),
        *entry.get("Resources", []),
    ]
    return (14 if "Time" in entry else 0) + sum(len(text.encode()) for text in texts)


def aws_error(code: str, message: str, status: int = 400) -> Answer:
    """Return an error in AWS's JSON protocol."""
    answer = _json({"__type": code, "message": message})
    answer.status = status
    return answer


def _json(value: object) -> Answer:
    return Answer(body=json.dumps(value).encode(), content_type="application/x-amz-json-1.1")


@contextmanager
def event_bus_server() -> Iterator[EventBusServer]:
    """The running fake."""
    server = EventBusServer()
    with serving(server):
        yield server


@contextmanager
def moto_bus(host: str = "127.0.0.1") -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """moto's server with the bus and a queue behind it: its address, and what has arrived there."""
    import boto3
    from moto.events.models import events_backends
    from moto.server import ThreadedMotoServer
    from moto.sqs.models import sqs_backends

    server = ThreadedMotoServer(ip_address=host, port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        common = {
            "endpoint_url": url,
            "region_name": REGION,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
        }
        events, sqs = boto3.client("events", **common), boto3.client("sqs", **common)
        queue = sqs.create_queue(QueueName="arrived")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"][
            "QueueArn"
        ]
        events.create_event_bus(Name=BUS)
        pattern = json.dumps(
            {"source": ["crawler-lifecycle"], "detail": {"type": [{"prefix": "run."}]}}
        )
        events.put_rule(Name="all", EventBusName=BUS, EventPattern=pattern)
        events.put_targets(Rule="all", EventBusName=BUS, Targets=[{"Id": "queue", "Arn": arn}])
        arrived: list[dict[str, Any]] = []

        def read() -> list[dict[str, Any]]:
            while True:
                answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
                for message in answer.get("Messages", []):
                    arrived.append(json.loads(message["Body"]))
                    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                if not answer.get("Messages"):
                    return arrived

        yield url, read
        events.close()
        sqs.close()
    finally:
        server.stop()
        # moto keeps its state in the process; that of other services belongs to other tests.
        events_backends.reset()
        sqs_backends.reset()
