"""What tenants upload: packages with environments, and files of rows.

package_jobs.py      jobs with parts of an upload, and its deletion; abandoned and refused uploads
packages.py          an upload, its checks and its end · package_queries.py its rows
own_environments.py  which packages there are, and which a task plays
files.py             rows of files, checked; answers about files
"""
