"""Forms as browsers send them."""

from urllib.parse import parse_qsl

from fastapi import Request

from gateway_svc.http.strict import check_content_type
from gateway_svc.problems import FieldError, invalid
from gateway_svc.strict_json import check_values

MAX_FIELDS = 300


async def form_of(request: Request) -> dict[str, str]:
    """The last value of each field. Raises: Problem."""
    check_content_type(request, "application/x-www-form-urlencoded")
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise invalid(FieldError("", f"not a form of at most {MAX_FIELDS} fields in UTF-8")) from None
    found = dict(pairs)
    check_values(dict[str, object](found))  # type: ignore[arg-type]
    return {name: value.replace("\r\n", "\n") for name, value in found.items()}
