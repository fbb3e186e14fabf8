"""A taskset whose environment plays the user, as an author of `verifiers` writes one."""

import time
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Guessing", "GuessingEnv"]


class GuessData(vf.TaskData):
    number: int
    vague: bool


class GuessConfig(vf.TasksetConfig):
    vague: bool = False
    asks_first: bool = True


class GuessTask(vf.Task[GuessData]):
    @vf.metric
    async def guesses(self, trace: Any) -> float:
        return float(trace.num_turns)

    @vf.metric
    async def cut_off(self, trace: Any) -> float:
        return float(trace.is_truncated)

    @vf.stop
    async def gave_up(self, trace: vf.Trace) -> bool:
        return trace.last_reply == "I give up."


class GuessEnvConfig(vf.EnvConfig):
    executor: vf.AgentConfig = vf.AgentConfig()
    prize: float = 1.0


class GuessingEnv(vf.Env[GuessEnvConfig]):
    async def setup(self, agents: Any) -> None:
        self.rounds = 0

    async def run(self, task: Any, agents: Any) -> None:
        won = False
        async with agents.executor.interaction(task) as game:
            segment = await game.turn(None if task.data.prompt else "Guess!")
            while not (segment.terminated or won):
                guess = int(segment.last_reply) if segment.last_reply.isdecimal() else 10
                if guess == 0:
                    raise ConnectionResetError("the game's server is unavailable")
                won = guess == task.data.number
                if not won:
                    now = f" It is {time.time_ns()}." if task.data.vague else ""
                    segment = await game.turn(("Higher." if guess < task.data.number else "Lower.") + now)
        game.trace.record_reward("won", float(won), self.config.prize)

    async def finalize(self, task: Any, episode: Any) -> None:
        (trace,) = episode.traces
        trace.record_metric("stopped", float(trace.stop_condition == "gave_up"))


class Guessing(vf.Taskset[GuessTask, GuessConfig]):
    def load(self) -> list[GuessTask]:
        shown = [vf.UserMessage(content="Guess my number."), vf.AssistantMessage(content="5"), vf.UserMessage(content="Higher.")]
        prompt = shown if self.config.asks_first else None
        data = GuessData(prompt=prompt, system_prompt="From 1 to 9.", number=7, vague=self.config.vague)
        return [GuessTask(data, self.config.task)]
