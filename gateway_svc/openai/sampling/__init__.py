"""What the APIs of inference have in common.

settings.py  settings of sampling, and seeds of choices
tools.py     tools, for the chat template
order.py     what one HTTP request asks of samplers
choices.py   choices of one request, sampled concurrently
replicas.py  choices sampled by replicas
counting.py  usage, and why an answer ended
"""
