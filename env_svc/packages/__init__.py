"""Packages that tenants upload: checked, unpacked, and played in sandboxes of their own.

Consumes  prompts.package.own.<tenant>.<package>, wheels from the blob store, calls for environments named `own:…`
Produces  trajectories.package.<tenant>.<package>, outcomes
Owns      the unpacked packages of this replica, and the processes that play them
Layout    wheel.py reads a package, store.py fetches and unpacks it; processes.py has an environment's name, process and calls, hosts.py
          shares the places for processes among tenants; check.py answers for a new package; serving.py reads the settings
"""
