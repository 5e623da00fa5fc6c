"""Errors as HTTP: BridgeError is status 503, ValueError 400; the body of the API's errors is {"reason": ...}."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bridge.errors import BridgeError
from bridge.http.api.requests import error_text


def http_error(error: Exception) -> HTTPException:
    if isinstance(error, HTTPException):
        return error
    return HTTPException(503 if isinstance(error, BridgeError) else 400, error_text(error))


async def error_response(_: Request, error: Exception) -> Response:
    found = http_error(error)
    return JSONResponse({"reason": found.detail}, found.status_code, found.headers)
