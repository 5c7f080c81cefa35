"""Prompts that differ from one another and have exactly so many tokens, if the server will count for us.

Four words in five are common English ones, the rest invented: tokenizers cache whole words, so text of few words
costs less to encode than people's text does, and text of only strange ones costs more.
"""

import random
from collections.abc import Awaitable, Callable

Counter = Callable[[str], Awaitable[int]]
"""How many prompt tokens a text makes, with all that the endpoint adds to it (template, special tokens)."""

# As a text and not as a list: this way it can be read.
_COMMON = """
the of and to in is it you that he was for on are with as his they be at one have this from or had by hot but some
what there we can out other were all your when up use word how said an each she which do their time if will way about
many then them would write like so these her long make thing see him two has look more day could go come did my sound
no most number who over know water than call first people may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under name very through just
form much great think say help low line before turn cause same mean differ move right boy old too does tell sentence
""".split()  # noqa: SIM905  # words are easier to read than a list of strings
_SYLLABLES = "ba con der fil gor hu jin kal mol nes pra qui ros sten tur vel wim xo yar zet lu ming sor the".split()  # noqa: SIM905  # as above
_INVENTED_SHARE = 0.2
_INVENTED_TOKENS = 2.2  # of an invented word, roughly; only where nobody counts
_ATTEMPTS = 12


class PromptMaker:
    """Makes texts of `tokens` tokens from a seeded random source, no two alike unless there are too few such texts."""

    def __init__(self, rng: random.Random, tokens: int, *, count: Counter | None) -> None:
        self._rng = rng
        self._tokens = tokens
        self._count = count
        self._fillers: list[str] | None = None
        self._seen: set[int] = set()

    async def make(self) -> str:
        """Another prompt. Without a counter, or if no text has that many tokens, as near as can be."""
        text = await self._candidate()
        for _ in range(_ATTEMPTS):
            if hash(text) not in self._seen:
                break
            text = await self._candidate()
        self._seen.add(hash(text))
        return text

    async def _candidate(self) -> str:
        words = self._words()
        if self._count is None:
            return " ".join(words)
        if self._fillers is None:
            self._fillers = await self._one_token_words(self._count)
        if self._fillers:
            text = await self._fit_words(words, self._fillers, self._count)
            if text is not None:
                return text
        return await self._fit_characters(" ".join(words), self._count)

    def _words(self) -> list[str]:
        rng = self._rng
        words: list[str] = []
        room = self._tokens * (1.0 if self._count is None else 0.9)
        while room > 0:
            if rng.random() < _INVENTED_SHARE:
                words.append("".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))))
                room -= _INVENTED_TOKENS
            else:
                words.append(rng.choice(_COMMON))
                room -= 1
        return words

    async def _one_token_words(self, count: Counter) -> list[str]:
        """The common words that add exactly one token each when more of them follow a text."""
        alone = await count("the")
        return [word for word in _COMMON if await count(f"the {word} {word} {word} {word}") == alone + 4]

    async def _fit_words(self, words: list[str], fillers: list[str], count: Counter) -> str | None:
        for _ in range(_ATTEMPTS):
            text = " ".join(words)
            gap = self._tokens - await count(text)
            if gap == 0:
                return text
            if gap > 0:
                words += self._rng.choices(fillers, k=gap)
            else:
                del words[max(1, len(words) - max(1, -gap // 2)) :]
        return None

    async def _fit_characters(self, text: str, count: Counter) -> str:
        """The shortest beginning that reaches the number: for tokenizers of characters or bytes."""
        while await count(text) < self._tokens:
            text += " " + " ".join(self._words())
        low, high = 1, len(text)
        while low < high:
            middle = (low + high) // 2
            if await count(text[:middle]) < self._tokens:
                low = middle + 1
            else:
                high = middle
        return text[:low]
