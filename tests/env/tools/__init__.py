"""Tools of episodes.

calls, answers, and tools that fail  test_tools.py
odd schemas, arguments and answers   test_tool_values.py
the calculator                       test_calculator.py
tool `python`                        test_python.py
tools of an MCP server               test_mcp.py

Helpers: tables.py (plays episodes), toy_tools.py (small tools), mcp_server.py and odd_mcp_server.py.
"""
