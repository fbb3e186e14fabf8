"""`marlaas init`: what it makes, that it may be repeated, and what it refuses."""

from pathlib import Path

from common.access.folder import open_folder
from marlaas.stack import servers
from marlaas.stack.state_files import locked
from tests.support.marlaas.command import marlaas


def test_keys_and_passwords_are_made_once(tmp_path: Path) -> None:
    first = marlaas("init", "--data", "data", cwd=tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == f"keys are in {tmp_path / 'data' / 'keys'}: back it up apart from the data; next: marlaas up\n"
    made = _contents(tmp_path / "data")
    assert (tmp_path / "data" / "postgres" / "PG_VERSION").exists()
    assert marlaas("init", "--data", "data", cwd=tmp_path).stdout == first.stdout
    assert _contents(tmp_path / "data") == made


def test_folder_that_is_in_use_or_without_keys_to_replace_is_refused_with_a_sentence(tmp_path: Path) -> None:
    absent = marlaas("init", "--rekey", "--data", "none", cwd=tmp_path)
    assert (absent.returncode, absent.stderr[:38]) == (1, "marlaas: no streams in none/nats belon")
    (tmp_path / "data").mkdir()
    with locked(tmp_path / "data"):
        for more in ([], ["--rekey"]):
            running = marlaas("init", "--data", "data", *more, cwd=tmp_path)
            assert (running.returncode, running.stderr) == (1, "marlaas: a stack runs on data; next: marlaas down\n")
    (tmp_path / "data" / "nats" / servers.STORE / "jetstream" / "$G").mkdir(parents=True)
    for command in (["init"], ["init", "--rekey"], ["up"]):
        assert marlaas(*command, "--data", "data", cwd=tmp_path).returncode == 1
    assert not (tmp_path / "data" / "keys").exists()


def _contents(data: Path) -> list[str]:
    """Public keys, and the password file."""
    keys = open_folder(data / "keys")
    return [keys.operator.public, keys.services.public, keys.admin.public, (data / "secrets" / "pgpass").read_text()]
