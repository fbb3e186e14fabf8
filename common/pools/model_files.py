"""Files of a pool's base model, at one commit of its repository.

A model given by its Hugging Face name changes with its repository, and an adapter is useful only with the weights that it was trained
on. The commit is the pool's `revision`. Without a revision, the first start records the commit that it found, in a file beside the cache
of models, and later starts use the recorded commit.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import structlog

from common.errors import Fatal
from common.pools.pool import Pool

WEIGHTS = ["*.safetensors"]
OLDER_WEIGHTS = ["*.bin"]
TEXTS = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
"""Configuration, tokenizer and chat template."""
BELOW = ["*/*"]
"""Pattern of files in the repository's folders: copies of the weights in other formats."""

IN_CACHE = re.compile(r"/models--([^/]+)/snapshots/([^/]+)/?$")
"""Folder of a model's files in Hugging Face's cache."""

log = structlog.get_logger()


@dataclass(frozen=True)
class HubModel:
    """A model's repository on Hugging Face."""

    name: str
    commit: str


def hub_model(folder: str) -> HubModel | None:
    """Repository of the files in `folder`, as returned by `with_model_files`; None for other folders."""
    found = IN_CACHE.search(folder)
    return HubModel(found[1].replace("--", "/"), found[2]) if found else None


def with_model_files(name: str, pool: Pool) -> Pool:
    """Pool `name` with its Hugging Face model name replaced by a local folder; missing files are downloaded.

    Raises: Fatal, naming the pool, if the repository, its revision or its files are unavailable.
    """
    if Path(pool.model).is_absolute():
        return pool
    # By the client's own alias of the class, because its HTTP library has changed before.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    try:
        folder = model_folder(pool.model, pool.revision)
    except (OSError, ValueError, HTTPError) as error:  # the hub's answer; an invalid name; the connection
        wanted = f"{pool.model} at {pool.revision}" if pool.revision else pool.model
        reason = str(error).strip().splitlines()[0]
        raise Fatal(
            f"pool '{name}': no files of {wanted}: {reason}; correct `model` or `revision` in the pools file, or the connection"
        ) from None
    log.info("model_revision", pool=name, model=pool.model, revision=folder.name)
    return pool.model_copy(update={"model": str(folder)})


def name_in_file(pool: Pool, pools_file: Path) -> str:
    """The model as written in the pools file: a Hugging Face name, or a folder. A folder below the pools file's is relative to that."""
    folder, beside = Path(pool.model), pools_file.resolve().parent
    return str(folder.relative_to(beside)) if folder.is_relative_to(beside) else pool.model


def why_gone(model: str, named: str) -> str | None:
    """Error line for a model whose folder no longer exists; None for an existing folder, and for a Hugging Face name. `named`: the result
    of `name_in_file`.

    Libraries mistake a missing folder for the name of a repository.
    """
    if not Path(model).is_absolute() or Path(model).is_dir():
        return None
    way = "put it back" if model == named or model.endswith(f"/{named}") else "start this service again, which downloads it"
    return (
        f"the folder of model '{named}' of the pools file is gone: {model}; {way}, or correct `model` there and restart the pool's services"
    )


def model_folder(model: str, revision: str | None) -> Path:
    """Folder with the files of Hugging Face model `model`, named by their commit.

    Raises: OSError, ValueError, or HTTPError of the hub's client.
    """
    from huggingface_hub import snapshot_download

    commit = revision or kept_commit(model) or _keep(model, _newest_commit(model))
    folder = Path(snapshot_download(model, revision=commit, allow_patterns=[*TEXTS, *WEIGHTS], ignore_patterns=BELOW))
    if not any(folder.glob(WEIGHTS[0])):
        snapshot_download(model, revision=commit, allow_patterns=OLDER_WEIGHTS, ignore_patterns=BELOW)
    return folder


def kept_commit(model: str) -> str | None:
    """The commit recorded by an earlier start on this machine; None if there is none."""
    try:
        return _record(model).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def _newest_commit(model: str) -> str:
    """Commit of the cached files, if there are any, so that running tasks keep their model; else the repository's."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json")
    if isinstance(cached, str):
        return Path(cached).parent.name
    found = HfApi().model_info(model).sha
    if found is None:
        raise OSError(f"the hub names no commit of {model}")
    return found


def _keep(model: str, commit: str) -> str:
    """Record `commit` unless another process was first; returns the recorded commit."""
    record = _record(model)
    record.parent.mkdir(parents=True, exist_ok=True)
    part = record.with_name(f"{record.name}.{os.getpid()}")
    part.write_text(commit + "\n", encoding="utf-8")
    try:
        os.link(part, record)  # fails if the record exists, and never leaves a partial record
    except FileExistsError:
        pass
    finally:
        part.unlink()
    return kept_commit(model) or commit


def _record(model: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "marlaas-revisions" / model.replace("/", "--")
