"""The example of docs/openai.md, run as it is written but for its address, its environment and its pauses."""

import asyncio
from typing import Any

from tests.gateway.openai.clients import Opened
from tests.support.gateway.deltas import Part, Source, deltas
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "openai.md"
CHANGES = {
    'base_url="http://127.0.0.1:8000/v1", api_key="mk-…"': 'base_url=ADDRESS, api_key="mk-none", default_query={"tenant": "acme"}',
    "env:calculator": "env:toy",
    "time.sleep(5)": "time.sleep(0.1)",
    '"steps": 20,': '"steps": 2, "algorithm": {"group_size": 2, "groups_per_step": 2},',
}


async def test_the_example_trains_and_asks_what_it_trained(opened: Opened) -> None:
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    for written, here in CHANGES.items():
        assert written in code
        code = code.replace(written, here)
    source = Source(lambda _: deltas([Part("7")]))
    async with opened(source) as client:
        found: dict[str, Any] = {"ADDRESS": str(client.base_url)}
        await asyncio.to_thread(exec, code, found)

    assert found["answer"].choices[0].message.content == "7"
    assert found["answer"].model == found["job"].fine_tuned_model == f"{found['job'].id}@2"
