"""`marlaas demo`: what it ends with."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from marlaas.demo import three_tasks
from marlaas.reporting.progress import Progress, TrainedStep
from tests.support.paths import ROOT


def test_last_lines_say_what_the_three_tasks_do_not_show(tmp_path: Path) -> None:
    show = three_tasks(ROOT / "examples", ROOT / "pools.toml", 0, 10)
    tasks = [Progress(spec.name, spec, "finished", steps=[TrainedStep(1, 0.0, 0.5, 0.0, 0.0, 1, 0.0, 1.0, 2.0)]) for spec in show.specs]
    assert len({one.spec.tenant for one in tasks}) == 3
    written = StringIO()
    show.conclude(Console(file=written, width=200), tasks, tmp_path)
    *_, last = written.getvalue().splitlines()
    assert "not shown: that the tasks learned something new" in last
    assert "sharper distribution" in last
    assert "marlaas demo --compose" in last
    assert str(tmp_path / "plots" / "reward.png") in written.getvalue()
