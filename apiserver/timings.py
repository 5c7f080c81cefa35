"""Where a request's time went, stage by stage: what `Server-Timing` and the histograms tell."""

from dataclasses import dataclass


@dataclass(slots=True)
class Timings:
    """Seconds. Filled in along the way; what did not happen stays 0."""

    parse: float = 0.0  # JSON and validation
    wait: float = 0.0  # for a turn of the loop's, or for the preprocessing thread, where there was one
    render: float = 0.0  # chat template → text
    tokenize: float = 0.0  # text → ids
    queue: float = 0.0  # in the engine, before the first step
    engine: float = 0.0  # from the submit to the last answer, the queue excluded
    detokenize: float = 0.0  # ids → events

    def header(self) -> str:
        """As `Server-Timing` (W3C): `parse;dur=0.05, …`, in milliseconds."""
        return (
            f"{self.header_at_start()}, queue;dur={1000 * self.queue:.3f}, "
            f"engine;dur={1000 * self.engine:.3f}, detokenize;dur={1000 * self.detokenize:.3f}"
        )

    def header_at_start(self) -> str:
        """What is known when a stream's headers leave."""
        return (
            f"parse;dur={1000 * self.parse:.3f}, wait;dur={1000 * self.wait:.3f}, "
            f"render;dur={1000 * self.render:.3f}, tokenize;dur={1000 * self.tokenize:.3f}"
        )
