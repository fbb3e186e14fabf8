"""Packages that tenants upload: checked, unpacked, and played in sandboxes of their own.

Consumes  prompts.package.own.<tenant>.<package>, wheels from the blob store, calls for environments named `own:…`
Produces  trajectories.package.<tenant>.<package>, outcomes
Owns      the unpacked packages of this replica, and the processes that play them
Layout    names.py says which package a name may lead to; wheel.py reads one; store.py fetches and unpacks, sandboxes.py starts a process,
          hosts.py shares the places for processes among tenants, tenant_host.py is
          one of them; check.py answers for a new package; serving.py reads the settings
"""
