"""The routes, and how a request gets to its endpoint. A pure function of the service."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from apiserver.api_keys import ApiKey
from apiserver.board import Cell
from apiserver.config import AccessSettings, HttpSettings
from apiserver.errors import ApiError, Internal, MethodNotAllowed, NotFound, shown
from apiserver.http.access import KeyGuard
from apiserver.http.admin import ADMIN_ROUTES, Admin
from apiserver.http.call import Call, Handle, is_anthropics
from apiserver.http.connection import REFUSED
from apiserver.http.dialects import MORE_DIALECTS, PUT_TOO
from apiserver.http.endpoint import Endpoint, respond_error
from apiserver.http.info import INFO_ROUTES, Info
from apiserver.http.openapi import Described, OpenApi
from apiserver.http.ops import Ops
from apiserver.http.quota import Quota
from apiserver.http.responses import Responses
from apiserver.http.service import Service
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.completions import Completion
from apiserver.protocol.embeddings import Embeddings
from apiserver.protocol.exchange import Dialect
from apiserver.protocol.messages import Messages
from apiserver.protocol.messages_count import CountTokens
from apiserver.protocol.parse import ParseFunctionCall, SeparateReasoning
from apiserver.protocol.render import ChatRender, CompletionRender
from apiserver.protocol.responses import Response
from apiserver.protocol.tokenize import Detokenize, Tokenize

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/chat/completions/render": ChatRender,
    "/v1/completions/render": CompletionRender,
    "/v1/messages": Messages,
    "/v1/messages/count_tokens": CountTokens,
    "/v1/embeddings": Embeddings,
    "/tokenize": Tokenize,
    "/v1/tokenize": Tokenize,
    "/detokenize": Detokenize,
    "/v1/detokenize": Detokenize,
    "/parse_function_call": ParseFunctionCall,
    "/separate_reasoning": SeparateReasoning,
    **MORE_DIALECTS,
}
OPEN_ROUTES = frozenset(("/health", "/ready", "/live", "/ping", "/metrics", "/version"))
"""The only routes without a key. Everything else is closed by default, also what is added later."""

OPS_ROUTES = (
    *sorted(OPEN_ROUTES),
    "/",
    "/api/hello",
    "/pool",
    "/openapi.json",
    "/v1/models",
    "/v1/models/{model:path}",
)
NO_ROUTE = "none"
"""What is asked for under no route's path. It wants a key like the rest: who has none learns nothing of the routes."""
RESPONSES_ROUTES = (
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/responses/{response_id}/input_items",
)
ORDINARY_ROUTES = frozenset((*DIALECTS, *RESPONSES_ROUTES, *OPS_ROUTES, *INFO_ROUTES, "/abort_request", NO_ROUTE))
"""What every API key opens. Everything else wants an admin key where there is one, also what is added later. (Whom an
abort may reach depends on the key.)"""
ROUTES = (*DIALECTS, *RESPONSES_ROUTES, *OPS_ROUTES, *ADMIN_ROUTES, *INFO_ROUTES, NO_ROUTE)
"""Every route's name, as the metrics count it."""

_POST = ("POST",)
_POST_AND_PUT = ("POST", "PUT")
_GET = ("GET", "HEAD")
_FREE_METHODS = frozenset((*_GET, "DELETE"))
_FREE_ROUTES = frozenset((RESPONSES_ROUTES[2], "/abort_request"))
"""Looking, and ending what was begun, is not limited: who has too much in progress must be able to have less."""
_MOST_LOGGED_PATH = 500
CLIENT_LEFT = 499  # nginx's number for a client that went before its answer

log = logging.getLogger("apiserver.access")


class _Target:
    """An endpoint as the ASGI application of one route: key, method, count, call, log.

    It looks at the method itself, so that a wrong one is answered like everything else: after the key, in the route's
    own shape, counted under the route.
    """

    def __init__(
        self,
        route: str,
        handle: Handle,
        service: Service,
        guard: KeyGuard,
        quota: Quota,
        settings: HttpSettings,
        *,
        methods: Sequence[str],
        dialect: Dialect | None = None,
    ) -> None:
        self._route = route
        self._handle = handle
        self._service = service
        self._guard = None if route in OPEN_ROUTES else guard
        self._admins_only = route not in ORDINARY_ROUTES
        self._quota = quota
        self._methods = methods
        self._dialect = dialect
        self._max_body_bytes = service.limits.max_body_bytes
        self._takes_compressed = settings.allow_compressed_bodies
        self._logs = settings.access_log and route not in OPEN_ROUTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send, self._max_body_bytes, takes_compressed=self._takes_compressed)
        cells = self._service.slot.cells
        metrics = self._service.metrics
        cells[Cell.REQUESTS] += 1
        cells[Cell.IN_FLIGHT] += 1
        metrics.request_taken(self._route)
        status = CLIENT_LEFT
        try:
            await self._answer(call)
            status = call.status
        except asyncio.CancelledError:
            status = scope.get(REFUSED, CLIENT_LEFT)
            raise
        except Exception:
            status = 500
            log.exception("%s %s failed", call.request_id, self._route)
            if call.status == 0:
                await respond_error(call, Internal("Internal error."), self._speaker(call))
            else:
                raise
        finally:
            cells[Cell.IN_FLIGHT] -= 1
            metrics.response_ended(self._route, status)
            if self._logs:
                # As it was sent, still percent-encoded: a decoded line break would forge a line of the log.
                path = scope["raw_path"][:_MOST_LOGGED_PATH].decode("latin-1")
                note = f" key={call.owner}" if call.owner else ""
                log.info("%s %s %s %d%s", call.request_id, scope["method"], path, status, note)

    async def _answer(self, call: Call) -> None:
        try:
            if self._guard is not None:
                call.caller = self._guard.check(call, admins_only=self._admins_only)
            method = call.scope["method"]
            if self._methods and method not in self._methods:
                raise MethodNotAllowed(
                    f"{method} is not allowed on {shown(call.scope['path'], most=100)}.", allowed=self._methods
                )
            key = call.caller.key
            if key is None or method in _FREE_METHODS or self._route in _FREE_ROUTES:
                await self._handle(call)
            else:
                await self._handle_for(key, call)
        except ApiError as error:
            await respond_error(call, error, self._speaker(call))

    def _speaker(self, call: Call) -> Dialect:
        """Who writes an error: the route's dialect; where it has none, the one that the client speaks."""
        if self._dialect is not None:
            return self._dialect
        return _spoken(call.is_anthropic)

    async def _handle_for(self, key: ApiKey, call: Call) -> None:
        """Counted under the key, and limited."""
        self._quota.enter(key)
        call.count_until(partial(self._quota.leave, key))
        try:
            await self._handle(call)
        finally:
            call.released()


def speaker_of(path: str, is_anthropic: bool) -> Dialect:
    """Who writes an error about what was asked of this path, and did not become a request."""
    return DIALECTS.get(path) or _spoken(is_anthropic or is_anthropics(path))


def _spoken(is_anthropic: bool) -> Dialect:
    return Messages if is_anthropic else ChatCompletion


class _Directory:
    """The target of a path without parameters, at once. The rest is for Starlette's router, which tries one route's
    pattern after the other.

    Starlette's application is left out: its two error middlewares wrap every `send`, so each token's, and a _Target
    lets nothing out that they would catch.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        plain = (route for route in router.routes if isinstance(route, Route) and not route.param_convertors)
        self._targets = {route.path: route.app for route in plain}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self._router if scope["root_path"] else self._targets.get(scope["path"], self._router)
        await target(scope, receive, send)


def create_app(service: Service, http: HttpSettings, access: AccessSettings, keys: Sequence[ApiKey]) -> ASGIApp:
    """The ASGI application of one API server."""
    guard = KeyGuard(keys)
    quota = Quota(service.admission, service.board, service.slot, service.metrics)
    document = OpenApi(needs_key=guard.needs_key, has_admins=guard.has_admins)

    def target(route: str, handle: Handle, methods: Sequence[str], dialect: Dialect | None = None) -> _Target:
        return _Target(route, handle, service, guard, quota, http, methods=methods, dialect=dialect)

    routes: list[Route] = []
    for route, handle in _routes(service, document):
        document.add(route)
        routes.append(Route(route.path, target(route.path, handle, route.methods, route.dialect)))
    app = _Directory(Router(routes=routes, redirect_slashes=False, default=target(NO_ROUTE, _no_route, ())))
    return _with_cors(app, access) if access.allowed_origins else app


def _routes(service: Service, document: Handle) -> Iterator[tuple[Described, Handle]]:
    """Every route that there is, and who handles it."""
    for path, dialect in DIALECTS.items():
        methods = _POST_AND_PUT if path in PUT_TOO else _POST
        described = Described(path, methods, dialect.fields, streams=dialect.streams, dialect=dialect)
        yield described, Endpoint(dialect, service)
    yield from _responses(Responses(service))
    for path, handle in _ops(Ops(service), document).items():
        methods = (*_GET, "POST") if path == "/ping" else _GET
        yield Described(path, methods, is_open=path in OPEN_ROUTES), handle
    admin, info = Admin(service), Info(service)
    for path, (handle, methods, fields) in ADMIN_ROUTES.items():
        closed = path not in ORDINARY_ROUTES
        yield Described(path, methods, (fields,), needs_body=False, admins_only=closed), partial(handle, admin)
    for path, (handle, methods) in INFO_ROUTES.items():
        yield Described(path, methods), partial(handle, info)


def _ops(ops: Ops, document: Handle) -> dict[str, Handle]:
    return {
        "/health": ops.health,
        "/ready": ops.ready,
        "/live": ops.live,
        "/ping": ops.health,
        "/version": ops.version,
        "/metrics": ops.metrics,
        "/": ops.hello,
        "/api/hello": ops.hello,
        "/pool": ops.pool,
        "/openapi.json": document,
        "/v1/models": ops.models,
        "/v1/models/{model:path}": ops.model,
    }


def _responses(responses: Responses) -> Iterator[tuple[Described, Handle]]:
    create, one, cancel, input_items = RESPONSES_ROUTES
    yield Described(create, _POST, Response.fields, streams=Response.streams), responses.create
    yield Described(one, (*_GET, "DELETE"), streams=True), responses.one
    yield Described(cancel, _POST), responses.cancel
    yield Described(input_items, _GET), responses.input_items


async def _no_route(call: Call) -> None:
    method, path = call.scope["method"], shown(call.scope["path"], most=100)
    raise NotFound(f"No such route: {method} {path}. GET /openapi.json lists the routes.")


def _with_cors(app: ASGIApp, access: AccessSettings) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=access.allowed_origins,
        allow_methods=access.allowed_methods,
        allow_headers=access.allowed_headers,
        allow_credentials=access.allow_credentials,
        expose_headers=("x-request-id", "request-id", "retry-after"),
    )
