"""SGLang's scheduler process, with a tokenizer for itself.

Where SGLang is told to take and give token ids (`--skip-tokenizer-init`) its scheduler has no tokenizer either, and so
no grammars, no min_new_tokens, and no end tokens but those of the model's configuration. Ours loads the tokenizer for
these three; still no text passes through it, and what it makes still goes straight to the engine core.
"""

# pyright: reportUnknownMemberType=false

import logging
from typing import Any

from engine_bridge.engines import sglang_api as api

log = logging.getLogger("engine_bridge.sglang")


class Scheduler(api.Scheduler):
    """Knows its tokenizer; says in its first message what that makes possible."""

    def __init__(self, server_args: Any, port_args: Any) -> None:
        self.skip_tokenizer_init: bool
        self.tokenizer: Any
        super().__init__(server_args, port_args)
        if self.tokenizer is None or not self.is_generation:
            return
        config: Any = self.model_config
        manager: Any = self.grammar_manager
        manager.grammar_backend = api.create_grammar_backend(
            server_args,
            self.tokenizer,
            config.vocab_size,
            config.hf_eos_token_id,
            think_end_ids=config.think_end_ids,
        )

    def init_tokenizer(self) -> None:
        self.skip_tokenizer_init = False
        try:
            super().init_tokenizer()
        except Exception as error:  # whatever a model's files make transformers raise
            self.tokenizer = self.processor = None
            log.warning("no tokenizer, so no grammars and no min_tokens: %s", error)
        finally:
            self.skip_tokenizer_init = True  # where its outputs go is decided by this, later

    def get_init_info(self) -> dict[str, Any]:
        grammar: Any = self.grammar_manager.grammar_backend
        return {
            **super().get_init_info(),
            "has_tokenizer": self.tokenizer is not None,
            "has_grammar": grammar is not None,
            "max_running_requests": self.max_running_requests,
        }


def run_scheduler(*arguments: Any, **named: Any) -> None:
    """The spawned process's main function, in the place of SGLang's own."""
    api.scheduler_module.Scheduler = Scheduler
    api.scheduler_module.run_scheduler_process(*arguments, **named)
