"""The API keys: from flags, the environment and a file; each with a name, which is all that is ever told of it.

A name keeps its number as long as the pool lives, also over a reload: the counts on the board are by number, and API
servers from before the reload still count.
"""

import hashlib
import logging
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from apiserver.board import MAX_KEYS
from apiserver.config import AccessSettings
from apiserver.launch_error import LaunchError

ENVIRONMENT = "APISERVER_API_KEY"
_NAMED = re.compile(r"([A-Za-z0-9_.@-]{1,64}):\s+(\S+)")
_PLAIN = re.compile(r"\S+")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

log = logging.getLogger("apiserver.keys")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. `name` and `number` are its owner's: two keys may have one, while a new one replaces an old one."""

    name: str
    number: int
    digest: bytes


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class KeyRing:
    """`read` at the start, and again whenever the file may have changed. `names` are all that there ever were, by
    number."""

    def __init__(self, settings: AccessSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self.names: tuple[str, ...] = ()

    def read(self) -> tuple[ApiKey, ...]:
        """No key at all means that everybody may call; a source of keys that holds none is an error, lest a slip opens
        the door. Raises LaunchError, and keeps the names as they were."""
        names = list(self.names)
        keys: dict[bytes, ApiKey] = {}
        for name, key in self._sources():
            if name not in names:
                names.append(name)
            digest = digest_of(key.encode())
            keys.setdefault(
                digest, ApiKey(name, names.index(name), digest)
            )  # one that is given twice keeps its first name
        if len(names) > MAX_KEYS:
            raise LaunchError(f"more than {MAX_KEYS} names of API keys since the start; restart to begin anew")
        self.names = tuple(names)
        return tuple(keys.values())

    def _sources(self) -> Iterator[tuple[str, str]]:
        for number, key in enumerate(self._settings.api_keys, 1):
            yield f"key-{number}", key
        if ENVIRONMENT in self._environment:
            key = self._environment[ENVIRONMENT]
            if not key:
                raise LaunchError(f"{ENVIRONMENT} is empty: set a key, or unset it")
            yield "environment", key
        if self._settings.api_key_file is not None:
            yield from _read_file(Path(self._settings.api_key_file))


def _read_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"--api-key-file {path}: {error}") from error
    if mode & _OTHERS:
        log.warning("others than its owner can use %s, which holds API keys: chmod 600", path)
    entries = [_parse(line.strip(), path, number) for number, line in enumerate(lines, 1) if _is_entry(line)]
    if not entries:
        raise LaunchError(f"--api-key-file {path} holds no key")
    return iter(entries)


def _is_entry(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _parse(line: str, path: Path, number: int) -> tuple[str, str]:
    named = _NAMED.fullmatch(line)
    if named is not None:
        return named[1], named[2]
    if _PLAIN.fullmatch(line) is None:  # never quoted: it may be a key
        raise LaunchError(f"--api-key-file {path}: line {number} is neither a key nor 'name: key'")
    return f"line-{number}", line
