"""Trainer: batches of scored trajectories → new adapter versions.

Consumes  trajectories.batch.<pool>.<task> (TrainBatch), and reads the scored trajectories that it names by sequence
Produces  weight-updated.<pool>.<task> (WeightUpdated), and two immutable blobs for each version: adapter and checkpoint
Owns      nothing durable: residents are a cache of checkpoints, the base model is frozen
"""
