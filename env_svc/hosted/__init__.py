"""Hosted environments: in their own processes and virtual environments, so that their dependencies cannot clash with ours.

Consumes  calls for the environments of the file MARLAAS_ENV_HOSTS_FILE
Produces  their outcomes
Owns      the host processes, their child processes, and their sandboxes
Layout    config.py reads the file; pool.py shares the processes among tasks, process.py calls one, start.py starts it, wire.py defines
  its frames; confinement.py chooses and, with cgroups.py, builds the sandbox; proxy.py is a package's only network access,
  with forwarder.py inside the sandbox;
  host.py is the process: `python -m env_svc.hosted.host module:attribute`, run by the environment's own interpreter
"""
