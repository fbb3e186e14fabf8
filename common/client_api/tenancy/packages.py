"""A tenant's own environments: packages that it uploads."""

import hashlib
import secrets
from collections.abc import Callable

from pydantic import JsonValue

from common import streams
from common.bus import Outgoing
from common.client_api.asking import answer_to, require_accepted, result_of
from common.client_api.errors import ClientError
from common.client_api.protocol import AnyDoor, after_last, pages
from common.messages import (
    DIGEST_CHARS,
    MAX_PACKAGE_BYTES,
    PART_BYTES,
    AskDeployment,
    DeletePackage,
    EnvironmentsAnswer,
    Event,
    OwnPackage,
    UploadPackage,
)

UPLOAD_TIMEOUT_S = 600.0
"""Maximum seconds until a package is checked; it starts in a sandbox, and may wait for other packages of its tenant."""
DELETE_TIMEOUT_S = 60.0


class Packages:
    """Packages of a tenant.

    All methods raise ClientError if a request is wrong or refused, NoAnswer if the scheduler does not answer.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def upload(
        self, wheel: bytes, tenant: str | None = None, *, waits: Callable[[str], None] = lambda _: None, timeout_s: float = UPLOAD_TIMEOUT_S
    ) -> dict[str, JsonValue]:
        """Upload a wheel and wait until it is checked; returns its `digest`, `name`, `version`, and `environments` as tasks name them.

        `tenant`: its owner; default: the key's. `waits` is called with the reason if the check has to wait. An interrupted upload is
        completed by the next upload of the same wheel.
        """
        if not 0 < len(wheel) <= MAX_PACKAGE_BYTES:
            raise ClientError(f"the wheel has {len(wheel)} bytes; a package has at most {MAX_PACKAGE_BYTES}, and at least one")
        owner, request = owner_of(self._door, tenant, "package"), secrets.token_hex(6)
        *first, last = _parts(wheel, owner, request)
        answer = await answer_to(self._door, last, owner, "none", lambda event: _is_final(event, request, waits), timeout_s, first=first)
        require_accepted(answer)
        return {name: value for name, value in answer.data.items() if name not in ("request", "state")}

    async def all(self) -> list[OwnPackage]:
        """Every package of the tenant, or of all, oldest first."""
        found = pages(
            self._door, "envs", AskDeployment(), EnvironmentsAnswer, lambda page: after_last(page, [one.number for one in page.packages])
        )
        return [package async for page in found for package in page.packages]

    async def find(self, named: str) -> OwnPackage:
        """The single package with that name, or whose digest starts with `named`."""
        is_digest = len(named) >= DIGEST_CHARS
        found = [one for one in await self.all() if one.package == named or (is_digest and one.digest.startswith(named))]
        if len(found) == 1:
            return found[0]
        if not found:
            raise ClientError(f"no package '{named}'; `marlaas envs list` shows those there are")
        digests = ", ".join(one.digest[:DIGEST_CHARS] for one in found)
        raise ClientError(f"{len(found)} packages are named '{named}'; give the digest of one: {digests}")

    async def delete(self, package: OwnPackage) -> int:
        """Delete a package that no live task uses; returns the bytes freed."""
        return await delete_upload(self._door, package.tenant, package.digest)


def owner_of(door: AnyDoor, tenant: str | None, what: str) -> str:
    """`tenant`, or the door's own. Raises: ClientError if both are None."""
    owner = tenant or door.tenant
    if owner is None:
        raise ClientError(f"say whose {what} it is: --tenant NAME")
    return owner


async def delete_upload(door: AnyDoor, tenant: str, digest: str) -> int:
    """Delete a package or a file that no live task uses; returns the bytes freed. Raises: as `result_of`."""
    request = secrets.token_hex(6)
    job = DeletePackage(tenant=tenant, request=request, digest=digest)
    freed = (await result_of(door, "delete-package", tenant, job, request, DELETE_TIMEOUT_S)).get("bytes")
    return freed if isinstance(freed, int) else 0


def _parts(wheel: bytes, tenant: str, request: str) -> list[Outgoing]:
    digest, found = hashlib.sha256(wheel).hexdigest(), list[Outgoing]()
    for offset in range(0, len(wheel), PART_BYTES):
        data = wheel[offset : offset + PART_BYTES]
        job = UploadPackage(tenant=tenant, request=request, digest=digest, size_bytes=len(wheel), offset=offset, data=data)
        found.append(Outgoing(streams.job("upload", tenant), job, f"upload:{request}:{offset}"))
    return found


def _is_final(event: Event, request: str, waits: Callable[[str], None]) -> bool:
    """Whether an event ends the upload of `request`; progress events, such as "waiting for a checker", do not."""
    if event.event != "package" or event.data.get("request") != request:
        return False
    if event.data.get("state") != "checking":
        return True
    if reason := event.data.get("reason"):
        waits(str(reason))
    return False
