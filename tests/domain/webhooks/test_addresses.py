"""Which addresses may be called."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules, refused
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from tests.support.hostile_addresses import HARMLESS, HOSTILE

INNER = (
    *(
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
    ),
    *(
        "169.254.169.254",
        "169.254.1.1",
        "168.63.129.16",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
    ),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
    *("64:ff9b:1::808:808", "2002:808:808::1", "3fff::1"),
)
PUBLIC = ("8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")


@pytest.mark.parametrize("address", INNER)
def test_nothing_inner_is_called_in_any_clothes(address: str) -> None:
    assert refused(address)
    inner = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(inner, ipaddress.IPv4Address):
        for clothes in (
            ipaddress.IPv6Address(0xFFFF << 32 | int(inner)),
            ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | int(inner)),
            ipaddress.IPv6Address(0x2002 << 112 | int(inner) << 80),
            ipaddress.IPv6Address(int(inner)),
            ipaddress.IPv6Address(0xFFFF << 48 | int(inner)),
            ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b:1::")) | int(inner)),
            ipaddress.IPv6Address(int(ipaddress.IPv6Address("2600::5efe:0:0")) | int(inner)),
        ):
            assert refused(str(clothes)), clothes


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_is(address: str) -> None:
    assert refused(address) is None


def test_what_the_settings_allow_and_no_more() -> None:
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd12::/16")]
    assert refused("10.1.2.3", networks) is None
    assert refused("::ffff:10.1.2.3", networks) is None
    assert refused("fd12::7", networks) is None
    assert refused("10.2.0.1", networks)
    assert refused("127.0.0.1", loopback=True) is None
    assert refused("::1", loopback=True) is None
    assert refused("10.0.0.1", loopback=True)
    assert refused("no address")


def judged(url: str, rules: WebhookRules, *secrets: str) -> str | None:
    """Return why these rules refuse a webhook."""
    try:
        rules.check(WebhookSpec(url, list(secrets) or ["env:CRAWL_HOOK"]))
    except InvalidRequest as error:
        return str(error)
    return None


def test_no_hostile_address_is_taken_and_no_harmless_one_refused() -> None:
    rules = WebhookRules()
    assert [url for url in HOSTILE if judged(url, rules) is None] == []
    assert [url for url in HARMLESS if judged(url, rules) is not None] == []
    shown = [text for url in HOSTILE if "secret" in (text := judged(url, rules) or "")]
    assert shown == [], "a password in an address is shown to nobody"


def test_networks_and_this_machine_are_for_who_allows_them() -> None:
    inner = WebhookRules([ipaddress.ip_network("10.1.0.0/16")])
    assert judged("https://10.1.2.3/", inner) is None
    assert judged("https://hooks.crawls.svc/", inner) is None, (
        "a name may lead there: it is asked at each delivery"
    )
    assert "private" in (judged("https://10.2.0.1/", inner) or "")
    assert "of this machine" in (judged("https://127.0.0.1/", inner) or "")
    here = WebhookRules(loopback=True)
    for url in (
        "http://127.0.0.1:8500/",
        "http://localhost:9000/x",
        "http://[::1]:9000/",
        "https://localhost/",
    ):
        assert judged(url, here) is None
        assert judged(url, WebhookRules()) is not None
    assert "may not be called" in (judged("https://10.1.2.3/", here) or "")


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "LIFECYCLE_LOG__LEVEL",
        "CRAWL_SHOP",
        "CRAWL_TOKEN",
        "crawl_hook",
    ],
)
def test_a_secret_is_a_variable_that_was_made_for_webhooks(name: str) -> None:
    told = judged("https://hooks.example.com/", WebhookRules(), "env:CRAWL_HOOK", f"env:{name}")
    assert told is not None
    assert name in told
    assert "LIFECYCLE_WEBHOOKS__ENV_PREFIX" in told
    mine = WebhookRules(env_prefix="SHOP_")
    assert judged("https://hooks.example.com/", mine, "env:SHOP_HOOK") is None
    assert judged("https://hooks.example.com/", mine, "env:CRAWL_HOOK") is not None


@given(st.ip_addresses())
def test_what_is_allowed_is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if refused(str(address)) is None:
        held = getattr(address, "ipv4_mapped", None) or address
        assert held.is_global or address in ipaddress.ip_network("64:ff9b::/96")
