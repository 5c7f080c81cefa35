"""docs/conformance.md says which client is tried on which API."""

from tests.client_matrix import marks, table, written


def test_the_document_has_the_table_of_clients() -> None:
    assert written() == table(), "python -m tests.client_matrix writes it"


def test_every_client_that_is_promised_is_tried() -> None:
    clients = {mark.client for mark in marks()}
    assert clients >= {"openai-python", "anthropic-python", "langchain-openai", "litellm"}
