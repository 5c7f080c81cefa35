"""Where a core may listen and be looked for: never open to strangers without keys."""

import pytest

from engine_bridge.address import BadAddress, to_connect, to_listen


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:5555", "tcp://127.3.2.1:0", "tcp://[::1]:5555"])
def test_the_loopback_needs_no_keys(text: str) -> None:
    assert to_listen(text, with_keys=False) == text


def test_localhost_is_the_loopback_and_is_bound_by_its_number() -> None:
    assert to_listen("tcp://localhost:1", with_keys=False) == "tcp://127.0.0.1:1"
    assert to_connect("tcp://localhost:1", with_keys=False) == "tcp://localhost:1"


@pytest.mark.parametrize(
    "text",
    ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://10.0.0.1:5555", "tcp://[::]:5555", "tcp://[2001:db8::1]:5555"],
)
def test_elsewhere_a_core_listens_with_keys_only(text: str) -> None:
    with pytest.raises(BadAddress, match="needs --keys DIR"):
        to_listen(text, with_keys=False)
    assert to_listen(text, with_keys=True) == text


@pytest.mark.parametrize("text", ["tcp://10.0.0.1:5555", "tcp://engine.example.org:5555", "tcp://[2001:db8::1]:5555"])
def test_elsewhere_a_core_is_looked_for_with_keys_only(text: str) -> None:
    with pytest.raises(BadAddress, match="needs --keys DIR"):
        to_connect(text, with_keys=False)
    assert to_connect(text, with_keys=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp://",
        "tcp://host",
        "tcp://:5555",
        "tcp://host:",
        "tcp://host:x",
        "tcp://host:70000",
        "http://host:1",
        "h:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress, match="not an address"):
        to_connect(text, with_keys=True)
    with pytest.raises(BadAddress, match="not an address"):
        to_listen(text, with_keys=True)


@pytest.mark.parametrize("text", ["tcp://*:5555", "tcp://127.0.0.1:0"])
def test_one_connects_to_one_host_and_port(text: str) -> None:
    with pytest.raises(BadAddress, match="the one host and port"):
        to_connect(text, with_keys=True)


def test_a_core_is_bound_to_a_number() -> None:
    with pytest.raises(BadAddress, match="not a name"):
        to_listen("tcp://engine.example.org:5555", with_keys=True)
