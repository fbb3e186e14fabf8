"""HttpFiles: files over HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import IO

from pydantic import ValidationError

from common.door.asking import UnknownHere
from common.door.errors import ClientError, NoAnswer
from common.door.tenancy.files import Files
from common.messages import StoredFile, file_id
from marlaas.over_http.connection import PAUSE, Params
from marlaas.over_http.door import HttpDoor
from marlaas.over_http.downloading import downloaded
from marlaas.over_http.questions import file_of
from marlaas.over_http.refusals import no_gateway
from marlaas.over_http.tenancy.forms import form_with_file

ATTEMPTS = 4
"""Times that a file is sent from its beginning: a connection that breaks off has kept nothing of it."""
PAGE = 10_000


class HttpFiles(Files):
    """`Files` of a gateway. The same bytes are the same file, so an upload may be sent again."""

    def __init__(self, door: HttpDoor) -> None:
        super().__init__(door)
        self._http = door
        self._connection = door.connection

    async def all(self, *, tenant: str | None = None) -> list[StoredFile]:
        """See `Files.all`."""
        found, after = dict[int, StoredFile](), list[tuple[str, str]]()
        while True:
            params: Params = [("order", "asc"), ("limit", str(PAGE)), *after, *self._http.params(tenant)]
            body = await self._connection.get("/v1/files", params)
            try:
                page = json.loads(body)
                files = [StoredFile.model_validate_json(json.dumps(file_of(one))) for one in page["data"]]
                has_more = bool(page["has_more"])
            except (ValidationError, ValueError, LookupError, TypeError):
                raise no_gateway(self._connection.shown) from None
            if has_more and not {one.number for one in files} - set(found):  # several tenants have the file that a page begins behind
                raise ClientError("there are too many files to list at once: name a tenant")
            found |= {one.number: one for one in files}
            if not has_more:
                return [found[number] for number in sorted(found)]
            after = [("after", files[-1].file)]

    async def _send(self, file: IO[bytes], name: str, owner: str, size: int, digest: str, timeout_s: float) -> None:
        """See `Files._send`."""
        form, params = form_with_file(file, name, size, purpose="fine-tune"), self._http.params(owner)
        async with asyncio.timeout(timeout_s):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._connection.request("POST", "/v1/files", params, body=form, answer_s=timeout_s)
                    return
                except NoAnswer:
                    present = await self._present(owner, file_id(digest))
                    if present is not None and present.state in ("usable", "refused"):
                        return
                    if attempt == ATTEMPTS:
                        raise
                await asyncio.sleep(PAUSE.pause_s(attempt))

    def _parts(self, file: StoredFile) -> AsyncGenerator[bytes]:
        """A download that breaks off goes on where it ended."""
        path, params = f"/v1/files/{file.file}/content", self._http.params(file.tenant)
        return downloaded(self._connection, path, params, file.size_bytes, file.digest)

    async def delete(self, file: StoredFile) -> int:
        """See `Files.delete`."""
        try:
            await self._connection.request("DELETE", f"/v1/files/{file.file}", self._http.params(file.tenant))
        except UnknownHere:  # it was there: an attempt whose answer was lost has deleted it
            pass
        return file.size_bytes
