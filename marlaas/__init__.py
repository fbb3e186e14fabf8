"""Client side: SDK, command line, and the one-machine stack. A client of NATS like any other.

Layout    client, reading, preview, comparison: the SDK · sync: the same without asyncio · over_http/: the SDK over HTTP · task_file ·
          cli/: the commands · reporting/: tables, plots and trackers · stack/ with supervisor: the one-machine stack · memory:
          estimated needs of its processes · host: this machine, examined for it · tenancy/: accounts and keys · packages:
          environments' projects and wheels · containers: preparation of a compose deployment · demo
"""
