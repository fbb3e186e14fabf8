"""Stand-ins of the engine, for what is measured around it.

cases.py   made-up replies
source.py  a replica that samples them
paced.py   a source of tokens at a rate
"""
