"""`python -m env_svc.check <name>`, or `marlaas envs check <name>`: is this environment fit to train on?

__main__.py         the program: plays the environment in two processes and judges what they recorded
scripted_policy.py  replies by a script: the gold answer, and nonsense
"""
