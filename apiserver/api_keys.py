"""The API keys: from flags, the environment and a file; each with a name, which is all that is ever told of it.

A name keeps its number as long as the pool lives, also over a reload: the counts on the board are by number, and API
servers from before the reload still count.
"""

import hashlib
import logging
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from apiserver.board import MAX_KEYS
from apiserver.config import AccessSettings
from apiserver.launch_error import LaunchError

ENVIRONMENT = "APISERVER_API_KEY"
ADMIN_ENVIRONMENT = "APISERVER_ADMIN_API_KEY"
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
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, by the key that came with it, and what that opens."""

    key: ApiKey | None = None
    may_administer: bool = False
    """Whether it may do what concerns everybody: where there are admin keys, only with one."""

    @property
    def owner(self) -> str:
        """Whose its requests are, as the engine core is told; nobody's without a key."""
        return self.key.name if self.key is not None else ""

    @property
    def reach(self) -> str | None:
        """Whose requests it may end by their id; None: everybody's."""
        return None if self.key is not None and self.key.is_admin else self.owner


NOBODY = Caller()
"""Without a key."""
ANYBODY = Caller(may_administer=True)
"""Where there are no keys."""


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
        for name, key, is_admin in self._sources():
            if name not in names:
                names.append(name)
            digest = digest_of(key.encode())
            first = keys.setdefault(digest, ApiKey(name, names.index(name), digest, is_admin))
            if first.is_admin is not is_admin:  # else one that is given twice keeps its first name
                raise LaunchError(f"one key cannot be both an API key ({first.name}) and an admin key ({name})")
        if len(names) > MAX_KEYS:
            raise LaunchError(f"more than {MAX_KEYS} names of API keys since the start; restart to begin anew")
        self.names = tuple(names)
        return tuple(keys.values())

    def _sources(self) -> Iterator[tuple[str, str, bool]]:
        """Each key with its name, and whether it is an admin's."""
        settings = self._settings
        for name, key in self._read_all("", settings.api_keys, ENVIRONMENT, settings.api_key_file):
            yield name, key, False
        of_admins = self._read_all("admin-", settings.admin_api_keys, ADMIN_ENVIRONMENT, settings.admin_api_key_file)
        for name, key in of_admins:
            yield name, key, True

    def _read_all(self, kind: str, keys: Sequence[str], variable: str, file: str | None) -> Iterator[tuple[str, str]]:
        """Of one kind, which is what names that nobody chose begin with."""
        for number, key in enumerate(keys, 1):
            yield f"{kind}key-{number}", key
        if variable in self._environment:
            key = self._environment[variable]
            if not key:
                raise LaunchError(f"{variable} is empty: set a key, or unset it")
            yield f"{kind}environment", key
        if file is not None:
            yield from _KeyFile(Path(file), kind).read()


@dataclass(frozen=True, slots=True)
class _KeyFile:
    path: Path
    kind: str

    def read(self) -> Iterator[tuple[str, str]]:
        path = self.path
        try:
            mode = path.stat().st_mode
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise self._error(f": {error}") from error
        if mode & _OTHERS:
            log.warning("others than its owner can use %s, which holds API keys: chmod 600", path)
        entries = [self._parse(line.strip(), number) for number, line in enumerate(lines, 1) if _is_entry(line)]
        if not entries:
            raise self._error(" holds no key")
        return iter(entries)

    def _parse(self, line: str, number: int) -> tuple[str, str]:
        named = _NAMED.fullmatch(line)
        if named is not None:
            return named[1], named[2]
        if _PLAIN.fullmatch(line) is None:  # never quoted: it may be a key
            raise self._error(f": line {number} is neither a key nor 'name: key'")
        return f"{self.kind}line-{number}", line

    def _error(self, what: str) -> LaunchError:
        return LaunchError(f"--{self.kind}api-key-file {self.path}{what}")


def _is_entry(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
