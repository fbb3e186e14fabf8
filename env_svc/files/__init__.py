"""Environment `file:<id>`: rows that a tenant has uploaded, graded as a task says.

Consumes  files from the blob store
Owns      the files that were used last, on this replica's disk
Layout    environment.py is the environment; grading.py runs graders; row_file.py finds rows; order.py mixes rows;
          store.py fetches files, and keeps them with their environments
"""
