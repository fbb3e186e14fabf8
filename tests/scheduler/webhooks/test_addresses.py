"""Which addresses webhooks reach, by what names resolve to, and how secrets are kept; real connections."""

import socket
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Reject
from scheduler_svc.tenancy.webhooks.addresses import Policy, literal_of, parse_networks, parse_url
from scheduler_svc.tenancy.webhooks.sender import Failed, Post
from scheduler_svc.tenancy.webhooks.signing import Sealed, seal, unseal
from tests.scheduler.webhooks.receiver import receiver
from tests.support.tls import Authority

LOCAL = Policy(parse_networks("127.0.0.0/8"), http=True)
REFUSED = (
    "127.0.0.1", "127.255.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
    "255.255.255.255", "240.0.0.1", "192.0.2.1", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001::1", "2001:db8::1",
    "fec0::1", "feff::1", "::ffff:0:7f00:1", "64:ff9b:1::7f00:1", "5f00::1", "3fff::1", "ff0e::1", "100.127.255.254", "::ffff:100.64.0.1",
    "::ffff:224.0.0.1", "2001:0:7f00:1::",
)  # fmt: skip


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_not_public(address: str) -> None:
    found = literal_of(address)
    assert found is not None
    assert not Policy().permits(found)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses(address: str) -> None:
    found = literal_of(address)
    assert found is not None
    assert Policy().permits(found)


INSIDE = (
    "127.1", "127.0.1", "2130706433", "0x7f.1", "0x7f000001", "0X7F.0.0.1", "017700000001", "0177.0.0.1", "127.0.0.01", "0", "0x", "10.1",
    "1.2.3", "127.0.0.1.", "127.1.", "0x7f.1.", "localhost", "localhost.", "LOCALHOST", "a.localhost.", "localhost..", ".localhost",
    "printer.local.", "metadata.google.internal.", "router", "router.", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1%25eth0]", "[::1%25lo]", "[fe80::1%eth0]", "[v1.a]", "[v1.127.0.0.1]",
    "me@127.0.0.1", "hooks.example.com@127.0.0.1", "hooks.example.com\\@127.0.0.1", "127.0.0.1\\.example.com", "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1", "127.0.0.1%00.example.com", "a..example.com", "-a.example.com", "a-.example.com", "hooks.example.com:0",
    "hooks.example.com:65536", "hooks.example.com:x", "hooks.example.com:+1", "127.0.0.1:443", "a" * 64 + ".example.com",
    "a." * 126 + "com", "1.2.3.4.5", "hooks.example.0x7f", "\uff11\uff12\uff17.0.0.1", "127\u30020.0.1", "\u24dbocalhost",
    "b\u00fccher.example", "",
)  # fmt: skip
"""Hosts of a URL that are no name of the public internet, to this or to another reader of URLs."""


@pytest.mark.parametrize("host", INSIDE)
async def test_one_parser_refuses_a_host_when_it_is_set_and_when_it_is_sent_to(host: str) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    with pytest.raises(Reject, match=r"^url: "):
        parse_url(f"https://{host}/", Policy())
    with pytest.raises(Failed, match=r"^url: "):
        await Post(Policy(), resolve=resolve).send(f"https://{host}/", {}, b"{}")
    assert asked == []


@pytest.mark.parametrize(
    "host",
    ["hooks.example.com", "HOOKS.example.com:8443", "a_b.example.com", "xn--bcher-kva.example", "1.1.1.1", "[2606:4700:4700::1111]:1"],
)
def test_hosts_of_the_internet(host: str) -> None:
    assert parse_url(f"https://{host}/a?b=c", Policy()).netloc == host


@pytest.mark.parametrize("host", ["receiver", "localhost:80", "127.0.0.1", "printer.lan"])
def test_names_of_a_network_that_the_operator_permits(host: str) -> None:
    assert parse_url(f"http://{host}/", LOCAL)


@given(st.from_regex(r"\A((0|0x)?[0-9a-f]{0,9}\.){0,4}(0|0x)?[0-9a-f]{1,11}\.?\Z"))
def test_what_a_resolver_takes_for_an_address_is_an_address_here(host: str) -> None:
    """The C library reads numbers in many forms; a name that it takes for one never comes to it."""
    try:
        found = socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return
    if found != host:
        with pytest.raises(Reject):
            parse_url(f"https://{host}/", Policy())


@pytest.mark.parametrize("found", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"], ["fe80::1%eth0"]])
async def test_name_that_leads_inside_is_not_connected(found: list[str]) -> None:
    """A name is resolved once, and each of its addresses must be public: it cannot show one and lead to another."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return found

    async with receiver() as there:
        with pytest.raises(Failed, match="no public address"):
            await Post(Policy(http=True), resolve=resolve).send(f"http://inside.example.com:{there.port}/", {}, b"{}")
    assert (asked, there.received) == (["inside.example.com"], [])


async def test_name_is_resolved_once_and_sent_as_host() -> None:
    answers = [["127.0.0.1"], ["10.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async with receiver() as there:
        assert await Post(LOCAL, resolve=resolve).send(f"http://hooks.example.com:{there.port}/a?b=c", {"x": "y"}, b"{}") == 204
    [got] = there.received
    assert (got.path, got.headers["host"], got.headers["x"]) == ("/a?b=c", f"hooks.example.com:{there.port}", "y")


async def test_certificate_is_checked(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority")
    cert, key = authority.issue("receiver", address="127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with receiver(tls=context) as there:
        with pytest.raises(Failed, match="TLS"):
            await Post(LOCAL).send(there.url, {}, b"{}")
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        assert await Post(LOCAL, tls=trusting).send(there.url, {}, b"{}") == 204
    assert len(there.received) == 1


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=40), st.text(max_size=5))
def test_secret_is_unsealed_by_its_own_key_and_webhook_only(secret: bytes, key: bytes, name: str) -> None:
    sealed = seal(key, ("acme", name), secret)
    assert unseal(key, ("acme", name), sealed) == secret
    assert secret not in sealed
    assert seal(key, ("acme", name), secret) != sealed
    for wrong in ((key + b"x", ("acme", name), sealed), (key, ("globex", name), sealed), (key, ("acme", name), sealed[:-1] + b"!!")):
        with pytest.raises(Sealed):
            unseal(*wrong)
