"""View models: what each page shows, as pure functions of the scheduler's answers.

charts.py    a chart and the table that it is drawn from
paging.py    a part of a long table
listing.py   tasks
task.py      one task
timeline.py  stages of every step
compare.py   several runs
samples.py   attempts of one step
usage.py     what was used and what it costs
accelerators.py  who computes on shared accelerators
"""
