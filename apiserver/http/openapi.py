"""The OpenAPI document of an API server: made of the routes that it serves and of the structs that read their bodies.

Nothing is written down twice: what a dialect reads is its `fields`, and the form of its errors an error of its own.
What an answer holds is documented for people, in docs/api.md; here it is an object, or a stream.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from apiserver import __version__
from apiserver.errors import InvalidRequest
from apiserver.http.call import Call
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.exchange import Dialect
from apiserver.protocol.messages import Messages

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_WITH_BODY = frozenset(("POST", "PUT"))
_BY_KEY: list[Schema] = [{"bearer": []}, {"x-api-key": []}]
_PROBES = frozenset(("/health", "/ready", "/live", "/ping", "/health_generate"))
_QUERIES: dict[str, dict[str, Schema]] = {
    "/flush_cache": {"timeout": {"type": "number", "minimum": 0}},
    "/health_generate": {"timeout": {"type": "number", "minimum": 0}},
    "/v1/models": {
        "limit": {"type": "integer", "minimum": 1},
        "after_id": {"type": "string"},
        "before_id": {"type": "string"},
    },
    "/v1/responses/{response_id}": {
        "stream": {"type": "boolean"},
        "starting_after": {"type": "integer", "minimum": 0},
    },
    "/v1/responses/{response_id}/input_items": {
        "after": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "order": {"type": "string", "enum": ["asc", "desc"]},
    },
}


@dataclass(frozen=True)
class Described:
    """One route, as far as a client sees it."""

    path: str
    methods: Sequence[str]
    fields: tuple[type[msgspec.Struct], ...] = ()
    """What reads its bodies; empty where it takes none."""
    needs_body: bool = True
    streams: bool = False
    dialect: Dialect | None = None
    """Whose errors it has; None: those of whoever asks."""
    is_open: bool = False
    admins_only: bool = False
    """Where there are admin keys."""


class OpenApi:
    """GET /openapi.json. The document is made when it is first asked for, beside the loop, and kept."""

    def __init__(self, *, needs_key: bool, has_admins: bool) -> None:
        self._needs_key = needs_key
        self._has_admins = has_admins
        self._routes: list[Described] = []
        self._document = b""

    def add(self, route: Described) -> None:
        self._routes.append(route)

    async def __call__(self, call: Call) -> None:
        if not self._document:
            document = await asyncio.to_thread(
                document_of, self._routes, needs_key=self._needs_key, has_admins=self._has_admins
            )
            self._document = msgspec.json.encode(document)
        await call.respond(200, self._document)


def document_of(routes: Sequence[Described], *, needs_key: bool, has_admins: bool) -> Schema:
    """OpenAPI 3.1. `needs_key`: whether there are keys, so that all but the open routes want one. `has_admins`: whether
    there are admin keys, so that an admin's routes do."""
    structs = list(dict.fromkeys(struct for route in routes for struct in route.fields))
    references, components = msgspec.json.schema_components(structs, ref_template=_REFERENCE)
    bodies = dict(zip(structs, references, strict=True))
    paths: dict[str, Schema] = {}
    for route in routes:
        operations = {method.lower(): _operation(route, method, bodies) for method in route.methods}
        for operation in operations.values() if has_admins and route.admins_only else ():
            operation["security"] = _BY_KEY
        paths[_PARAMETER.sub(r"{\1}", route.path)] = operations
    return {
        "openapi": "3.1.0",
        "info": {"title": "apiserver-pool", "version": __version__},
        "security": _BY_KEY if needs_key else [],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(route: Described, method: str, bodies: dict[type[msgspec.Struct], Schema]) -> Schema:
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{route.path}").strip("_"),
        "responses": _responses(route),
    }
    parameters = list(_parameters(route.path))
    if parameters:
        operation["parameters"] = parameters
    if route.fields and method in _WITH_BODY:
        schemas = [bodies[struct] for struct in route.fields]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        operation["requestBody"] = {"required": route.needs_body, "content": _json(schema)}
    if route.is_open:
        operation["security"] = []
    return operation


def _parameters(path: str) -> Iterator[Schema]:
    for name in _PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name, schema in _QUERIES.get(path, {}).items():
        yield {"name": name, "in": "query", "schema": schema}


def _responses(route: Described) -> Schema:
    if route.path == "/metrics":
        content: Schema = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = _json({"type": ["object", "array"]})
    if route.streams:
        content["text/event-stream"] = {}  # of the whole text or of one event: OpenAPI 3.1 does not say
    dialects = [route.dialect] if route.dialect is not None else [ChatCompletion, Messages]
    forms = [_form(dialect.error(InvalidRequest(""))) for dialect in dialects]
    error = forms[0] if len(forms) == 1 else {"anyOf": forms}
    responses: Schema = {
        "200": {"description": "The answer.", "content": content},
        "4XX": {"description": "Refused; the message says why.", "content": _json(error)},
        "5XX": {"description": "Not served; 503 may be sent again later.", "content": _json(error)},
    }
    if route.path in _PROBES:
        status = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
        responses["503"] = {"description": "It is not so; why.", "content": _json(status)}
    return responses


def _json(schema: Any) -> Schema:
    return {"application/json": {"schema": schema}}


def _form(sample: Any) -> Schema:
    """The schema of documents like this one: an object has these keys, what is null may be a string, and a number a
    word."""
    if isinstance(sample, dict):
        fields = cast(dict[str, Any], sample)
        properties = {name: _form(value) for name, value in fields.items()}
        return {"type": "object", "properties": properties, "required": list(fields)}
    if sample is None:
        return {"type": ["string", "null"]}
    return {"type": "string" if isinstance(sample, str) else ["integer", "string"]}
