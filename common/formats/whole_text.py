"""Text without halves of surrogate pairs, which Python's texts may hold and UTF-8 has no bytes for."""


def whole(text: str) -> str:
    """`text`; two halves that belong together are joined, and others become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
