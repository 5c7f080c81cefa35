"""What processes cost: memory of their own and shared, and CPU while nobody asks anything."""

import asyncio
from collections.abc import Mapping
from typing import Any

import psutil

from benchlib import processes

Memory = Mapping[str, Mapping[str, int]]
"""Role → `pss` and `uss` in bytes: its share of what it uses, and what would be free if it alone ended."""


def memory(roles: processes.Roles) -> dict[str, dict[str, int]]:
    """Of every process that is ours to see; of several of one role, the sum."""
    found: dict[str, dict[str, int]] = {}
    for pid, role in roles.items():
        try:
            info = psutil.Process(pid).memory_full_info()
        except psutil.Error:
            continue
        sums = found.setdefault(role, {"pss": 0, "uss": 0})
        sums["pss"] += info.pss
        sums["uss"] += info.uss
    return found


async def idle_shares(roles: processes.Roles, seconds: float) -> dict[str, float]:
    """Of each role, the share of a core that it uses by itself."""
    before = processes.read(roles)
    await asyncio.sleep(seconds)
    spent = processes.spent(before, processes.read(roles), roles)
    return {role: used / spent.wall_seconds for role, used in spent.server_seconds.items()}


def by_part(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Role → value as part → values: the API servers of our pool are one part, anything else is itself."""
    parts: dict[str, list[Any]] = {}
    for role, value in values.items():
        parts.setdefault("API server" if role.startswith("api-") else role, []).append(value)
    return parts
