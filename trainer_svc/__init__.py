"""Trainer: batches of scored trajectories → new adapter versions.

Consumes  trajectories.batch.<queue>.<task> (TrainBatch); reads the scored trajectories that it names by sequence, the last
          weight-updated, blobs, and the key-value buckets `tasks` and `replicas`
Produces  weight-updated.<pool>.<task> (WeightUpdated); immutable blobs of each version: adapter, checkpoint and, if kept, recorded batch;
          samples.<pool>.<task>.<version> (StepSamples); on a shared accelerator also as `common/leases`
Owns      nothing durable: residents are a cache of checkpoints, the base model is frozen
Layout    top to bottom, imports go down only

    parking.py    the trainer as an executor of a shared accelerator
    service.py    handler of a batch: restore the task's state, train one step, publish the new version
    gate.py       admits steps to the learner; closed while the trainer is parked
    replay/       recorded steps, recomputed: to restore a state that no checkpoint holds, and to compare digests
    learner.py    the device's thread and its queue of steps
    algorithm/    one optimizer step, and the selection of attempts to keep
    state/        training state of a task: in memory, as a checkpoint, as a record
    model/        the frozen base model with adapters, and its memory
    device/       errors, memory and time of the device
    batch.py      trajectories of a batch, validated
    merge.py      program that merges an adapter into its base model
    settings.py   the settings
"""
