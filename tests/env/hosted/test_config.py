"""The file of hosted environments, and the choice of their sandbox."""

import sys
from pathlib import Path

import pytest

from common.errors import Fatal
from env_svc.hosted.config import HostedConfig, read_hosted
from env_svc.hosted.confinement import Confinement, choose_confinement
from env_svc.settings import EnvSettings


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[math]\npython = 'p'\nenvironment = 'a:B'", "'math' cannot be the name"),
        ("[own]\npython = 'p'\nenvironment = 'a:B'", "'own' cannot be the name"),
        ("[a]\npython = 'p'", "a.environment: required, but not given"),
        ("[a]\npython = 'p'\nenvironment = 'a:B'\npackage = '/srv/a'", "a.package: no such field"),
        ("[a]\npython = 'p'\nenvironment = 'a:B'\nproceses = 2", "a.proceses: no such field"),
        ("[a", "hosts.toml"),
        ("[a]\npython = 'p'\nenvironment = 'a:B'\nread = ['data']", "'data' is no absolute path"),
        ("[a]\npython = 'p'\nenvironment = 'a:B'\nwrite = ['/srv/../etc']", "'/srv/../etc' is no absolute path"),
        ("[a]\npython = 'p'\nenvironment = 'a:B'\nread = ['/']", "'/' is no absolute path"),
    ],
)
def test_wrong_file_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(text)
    with pytest.raises(Fatal) as caught:
        read_hosted(file, ["math"])
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


HOSTED = {"game": HostedConfig(python=sys.executable, environment="a:B")}


async def test_sandbox_is_chosen_as_the_setting_says(sandbox: Confinement) -> None:
    for wanted, found in (("auto", True), ("required", True), ("none", False)):
        settings = EnvSettings(hosts_sandbox=wanted)
        assert (await choose_confinement(settings, HOSTED) is not None) == found
    assert await choose_confinement(EnvSettings(hosts_sandbox="required"), {}) is None, "nothing to confine"


async def test_machine_without_a_sandbox_is_said_or_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert await choose_confinement(EnvSettings(), HOSTED) is None
    assert "hosts_not_confined" in capsys.readouterr().out
    with pytest.raises(Fatal, match="no sandbox for hosts: there is no program bwrap: install the package bubblewrap"):
        await choose_confinement(EnvSettings(hosts_sandbox="required"), HOSTED)


async def test_required_sandbox_and_a_table_without_it_exclude_each_other() -> None:
    outside = {"game": HostedConfig(python=sys.executable, environment="a:B", sandbox=False)}
    with pytest.raises(Fatal, match="the table of 'game' says sandbox = false"):
        await choose_confinement(EnvSettings(hosts_sandbox="required"), outside)
