"""Environment `file:<id>`: rows that a tenant has uploaded, graded as a task says.

Consumes  files from the blob store
Owns      the files that were used last, on this replica's disk
Layout    environment.py is the environment with its rows, and the store that fetches files; grading.py runs graders
"""
