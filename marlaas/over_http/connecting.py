"""A connection whose gateway has answered, and whose key it takes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from common.bus import TlsFiles
from common.client_api.asking import UnknownHere
from common.client_api.errors import ClientError
from marlaas.over_http.address import is_plain_beyond_this_machine, objection_to_gateway
from marlaas.over_http.connection import Connection
from marlaas.over_http.door import HttpDoor
from marlaas.over_http.refusals import no_gateway


@asynccontextmanager
async def entered(
    url: str, tenant: str | None, *, key: str | None, insecure: bool, tls: TlsFiles, timeout_s: float, patience_s: float
) -> AsyncGenerator[HttpDoor]:
    """The door of the gateway at `url`, for `tenant`, or else for that of the key.

    Raises: ClientError when the address or the key is wrong, or the gateway does not take the key; NoAnswer when none answers within
    `timeout_s`; Fatal when a file of `tls` cannot be used.
    """
    if objection := objection_to_gateway(url):
        raise ClientError(objection)
    key = key.strip() if key else None
    if key and not (key.startswith("mk-") and key.isascii() and key.isprintable() and " " not in key):
        raise ClientError("this is no key of a gateway; one is mk-… and is made by `marlaas keys create --http`")
    if key and is_plain_beyond_this_machine(url) and not insecure:
        raise ClientError(f"the key would cross a network without TLS: use https://, not {url}; or --insecure where that is trusted")
    async with Connection.open(url, key, tls, patience_s) as connection:
        try:
            answer = await connection.request("GET", "/v1/key", answer_s=max(timeout_s, 1.0), patience_s=timeout_s)
            of_key = answer.json()["tenant"]
        except (UnknownHere, ValueError, LookupError, TypeError):
            raise no_gateway(connection.shown) from None
        yield HttpDoor(connection, tenant or of_key)
