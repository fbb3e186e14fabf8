"""The gateway's own routes.

health.py      whether it lives and works
tasks.py       tasks: the router of this family
deployment.py  pools, environments, replicas, usage
"""
