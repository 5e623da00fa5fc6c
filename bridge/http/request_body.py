"""Read the body of a request, up to a limit."""

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_BODY_BYTES = 2 << 20


async def body_of(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read the body. Raises HTTPException as soon as it is larger than `max_bytes`.

    Starlette's own limit answers in plain text, and the error body of the API is JSON.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(
                413, f"more than {max_bytes} bytes: send less; a larger message goes to the timer topic itself"
            )
    return bytes(body)
