"""The command line: command.py runs it in the test's process."""
