"""`marlaas chat` through a gateway; a committed source of tokens stands in for the engine."""

import asyncio
import io
import os
from pathlib import Path

import pytest

from common.access.keys import seed_of
from gateway_svc.openai.errors import STATUSES
from marlaas.cli.user.chat import visible
from marlaas.stack.os_processes import identify
from marlaas.stack.state_files import Component, Gateway, Stack, locked, write_stack
from tests.marlaas.tenancy.commands import Operating
from tests.support.gateway.deltas import Part, Source, deltas, failing
from tests.support.gateway.entering import entering
from tests.support.gateway.serving import gateway
from tests.support.keyed import Keyed
from tests.support.marlaas.command import Done, complaint, marlaas
from tests.support.scheduler.stages import World

WORDS = [Part(reasoning="Hm."), Part("Hel"), Part("lo \x1b[31mred\u202e")]


async def run(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str, *arguments: str, lines: str = "") -> Done:
    monkeypatch.setenv("MARLAAS_TENANT", "acme")
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return await asyncio.to_thread(marlaas, "chat", *arguments, "--url", url, cwd=folder)


async def test_each_line_is_a_turn_of_one_conversation(
    scheduler: World, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(lambda _: deltas(WORDS))
    await scheduler.run("a")  # so that there is such a tenant
    async with gateway(scheduler.bus, nats_url, sampler=source) as url:
        flags = ("--system", "Be brief.", "--temperature", "0.5", "--max-tokens", "9", "--seed", "3", "--stop", "END")
        done = await run(monkeypatch, tmp_path, url, "tiny", *flags, lines="first\n\nsecond\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "Hello \\u{1b}[31mred\\u{202e}\n" * 2  # no thoughts: the output is no terminal
        first, second = (choice for _, choice, _ in source.choices)
        assert [(one.role, one.content) for one in first.prompt.messages] == [("system", "Be brief."), ("user", "first")]
        said = [(one.role, one.content) for one in second.prompt.messages]
        assert said[2:] == [("assistant", "Hello \x1b[31mred\u202e"), ("user", "second")]
        sampling = first.sampling
        assert (sampling.temperature, sampling.max_tokens, sampling.stop, sampling.seed) == (0.5, 9, ["END"], second.sampling.seed)

        once = await run(monkeypatch, tmp_path, url, "tiny", "hello")
        assert once.stdout.startswith("Hello ")
        assert (await run(monkeypatch, tmp_path, url, "a", "hello")).stdout.startswith("Hello "), "a task is its latest version"
        assert source.choices[-1][2].model == "a@3"
        empty = await run(monkeypatch, tmp_path, url, "tiny", " ")
        assert empty.returncode == 2 and "it is empty; say something" in empty.stderr


async def test_operator_of_a_stack_with_keys_needs_no_key_for_its_gateway(
    keyed: Keyed, keyed_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own is made by its first chat, and in place of one that is lost or revoked."""
    data, file = Operating.of(keyed, tmp_path).folder / "data", keyed.keys.credentials("operator").with_suffix(".key")
    source = Source(lambda _: deltas(WORDS))
    me, valid = identify(os.getpid()), "SELECT key FROM keys WHERE revoked_at IS NULL"
    assert me is not None
    await keyed_world.run("a")

    async def said(*arguments: str) -> Done:
        return await asyncio.to_thread(marlaas, "chat", *arguments, "hello", "--data", str(data), cwd=tmp_path)

    async with entering(keyed) as made, gateway(keyed_world.bus, keyed.url, access=made.access, sampler=source) as url:
        stack = Stack(
            supervisor=me, nats_port=keyed.port, postgres_port=1, nats_url=keyed.url, database_url="", started_s=0,
            gateway=Gateway(port=1, url=url), components=[Component(name="gateway", condition="ready")],
        )  # fmt: skip
        write_stack(data, stack)
        with locked(data):
            for before in ("there is none", "it is there", "it is lost", "it is revoked"):
                if before == "it is lost":
                    file.unlink()
                if before == "it is revoked":
                    await asyncio.to_thread(marlaas, "keys", "revoke", "admin", "operator", "--data", str(data), cwd=tmp_path)
                done = await said("a")
                assert (done.returncode, done.stdout.partition(" ")[0], done.stderr) == (0, "Hello", ""), before
                assert source.choices[-1][2].model == "a@3"
                seed = seed_of(file.read_text().strip())
                assert seed is not None and await keyed_world.rows(valid) == [(seed.public,)], before
            assert "MARLAAS_TENANT=NAME" in complaint(await said("tiny"))
            monkeypatch.setenv("MARLAAS_TENANT", "acme")
            assert (await said("tiny")).stdout.startswith("Hello ")


async def test_what_goes_wrong_is_one_line(scheduler: World, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(lambda _: failing("engine_lost", [Part("Hel")]))
    async with gateway(scheduler.bus, nats_url, sampler=source) as url:
        assert complaint(await run(monkeypatch, tmp_path, url, "tiny", "hello")).count("\n") == 1
        absent = complaint(await run(monkeypatch, tmp_path, url, "absent@best", "hello"))
        assert "absent" in absent and absent.count("\n") == 1
    monkeypatch.setenv("MARLAAS_NATS_URL", nats_url)
    done = await asyncio.to_thread(marlaas, "chat", "tiny", "hello", cwd=tmp_path)
    assert complaint(done) == "marlaas: a chat goes over HTTP: name the gateway with --url https://HOST, or MARLAAS_URL\n"


async def test_reply_without_a_place_is_asked_for_a_bounded_number_of_times(
    scheduler: World, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STATUSES, "engine_lost", (503, "engine_lost", {"Retry-After": "1"}))
    await scheduler.run("a")
    left = [2]

    def answer(_: object) -> object:
        left[0] -= 1
        return failing("engine_lost") if left[0] >= 0 else deltas(WORDS)

    async with gateway(scheduler.bus, nats_url, sampler=Source(answer)) as url:
        done = await run(monkeypatch, tmp_path, url, "tiny", "hello")
        left[0] = 99
        never = await run(monkeypatch, tmp_path, url, "tiny", "hello")
    assert (done.returncode, done.stdout.partition(" ")[0]) == (0, "Hello")
    waits = done.stderr.splitlines()
    assert len(waits) == 2 and all("asking again in 1 s" in line for line in waits)
    assert waits[1].endswith("(2 of 3)]")
    *waits, last = never.stderr.splitlines()
    assert (never.returncode, len(waits), 99 - left[0]) == (1, 3, 4)
    assert last.startswith("marlaas: ")


def test_what_controls_a_terminal_is_shown() -> None:
    assert visible("a\tb\n\x1b]0;x\x07 \u2066") == "a\tb\n\\u{1b}]0;x\\u{7} \\u{2066}"
