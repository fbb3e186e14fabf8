"""Tables of what tenants have.

aliases.py   names of versions
"""
