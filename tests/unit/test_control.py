"""The socket for orders: one datagram, one answer, and no way to hold the supervisor up."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apiserver.control import SOCKET_NAME, ControlSocket, Document, ask


@contextmanager
def answering(control: ControlSocket, reply: Document) -> Iterator[list[Document]]:
    """Answer in a thread while the block lasts; gives the orders that came."""
    orders: list[Document] = []
    stop = threading.Event()

    def handle(order: Document) -> Document:
        orders.append(order)
        return reply

    def serve() -> None:
        while not stop.wait(0.005):
            control.answer(handle)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield orders
    finally:
        stop.set()
        thread.join()


def test_an_order_is_answered_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with ControlSocket(tmp_path) as control, answering(control, {"pid": 7}) as orders:
        assert ask(tmp_path, {"do": "status"}) == {"pid": 7}
        assert orders == [{"do": "status"}]
    assert [path.name for path in tmp_path.iterdir()] == [SOCKET_NAME]


@pytest.mark.parametrize("data", [b"", b"scale", b"[1]", b"\xff\xfe", b"{", 60_000 * b"["])
def test_what_is_no_order_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    with ControlSocket(tmp_path) as control, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.bind(str(tmp_path / "client"))
        client.sendto(data, str(tmp_path / SOCKET_NAME))
        control.answer(lambda order: {"took": dict(order)})
        assert json.loads(client.recv(1000)) == {"error": "not an order"}


def test_who_gives_no_address_gets_no_answer(tmp_path: Path) -> None:
    with ControlSocket(tmp_path) as control, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        for _ in range(40):
            client.sendto(b"{}", str(tmp_path / SOCKET_NAME))
            control.answer(lambda order: {})
        control.answer(lambda order: pytest.fail("there was nothing"))


def test_nobody_there_and_nobody_who_answers_are_errors(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ask(tmp_path, {"do": "status"})
    with ControlSocket(tmp_path), pytest.raises(TimeoutError):
        ask(tmp_path, {"do": "status"}, seconds=0.1)
    with pytest.raises(ConnectionRefusedError):
        ask(tmp_path, {"do": "status"})


def test_an_answer_that_is_no_document_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as impostor:
        impostor.bind(str(tmp_path / SOCKET_NAME))

        def serve() -> None:
            _, sender = impostor.recvfrom(1000)
            impostor.sendto(b"what?", sender)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(OSError, match="answers something else"):
            ask(tmp_path, {"do": "status"})
        thread.join()
