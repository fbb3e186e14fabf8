"""Revision of a pool's model, with the hub's own client and a small hub on this machine."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from common.pools import read_pools
from common.pools.model_files import name_in_file, why_gone

MODEL = "acme/model"
OLD, NEW = "a" * 40, "b" * 40
PROGRAM = """
import sys
from pathlib import Path
from common.errors import Fatal
from common.pools import Pool
from common.pools.model_files import with_model_files
model, revision = sys.argv[1:]
try:
    folder = Path(with_model_files("p", Pool(model=model, revision=revision or None)).model)
except Fatal as error:
    sys.exit(str(error))
print(folder.name, *sorted(path.name for path in folder.iterdir()))
"""


@dataclass
class Hub:
    """Repository `MODEL` with two commits, the last of which is its branch."""

    url: str = ""
    newest: str = OLD
    weights: str = "model.safetensors"
    asked: list[str] = field(default_factory=list[str])

    def files(self, commit: str) -> dict[str, bytes]:
        texts = {"config.json": b'{"commit": "%s"}' % commit.encode(), "README.md": b"x", "original/model.safetensors": b"copy"}
        return texts | {self.weights: b"weights", "flax_model.msgpack": b"other"}

    def answer(self, path: str) -> tuple[int, bytes, str]:
        """Status, body and commit of a request."""
        self.asked.append(path)
        if not path.removeprefix("/api/models").startswith(f"/{MODEL}"):
            return 404, b"", ""
        parts = path.removeprefix("/api/models").removeprefix(f"/{MODEL}").strip("/").split("/")
        revisions = {"": self.newest, "main": self.newest, OLD: OLD, NEW: NEW, "v1": OLD}
        commit = revisions.get(parts[1].split("?")[0] if len(parts) > 1 else "")
        if commit is None:
            return 404, b"", ""
        files = self.files(commit)
        if parts[0] == "tree":
            listing = [{"type": "file", "path": name, "size": len(data), "oid": f"{commit[:8]}{name}"} for name, data in files.items()]
            return 200, json.dumps(listing).encode(), commit
        if parts[0] == "resolve":
            return 200, files["/".join(parts[2:])], commit
        return 200, json.dumps({"id": MODEL, "sha": commit, "siblings": [{"rfilename": name} for name in files]}).encode(), commit


@pytest.fixture
def hub() -> Iterator[Hub]:
    served = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, commit = served.answer(self.path)
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "RevisionNotFound" if MODEL in self.path else "RepoNotFound")
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{commit[:8]}{self.path.rsplit("/", 1)[-1]}"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def start(hub: Hub, home: Path, model: str = MODEL, revision: str = "", *, offline: bool = False) -> subprocess.CompletedProcess[str]:
    """A service's start, in a process of its own: the client reads its environment once."""
    env = environment(hub, home, offline=offline)
    return subprocess.run([sys.executable, "-c", PROGRAM, model, revision], env=env, capture_output=True, text=True, timeout=250)


def environment(hub: Hub, home: Path, *, offline: bool = False) -> dict[str, str]:
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": str(int(offline)), "HF_HUB_DISABLE_XET": "1"}
    unset = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE")
    return {name: value for name, value in os.environ.items() if name not in unset} | variables


def found(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def test_first_start_keeps_the_commit_and_later_starts_use_it(hub: Hub, tmp_path: Path) -> None:
    assert found(start(hub, tmp_path)) == [OLD, "config.json", "model.safetensors"]
    hub.newest = NEW
    assert found(start(hub, tmp_path))[0] == OLD
    assert found(start(hub, tmp_path, offline=True))[0] == OLD
    assert found(start(hub, tmp_path / "other"))[0] == NEW


def test_named_revision_is_used_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.newest = NEW
    assert found(start(hub, tmp_path, revision=OLD))[0] == OLD
    assert found(start(hub, tmp_path, revision="v1"))[0] == OLD
    assert found(start(hub, tmp_path))[0] == NEW


def test_weights_of_the_older_format_are_fetched_where_there_are_no_others(hub: Hub, tmp_path: Path) -> None:
    hub.weights = "pytorch_model.bin"
    assert found(start(hub, tmp_path)) == [OLD, "config.json", "pytorch_model.bin"]


def test_files_that_an_older_version_fetched_keep_their_commit(hub: Hub, tmp_path: Path) -> None:
    """It asked for the branch, whose commit is in the cache; the repository has moved on since."""
    fetch = f"from huggingface_hub import hf_hub_download; hf_hub_download('{MODEL}', 'config.json')"
    subprocess.run([sys.executable, "-c", fetch], env=environment(hub, tmp_path), check=True, timeout=250)
    hub.newest = NEW
    assert found(start(hub, tmp_path))[0] == OLD


def test_what_cannot_be_had_is_one_line_that_names_the_pool(hub: Hub, tmp_path: Path) -> None:
    for done in (
        start(hub, tmp_path, model="acme/none"),
        start(hub, tmp_path, revision="c" * 40),
        start(hub, tmp_path / "empty", offline=True),
        start(Hub(url="http://127.0.0.1:9"), tmp_path / "empty"),
    ):
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("pool 'p': no files of acme/"), done.stderr
        assert "Traceback" not in done.stderr
        assert "correct `model` or `revision`" in done.stderr


def test_model_is_named_as_in_the_pools_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "pools.toml").write_text(f'[a]\nmodel = "models/tiny"\n[b]\nmodel = "{tmp_path.parent}"\n[c]\nmodel = "{MODEL}"\n')
    pools = read_pools(tmp_path / "pools.toml")
    names = [name_in_file(pool, tmp_path / "pools.toml") for pool in pools.values()]
    assert names == ["models/tiny", str(tmp_path.parent), MODEL]


def test_folder_that_is_gone_is_said_with_the_way_out(tmp_path: Path) -> None:
    folder = str(tmp_path / "models" / "tiny")
    assert why_gone(MODEL, MODEL) is None and why_gone(str(tmp_path), "models") is None
    said = f"is gone: {folder}; put it back, or correct `model` there and restart the pool's services"
    assert why_gone(folder, "models/tiny") == f"the folder of model 'models/tiny' of the pools file {said}"
    assert why_gone(folder, folder) == f"the folder of model '{folder}' of the pools file {said}"
    assert "; start this service again, which downloads it, or correct" in str(why_gone(folder, MODEL))
