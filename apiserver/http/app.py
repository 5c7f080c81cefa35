"""The routes, and how a request gets to its endpoint. A pure function of the service."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from apiserver.board import Cell
from apiserver.config import AccessSettings, HttpSettings
from apiserver.errors import ApiError, Internal, MethodNotAllowed, NotFound
from apiserver.http.access import KeyGuard
from apiserver.http.call import Call
from apiserver.http.endpoint import Endpoint, respond_error
from apiserver.http.ops import Ops
from apiserver.http.service import Service
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.completions import Completion
from apiserver.protocol.embeddings import Embeddings
from apiserver.protocol.exchange import Exchange
from apiserver.protocol.openai import error_document
from apiserver.protocol.tokenize import Detokenize, Tokenize

DIALECTS: dict[str, type[Exchange]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/embeddings": Embeddings,
    "/tokenize": Tokenize,
    "/v1/tokenize": Tokenize,
    "/detokenize": Detokenize,
    "/v1/detokenize": Detokenize,
}
OPEN_ROUTES = frozenset(("/health", "/ready", "/live", "/ping", "/metrics", "/version"))
"""The only routes without a key. Everything else is closed by default, also what is added later."""

OPS_ROUTES = (*sorted(OPEN_ROUTES), "/pool", "/v1/models", "/v1/models/{model:path}")
NO_ROUTE = "none"
ROUTES = (*DIALECTS, *OPS_ROUTES, NO_ROUTE)
"""Every route's name, as the metrics count it."""

log = logging.getLogger("apiserver.access")
CLIENT_LEFT = 499  # nginx's number for a client that went before its answer


class _Target:
    """An endpoint as the ASGI application of one route: key, count, call, log."""

    def __init__(
        self,
        route: str,
        handle: Callable[[Call], Awaitable[None]],
        service: Service,
        guard: KeyGuard | None,
        settings: HttpSettings,
        dialect: type[Exchange] = ChatCompletion,
    ) -> None:
        self._route = route
        self._handle = handle
        self._service = service
        self._guard = guard
        self._settings = settings
        self._dialect = dialect
        self._logs = settings.access_log and route not in OPEN_ROUTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send, self._service.limits.max_body_bytes)
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
            raise
        except Exception:
            status = 500
            log.exception("%s %s failed", call.request_id, self._route)
            if call.status == 0:
                await respond_error(call, Internal("Internal error."), self._dialect)
            else:
                raise
        finally:
            cells[Cell.IN_FLIGHT] -= 1
            metrics.response_ended(self._route, status)
            if self._logs:
                log.info("%s %s %s %d", call.request_id, scope["method"], scope["path"], status)

    async def _answer(self, call: Call) -> None:
        try:
            if self._guard is not None:
                self._guard.check(call)
            await self._handle(call)
        except ApiError as error:
            await respond_error(call, error, self._dialect)


def create_app(service: Service, http: HttpSettings, access: AccessSettings) -> Starlette:
    """The ASGI application of one API server."""
    ops = Ops(service)
    guard = KeyGuard(access.api_keys)
    handlers: dict[str, Callable[[Call], Awaitable[None]]] = {
        "/health": ops.health,
        "/ready": ops.ready,
        "/live": ops.live,
        "/ping": ops.health,
        "/version": ops.version,
        "/metrics": ops.metrics,
        "/pool": ops.pool,
        "/v1/models": ops.models,
        "/v1/models/{model:path}": ops.model,
    }
    routes = [
        Route(path, _Target(path, Endpoint(dialect, service), service, guard, http, dialect), methods=["POST"])
        for path, dialect in DIALECTS.items()
    ]
    for path, handler in handlers.items():
        target = _Target(path, handler, service, None if path in OPEN_ROUTES else guard, http)
        routes.append(Route(path, target, methods=["GET", "POST"] if path == "/ping" else ["GET"]))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        service.metrics.request_taken(NO_ROUTE)
        service.metrics.response_ended(NO_ROUTE, error.status_code)
        return _framework_error(request, error)

    app = Starlette(routes=routes, middleware=_middleware(access), exception_handlers={HTTPException: on_http_error})
    app.router.redirect_slashes = False
    return app


def _middleware(access: AccessSettings) -> Sequence[Middleware]:
    """CORS is closed unless flags open it."""
    if not access.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=access.allowed_origins,
            allow_methods=access.allowed_methods,
            allow_headers=access.allowed_headers,
            allow_credentials=access.allow_credentials,
        )
    ]


def _framework_error(request: Request, error: HTTPException) -> Response:
    """404 and 405 come from the framework, before any dialect: OpenAI's shape."""
    if error.status_code == 405:
        ours: ApiError = MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}.")
    else:
        ours = NotFound(f"No such route: {request.method} {request.url.path[:200]}. GET /v1/models lists the models.")
    return JSONResponse(error_document(ours), ours.status, headers=error.headers)
