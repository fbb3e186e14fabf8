"""Every message between services, one module per family of subjects; all names are re-exported here.

Arrays are raw little-endian bytes (int32 token ids, float32 logprobs, uint8 mask: 9 bytes a token), so that encoding or decoding a
trajectory costs microseconds. A new optional field is compatible, even in a section of a task; any other change needs a new kind.

A message about one group carries the complete `GroupContext`, so that any replica can continue it without a look-up.
A body that carries members carries a list of them: members that are ready at the same moment share a message, and each is
settled separately. No service waits for more members, except the sampler, which collects them for some milliseconds.

Layout    prompts, trajectories: the loop · serving · tenancy/ · asks, progress: answers to questions · accelerators, leases: shared
          accelerators · jobs, status, lives · verbs: their tables · base, artifacts
"""

# pyright: reportUnusedImport=false
from common.messages.accelerators import (
    AskExecutors,
    AskMoves,
    AskSlices,
    AskTrace,
    ExecutorOf,
    ExecutorsAnswer,
    MoveOf,
    MovePool,
    MovesAnswer,
    PoolVerb,
    ShareOf,
    SliceOf,
    SlicesAnswer,
    StepPhases,
    TraceAnswer,
    TracedTask,
)
from common.messages.artifacts import AdapterRef, BlobRef, Canary, CheckpointRef, TokenRecord, longest_run
from common.messages.asks import (
    AdapterAnswer,
    AskAdapter,
    AskChunk,
    AskDeployment,
    AskEvents,
    AskFailures,
    AskRefused,
    AskTask,
    AskTasks,
    AskUsage,
    ChunkAnswer,
    EnvironmentsAnswer,
    EventsAnswer,
    FailedMessage,
    FailuresAnswer,
    OwnPackage,
    PoolOffer,
    PoolsAnswer,
    ReplicasAnswer,
    ReplicasOf,
    StatusAnswer,
    TasksAnswer,
    TaskUsage,
    TenantUsage,
    Usage,
    UsageAnswer,
    WhyAnswer,
)
from common.messages.base import MAX_SENTENCE_CHARS, Message, Sentence, Value, as_json, from_json, shortened
from common.messages.jobs import ControlTask, DeleteTenant, LimitValue, PreviewTask, PruneTasks, ResendLetter, SetTenant, SubmitTask
from common.messages.leases import ExecutorReport, Lease, LeaseDone, LeaseOrder, PoolClock
from common.messages.lives import ProcessLife, TroubleOf, TroubleState, trouble_of
from common.messages.progress import (
    AskEvaluations,
    AskSamples,
    AskSteps,
    AskTimeline,
    AskVersions,
    EvaluationOf,
    EvaluationsAnswer,
    KeptAttempt,
    SamplesAnswer,
    SpecAnswer,
    StepDurations,
    StepOf,
    StepSamples,
    StepsAnswer,
    StepTimes,
    TaskTimes,
    TimelineAnswer,
    VersionOf,
    VersionsAnswer,
)
from common.messages.prompts import (
    ChatMessage,
    CheckEnvironment,
    EnvironmentChecked,
    GroupContext,
    OpenGroup,
    SampleTurns,
    TurnRequest,
)
from common.messages.serving import (
    MIN_LOGPROB,
    CancelServing,
    Failure,
    Finish,
    Opening,
    Served,
    ServedAttempt,
    ServedCall,
    ServedDelta,
    ServedMessage,
    ServedSampling,
    ServedToken,
    ServeRequest,
    ServingEnded,
    TextsRequest,
    TokenTexts,
    TopToken,
)
from common.messages.status import DeadLetter, Event, HistoryMark, ReplicaReport, StatusesRemoved, StoredStep, TaskStatus
from common.messages.tenancy.access import (
    AccessAnswer,
    AskAccess,
    AskAudit,
    AuditAnswer,
    AuditLine,
    HttpKey,
    HttpPart,
    KeyRecord,
    NewKey,
    SetAccess,
    TenantAccess,
)
from common.messages.tenancy.aliases import MAX_ALIASES, AliasesAnswer, AliasOf, AskAliases, DeleteAlias, KnownAlias, SetAlias, alias_key
from common.messages.tenancy.billing import (
    AskBudgets,
    AskInvoice,
    AskPrices,
    AskTerms,
    BudgetOf,
    BudgetsAnswer,
    HttpUse,
    InvoiceAnswer,
    InvoiceLine,
    PriceOf,
    PricesAnswer,
    SetBudget,
    SetPrice,
    SlotUse,
    SpentBudget,
    StreamsOf,
    TermsAnswer,
)
from common.messages.tenancy.files import (
    DIGEST_CHARS,
    FILE_FAMILY,
    FILE_ID_PATTERN,
    MAX_FILE_BYTES,
    MAX_PACKAGE_BYTES,
    OWN_FAMILY,
    PACKAGE_BLOB,
    PART_BYTES,
    AskFileChunk,
    AskFiles,
    CheckPackage,
    DeletePackage,
    FilesAnswer,
    OwnEnvironment,
    PackageChecked,
    StoredFile,
    UploadFile,
    UploadPackage,
    file_blob,
    file_id,
    files_in,
    is_file,
    is_own,
    own_name,
    wheel_name,
)
from common.messages.tenancy.webhooks import (
    MAX_WEBHOOKS,
    SECRET_BYTES,
    SECRET_PREFIX,
    WEBHOOK_EVENTS,
    AskWebhooks,
    DeleteWebhook,
    DeliveryOf,
    SetWebhook,
    WebhookEvent,
    WebhookOf,
    WebhooksAnswer,
)
from common.messages.trajectories import (
    UNSUPPORTED,
    BatchGroup,
    BatchMember,
    SampledTurn,
    ScoredTrajectory,
    SettledMember,
    Settlement,
    TrainBatch,
    TrajectoriesScored,
    TurnsSampled,
    WeightUpdated,
)
