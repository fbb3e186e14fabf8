"""What a measured stack works on, and stand-ins that take injected times.

tasks.py      tasks of the injected kind: submitted, and awaited
hostile.py    bodies that would be dear to read
injected.py   those times, and lower bounds from them
standins.py   a sampler and a trainer that take them
trajectories.py groups of random tokens
waiting.py    an environment that waits for the time in each reply
occupying.py  an environment that occupies a worker process
replies.py    replies of a model, without the sampler
"""
