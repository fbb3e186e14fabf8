"""Errors that environments, tools and sandboxes raise, and what each means for the attempt. Re-exported by `contract` and `tools.tool`.

WrongOptions                      the task is refused
CallError                         the answer of a tool call
EnvironmentUnavailable            the attempt is void, and a replacement is admitted
└── ToolUnavailable               the same, of a tool
    └── SandboxUnavailable        the same, of a sandbox
Unsupported                       the attempt is void; a task of mostly such attempts fails
"""


class WrongOptions(ValueError):
    """Raised by a constructor for options that it cannot take; the submitter of the task reads its text."""


class EnvironmentUnavailable(Exception):
    """Raised by an environment when a server, sandbox or disk that it needs is unavailable.

    The attempt is void and another one is admitted. Never give reward 0 for what the policy did not do.
    """


class ToolUnavailable(EnvironmentUnavailable):
    """Raised by a tool when a server or sandbox that it needs is unavailable. The attempt is void, never reward 0."""


class SandboxUnavailable(ToolUnavailable):
    """The sandbox itself failed, not the code in it: the attempt is void."""


class Unsupported(Exception):
    """Raised if this deployment cannot grade an attempt, for example a program that its sandbox cannot run.

    The attempt is void with this text, which names a remedy; a task fails when the majority of its groups end so.
    """


class CallError(Exception):
    """Raised by a tool that cannot do what the policy asked for; its text is the answer, and the call counts as an error."""
