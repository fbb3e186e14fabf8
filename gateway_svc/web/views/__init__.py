"""View models: what each page shows, as pure functions of the scheduler's answers.

charts.py    a chart and the table that it is drawn from; small curves; a part of a long table
listing.py   tasks
task.py      one task, and several side by side
timeline.py  stages of every step
samples.py   attempts of one step
usage.py     what was used and what it costs
"""
