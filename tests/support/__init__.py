"""Helpers for tests of more than one folder. What serves one folder is a module of that folder; a conftest has fixtures and hooks only.

paths.py            the checkout's folders
waiting.py          waiting for a condition; work that runs beside a test
servers.py          a server as a child process
postgres.py         a PostgreSQL server, its migrated template, and copies of it
buses.py            connections to NATS with short pauses, and the messages there
consuming.py        a consumer that works while its test runs
keyed.py            a nats-server that wants keys, with two tenants' accounts
spying.py           what connections do, from nats-server's log
matching.py         NATS's rule for subjects and patterns
tls.py              a certificate authority, and nats-servers with TLS
services.py         services as child processes; forking.py makes them without their imports
proxy.py            connections that are cut, slowed, throttled and silenced
clock.py disk.py    a process's clock that jumps; a disk that can be full
groups.py           contexts of groups
samples.py          kept samples, and a replica that gives their texts
graders.py          graders, as a task's file has them
recipes.py          recipes, made small for the tiny model
nvidia.py           a stand-in for a GPU's driver, and for builds of PyTorch and vLLM
page_commands.py    the commands of a documentation page
leases/             executors on an accelerator, without a device
scheduler/          a running scheduler whose environment, sampler and trainer are the test's
gateway/            a gateway, its keys, and made-up replies in place of samplers
env/                replicas and sandboxes of the environment service
rollout/            replicas that serve, and requests to an engine
trainer/            small base models, groups of random tokens, and batches
marlaas/            the command line in the test's process
"""

import pkgutil

import pytest

pytest.register_assert_rewrite(*(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")))  # as in test files
