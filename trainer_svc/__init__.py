"""Trainer: batches of scored trajectories → new adapter versions.

Consumes  trajectories.batch.<pool>.<task> (TrainBatch), and reads the scored trajectories that it names by sequence
Produces  weight-updated.<pool>.<task> (WeightUpdated), and two immutable blobs for each version: adapter and checkpoint
Owns      nothing durable: residents are a cache of checkpoints, the base model is frozen

    service.py        one batch message: the state it goes on from, its step, and the version that is announced
    restoring.py      a resident from its checkpoint, or from the batches after it
    learner.py        the device's thread: which tasks' steps it takes together, and which residents stay in memory
    batch.py          a batch message as arrays
    algorithm/        one optimizer step
    model/            the frozen base model with adapters
    state/            what a task's training carries from step to step
    replay/           recorded steps, taken again
    merge.py          an adapter merged into its base model
    allocator.py      memory that goes back to the system on a CPU
    device_errors.py  which errors of a device end the process, and which end a task
"""
