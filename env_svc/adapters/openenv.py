"""Adapter for OpenEnv servers.

    [wordle]                                              # a name for tasks, in the file of MARLAAS_ENV_HOSTS_FILE
    python = "/opt/openenv/bin/python"                    # `pip install 'marlaas[openenv]'`: aiohttp, nothing of OpenEnv
    environment = "env_svc.adapters.openenv:OpenEnv"
    options = { server = "ws://10.0.0.7:8000", sessions = 16, action = "guess", observation = "text" }

A server holds its episodes in connections, which end with the replica that opened them. So an episode's state is its history:
the seed of its reset, the actions since, and a digest of each observation. A replica that has the state resumes the episode:
in its waiting session, or in a new one by replaying the actions. If a replayed observation differs from the original one,
the attempt is void. A redelivered step is replayed in the same way.
"""

import hashlib
import json
import random
import re
from typing import Any, Literal, TypedDict

from pydantic import JsonValue

from common.formats import strict_json
from env_svc.adapters.openenv_sessions import Observation, RefusedAction, Session, SessionLost, Sessions
from env_svc.contract import ChatMessage, Continue, Environment, EnvironmentUnavailable, Finish, Opening, Reply, Turn, WrongOptions

Action = dict[str, JsonValue]
FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


class OpenEnvState(TypedDict):
    """State of an episode, as messages carry it."""

    seed: int
    actions: list[Action]
    seen: list[str]
    """Digests of observations: after the reset, then after each action."""
    rewards: list[float]
    """Rewards of the actions."""
    malformed: int
    """Number of replies that were not a valid action."""


class OpenEnv(Environment[OpenEnvState]):
    """Episodes on a server: the policy's replies are the actions, and the observations are the messages to the policy."""

    operator_options = ("server", "sessions")
    components = ("actions", "malformed")

    def __init__(
        self,
        server: str,
        *,
        sessions: int = 8,
        action: str = "",
        observation: str = "",
        reset: dict[str, JsonValue] | None = None,
        reward: Literal["sum", "last"] = "sum",
        tools: bool = False,
        instruction: str = "",
    ) -> None:
        """`action`: the field that a reply fills; without it a reply is a JSON object, the whole action. `observation`: the field
        that the policy sees, such as `text` or `metadata.message`; by default all but the metadata, as JSON. `tools`: actions are
        calls of the server's MCP tools."""
        if sessions < 1:
            raise WrongOptions(f"sessions is {sessions}, expected 1 or more")
        if tools and action:
            raise WrongOptions("give 'tools' or 'action': a call of a tool is the action")
        self._sessions = Sessions(_address(server), sessions)
        self._action, self._observation, self._reset = action, observation, reset or {}
        self._adds_up, self._has_tools = reward == "sum", tools
        self._instruction = instruction

    async def open(self, index: int, seed: int) -> Opening[OpenEnvState]:
        start = random.Random(f"{seed}:{index}").getrandbits(31)
        async with self._sessions.place():
            session = await self._sessions.fresh()
            async with self._sessions.ending(session):
                observed, tools = await self._begun(session, start)
                if observed.done:
                    raise RuntimeError(f"the episode with seed {start} is over before it began")
                state = OpenEnvState(seed=start, actions=[], seen=[self._digest(observed)], rewards=[], malformed=0)
                self._sessions.wait(_history(state), session)
        text = self._shown(observed)
        return Opening([_user(f"{text}\n\n{self._instruction}" if self._instruction else text)], state, tools)

    async def step(self, state: OpenEnvState, reply: Reply) -> Turn[OpenEnvState]:
        if self._has_tools and not reply.calls:
            return await self.conclude(state)
        try:
            actions = self._actions(reply)
        except ValueError as error:
            return Continue([_user(f"That is not an action: {error}")], _after_nonsense(state))
        async with self._sessions.place():
            session = self._sessions.take(_history(state))
            if session is not None:
                try:
                    return await self._played(session, state, actions)
                except SessionLost:  # the server was restarted since: the new one gets a replay
                    pass
            return await self._played(await self._replayed(state), state, actions)

    async def conclude(self, state: OpenEnvState) -> Finish:
        session = self._sessions.take(_history(state))
        if session is not None:
            await self._sessions.end(session)
        return self._finish(state)

    async def close(self) -> None:
        """End the waiting sessions; their episodes can still be resumed."""
        await self._sessions.close()

    async def _begun(self, session: Session, seed: int) -> tuple[Observation, list[dict[str, JsonValue]]]:
        """Start an episode; return its first observation and the schemas of its tools."""
        observed = await session.reset({"seed": seed, **self._reset})
        return observed, _schemas(await session.step({"type": "list_tools"})) if self._has_tools else []

    async def _played(self, session: Session, state: OpenEnvState, actions: list[Action]) -> Turn[OpenEnvState]:
        """The turn that follows from `actions`. The session then waits for the next actions, or ends if the episode is over."""
        role: Literal["tool", "user"] = "tool" if self._has_tools else "user"
        messages: list[ChatMessage] = []
        async with self._sessions.ending(session):
            for action in actions:
                try:
                    observed = await session.step(action)
                except RefusedAction as error:
                    messages.append(ChatMessage(role=role, content=f"That is not an action: {error}"))
                    state = _after_nonsense(state)
                    continue
                seen, rewards = [*state["seen"], self._digest(observed)], [*state["rewards"], observed.reward]
                state = OpenEnvState({**state, "actions": [*state["actions"], action], "seen": seen, "rewards": rewards})
                if observed.done:
                    return self._finish(state)
                messages.append(ChatMessage(role=role, content=self._shown(observed)))
            self._sessions.wait(_history(state), session)
        return Continue(messages, state)

    async def _replayed(self, state: OpenEnvState) -> Session:
        """A new session with the episode replayed. Raises: EnvironmentUnavailable when the replay differs."""
        session = await self._sessions.fresh()
        async with self._sessions.ending(session, only_if_it_fails=True):
            observed, _ = await self._begun(session, state["seed"])
            for number, seen in enumerate(state["seen"]):
                if number > 0:
                    observed = await self._repeated(session, number, state["actions"][number - 1])
                if self._digest(observed) != seen:
                    raise EnvironmentUnavailable(
                        f"{_replay_of(number)} gave another observation than before: the server is not deterministic"
                    )
        return session

    async def _repeated(self, session: Session, number: int, action: Action) -> Observation:
        try:
            return await session.step(action)
        except RefusedAction as error:
            raise EnvironmentUnavailable(f"{_replay_of(number)} was refused, and was not before: {error}") from None

    def _actions(self, reply: Reply) -> list[Action]:
        """Actions in a reply. Raises: ValueError, whose text the policy reads."""
        if self._has_tools:
            return [{"type": "call_tool", "tool_name": call.name, "arguments": call.arguments} for call in reply.calls]
        text = reply.spoken.strip()
        if self._action:
            return [{self._action: text}]
        return [action_in(text)]

    def _shown(self, observed: Observation) -> str:
        """The text of an observation for the policy. Raises: RuntimeError when the observation lacks the field."""
        fields: Any = observed.observation
        if self._has_tools and "tool_name" in fields:
            return _tool_answer(fields)
        for name in filter(None, self._observation.split(".")):
            if not isinstance(fields, dict) or name not in fields:
                raise RuntimeError(f"the observation has no field '{self._observation}': {json.dumps(observed.observation)[:200]}")
            fields = fields[name]
        if fields is observed.observation:
            fields = {name: value for name, value in fields.items() if name != "metadata"} or fields.get("metadata", {})
        return fields if isinstance(fields, str) else json.dumps(fields, ensure_ascii=False)

    def _digest(self, observed: Observation) -> str:
        text = json.dumps([self._shown(observed), observed.reward, observed.done])
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def _finish(self, state: OpenEnvState) -> Finish:
        rewards = state["rewards"]
        reward = sum(rewards) if self._adds_up else (rewards or [0.0])[-1]
        return Finish(reward, {"actions": float(len(rewards)), "malformed": float(state["malformed"])})


def _address(server: str) -> str:
    scheme, separator, rest = server.rstrip("/").partition("://")
    schemes = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
    if not separator or scheme not in schemes or not rest:
        raise WrongOptions(f"server '{server}' is no address such as ws://10.0.0.7:8000")
    return f"{schemes[scheme]}://{rest.removesuffix('/ws')}/ws"


def _history(state: OpenEnvState) -> str:
    """Key of the episode's sessions: those with equal histories are interchangeable."""
    history = json.dumps([state["seed"], state["actions"], state["seen"]], sort_keys=True)
    return hashlib.blake2b(history.encode(), digest_size=16).hexdigest()


def _after_nonsense(state: OpenEnvState) -> OpenEnvState:
    return OpenEnvState({**state, "malformed": state["malformed"] + 1})


def _replay_of(number: int) -> str:
    return f"replayed, {f'action {number}' if number else 'the reset'} of the episode"


def _schemas(observed: Observation) -> list[dict[str, JsonValue]]:
    """Tools as chat templates take them. `Any`: as the server wrote them."""
    listed: Any = observed.observation.get("tools") or []
    return [
        {"type": "function", "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}}
        for tool in listed
    ]


def _tool_answer(fields: dict[str, Any]) -> str:
    """The text of a call's result. `Any`: as the server wrote it."""
    if fields.get("error"):
        return f"Error: {fields['error'].get('message')}"
    result = fields.get("result")
    if isinstance(result, dict) and "content" in result:
        result = "\n".join(part.get("text", "") for part in result["content"])
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def action_in(text: str) -> Action:
    """The JSON object in a reply, fenced or bare. Raises: ValueError, whose text the policy reads."""
    fenced = FENCED.search(text)
    try:
        action = strict_json.read(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        action = None
    if not isinstance(action, dict):
        raise ValueError("reply with one JSON object and nothing else")
    return action
