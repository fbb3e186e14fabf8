"""Tools: what a policy may call between an environment's steps.

Consumes  the calls in a reply (`calls.py` finds them)
Produces  `tool` messages with their answers, through the executor of tool calls (`execution/tool_calls.py`)
Owns      the tools that tasks name (`toolbox.py`), with what they hold: sandboxes, indexes, connections to servers.
"""
