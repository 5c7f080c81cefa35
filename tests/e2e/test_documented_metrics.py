"""docs/metrics.md has every metric that the pool tells, with its type and labels, and no other."""

import re
from pathlib import Path

import pytest

from tests.conftest import StartPool

pytestmark = pytest.mark.e2e

DOCUMENT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
SGLANGS_OWN = {"kv_cache_usage_perc": "gauge", "gen_throughput": "gauge"}


def documented() -> dict[str, tuple[str, str]]:
    """Of each name in the table, its type and labels."""
    found: dict[str, tuple[str, str]] = {}
    for names, kind in re.findall(r"^\| (`.+`) \| (counter|gauge|histogram) \|", DOCUMENT, re.MULTILINE):
        for name, labels in re.findall(r"`(\w+)(?:\{([\w,]+)\})?`", names):
            assert name not in found
            found[name] = (kind, labels)
    return found


def test_every_metric_is_explained_and_no_other(start_pool: StartPool) -> None:
    with start_pool("--api-key", "k", "--max-inflight", "9") as pool:
        headers = {"authorization": "Bearer k"}
        pool.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, **headers)
        text = pool.get("/metrics").text
    types = re.findall(r"^# TYPE apiserver:(\w+) (\w+)$", text, re.MULTILINE)
    in_document = documented()
    assert {name: kind for name, (kind, _) in in_document.items()} == dict(types) | SGLANGS_OWN
    for name, labels in re.findall(r"^apiserver:(\w+?)(?:_bucket|_sum|_count)?\{(.*)\} ", text, re.MULTILINE):
        told = [label for label in re.findall(r'(\w+)="', labels) if label != "le"]
        assert ",".join(told) == in_document[name][1]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"apiserver:(\w+)", DOCUMENT))))
def test_no_query_names_a_metric_that_is_not_there(name: str) -> None:
    assert name.removesuffix("_bucket") in {*documented(), "X"}
