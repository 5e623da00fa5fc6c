"""An operation of the API: a row of a table, from which routes and OpenAPI are made."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from bridge.http.auth.sessions import Caller, Role

API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Operation:
    """`asked`: the query of a GET, the JSON of a POST. `run` raises HTTPException, BridgeError or ValueError."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    summary: str
    asked: type[BaseModel]
    answer: type[BaseModel]
    run: Callable[[Caller, Any], Awaitable[BaseModel]]
    role: Role = "read"
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Statuses of its own."""
    is_nothing: Callable[[Any], bool] = lambda _: False
    """Whether the answer is told as 404."""
