"""View models: the content of each page, as pure functions of the scheduler's answers.

charts.py    a chart and its data table; sparklines; pages of long tables
listing.py   list of tasks
task.py      one task, and comparisons of several
timeline.py  stages of every step
samples.py   attempts of one step
usage.py     usage and its cost
"""
