"""More than two thousand strings, the same at every run: what people send, and what tokenizers trip over."""

import ast
import asyncio.base_events
import base64
import functools
import json
import random
import textwrap
import typing
from pydoc_data import topics
from types import ModuleType

SENTENCES = (
    "The quick brown fox jumps over the lazy dog; it's 12:45, and we'll see who's THERE'S.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich – „Straßenfußball“, 3,50 €.",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis ; ça coûte 1 234,56 €.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío. ¿Añoraba? ¡Sí!",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак, ґанок, ў.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὦ ξεῖν’, ἀγγέλλειν Λακεδαιμονίοις.",
    "איזה כיף: דג סקרן שט בים מאוכזב, ולפתע מצא חברה. שָׁלוֹם",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر، ٣٫١٤ و١٢٣٤.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३४",
    "আমি বাংলায় গান গাই। தமிழ் மொழி எங்கள் மொழி. తెలుగు భాష. ಕನ್ನಡ. മലയാളം.",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "いろはにほへと ちりぬるを。カタカナとｶﾀｶﾅ、漢字かな交じり文です（１２３）。",
    "我能吞下玻璃而不伤身体。繁體字與简体字，「引號」……２０２６年１１月。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. ㅋㅋㅋ",
    "Trăm năm trong cõi người ta, chữ tài chữ mệnh khéo là ghét nhau. İstanbul'da ıslak ğ.",
    "ქართული ენა, հայերեն լեզու, ትግርኛ ቋንቋ, မြန်မာဘာသာ, ខ្មែរ, ລາວ, བོད་ཡིག, ᠮᠣᠩᠭᠣᠯ.",
    "∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−f(a)|<ε; ∑ᵢ₌₁ⁿ i² = n(n+1)(2n+1)⁄6 ≈ ⅓n³ — 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛.",
)
EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "☺️", "🎉", "❤️‍🔥", "1️⃣", "🧑🏿‍🚀", "🫠", "🦙", "\u200d", "\ufe0f")
SPACES = (*" \t\n\r\v\f", "\u00a0", "\u2028", "\u2029", "\u3000", "\u200b", "\ufeff", "\u0085", "\u202f", "\r\n", "  ")
_HARD = (
    "e\u0301",
    "\u0041\u030a",
    "ﬁ",
    "ﬀ",
    "\u212b",
    "\u2126",
    "ḍ̇",
    "q\u0307\u0323",
    "\u1112\u1161\u11ab",
    "ſ",
    "ı",
    "İ",
)
_CONTROLS = ("\x00", "\x01", "\x1b[0m", "\x7f", "\u200e", "\u202e", "\ufffd", "\ufffe", "\u00ad")


@functools.cache
def varied_texts() -> tuple[str, ...]:
    """All of them, in a fixed order; none is empty, none holds a lone surrogate."""
    rng = random.Random(20)
    prose = "\n".join(topics.topics.values())
    made = [
        *_cuts(rng, prose, 400, 2000),
        *_code(rng, 300),
        *(_mixed(rng, SENTENCES, 3, " ") for _ in range(250)),
        *(_mixed(rng, (*EMOJI, "a", " "), 12, "") for _ in range(200)),
        *(_mixed(rng, (*SPACES, "a", "B", ".", "1"), 20, "") for _ in range(250)),
        *(_mixed(rng, (*_HARD, *_CONTROLS, "x", " "), 15, "") for _ in range(150)),
        *(_numbers(rng) for _ in range(100)),
        *(_anything(rng) for _ in range(250)),
        *(_runs(rng) for _ in range(150)),
        *(_encoded(rng) for _ in range(100)),
        *(chr(code) for code in range(256)),
    ]
    return tuple(text for text in made if text)


def _cuts(rng: random.Random, text: str, count: int, most: int) -> list[str]:
    """Pieces of any length up to `most`, short ones more often; they begin and end anywhere."""
    starts = [rng.randrange(len(text) - most) for _ in range(count)]
    return [text[start : start + int(most ** rng.random())] for start in starts]


def _code(rng: random.Random, count: int) -> list[str]:
    modules: tuple[ModuleType, ...] = (ast, asyncio.base_events, textwrap, typing)
    sources: list[str] = []
    for module in modules:
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as file:
            sources.append(file.read())
    return _cuts(rng, "\n".join(sources), count, 1500)


def _mixed(rng: random.Random, pieces: tuple[str, ...], most: int, between: str) -> str:
    return between.join(rng.choice(pieces) for _ in range(rng.randrange(1, most + 1)))


def _numbers(rng: random.Random) -> str:
    forms = (f"{rng.randrange(10**12):,}", f"{rng.random():.9f}", f"0x{rng.randrange(2**40):X}", f"{rng.random():e}")
    digits = rng.choice(("0123456789", "٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "ⅠⅣⅨ½⅔²³"))
    return " ".join(forms) + " " + "".join(rng.choice(digits) for _ in range(rng.randrange(1, 30)))


def _anything(rng: random.Random) -> str:
    """Characters of all planes, assigned or not."""
    ranges = ((0x20, 0x250), (0x250, 0x3000), (0x3000, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x0, 0x110000))
    characters = (chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 60)))
    return "".join(character for character in characters if not 0xD800 <= ord(character) < 0xE000)


def _runs(rng: random.Random) -> str:
    piece = rng.choice(
        ("a", " ", "\n", "\t", "=", "-", "0", "é", "中", "👍", "ab", "a ", "\r\n", "'s", "e\u0301", ".,")
    )
    return rng.choice(("", "x", "Word ")) + piece * rng.randrange(1, 3000) + rng.choice(("", "y", " end"))


def _encoded(rng: random.Random) -> str:
    raw = rng.randbytes(rng.randrange(1, 300))
    return rng.choice(
        (
            base64.b64encode(raw).decode(),
            raw.hex(),
            raw.decode("latin-1"),
            raw.decode("utf-16-le", errors="replace"),
            json.dumps({"id": raw.hex()[:8], "list": list(raw[:20]), "text": raw.decode("cp1252", errors="ignore")}),
            f"https://example.com/{raw.hex()[:12]}?q={base64.urlsafe_b64encode(raw[:20]).decode()}&page=2#top",
        )
    )
