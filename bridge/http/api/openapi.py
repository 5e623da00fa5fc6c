"""Describe the operations as an OpenAPI 3.1 document, made from their models."""

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
    "503": "The bridge, another instance or Kafka does not answer: ask again.",
}


def document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the document that /api/v1/openapi.json serves."""
    all_ = list(operations)
    models = {model for each in all_ for model in (each.request_model, each.response_model)} | {Refused}
    refs, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas = {model: refs[model, "validation"] for model in models}
    paths: dict[str, dict[str, Any]] = {}
    for each in all_:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation_object(each, schemas)
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


def _operation_object(operation: Operation, schemas: dict[type[BaseModel], Any]) -> dict[str, Any]:
    answer = {"application/json": {"schema": schemas[operation.response_model]}}
    refused = {"application/json": {"schema": schemas[Refused]}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": {"description": "Well.", "content": answer},
            **{
                status: {"description": why, "content": refused}
                for status, why in (_REFUSALS | dict(operation.refusals)).items()
            },
        },
    }
    if operation.method == "GET":
        described["parameters"] = _parameters(operation.request_model)
    else:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[operation.request_model]}},
        }
    return described


def _parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the query parameters; no field of the model is nested."""
    schema = model.model_json_schema()
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
