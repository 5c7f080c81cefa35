"""The routes of OpenAI's Responses API: they load what a response continues, and keep it where others find it.

Any API server answers for a response that another made: the store is one for the pool, and an abort by the response's
id reaches the engine from everywhere.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, Internal, InvalidRequest, NotFound, shown
from apiserver.http.call import Call
from apiserver.http.endpoint import Watch, answer
from apiserver.http.following import follow
from apiserver.http.kept import Kept, Record, Run
from apiserver.http.query import Query
from apiserver.http.service import Service
from apiserver.http.time_limit import deadline_of
from apiserver.pipeline.deadline import Deadline, within
from apiserver.protocol.responses import Past, Response
from apiserver.protocol.responses_input import Item, referenced_ids
from apiserver.protocol.responses_list import deleted, page
from apiserver.protocol.responses_object import cancelled
from apiserver.protocol.responses_request import ResponseFields, read_response
from apiserver.store import Store, Stored, StoreError

T = TypeVar("T")

_NO_STORE = "This server keeps no responses (--no-responses-store)"


class Responses:
    """One an API server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.store
        self._runs = service.runs
        self._running: dict[str, Run] = {}  # those in the background that this API server makes

    # ---- POST /v1/responses ----

    async def create(self, call: Call) -> None:
        call.require_json()
        deadline = deadline_of(call, self._service)
        raw = await within(deadline, call.body())
        watch = Watch(self._service)
        card = self._service.card()
        fields = read_response(raw, card)
        del raw  # a large body must not live as long as its stream
        store = self._store_for(fields)
        past = await self._past(fields)
        exchange = Response(fields, past, card, stores=store is not None)
        del fields, past
        watch.parsed()
        if store is None:
            await answer(call, exchange, card, self._service, watch, deadline)
        elif exchange.background:
            await self._in_background(call, exchange, card, watch, store)
        else:
            await self._kept(call, exchange, card, watch, store, deadline)

    def _store_for(self, fields: ResponseFields) -> Store | None:
        """Where the response goes. Raises InvalidRequest for what cannot be without a store, or without being kept."""
        if self._store is None:
            for name in ("store", "background", "previous_response_id"):
                if getattr(fields, name):
                    raise InvalidRequest(f"{_NO_STORE}, so {name} cannot be set.", param=name)
            return None
        if fields.store is False:
            if fields.background:
                raise InvalidRequest(
                    "A response in the background must be stored, or nobody could ask for it.", param="background"
                )
            return None
        return self._store

    async def _kept(
        self, call: Call, exchange: Response, card: Card, watch: Watch, store: Store, deadline: Deadline | None
    ) -> None:
        record = Record(store, exchange)
        try:
            await answer(Kept(call, record, exchange), exchange, card, self._service, watch, deadline)
        finally:
            if record.is_open:  # the client has left, or worse
                self._runs.start(record.give_up())

    async def _in_background(self, call: Call, exchange: Response, card: Card, watch: Watch, store: Store) -> None:
        """It is made by a task of its own; the client may stay and follow it, or leave. It counts against the client's
        key until it is made: that a key may have so much in progress would mean nothing otherwise."""
        record = Record(store, exchange)
        run = Run(call.request_id, call.owner, store, record, exchange)
        self._running[exchange.id] = run
        self._runs.start(self._make(run, record, exchange, card, watch, call.take_release()))
        await run.begun()
        if exchange.resumable:
            await self._follow(call, store, exchange.id, 0)
        else:
            await call.respond(200, run.first_document)

    async def _make(
        self,
        run: Run,
        record: Record,
        exchange: Response,
        card: Card,
        watch: Watch,
        release: Callable[[], None] | None,
    ) -> None:
        try:
            await answer(run, exchange, card, self._service, watch, None)  # the time limit is for who waits
        except ApiError as error:
            run.refuse(error)
        finally:
            if release is not None:
                release()
            del self._running[exchange.id]
            if record.is_open:
                await record.give_up()
            run.abandon()

    async def _past(self, fields: ResponseFields) -> Past:
        """What the store has for this request. Raises InvalidRequest where that is not (all) there."""
        references = referenced_ids(fields.input or "")
        items: list[Item] = []
        if fields.previous_response_id is not None:
            items = _items_of(await self._chain(fields.previous_response_id))
        if not references:
            return Past(items)
        if self._store is None:
            raise InvalidRequest(f"{_NO_STORE}, so input cannot refer to their items.", param="input")
        having = await _try(self._store.having(references))
        return Past(items, {item["id"]: item for item in _items_of(having)})

    async def _chain(self, response_id: str) -> list[Stored]:
        """The responses before this one, the oldest first; all of them."""
        assert self._store is not None, "_store_for has refused it"
        chain = await _try(self._store.chain(response_id))
        if not chain:
            raise InvalidRequest(
                f"No response with the id {shown(response_id, most=80)} is stored here.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if chain[0].previous is not None:
            raise InvalidRequest(
                f"The conversation cannot be continued: {shown(chain[0].previous, most=80)}, which it began with, "
                "is not stored any more.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if not chain[-1].is_finished:
            raise InvalidRequest(
                "The previous response is still in progress; wait for its end, or cancel it.",
                param="previous_response_id",
            )
        return chain

    # ---- GET and DELETE /v1/responses/{response_id} ----

    async def one(self, call: Call) -> None:
        if call.scope["method"] == "DELETE":
            await self._delete(call)
        else:
            await self._get(call)

    async def _get(self, call: Call) -> None:
        store, stored = await self._found(call)
        query = Query(call)
        stream, after = query.flag("stream"), query.number("starting_after")
        if after is not None and not stream:
            raise InvalidRequest("starting_after needs stream to be true.", param="starting_after")
        if not stream:
            await call.respond(200, stored.document)
        elif stored.frames is None:
            raise InvalidRequest(
                "This response has no stream to come back to: it was not made with background and stream.",
                param="stream",
            )
        else:
            await self._follow(call, store, stored.id, 0 if after is None else after + 1)

    async def _delete(self, call: Call) -> None:
        store, stored = await self._found(call)
        await _try(store.delete(stored.id))
        self._abort(stored)
        await call.respond(200, msgspec.json.encode(deleted(stored.id)))

    async def _found(self, call: Call) -> tuple[Store, Stored]:
        """The response that the path names. Raises NotFound."""
        response_id: str = call.path_params["response_id"]
        if self._store is None:
            raise NotFound(f"{_NO_STORE}.", param="response_id")
        stored = await _try(self._store.get(response_id))
        if stored is None:
            raise NotFound(
                f"No response with the id {shown(response_id, most=80)} is stored here: it was never stored, was "
                "deleted, or had to go for newer ones.",
                param="response_id",
            )
        return self._store, stored

    async def _follow(self, call: Call, store: Store, response_id: str, first: int) -> None:
        await follow(call, store, response_id, first, self._running.get)

    # ---- POST /v1/responses/{response_id}/cancel ----

    async def cancel(self, call: Call) -> None:
        store, stored = await self._found(call)
        if not stored.background:
            raise InvalidRequest(
                "Only a response that was made with background can be cancelled; of another one, close the connection.",
                param="response_id",
            )
        await _try(store.cancel(stored.id, cancelled))
        self._abort(stored)
        _, stored = await self._found(call)
        await call.respond(200, stored.document)

    def _abort(self, stored: Stored) -> None:
        """End its work in the engine, whichever API server waits for that. The store's word comes first."""
        client = self._service.client
        if stored.background and not stored.is_finished and client.capabilities is not None:  # else there is no work
            client.abort_by_client_id(stored.id)

    # ---- GET /v1/responses/{response_id}/input_items ----

    async def input_items(self, call: Call) -> None:
        """All that it was made of: the turns before, and its own input."""
        store, stored = await self._found(call)
        query = Query(call)
        items: list[Item] = msgspec.json.decode(stored.input)
        if stored.previous is not None:
            items = [*_items_of(await _try(store.chain(stored.previous))), *items]
        document = page(items, after=query.text("after"), limit=query.text("limit"), order=query.text("order"))
        await call.respond(200, msgspec.json.encode(document))


def _items_of(chain: list[Stored]) -> list[Item]:
    """Each response's input and output, in the order of the responses."""
    items: list[Item] = []
    for stored in chain:
        items += msgspec.json.decode(stored.input)
        items += msgspec.json.decode(stored.document)["output"]
    return items


async def _try(done: Awaitable[T]) -> T:
    """What the store gives. Raises Internal where it fails."""
    try:
        return await done
    except StoreError as error:
        raise Internal("The responses store failed.") from error
