"""The `apiserver` command."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. Whatever stops a start is one line on stderr, not a traceback."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return 130


def _run(words: list[str]) -> int:
    """Imports what a command needs when it runs: `apiserver --help` should not load a web framework, and Ctrl-C while
    one is loaded is no traceback."""
    from apiserver.flags import make_parsers, parse_engine, parse_serve

    parsers = make_parsers()
    if words[:1] == ["serve"]:
        from apiserver import engine_arguments
        from apiserver.launch_error import LaunchError

        try:
            settings = parse_serve(parsers, words)
            engine_arguments.check(settings.engine, settings.model, settings.engine_arguments)
            # Imported when it is needed: neither `apiserver --help` nor a refusal should load a web framework.
            from apiserver.launch import serve

            return serve(settings)
        except LaunchError as error:
            sys.stderr.write(f"apiserver: {error}\n")
            return 3
    if words[:1] == ["engine"]:
        from apiserver.commands import engine as engine_command

        return engine_command.run(parse_engine(parsers, words))
    options = parsers.command.parse_args(words)
    if options.command == "scale":
        from apiserver.commands import scale as scale_command

        return scale_command.run(options.count, port=options.port, pid=options.pid)
    if options.command == "keys":
        from apiserver.commands import keys as key_command

        return key_command.run(options.directory, options.client)
    from apiserver.commands import models as model_commands

    return model_commands.run(options.action or "list", getattr(options, "name", None))
