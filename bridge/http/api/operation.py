"""An API operation: a table row from which the route and its OpenAPI entry are made."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from bridge.http.auth.sessions import Caller, Role

API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Operation:
    """`run` raises HTTPException, BridgeError (503) or ValueError (400).

    request_model: the query of a GET, the JSON of a POST.
    """

    name: str
    method: Literal["GET", "POST"]
    path: str
    summary: str
    request_model: type[BaseModel]
    response_model: type[BaseModel]
    run: Callable[[Caller, Any], Awaitable[BaseModel]]
    role: Role = "read"
    refusals: Mapping[str, str] = field(default_factory=dict)
    """HTTP errors that only this operation has, each with its description."""
    is_empty: Callable[[Any], bool] = lambda _: False
    """True if the answer is sent with status 404."""
