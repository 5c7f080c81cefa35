"""Where API keys come from, and what may be wrong with a source: never a way to end up without any."""

import logging
from pathlib import Path

import pytest

from apiserver.api_keys import ADMIN_ENVIRONMENT, ENVIRONMENT, ApiKey, KeyRing, digest_of
from apiserver.board import MAX_KEYS
from apiserver.config import AccessSettings
from apiserver.launch_error import LaunchError


def ring(*flags: str, file: Path | None = None, environment: str | None = None) -> KeyRing:
    settings = AccessSettings(api_keys=flags, api_key_file=str(file) if file is not None else None)
    return KeyRing(settings, {} if environment is None else {ENVIRONMENT: environment})


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def named(keys: tuple[ApiKey, ...]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for key in keys:
        found.setdefault(key.name, []).append(key.digest)
    return found


def digests(*keys: str) -> list[bytes]:
    return [digest_of(key.encode()) for key in keys]


def test_without_a_source_there_are_none() -> None:
    assert ring().read() == ()


def test_all_sources_count_and_each_key_has_a_name(tmp_path: Path) -> None:
    text = "# ours\n\nalice: sk-1\n  bob@x.org:\tsk-2  \nsk-3\nsk:4\nalice: sk-5\nschlüssel\n"
    both = ring("flag-a", "flag-b", file=written(tmp_path / "keys", text), environment="from-env")
    assert named(both.read()) == {
        "key-1": digests("flag-a"),
        "key-2": digests("flag-b"),
        "environment": digests("from-env"),
        "alice": digests("sk-1", "sk-5"),
        "bob@x.org": digests("sk-2"),
        "line-5": digests("sk-3"),
        "line-6": digests("sk:4"),
        "line-8": digests("schlüssel"),
    }
    assert both.names == ("key-1", "key-2", "environment", "alice", "bob@x.org", "line-5", "line-6", "line-8")


def test_a_key_that_is_given_twice_keeps_its_first_name(tmp_path: Path) -> None:
    assert named(ring("same", file=written(tmp_path / "keys", "alice: same\n")).read()) == {"key-1": digests("same")}


@pytest.mark.parametrize("text", ["", "\n\n", "# only a remark\n"])
def test_a_file_without_a_key_does_not_open_the_door(tmp_path: Path, text: str) -> None:
    with pytest.raises(LaunchError, match="holds no key"):
        ring(file=written(tmp_path / "keys", text)).read()


@pytest.mark.parametrize("line", ["two words", "a name: key", "alice: sk 1", "x" * 65 + ": key"])
def test_a_line_that_is_neither_is_named_by_its_number_and_not_quoted(tmp_path: Path, line: str) -> None:
    with pytest.raises(LaunchError, match="line 2 is neither") as caught:
        ring(file=written(tmp_path / "keys", f"good: key\n{line}\n")).read()
    assert line not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no-such-file"):
        ring(file=tmp_path / "no-such-file").read()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(LaunchError, match="bytes"):
        ring(file=tmp_path / "bytes").read()


def test_admin_keys_come_from_sources_of_their_own_and_have_names_that_say_so(tmp_path: Path) -> None:
    file = written(tmp_path / "admins", "# ours\nroot: sk-3\nsk-4\n")
    settings = AccessSettings(api_keys=("sk-1",), admin_api_keys=("sk-2",), admin_api_key_file=str(file))
    keys = KeyRing(settings, {ADMIN_ENVIRONMENT: "sk-5"}).read()
    assert {key.name: (key.digest, key.is_admin) for key in keys} == {
        "key-1": (*digests("sk-1"), False),
        "admin-key-1": (*digests("sk-2"), True),
        "admin-environment": (*digests("sk-5"), True),
        "root": (*digests("sk-3"), True),
        "admin-line-3": (*digests("sk-4"), True),
    }


def test_a_source_of_admin_keys_without_one_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = str(written(tmp_path / "admins", "# nobody\n"))
    with pytest.raises(LaunchError, match=f"--admin-api-key-file {file} holds no key"):
        KeyRing(AccessSettings(admin_api_key_file=file), {}).read()
    with pytest.raises(LaunchError, match=f"{ADMIN_ENVIRONMENT} is empty"):
        KeyRing(AccessSettings(), {ADMIN_ENVIRONMENT: ""}).read()


def test_one_key_is_not_both_an_admins_and_another(tmp_path: Path) -> None:
    settings = AccessSettings(api_keys=("same", "other"), admin_api_keys=("same",))
    with pytest.raises(LaunchError, match=r"both an API key \(key-1\) and an admin key \(admin-key-1\)"):
        KeyRing(settings, {}).read()


def test_an_empty_variable_is_an_error() -> None:
    with pytest.raises(LaunchError, match=ENVIRONMENT):
        ring(environment="").read()


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        ring(file=written(tmp_path / "keys", "alice: sk-secret\n", mode)).read()
    assert ("chmod 600" in caplog.text) is warns
    assert "sk-secret" not in caplog.text


def test_a_name_keeps_its_number_over_reloads_and_no_number_is_used_twice(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = ring(file=written(file, "alice: 1\nbob: 2\n"))
    assert [key.number for key in keys.read()] == [0, 1]
    written(file, "carol: 3\nbob: 4\n")
    assert {key.name: key.number for key in keys.read()} == {"carol": 2, "bob": 1}
    written(file, "bob: 5\nalice: 6\n")
    assert {key.name: key.number for key in keys.read()} == {"bob": 1, "alice": 0}
    assert keys.names == ("alice", "bob", "carol")


def test_a_reload_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = ring(file=written(file, "alice: 1\n"))
    keys.read()
    written(file, "bob: 2\nno good\n")
    with pytest.raises(LaunchError):
        keys.read()
    assert keys.names == ("alice",)


def test_more_names_than_the_board_has_room_for_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "keys", "".join(f"user{number}: {number}\n" for number in range(MAX_KEYS)))
    keys = ring(file=file)
    assert len(keys.read()) == MAX_KEYS
    written(file, "one-more: x\n")
    with pytest.raises(LaunchError, match=str(MAX_KEYS)):
        keys.read()
