"""The `marlaas` command: the table of its verbs, and its exit status. Start with `marlaas --help`.

Commands import their modules when they run, so that help and usage errors appear immediately. An error that the user
can correct is one line on stderr and exit status 1.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from common.runtime.output import ends_with_its_reader
from marlaas.cli import session
from marlaas.cli.machine import containers, stack
from marlaas.cli.operator import audit, billing, keys, pools, streams, tenants
from marlaas.cli.user import aliases, chat, environments, files, tasks, usage, webhooks

app = typer.Typer(
    help="Reinforcement-learning fine-tuning of language models, for many tenants on one base model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    creds: Annotated[
        Path | None,
        typer.Option(help="File with a key for NATS; default: the operator's of the stack in --data.", envvar=session.CREDS),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="File with the certificates that the server's own is checked against.", envvar=session.CA)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use the key without TLS on a network that is trusted.", envvar=session.INSECURE)
    ] = False,
) -> None:
    given = {session.CREDS: creds, session.CA: ca, session.INSECURE: "1" if insecure else None}
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})


app.add_typer(environments.app, name="envs")
app.add_typer(files.app, name="files")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(aliases.app, name="alias")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(billing.prices, name="prices")
app.add_typer(billing.budgets, name="budgets")
app.add_typer(pools.app, name="pools")
app.add_typer(tenants.database, name="database")
app.add_typer(streams.app, name="streams")
app.add_typer(containers.app, name="containers")
app.command()(stack.init)
app.command()(chat.chat)
for command in (stack.up, stack.down, stack.status, stack.dashboard):
    app.command()(command)
for command in (tasks.ps, tasks.show, tasks.why, tasks.compare, stack.logs, stack.doctor, stack.psql):
    app.command()(command)
for command in (tasks.submit, tasks.watch, tasks.cancel, tasks.pause, tasks.resume, tasks.delete, usage.prune, tasks.failures):
    app.command()(command)
for command in (tasks.samples, tasks.resend, tasks.pull, tasks.replay, usage.usage, audit.audit):
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(stack.bench)
app.command()(stack.demo)


@ends_with_its_reader()
def main() -> None:
    """Entry point of the `marlaas` command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both signals end `up --foreground` and `demo` cleanly
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit status. An error that the user can correct is one line on stderr."""
    try:
        app(arguments, prog_name="marlaas")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from common.errors import MarlaasError
        from marlaas.stack.servers import ServerError
        from marlaas.stack.state_files import StackError

        if not isinstance(error, MarlaasError | StackError | ServerError):
            raise
        print(f"marlaas: {error}", file=sys.stderr)
        return 1
    return 0
