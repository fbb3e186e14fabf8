"""Modules of tasksets that the adapter refuses, as source."""

UNPLAYABLE = {
    "two_agents": (
        "class Config(vf.EnvConfig):\n    user: vf.AgentConfig = vf.AgentConfig()\n    helper: vf.AgentConfig = vf.AgentConfig()\n"
        "class Mine(vf.Env[Config]):\n    async def run(self, task, agents): ...\n__all__ += ['Mine']",
        "is played by several agents (user, helper)",
    ),
    "own_harness": ("class Mine(vf.Harness):\n    async def launch(self, *given): ...\n__all__ += ['Mine']", "brings a harness"),
    "own_setup": (
        "class Plain(vf.Task[vf.TaskData]):\n    async def setup(self, trace, runtime): ...",
        "needs a runtime of verifiers for its setup",
    ),
    "container": ("class Plain(vf.Task[vf.TaskData]):\n    NEEDS_CONTAINER = True", "needs a runtime of verifiers"),
    "tools_elsewhere": (
        "class Far(vf.Toolset[vf.SharedToolsetConfig]): ...\n"
        "Ones.toolsets = classmethod(lambda cls, config: [Far(vf.SharedToolsetConfig(url='http://x'))])",
        "tool server Far is at an address of its own: name it in MARLAAS_ENV_TOOL_SERVERS",
    ),
    "tools_in_a_box": (
        "class Boxed(vf.Toolset[vf.SharedToolsetConfig]): ...\n"
        "Ones.toolsets = classmethod(lambda cls, config: [Boxed(vf.SharedToolsetConfig(runtime=vf.DockerConfig()))])",
        "tool server Boxed needs a runtime of verifiers",
    ),
    "tools_with_another_state": (
        "class Mine(vf.State): ...\nclass Own(vf.Toolset[vf.ToolsetConfig, Mine]): ...\n"
        "Ones.toolsets = classmethod(lambda cls, config: [Own(vf.ToolsetConfig())])",
        "tool server Own keeps Mine, while the state of Plain is State",
    ),
    "in_a_box": (
        "class Plain(vf.Task[vf.TaskData]):\n    @vf.reward\n    async def ran(self, runtime): return 1.0",
        "Plain.ran needs a runtime of verifiers",
    ),
    "no_reward": ("class Plain(vf.Task[vf.TaskData]): pass", "Plain has no reward"),
    "changes_messages": (
        "class Plain(Plain):\n    @vf.intercept\n    async def censored(self, request: vf.Request): ...",
        "Plain.censored changes messages",
    ),
    "stops_at_a_request": (
        "class Plain(Plain):\n    @vf.stop\n    async def enough(self, request: vf.Request): return True",
        "Plain.enough looks at a request or response",
    ),
}
"""Module → what is wrong with it, and the reason of its refusal."""
PICTURE = "[vf.UserMessage(content=[{'type': 'image_url', 'image_url': {'url': 'data:,'}}])]"
ONES = """
import verifiers.v1 as vf

__all__ = ["Ones"]

class Plain(vf.Task[vf.TaskData]):
    @vf.reward
    async def fine(self, trace): return 1.0

{before}

class Ones(vf.Taskset[Plain, vf.TasksetConfig]):
    def load(self):
        return [Plain(vf.TaskData(prompt="One?"), self.config.task)]

{after}
"""
