"""What tenants upload: packages with environments, and files of rows.

package_jobs.py      jobs with parts of an upload, and its deletion
packages.py          an upload, its checks and its end · package_queries.py its rows · listing.py what is there
files.py             rows of files, checked · file_queries.py their rows · file_answers.py answers to asks
own_environments.py  which package a task plays
package_deletion.py  abandoned and refused uploads
"""
