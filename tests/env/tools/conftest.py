"""A table at which tool calls are played."""

from collections.abc import AsyncIterator

import pytest

from env_svc.allowed import AllowedNames
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.tools.toolbox import Toolbox
from tests.env.tools.tables import Table


@pytest.fixture
async def table(workers: Workers) -> AsyncIterator[Table]:
    toolbox = Toolbox()
    yield Table(ToolCallExecutor(EnvironmentExecutor(workers, call_timeout_s=60.0), toolbox, AllowedNames("tests.env.tools.toy_tools:*")))
    await toolbox.close()
