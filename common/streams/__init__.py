"""Subjects, streams, consumers and buckets, as data.

    jobs.<verb>.<tenant>[.<key>]                      anyone → scheduler          work queue, one consumer per tenant
    from.<tenant>.jobs.<verb>.<tenant>[.<key>]        tenant's key → scheduler    work queue, one stream per tenant, stored as the job
    stored.<stream>.jobs.>                            NATS → scheduler            none: headers of stored jobs
    prompts.check.<family>.<task>                     scheduler → env             work queue
    prompts.package.<family>.<tenant>.<package>       scheduler → env             work queue
    prompts.open.<family>.<task>.<group>              scheduler → env             work queue
    prompts.sample.<queue>.<task>.<trajectory>        env → rollout               work queue
    prompts.serve.<pool>.<shard>.<task>.<request>     gateway → rollout           work queue
    trajectories.turn.<family>.<task>.<trajectory>    rollout → env               work queue
    trajectories.checked.<task>                       env → scheduler             work queue
    trajectories.package.<tenant>.<package>           env → scheduler             work queue
    trajectories.scored.<task>.<trajectory>           env → scheduler, trainer    limits; the scheduler deletes
    trajectories.batch.<queue>.<task>                 scheduler → trainer         work queue
    weight-updated.<pool>.<task>                      trainer → scheduler, every rollout replica     last few per task
    samples.<pool>.<task>.<version>                   trainer → scheduler         limits: last 50 steps of a task
    events.<tenant>.<task>                            scheduler → clients                            last 10 000 per task
    served.<task>.<request>                           gateway → scheduler         work queue
    leases.order.<accelerator>.<executor>             scheduler → rollout, trainer                   last 64, of which the newest counts
    leases.done.<accelerator>.<executor>              rollout, trainer → scheduler                   last 64
    leases.now.<accelerator>.<executor>               rollout, trainer → scheduler none: lost without a listener
    failed.<stage>.<task>                             bus → scheduler             limits, for people to read
    ask.<tenant>.<verb>                               clients → scheduler         none: request and reply
    replies.<gateway>                                 rollout → gateway           none: lost without a listener
    cancels.<replica>                                 gateway → rollout           none: lost without a listener
    filling.<stream>                                  scheduler → none            deleted immediately, see `StreamReader.begin_block`

Verbs of jobs: `JOBS` in common/messages/verbs.py.
If a message carries several members of a group, <trajectory> is the first of them. <queue> is the pool, or, for a pool on several shared
accelerators, `<pool>@<accelerator>`: the queue of its executor there (docs/pools.md).

    stores.py      streams and buckets, with their limits; subjects of a task or package
    subjects.py    subjects, one function for each
    consumers.py   durable consumers
"""

# pyright: reportUnusedImport=false
from common.streams.consumers import (
    NAMELESS_JOBS,
    SCHEDULER_CHECKED,
    SCHEDULER_FAILED,
    SCHEDULER_LEASES,
    SCHEDULER_PACKAGES,
    SCHEDULER_SCORED,
    SCHEDULER_SERVED,
    SCHEDULER_WEIGHTS,
    UNUSED_JOBS_S,
    Consumer,
    env_checks,
    env_opens,
    env_packages,
    env_turns,
    rollout_samples,
    rollout_serves,
    scheduler_jobs,
    scheduler_own_jobs,
    trainer_batches,
)
from common.streams.stores import (
    ALIASES,
    ALIASES_BUCKET,
    BATCHES,
    BETWEEN_SERVICES,
    BLOBS_BUCKET,
    BUCKETS,
    CLOCKS,
    CLOCKS_BUCKET,
    DAY_S,
    EVENTS,
    FAILED,
    FIRST_OWN_JOB,
    HISTORY,
    HISTORY_BUCKET,
    HTTP_KEYS,
    HTTP_KEYS_BUCKET,
    HTTP_USE_BUCKET,
    IN_FLIGHT,
    JOBS,
    KIND_HEADER,
    LEASE_HOLDERS,
    LEASE_TTL_S,
    LEASES,
    LEASES_BUCKET,
    MAX_OWN_JOBS,
    MAX_WAITING_JOBS,
    MIN_BUCKET_BYTES,
    MIN_STREAM_BYTES,
    PROMPTS,
    REPLICA_TTL_S,
    REPLICAS,
    REPLICAS_BUCKET,
    REQUESTS,
    SAMPLES,
    SCORED,
    SERVED,
    SETTLEMENT_HEADER,
    STORED_JOBS,
    STREAMS,
    TASKS,
    TASKS_BUCKET,
    TURNS,
    WEIGHTS,
    Bucket,
    Stream,
    about_packages,
    bound_of,
    in_flight,
    is_on,
    is_own_job,
    own_jobs,
    package_of,
    reserved_bytes,
    stored_reports,
    task_of,
    tenant_of,
    token,
)
from common.streams.subjects import (
    ASK_QUEUE,
    ASKS,
    BASE_MODEL,
    EVERY_TENANT,
    OPERATOR,
    OWN,
    SHARD,
    VALUES,
    ask,
    batch,
    cancels,
    check,
    check_package,
    checked,
    events,
    executor_now,
    failed,
    from_tenant,
    job,
    lease_done,
    lease_order,
    open_group,
    package_checked,
    pool_of,
    queue,
    replies,
    sample,
    samples,
    scored,
    sent_by,
    serve,
    served,
    turn,
    value_subject,
    weight_updated,
)
