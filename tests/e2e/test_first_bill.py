"""The commands of docs/tenancy.md from the keys to the first bill, as they are written, in their order, on a stack of their own."""

import csv
import re
from decimal import Decimal
from pathlib import Path

import pytest

from marlaas.stack import control
from tests.support.page_commands import commands, run
from tests.support.paths import ROOT

SECTION = "## From the keys to the first bill"
PRICES = {
    "prompt": Decimal(0),
    "sampled": Decimal("0.0000025"),
    "trained": Decimal("0.000004"),
    "env_ms": Decimal("0.0000001"),
    "accelerator": Decimal("0.0000005"),
}
SHOWS = {
    "init": r"key",
    "up": r"ready",
    "tenants create acme": r"acme",
    "tenants set acme": r"max_tasks +20",
    "keys create acme laptop": r"acme\.creds",
    "prices set sampled": r"sampled: 2\.50 per 1000000 in all pools",
    "prices set trained": r"trained: 4 per 1000000",
    "prices set env_ms": r"env_ms: 0\.10 per 1000000",
    "prices set accelerator": r"accelerator: 0\.50 per 1000000",
    "prices list": r"(?s)env_ms.*sampled.*trained",
    "budgets set acme": r"acme: 500 money a month",
    "--creds acme.creds submit": r"letters-1",
    "--creds acme.creds why": r"^(\w+: |nothing holds it|it is )",
    "--creds acme.creds watch": r"finished",
    "--creds acme.creds pull": r"letters-adapter",
    "--creds acme.creds usage": r"letters-1",
    "--creds acme.creds audit": r"(?s)create-tenant.*submit",
    "budgets list": r"acme +.*500",
    "keys rotate acme laptop": r"new\.creds",
    "--creds new.creds delete": r"letters-1",
    "tenants delete acme": r"keys +2",
    "audit --tenant acme": r"tenant-deleted",
    "doctor": r"",
    "down": r"",
}
"""Beginning of a command → what it must show."""


def check_bill(text: str) -> list[dict[str, str]]:
    """Rows of the tenant's bill, each of which is its quantity times its price.

    Without what is stored, which is booked each full hour, perhaps between two bills.
    """
    bill = [row for row in csv.DictReader(text.splitlines()) if row["tenant"] == "acme"]
    assert {"prompt", "sampled", "trained", "env_ms"} <= {row["kind"] for row in bill}
    assert sum(Decimal(row["money"]) for row in bill) > 0
    for row in bill:
        assert Decimal(row["money"]) == Decimal(row["quantity"]) * PRICES.get(row["kind"], Decimal(0)), row
    return [row for row in bill if row["kind"] != "stored_byte_hours"]


OTHERS = [
    ["marlaas up", "marlaas submit examples/letters.toml"],
    ["marlaas init"],
    ["marlaas up --keys ~/marlaas-keys"],
    ["marlaas up --open"],
    [
        *("marlaas up", "marlaas down", "mv .marlaas/keys stolen-keys", "marlaas init --rekey", "marlaas up"),
        "marlaas tenants push --new-accounts --delete-others",
    ],
]
"""The page's other commands about a stack, those of one folder together."""


@pytest.mark.acceptance
@pytest.mark.timeout(900)
@pytest.mark.parametrize("together", OTHERS, ids=[" ".join(one[-1].split()[1:]) for one in OTHERS])
def test_every_other_command_about_a_stack_works_as_written(together: list[str], tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    try:
        for command in together:
            run(command, tmp_path)
    finally:
        control.stop(tmp_path / ".marlaas")


def test_the_other_commands_are_those_of_the_page() -> None:
    before, _, rest = (ROOT / "docs" / "tenancy.md").read_text().partition(SECTION)
    existing = rest.partition("\n## ")[2].partition("## Tenants and their keys")[0]
    found = {line.partition(" # ")[0].strip() for line in f"{before}\n{existing}".splitlines() if line.startswith(("marlaas ", "mv "))}
    assert found == {command for together in OTHERS for command in together}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_from_the_keys_to_the_first_bill_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    bills: list[list[dict[str, str]]] = []
    page = commands("tenancy.md", SECTION)
    try:
        for command in page:
            shown = run(command, tmp_path)
            arguments = command.removeprefix("marlaas ")
            if arguments.startswith("usage --csv"):
                bills.append(check_bill(shown))
                continue
            [expected] = [pattern for begin, pattern in SHOWS.items() if arguments.startswith(begin)]
            assert re.search(expected, shown), (command, shown)
    finally:
        control.stop(tmp_path / ".marlaas")
    assert len(bills) == 2 and bills[0] == bills[1], "a deletion changes no bill"
    assert (tmp_path / "letters-adapter" / "adapter_model.safetensors").exists()
    shown_by = {begin for begin in SHOWS if any(command.removeprefix("marlaas ").startswith(begin) for command in page)}
    assert shown_by == set(SHOWS), "the page still has every command"
