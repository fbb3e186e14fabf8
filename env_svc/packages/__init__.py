"""Packages of environments that others wrote, read without being installed or run.

Consumes  the bytes of a wheel
Produces  its files, name, requirements and environments, or a sentence that says why it is refused
Owns      nothing: pure
"""
