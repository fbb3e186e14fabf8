"""Forms as browsers send them."""

from binascii import a2b_qp

from fastapi import Request

from common.resilience.event_loop import own_turn
from gateway_svc.http.strict import check_content_type
from gateway_svc.problems import FieldError, invalid
from gateway_svc.strict_json import check_values

MAX_FIELDS = 300
_ZEROS = bytes.maketrans(b"123456789ABCDEFabcdef", b"0" * 21)


async def form_of(request: Request) -> dict[str, str]:
    """The last value of each field. Raises: Problem."""
    check_content_type(request, "application/x-www-form-urlencoded")
    body = await request.body()
    await own_turn(len(body))
    try:
        found = read_form(body)
    except ValueError:
        raise invalid(FieldError("", f"not a form of at most {MAX_FIELDS} fields in UTF-8")) from None
    check_values(dict[str, object](found))  # type: ignore[arg-type]
    return {name: value.replace("\r\n", "\n") for name, value in found.items()}


def read_form(body: bytes) -> dict[str, str]:
    """The last value of each field. The standard library's reader takes a microsecond for each escape, half a second for a mebibyte.

    Raises: ValueError.
    """
    if body.count(b"&") >= MAX_FIELDS or body.count(b"%") != body.translate(_ZEROS).count(b"%00"):
        raise ValueError("too many fields, or a percent sign without two hexadecimal digits")
    pairs = [field.partition(b"=") for field in body.replace(b"+", b" ").split(b"&") if field]
    return {_unescaped(name): _unescaped(value) for name, _, value in pairs}


def _unescaped(text: bytes) -> str:
    """Escapes are those of quoted-printable, but for their first character."""
    return a2b_qp(text.replace(b"=", b"%3D").replace(b"%", b"=")).decode()
