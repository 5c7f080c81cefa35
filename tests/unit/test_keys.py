"""Keys as files: who may read them, what is never overwritten, what is no key."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from apiserver.cli import main
from engine_bridge.keys import AllowList, KeyProblem, make_keys, read_client_keys, read_server_keys
from engine_bridge.transport import public_key_of


@pytest.fixture(autouse=True)
def a_careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): oct(path.stat().st_mode & 0o777)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    made = make_keys(tmp_path, ["east", "west"])
    assert made == [tmp_path / "engine", tmp_path / "east", tmp_path / "west"]
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in made)
    assert files(tmp_path) == {
        "engine/server.secret": "0o600",
        "engine/server.public": "0o644",
        "engine/clients/east.public": "0o644",
        "engine/clients/west.public": "0o644",
        "east/client.secret": "0o600",
        "east/client.public": "0o644",
        "east/server.public": "0o644",
        "west/client.secret": "0o600",
        "west/client.public": "0o644",
        "west/server.public": "0o644",
    }


def test_the_two_halves_fit(tmp_path: Path) -> None:
    make_keys(tmp_path, ["east"])
    client = read_client_keys(tmp_path / "east")
    assert public_key_of(client.secret) == client.public
    assert public_key_of(read_server_keys(tmp_path / "engine").secret) == client.server
    assert AllowList(tmp_path / "engine" / "clients").names() == {client.public: "east"}


def test_more_clients_are_added_to_the_same_engine_and_nothing_is_overwritten(tmp_path: Path) -> None:
    make_keys(tmp_path, ["east"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert make_keys(tmp_path, ["west"]) == [tmp_path / "west"]
    for names in (["east"], ["north", "east"]):
        with pytest.raises(KeyProblem, match="never overwritten"):
            make_keys(tmp_path, names)
    assert not (tmp_path / "north").exists()
    assert {path: path.read_bytes() for path in before} == before


def test_a_key_that_is_replaced_in_its_place_is_out_and_the_new_one_in(tmp_path: Path) -> None:
    make_keys(tmp_path, ["east", "west"])
    clients = tmp_path / "engine" / "clients"
    allowed = AllowList(clients)
    east, west = (read_client_keys(tmp_path / name).public for name in ("east", "west"))
    assert allowed.names() == {east: "east", west: "west"}
    make_keys(tmp_path / "new", ["east"])
    (clients / "east.public").write_bytes((tmp_path / "new" / "engine" / "clients" / "east.public").read_bytes())
    (clients / "nowhere.public").symlink_to(tmp_path / "nothing")
    assert allowed.names() == {read_client_keys(tmp_path / "new" / "east").public: "east", west: "west"}


@pytest.mark.parametrize("name", ["engine", "", "../x", "a b", ".hidden", "x" * 65])
def test_a_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyProblem, match="cannot be a client's name"):
        make_keys(tmp_path, [name])
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_everybody_can_read_is_not_used(tmp_path: Path) -> None:
    make_keys(tmp_path, ["east"])
    for path, read in (
        (tmp_path / "engine" / "server.secret", read_server_keys),
        (tmp_path / "east" / "client.secret", read_client_keys),
    ):
        path.chmod(0o644)
        with pytest.raises(KeyProblem, match="chmod 600"):
            read(path.parent)
        path.chmod(0o640)  # as a container's group reads it
        read(path.parent)


@pytest.mark.parametrize(
    "content", ["", "# only words\n", "short\n", "x" * 39 + "\n", ("x" * 40 + "\n") * 2, "é" * 20 + "\n"]
)
def test_what_is_no_key_is_named(tmp_path: Path, content: str) -> None:
    make_keys(tmp_path, ["east"])
    (tmp_path / "east" / "server.public").write_text(content)
    with pytest.raises(KeyProblem, match=r"server\.public does not hold a key"):
        read_client_keys(tmp_path / "east")


def test_a_key_that_begins_like_a_comment_is_a_key(tmp_path: Path) -> None:
    make_keys(tmp_path, ["east"])
    key = b"#" + b"0" * 39
    (tmp_path / "east" / "server.public").write_bytes(key + b"\n")
    assert read_client_keys(tmp_path / "east").server == key


def test_the_command_says_where_each_directory_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(tmp_path / "k"), "--client", "east"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert f"apiserver engine MODEL --listen tcp://HOST:PORT --keys {tmp_path}/k/engine" in said[0]
    assert f"apiserver serve MODEL --engine-address tcp://HOST:PORT --keys {tmp_path}/k/east" in said[1]
    assert main(["keys", str(tmp_path / "k"), "--client", "east"]) == 3
    assert "never overwritten" in capsys.readouterr().err


def test_where_nothing_can_be_written_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["keys", str(tmp_path / "file")]) == 3
    assert "cannot write keys" in capsys.readouterr().err
