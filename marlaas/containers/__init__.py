"""What docker-compose.yml runs before its services: keys, passwords, and a first tenant.

volumes.py       the volumes, and files in them that each belong to their reader
preparation.py   keys and passwords, made once
accounts.py      the operator's key and the first tenant's, recorded and pushed once

Both steps run at each `up`, and find nothing to do once they are complete; interrupted, they are completed by the next.
"""
