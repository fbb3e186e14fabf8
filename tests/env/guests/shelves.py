"""A taskset with tool servers, as an author of `verifiers` writes one."""

from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Shelves"]


class ShelfState(vf.State):
    books: list[str] = []


class ShelfData(vf.TaskData):
    room: int


class ShelfTaskConfig(vf.TaskConfig):
    shelf: vf.ToolsetConfig = vf.ToolsetConfig()


class ShelvesConfig(vf.TasksetConfig):
    task: ShelfTaskConfig = ShelfTaskConfig()
    catalogue: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class Shelf(vf.Toolset[vf.ToolsetConfig, ShelfState]):
    async def setup_task(self, task: Any) -> None:
        self.room, self.puts = task.room, 0

    @vf.tool
    async def put(self, title: str) -> str:
        """Put a book on the shelf."""
        if len(self.state.books) >= self.room:
            raise ValueError("the shelf is full")
        self.state.books.append(title)
        self.puts += 1
        return f"Book {self.puts} of yours, {len(self.state.books)} in all."


class Catalogue(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    async def setup(self) -> None:
        self.titles = ["Dams", "Rivers"]

    @vf.tool(name="find_titles")
    def find(self, word: str) -> str:
        """Titles that begin with a word."""
        if word == "away":
            raise ConnectionResetError("the catalogue is unavailable")
        return ", ".join(title for title in self.titles if title.startswith(word)) or "None."


class ShelfTask(vf.Task[ShelfData, ShelfState, ShelfTaskConfig]):
    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [Shelf(config.shelf)]

    async def setup(self, trace: Any) -> None:
        trace.state.books = ["Atlas"]

    async def finalize(self, trace: Any) -> None:
        trace.info["kept"] = len(trace.state.books)

    @vf.reward
    async def kept(self, trace: Any) -> float:
        return float(trace.info["kept"])

    @vf.metric
    async def said_so(self, trace: Any) -> dict[str, float]:
        calls = [call for message in trace.assistant_messages for call in message.tool_calls or []]
        answers = [message.content for message in trace.tool_messages]
        return {"calls": float(len(calls)), "answers": float(len(answers)), "known": float(len(trace.tools))}


class Shelves(vf.Taskset[ShelfTask, ShelvesConfig]):
    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [Catalogue(config.catalogue)]

    def load(self) -> list[ShelfTask]:
        return [ShelfTask(ShelfData(prompt="Fill the shelf.", room=3), self.config.task)]
