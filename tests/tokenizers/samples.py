"""Texts in ten scripts, emoji, code and what breaks tokenizers, and random mixtures of them."""

import random
import unicodedata

import pydoc_data.topics

MIXED = """All human beings are born free and equal in dignity and rights. They're endowed with reason; it's 1948.
Isn't it?
Tous les êtres humains naissent libres et égaux en dignité et en droits — l'été, l’œuvre, naïveté.
Alle Menschen sind frei und gleich an Würde und Rechten geboren. STRASSE, Straße, ẞ, Äpfel für 3,50 €.
Все люди рождаются свободными и равными в своём достоинстве и правах. ЁЖИК ёжик №5
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια. ΣΊΣΥΦΟΣ ς
يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. ١٢٣٤ ـــ
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता। क्षत्रिय १२३
人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。𠀀𪚥
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。ﾊﾝｶｸ ガギグ
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 각
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.
İstanbul'da ılık bir gün: ığüşöç IĞÜŞÖÇ.
👩‍🚀👨‍👩‍👧‍👦🏳️‍🌈 🇩🇪🇯🇵 ❤️ 1️⃣ 😀😃 👍🏽 ☺
def main(argv: list[str]) -> int:\n\tprint(f"{x!r:>10}", end='')  # TODO\n\treturn 0x1F + 1e-9
for (int i = 0; i < n; ++i) {\r\n    a[i] = b->c * (d & ~e) | f::g<T>();\r\n}
<html><body class="a b">&nbsp;https://example.org/a?b=c&d=%20#e user@example.com</body></html>
ﬁ ﬀ Ⅷ ① ½ ² ｆｕｌｌ ｗｉｄｔｈ ㎏ ℃ ™ … “quotes” ‘single’ «guillemets» – — ―
e\u0301 a\u0300\u0301 q\u0323\u0307 \u1E9B\u0323 \u212B \u00C5 \u1100\u1161\u11A8 \u0344 \uFB1D
a\u00A0b\u2003c\u3000d\u200Be\u2028f\u2029g\u0085h\tj\vk\fl\rm\r\nn\u180Eo\uFEFFp\u00ADq\u2060r\u1680s\u202Ft
"""
AWKWARD = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n ", "\r\n", "\t", "\u00a0", "a", " a", "a ", "  a  b  ",
    "'s", "'S 'ſ 'LL", "1234567890", " 12 345", "a1b2", "...", "?!", "\u0301", " \u0301",
    "a\u0301\u0302", "\u200d", "\ufeff", "\ufffd", "\0", "a\0b", "\x01\x7f\x9f", "\u2581",
    " \u2581 \u2581", "##a", "<0x41>", "<0xE4>", "</w>", "<unk>", "Ġ", "Ċ", "x" * 300, "ab " * 100,
    "=" * 99, " " * 99, "\n" * 99, "é" * 99, "中" * 99, "😀" * 50, "don't DON'T", "do not",
    "\U0010ffff", "\ue000", "\u0378", "ſ", "K", "ǅ", "İI", "ß", "\u1734", "\u05f3\u0483",
    "A\u030a\u0328", "\ud7a3\u11a8",
]
MARKERS = [
    "[MASK]", "[CLS]", " [MASK] ", "<mask>", "  <mask>  ", "<s>", "</s>", "<|endoftext|>",
    "<|im_start|>user\n", "<|begin_of_text|>", "[INST]", "<start_of_turn>", "<extra_id_1>",
    " <extra_id_2>  ", "[W]", "a[W]b", " [W] x", "Word", "Words", "École", "ÉCOLE", "ecole",
    "|||IP_ADDRESS|||", "    ", "\n\n\n", "[MASK", "<mas", "[UNK]", "<pad>",
]
SMALL = [" ", "  ", "\n", "\t", "\r\n", "'", ".", ",", "-", "_", "(", "\u00a0", "\u0301", "\u2581"]


def corpus():
    """What the vocabularies are learnt from: Python's own help, prose and code, and the samples."""
    return [*pydoc_data.topics.topics.values()] + MIXED.splitlines() * 8


def mixtures(seed, count):
    """Random texts: pieces of the samples, markers, and characters of all blocks that Unicode 8 knew."""
    random_ = random.Random(seed)
    lines = MIXED.splitlines(keepends=True)
    blocks = [
        (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x500),
        (0x5D0, 0x5EB), (0x620, 0x660), (0x905, 0x93A), (0xE01, 0xE3B), (0x1100, 0x1200),
        (0x1E00, 0x1F00), (0x2010, 0x2070), (0x20A0, 0x20B5), (0x2150, 0x2190), (0x2460, 0x2500),
        (0x3040, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xF900, 0xFA00), (0xFB00, 0xFB07),
        (0xFF01, 0xFF5F), (0x1D400, 0x1D455), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0, 0x20),
    ]

    def piece():
        kind = random_.random()
        if kind < 0.4:
            line = random_.choice(lines)
            begin = random_.randrange(len(line))
            return line[begin:begin + random_.randrange(1, 30)]
        if kind < 0.5:
            return random_.choice(MARKERS)
        if kind < 0.6:
            return random_.choice(AWKWARD)[:40]
        if kind < 0.75:
            return random_.choice(SMALL)
        first, last = random_.choice(blocks)
        return "".join(chr(random_.randrange(first, last)) for _ in range(random_.randrange(1, 6)))
    return ["".join(piece() for _ in range(random_.randrange(1, 12))) for _ in range(count)]


def everything():
    newer = (0x32FF, 0xA7F2, 0xA7F3, 0xA7F4, 0xAB69)  # whose normal forms the package does not know
    known = [c for c in range(0x10000) if unicodedata.category(chr(c)) not in ("Cn", "Cs") and c not in newer]
    everywhere = "".join(f"a{chr(c)} " for c in known)
    return [*AWKWARD, everywhere, *MARKERS, *MIXED.splitlines(), MIXED,
            *(a + b for a in MARKERS for b in (" x", "x", " [MASK]"))]
