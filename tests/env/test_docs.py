"""Examples of docs/environments.md, run."""

import re
from typing import Any

from env_svc.contract import Continue, Environment, Finish, Reply
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "environments.md"


async def test_the_example_plays() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    environment = names["HigherLower"](highest=9)
    assert isinstance(environment, Environment)
    opening = await environment.open(0, 1)
    number = opening.state["number"]
    turn = await environment.step(opening.state, Reply("0"))
    assert isinstance(turn, Continue)
    assert turn.messages[0].content == "Higher."
    assert await environment.step(turn.state, Reply(str(number))) == Finish(1.0)
    assert await environment.step(turn.state, Reply("a number")) == Finish(0.0)
