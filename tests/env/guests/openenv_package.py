"""`python openenv_package.py <port> <sessions> plain|vague|tools`: the game, or a tool, behind the package `openenv` 0.10."""

import sys
from typing import Any

import uvicorn
from counting_game import Hidden
from fastmcp import FastMCP
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class GameText(Observation):
    text: str
    left: int


class Server(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> GameText:
        self.game = Hidden(seed, vague=sys.argv[3] == "vague")
        return GameText(text=self.game.start(), left=self.game.left)

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> GameText:
        text, reward, done = self.game.guess(action.number)
        return GameText(text=text, left=self.game.left, reward=reward, done=done)

    @property
    def state(self) -> State:
        return State(step_count=4 - self.game.left)


class Shouting(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("shouting")

        @mcp.tool
        def shout(text: str) -> str:
            """Say it loudly."""
            return text.upper()

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"message": "Shout!"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise ValueError("only tools")

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    parts = (Shouting, CallToolAction, CallToolObservation) if sys.argv[3] == "tools" else (Server, Guess, GameText)
    uvicorn.run(create_app(*parts, max_concurrent_envs=int(sys.argv[2])), port=int(sys.argv[1]), log_level="warning")
