"""Tenants' uploads: packages with environments, and files of rows.

package_jobs.py      jobs that upload parts or delete; cleanup of abandoned and refused uploads
packages.py          an upload, its check and its deletion
package_queries.py   rows of packages
own_environments.py  packages with environments, and the package of a task
files.py             files: checks of rows, and answers
"""
