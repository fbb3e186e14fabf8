"""A deployment of docker-compose.yml under a name and a port of its own."""

import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import yaml

from marlaas.stack import servers
from tests.support.paths import ROOT

SERVICES = ("scheduler", "gateway", "env", "trainer", "rollout")
BUILD_TIMEOUT_S = 3000
COMMAND_TIMEOUT_S = 300
END = "end-of-output"
"""Last line of an answer of psql that is whole."""
PSQL_TRIES = 3
POLL_S = 1.0
"""Pause between two looks: each starts processes of Docker, which take their time from the containers."""


def compose_command() -> list[str]:
    """`docker compose` where Docker has it, else docker-compose."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"]


def why_not() -> str | None:
    """Why containers cannot be had here; None when they can."""
    if shutil.which("docker") is None:
        return "there is no `docker` here"
    found = subprocess.run(["docker", "info"], capture_output=True, text=True)
    if found.returncode != 0:
        return f"the Docker engine does not answer: {found.stderr.strip().splitlines()[-1]}"
    if subprocess.run([*compose_command(), "version"], capture_output=True).returncode != 0:
        return "there is neither `docker compose` nor `docker-compose` here"
    return None


@dataclass
class Deployment:
    """Names, ports and volumes that no other deployment on this machine has."""

    project: str = field(default_factory=lambda: f"marlaas-test-{uuid.uuid4().hex[:8]}")
    nats_port: int = field(default_factory=servers.free_port)
    gateway_port: int = field(default_factory=servers.free_port)
    command: list[str] = field(default_factory=compose_command)
    cold_start_s: float = 0.0
    """Seconds from nothing but images to ready."""

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.nats_port}"

    @property
    def environment(self) -> dict[str, str]:
        chosen = {
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE": " ".join(self.command),
            "COMPOSE_FILE": "docker-compose.yml",
            "MARLAAS_VERSION": "test",
            "NATS_ADDRESS": f"127.0.0.1:{self.nats_port}",
            "GATEWAY_ADDRESS": f"127.0.0.1:{self.gateway_port}",
        }
        return {**os.environ, **chosen}

    def run(self, argv: list[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Standard output of a command that succeeds."""
        done = self.attempt(argv, timeout_s)
        assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def attempt(self, argv: list[str], timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=timeout_s)

    def as_printed(self, command: str, folder: Path) -> str:
        """Run a command line of a page or a log in a folder, with the Compose that there is here."""
        line = command.replace("docker compose", f"{' '.join(self.command)} --project-directory {ROOT}")
        if not (folder / "deploy").exists():  # docker-compose 1.29 looks for a seccomp profile where it is called
            (folder / "deploy").symlink_to(ROOT / "deploy")
        env = {**self.environment, "COMPOSE_FILE": str(ROOT / "docker-compose.yml")}
        done = subprocess.run(["bash", "-ec", line], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def tenants_key(self, folder: Path, name: str = "acme") -> Path:
        """A tenant's key, copied out of its volume as the log of `accounts` says."""
        key = folder / f"{name}.creds"
        if not key.exists():
            self.as_printed(f"umask 077; docker compose run --rm -T --entrypoint cat marlaas /creds/{name}.creds > {name}.creds", folder)
        return key

    def compose(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        return self.run([*self.command, *arguments], timeout_s)

    def build(self) -> None:
        self.compose("build", *SERVICES, timeout_s=BUILD_TIMEOUT_S)

    def up(self, **scale: int) -> float:
        """Seconds until every container is ready. Starts what was killed, adds what is to be added, leaves the rest alone."""
        started = time.monotonic()
        self.compose("up", "-d", "--no-build", "--no-recreate", *(part for name, n in scale.items() for part in ("--scale", f"{name}={n}")))
        self.wait_until_ready(240)
        return time.monotonic() - started

    @contextmanager
    def optional(self, service: str) -> Generator[str]:
        """Container of a service of a profile, started as Compose v2 does: docker-compose 1.29 has no `systempaths`."""
        name = f"{self.project}-{service}"
        asked = yaml.safe_load(self.compose("config"))["services"][service]
        argv = ["docker", "run", "-d", "--init", "--name", name, "--network", f"{self.project}_default", "--read-only"]
        argv += [part for one in asked["cap_drop"] for part in ("--cap-drop", one)]
        argv += [part for one in asked["tmpfs"] for part in ("--tmpfs", one)]
        argv += [part for key, value in asked["environment"].items() for part in ("-e", f"{key}={value}")]
        for one in asked["security_opt"]:
            argv += ["--security-opt", one.replace("seccomp:", f"seccomp={ROOT}/")]
        for one in asked["volumes"]:
            source, _, rest = one.partition(":")
            argv += ["-v", f"{source if source.startswith('/') else f'{self.project}_{source}'}:{rest}"]
        self.run([*argv, asked["image"]])
        try:
            yield name
        finally:
            self.run(["docker", "rm", "-f", name])

    def wait_until_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.healths()
            late = {name: health for service in SERVICES for name, health in found[service].items() if health != "healthy"}
            if not late:
                return
            assert time.monotonic() < deadline, f"not ready after {timeout_s} s: {late}\n{self.logs(*SERVICES)[-5000:]}"
            time.sleep(POLL_S)

    def containers(self, service: str | None = None) -> list[str]:
        """Ids of the containers of a service, or of all, stopped ones left out."""
        labels = [f"label=com.docker.compose.project={self.project}"]
        labels += [f"label=com.docker.compose.service={service}"] if service is not None else []
        return self.run(["docker", "ps", "-q", *(part for label in labels for part in ("--filter", label))]).split()

    def healths(self) -> dict[str, dict[str, str]]:
        """Container → its health, by service, of those that have checks. A service without a container has itself, which is `absent`."""
        ids = self.containers()
        form = '{{index .Config.Labels "com.docker.compose.service"}} {{.Id}} {{with .State.Health}}{{.Status}}{{end}}'
        lines = self.run(["docker", "inspect", "--format", form, *ids]).splitlines() if ids else []
        found: dict[str, dict[str, str]] = {}
        for service, container, *health in map(str.split, lines):
            if health:
                found.setdefault(service, {})[container] = health[0]
        return {service: {service: "absent"} for service in SERVICES} | found

    def kill(self, service: str) -> None:
        self.run(["docker", "kill", self.containers(service)[0]])

    def logs(self, *services: str) -> str:
        return self.compose("logs", "--no-color", *services)

    def psql(self, query: str) -> list[list[str]]:
        """Rows of a query, asked as an operator would: with psql, inside the container.

        A last line says that the output is whole: without it, output that was lost on its way would be an answer without rows. Then the
        query is asked once more.
        """
        inside = ["docker", "exec", self.containers("postgres")[0]]  # starts sooner than Compose does
        psql = ["psql", "-U", "marlaas", "-At", "-F", "\t", "-c", query, "-c", f"\\echo {END}"]
        for _ in range(PSQL_TRIES):
            out = self.run([*inside, *psql]).splitlines()
            if out and out[-1] == END:
                return [line.split("\t") for line in out[:-1]]
        raise AssertionError(f"the output of psql was cut off {PSQL_TRIES} times: {query}")

    def metric(self, container: str, name: str) -> float:
        """The sum of a counter's samples, asked inside the container."""
        fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/metrics').read().decode())"
        text = self.run(["docker", "exec", container, "python", "-c", fetch])
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))

    def check_times_s(self, container: str) -> list[float]:
        """Times at which the latest health checks of a container began, which Docker keeps five of."""
        log = json.loads(self.run(["docker", "inspect", "--format", "{{json .State.Health.Log}}", container]))
        return [datetime.fromisoformat(f"{check['Start'][:19]}+00:00").timestamp() for check in log]

    def remove(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def log_events(text: str) -> list[dict[str, object]]:
    """The structured lines of a service's log."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
