"""The user's side: SDK, command line, and the one-machine stack. A client of NATS like any other.

Layout    client, reading, preview, comparison, owned: the SDK · sync: the same without asyncio · task_file, scaffold ·
          cli/: the commands · reporting/: tables, plots and trackers · stack/ with supervisor: the one-machine stack ·
          memory: what it needs · over_http/: the SDK over HTTP · tenancy/: accounts and keys ·
          wheels, package_data, missing_packages: packages, files and imports · containers/ · demo/
"""
