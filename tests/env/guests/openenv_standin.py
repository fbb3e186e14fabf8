"""`python openenv_standin.py <port> <sessions> plain|vague|tools`: what `openenv_package.py` serves, without the package."""

import json
import sys
from typing import Any

from aiohttp import WSMsgType, web
from counting_game import Hidden
from pydantic import BaseModel, ConfigDict, ValidationError

SESSIONS: set[object] = set()


class GuessAction(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int


async def serve(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    if len(SESSIONS) >= int(sys.argv[2]):
        await socket.send_json(error("CAPACITY_REACHED", f"Server at capacity: {len(SESSIONS)}/{sys.argv[2]} sessions active"))
        await socket.close()
        return socket
    SESSIONS.add(socket)
    game = Hidden(None)
    try:
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            asked = json.loads(message.data)
            if asked["type"] == "close":
                break
            if sys.argv[3] == "tools":
                await socket.send_json(shouted(asked))
                continue
            if asked["type"] == "reset":
                game = Hidden(asked["data"]["seed"], vague=sys.argv[3] == "vague")
                await socket.send_json(observation(None, False, text=game.start(), left=game.left))
                continue
            try:
                text, reward, done = game.guess(GuessAction.model_validate(asked["data"]).number)
                await socket.send_json(observation(reward, done, text=text, left=game.left))
            except ValidationError as wrong:
                await socket.send_json(error("VALIDATION_ERROR", "Invalid message", errors=json.loads(wrong.json())))
            except Exception as wrong:
                await socket.send_json(error("EXECUTION_ERROR", str(wrong)))
    finally:
        SESSIONS.discard(socket)
    await socket.close()
    return socket


def shouted(asked: dict[str, Any]) -> dict[str, Any]:
    data = asked["data"]
    if asked["type"] == "reset":
        return observation(None, False, metadata={"message": "Shout!"})
    if data["type"] == "list_tools":
        schema = {"properties": {"text": {"type": "string"}}, "required": ["text"], "type": "object"}
        return observation(None, False, tools=[{"name": "shout", "description": "Say it loudly.", "input_schema": schema}])
    if data["tool_name"] != "shout":
        wrong = {"error_type": "tool_not_found", "message": f"Unknown tool: '{data['tool_name']}'"}
        return observation(None, False, tool_name=data["tool_name"], result=None, error=wrong)
    text = data["arguments"]["text"].upper()
    result = {"content": [{"type": "text", "text": text}], "structured_content": {"result": text}, "data": text, "is_error": False}
    return observation(None, False, tool_name="shout", result=result, error=None)


def observation(reward: float | None, done: bool, **fields: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"metadata": {}, **fields}, "reward": reward, "done": done}}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/ws", serve)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
