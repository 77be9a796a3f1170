"""Which scripts a language is written in, by Unicode's `Script` property of characters.

Digits, punctuation, signs and emoji are of no script in particular and belong to all languages. Languages that share a
script cannot be told apart by it.
"""

from collections.abc import Collection, Iterable

from tokenizers import Regex, normalizers

SCRIPTS = {
    "Arabic": "ar fa ku ps sd ug ur",
    "Armenian": "hy",
    "Bengali": "as bn",
    "Cyrillic": "be bg kk ky mk mn ru sr tg tt uk",
    "Devanagari": "hi mr ne sa",
    "Ethiopic": "am",
    "Georgian": "ka",
    "Greek": "el",
    "Gujarati": "gu",
    "Gurmukhi": "pa",
    "Han": "ja zh",
    "Hangul": "ko",
    "Hebrew": "he yi",
    "Hiragana": "ja",
    "Kannada": "kn",
    "Katakana": "ja",
    "Khmer": "km",
    "Lao": "lo",
    "Latin": (
        "af az br bs ca cs cy da de en eo es et eu fi fr fy ga gd gl ha hr hu id is it jv ku la lt lv mg ms nb nl nn "
        "no om pl pt ro sk sl so sq sr su sv sw tl tr uz vi xh zu"
    ),
    "Malayalam": "ml",
    "Myanmar": "my",
    "Oriya": "or",
    "Sinhala": "si",
    "Tamil": "ta",
    "Telugu": "te",
    "Thai": "th",
}
"""By script: the ISO 639 codes of the languages that are written in it; those of XLM-R, and a few."""
LANGUAGES = tuple(sorted({code for codes in SCRIPTS.values() for code in codes.split()}))
"""Codes of the languages that are known here."""
_SHARED = ("Common", "Inherited")


def unknown(languages: Iterable[str]) -> list[str]:
    """Return the codes that are not known here."""
    return sorted(set(languages) - set(LANGUAGES))


def characters(among: Collection[str], languages: Iterable[str], *, shared: bool) -> set[str]:
    """Return those of some characters that are of a script of the languages.

    Args:
        among: the characters.
        languages: known codes.
        shared: whether characters of no script in particular are among them.
    """
    wanted = set(languages)
    scripts = [script for script, codes in SCRIPTS.items() if wanted & set(codes.split())]
    classes = "".join(rf"\p{{{name}}}" for name in (*scripts, *(_SHARED if shared else ())))
    # The library's own tables, which also decide what its patterns match.
    return set(normalizers.Replace(Regex(f"[^{classes}]"), "").normalize_str("".join(sorted(among))))
