"""The SDK and the command line reach a NATS with a certificate of its own authority."""

import subprocess
from pathlib import Path

import pytest

from common.bus import TlsFiles
from common.errors import Fatal
from marlaas.client import Client
from tests.support.marlaas.command import MARLAAS
from tests.support.services import without_settings
from tests.support.tls import Authority, offered, serving


def complaint(*arguments: str, **settings: str) -> str:
    env = without_settings() | settings
    done = subprocess.run([MARLAAS, *arguments], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    return done.stderr


async def test_authority_is_named_by_an_argument_a_variable_or_an_option(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority")
    with serving(tmp_path / "nats", offered(authority.issue("server"))) as server:
        url = f"tls://{server}"
        async with Client.connect(url, tls=TlsFiles(ca=authority.ca)) as client:
            assert client.key is None
        with pytest.raises(Fatal, match="name its authority's with MARLAAS_NATS_CA"):
            async with Client.connect(url):
                pass
        assert "name its authority's with MARLAAS_NATS_CA" in complaint("ps", "--url", url)
        no_certificate = tmp_path / "empty.pem"
        no_certificate.write_text("")
        said = f"marlaas: MARLAAS_NATS_CA: {no_certificate} holds no certificate"
        assert complaint("ps", "--url", url, MARLAAS_NATS_CA=str(no_certificate)).startswith(said)
        assert complaint("--ca", str(no_certificate), "ps", "--url", url).startswith(said)
        named = complaint("ps", "--url", url, MARLAAS_NATS_CA=str(authority.ca))
        assert "scheduler" in named, named
