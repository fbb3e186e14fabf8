"""Tools that a policy may call between an environment's steps.

Consumes  the calls in a reply (`common/tool_calls/`)
Produces  their answers, which `execution/tool_calls.py` sends as `tool` messages
Owns      the tools that tasks name, with their sandboxes, indexes and connections to servers
Layout    tool.py is what authors import; registry.py finds a tool, toolbox.py builds, shares and closes it;
          calculator.py, python.py, search.py and mcp.py are tools
"""
