"""Services that would let strangers in do not start, and say what to do in one line."""

import os
import subprocess
import sys

import pytest

from common.runtime.service import objection_to_exposure
from scheduler_svc.settings import SchedulerSettings
from tests.support.services import without_settings

KEY = {"MARLAAS_NATS_CREDS": "key.creds"}


def settings(monkeypatch: pytest.MonkeyPatch, url: str, **more: str) -> SchedulerSettings:
    for name in [name for name in os.environ if name.startswith("MARLAAS_")]:
        monkeypatch.delenv(name)
    for name, value in {"MARLAAS_NATS_URL": url, **more}.items():
        monkeypatch.setenv(name, value)
    return SchedulerSettings.read()


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("nats://127.0.0.1:4222", {}),
        ("nats://localhost:4222,nats://[::1]:4222", {}),
        ("tls://nats.example:4222", KEY),
        ("nats://127.0.0.1:4222", KEY | {"MARLAAS_HTTP_HOST": "0.0.0.0"}),
    ],
)
def test_start_with_a_key_or_on_loopback_is_allowed(monkeypatch: pytest.MonkeyPatch, url: str, more: dict[str, str]) -> None:
    assert objection_to_exposure(settings(monkeypatch, url, **more)) is None


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("nats://nats.example:4222", {}, "MARLAAS_NATS_URL: nats://nats.example:4222 is not on this machine, and needs a key"),
        ("nats://127.0.0.1:4222,nats://10.0.0.5:4222", {"MARLAAS_NATS_INSECURE": "1"}, "is not on this machine, and needs a key"),
        ("nats://127.0.0.1:4222", {"MARLAAS_HTTP_HOST": "0.0.0.0"}, "MARLAAS_HTTP_HOST: 0.0.0.0 is reached from other machines"),
        ("nats://user:word@nats:4222", {"MARLAAS_NATS_INSECURE": "1"}, "MARLAAS_NATS_URL: nats://nats:4222 is not on this machine"),
    ],
)
def test_start_that_lets_strangers_in_is_refused(monkeypatch: pytest.MonkeyPatch, url: str, more: dict[str, str], said: str) -> None:
    objection = objection_to_exposure(settings(monkeypatch, url, **more))
    assert objection is not None
    assert said in objection
    assert "word" not in objection


@pytest.mark.parametrize("service", ["scheduler", "env", "rollout", "trainer"])
def test_every_service_ends_with_one_line(service: str) -> None:
    env = without_settings() | {
        "MARLAAS_NATS_URL": "nats://192.0.2.1:4222",
        "MARLAAS_ROLLOUT_POOL": "tiny",
        "MARLAAS_TRAINER_POOL": "tiny",
    }
    done = subprocess.run([sys.executable, "-m", f"{service}_svc"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(
        f"{service}: MARLAAS_NATS_URL: nats://192.0.2.1:4222 is not on this machine, and needs a key; name its file"
    )
