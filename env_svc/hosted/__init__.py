"""Hosted environments: in processes and virtual environments of their own, so that their dependencies cannot clash with ours.

Consumes  calls for the environments of the file MARLAAS_ENV_HOSTS_FILE
Produces  their outcomes
Owns      the host processes, with everything that they start, and their sandboxes
Layout    config.py reads the file; pool.py shares the processes among tasks, process.py calls one, start.py starts it, wire.py holds
          what it may say; confinement.py chooses the sandbox and, with cgroups.py, is it; proxy.py is the one way out of a package's,
          with forwarder.py inside;
          host.py is the process: `python -m env_svc.hosted.host module:attribute`, run by the environment's own interpreter
"""
