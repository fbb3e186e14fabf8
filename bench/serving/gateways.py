"""Clients of three gateways behind nginx with TLS, while each gateway is killed in turn.

A hundred event streams go on with `Last-Event-ID`: each must have every event of its task once and in order. Fifty clients chat; what is
cut is counted, and asked again.
"""

import asyncio
import ssl
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bench.harness.report import ROOT
from bench.harness.services import BenchError
from bench.serving.http import CHAT, ask, session
from bench.serving.stacks import POOL, TENANT, Serving, serving_stack, task, wait_until
from marlaas.stack import servers

GATEWAYS = 3
TASKS = 4
CERTIFICATE, KEY = "/etc/ssl/marlaas/cert.pem", "/etc/ssl/marlaas/key.pem"
UPSTREAM = "server 127.0.0.1:8000;"
NGINX = """\
daemon off;
error_log {folder}/error.log;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
AGAIN_S = 0.2
"""Pause of a client before it connects again."""
BETWEEN_KILLS_S = 3.0
TASK_S = 600.0
ENDS = ("finished", "failed", "cancelled", "rejected")


def run(*, small: bool) -> dict[str, Any]:
    with serving_stack(gateways=GATEWAYS) as serving, _nginx(serving.urls) as (url, trusted):
        counts = (6, 3, 8) if small else (100, 50, 60)
        return asyncio.run(_survived(serving, url, trusted, *counts))


@contextmanager
def _nginx(urls: list[str]) -> Generator[tuple[str, ssl.SSLContext]]:
    """The address of nginx, with the file of deploy/proxy, before these gateways; and what trusts its certificate."""
    with tempfile.TemporaryDirectory(prefix="marlaas-nginx-") as name:
        folder, port = Path(name), servers.free_port()
        cert, key = folder / "cert.pem", folder / "key.pem"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2"]
        subprocess.run([*made, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        site = (ROOT / "deploy" / "proxy" / "nginx.conf").read_text().replace(CERTIFICATE, str(cert)).replace(KEY, str(key))
        site = site.replace("listen 443", f"listen {servers.HOST}:{port}")
        site = site.replace(UPSTREAM, "\n".join(f"server {url.partition('//')[2]};" for url in urls))
        (folder / "site.conf").write_text(site)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
        process = subprocess.Popen(["nginx", "-p", name, "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL)
        try:
            servers.wait_until_listening(port, process, "nginx")
            yield f"https://{servers.HOST}:{port}/marlaas", ssl.create_default_context(cafile=str(cert))
        finally:
            process.terminate()
            process.wait(30)


async def _survived(serving: Serving, url: str, trusted: ssl.SSLContext, streams: int, chats: int, steps: int) -> dict[str, Any]:
    async with serving.client() as client, session(serving.key) as direct:
        connector, headers = aiohttp.TCPConnector(limit=0, ssl=trusted), {"Authorization": f"Bearer {serving.key}"}
        async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(None)) as http:
            tasks = [await client.submit(task(steps, seed=number + 1)) for number in range(TASKS)]
            reading = [asyncio.create_task(_follow(http, url, tasks[number % TASKS])) for number in range(streams)]
            answers, has_ended = Counter[str](), asyncio.Event()
            chatting = [asyncio.create_task(_chat(http, url, number, answers, has_ended)) for number in range(chats)]
            await asyncio.sleep(BETWEEN_KILLS_S)
            for name in serving.names("gateway"):
                killed = serving.process(name)
                serving.kill(name)
                await asyncio.to_thread(wait_until, f"{name} is back", lambda name=name, killed=killed: serving.is_back(name, killed))
                await asyncio.sleep(BETWEEN_KILLS_S)
            async with asyncio.timeout(TASK_S):
                followed = await asyncio.gather(*reading)
            has_ended.set()
            await asyncio.gather(*chatting)
        expected = {one: (await _follow(direct, serving.urls[0], one))[0] for one in tasks}
    wrong = [number for number, (ids, _) in enumerate(followed) if ids != expected[tasks[number % TASKS]]]
    return {
        "gateways": GATEWAYS,
        "killed": len(serving.names("gateway")),
        "event_streams": streams,
        "events": sum(len(ids) for ids, _ in followed),
        "reconnections": sum(times for _, times in followed),
        "streams_with_an_event_missing_twice_or_out_of_order": len(wrong),
        "chats_at_once": chats,
        "chats": dict(answers),
    }


async def _follow(http: aiohttp.ClientSession, url: str, task_id: str) -> tuple[list[str], int]:
    """Ids of a task's events until it has ended, and how often the client reconnected."""
    ids, reconnections = list[str](), 0
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": ids[-1]} if ids else {})
        try:
            async with http.get(f"{url}/v1/tasks/{task_id}/events", params={"tenant": TENANT}, headers=headers) as answer:
                if answer.status == 200:
                    event: dict[str, str] = {}
                    async for line in answer.content:
                        name, _, value = line.decode().rstrip("\n").partition(": ")
                        if name:
                            event[name] = value
                        elif event:
                            if "id" in event:
                                ids.append(event["id"])
                            if event.get("event") in ENDS:
                                return ids, reconnections
                            event = {}
                elif answer.status not in (404, 502, 503):  # 404: the task is not accepted yet
                    raise BenchError(f"{answer.status}: {(await answer.text())[:300]}")
        except (aiohttp.ClientError, ConnectionError):
            pass
        reconnections += 1
        await asyncio.sleep(AGAIN_S)


async def _chat(http: aiohttp.ClientSession, url: str, number: int, answers: Counter[str], has_ended: asyncio.Event) -> None:
    while not has_ended.is_set():
        messages = [{"role": "user", "content": f"What is {number} * 7?"}]
        answer = await ask(http, url, CHAT, {"model": POOL, "messages": messages, "max_tokens": 64, "stream": True, "seed": number})
        answers["complete" if answer.is_complete else answer.error or str(answer.status)] += 1
        if not answer.is_complete:
            await asyncio.sleep(AGAIN_S)
