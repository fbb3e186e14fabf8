"""The environment service: opens episodes, plays turns, grades.

Consumes  prompts.check.<family>.*, prompts.open.<family>.*, trajectories.turn.<family>.*
Produces  trajectories.checked.*, prompts.sample.*, trajectories.scored.*
Owns      environments and the worker processes that run those that compute. Nothing durable: an episode's state travels
          with its messages, so any replica plays the next turn.
"""
