"""The user's side: SDK, command line, and the one-machine stack. A client of NATS like any other.

Layout    client, reading, preview, comparison: the SDK · sync: the same without asyncio · over_http/: the SDK over HTTP · task_file ·
          cli/: the commands · reporting/: tables, plots and trackers · stack/ with supervisor: the one-machine stack · memory: what it
          needs · tenancy/: accounts and keys · packages: with environments, written and built · containers: what runs before those of
          services · demo
"""
