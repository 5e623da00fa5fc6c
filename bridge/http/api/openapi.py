"""The operations of the API as an OpenAPI 3.1 document, from their models."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from bridge.http.api.operation import Operation
from bridge.http.api.responses import Refused

_REF = "#/components/schemas/{model}"
_REFUSALS = {
    "400": "A question that is not understood.",
    "401": "No token, or one that is not known.",
    "403": "The token may only read.",
    "429": "Too many wrong tokens: try again after Retry-After seconds.",
    "503": "The bridge, a neighbour or Kafka does not answer: ask again.",
}


def document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """As it is told at /api/v1/openapi.json."""
    all_ = list(operations)
    models = {model for each in all_ for model in (each.asked, each.answer)} | {Refused}
    refs, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas = {model: refs[model, "validation"] for model in models}
    paths: dict[str, dict[str, Any]] = {}
    for each in all_:
        paths.setdefault(each.path, {})[each.method.lower()] = _described(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kafka timer bridge", "version": version},
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _described(operation: Operation, schemas: dict[type[BaseModel], Any]) -> dict[str, Any]:
    refused = {"application/json": {"schema": schemas[Refused]}}
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": {"description": "Well.", "content": {"application/json": {"schema": schemas[operation.answer]}}},
            **{
                status: {"description": why, "content": refused}
                for status, why in (_REFUSALS | dict(operation.refusals)).items()
            },
        },
    }
    if operation.method == "GET":
        told["parameters"] = _parameters(operation.asked)
    else:
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[operation.asked]}},
        }
    return told


def _parameters(asked: type[BaseModel]) -> list[dict[str, Any]]:
    """Of a model whose fields are all plain."""
    schema = asked.model_json_schema()
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": field.pop("description", ""),
            "schema": field,
        }
        for name, field in schema.get("properties", {}).items()
    ]
