"""OpenAI's files: uploaded rows, and the results of jobs.

Layout    file.py has their shape; results.py makes a job's steps a file
"""
