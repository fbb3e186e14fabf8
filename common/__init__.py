"""The contract between services: messages, subjects, the bus, blobs, settings and logs.

A thing lives here when two services need it. Services import `common` and never each other.
"""
