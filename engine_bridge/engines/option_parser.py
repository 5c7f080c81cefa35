"""What stands after `--`, for the engines that are our own."""

import argparse
import logging
from typing import NoReturn

log = logging.getLogger("engine_bridge")


class OptionParser(argparse.ArgumentParser):
    """argparse, whose complaint is one line of the log that ends with the flags that there are."""

    def error(self, message: str) -> NoReturn:
        flags = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        log.error("%s: %s; there are %s", self.prog, message, ", ".join(flags))
        raise SystemExit(2)
