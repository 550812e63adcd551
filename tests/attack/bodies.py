"""Bodies that aim at fields: the largest legal value of each, wrong ones of the same size, and broken JSON.

    spot(s) + size --> prefix of the field + filler by bytes repetition + suffix --> one body of that size

Nothing here builds a list of Python objects: 32 MiB are made in some milliseconds.
"""

import functools
import random
from typing import NamedTuple

from tests.attack.kinds import Flag, Id, Json, Kind, List, Map, Object, Real, Spot, Text, Value, Whole, Word
from tests.attack.surface import shared_list

# Texts that are hard on whoever copies, escapes, splits, folds or stems them.
LETTERS = [b"a", b" ", b"a ", b"\\u0001", b'\\"', "ä".encode(), b"\\ud83d\\ude00", b".a", b"[]", b"\xe1\xbd\xa0", "ισαισαν ".encode(), b"\\u0000"]
NESTS = [(b"[", b"]", b"1"), (b'{"a":', b"}", b"1"), (b'{"must":', b"}", b"[]"), (b'{"must":[', b"]}", b""), (b'{"nested":{"key":"a","filter":', b"}}", b"{}")]
FORMS = [*["large"] * 8, "wrong", "wrong", "deep", "cut", "utf8", "nan", "digits", "twice", "over", "unknown"]
MALFORMED = ("wrong", "cut", "utf8", "nan", "digits", "twice", "deep")


class Body(NamedTuple):
    text: bytes
    form: str


@functools.lru_cache(12)
def distinct(pattern: bytes, size: int) -> bytes:
    """Different items of so many bytes, with commas between them."""
    each = len(pattern % 9_000_000) + 1
    return b",".join(map(pattern.__mod__, range(1_000_000, 1_000_002 + size // each)))


def items(pattern: bytes, size: int) -> bytes:
    """The first of them. What is cached has a round size, so that many bodies are cut from one."""
    every = distinct(pattern, 1 << max(size, 16).bit_length())
    return every[: every.rfind(b",", 0, max(size, 16))]


def times(part: bytes, size: int, comma: bool = False) -> bytes:
    """A part as often as fits, at least once."""
    if not comma:
        return part * max(1, size // len(part))
    return (part + b",") * max(0, size // (len(part) + 1) - 1) + part


def text(rnd: random.Random, size: int) -> bytes:
    if rnd.random() < 0.25:
        return b'"' + items(b"w%d", size).replace(b",", b" ") + b'"'
    return b'"' + times(rnd.choice(LETTERS), size - 2) + b'"'


def digits(rnd: random.Random, size: int) -> bytes:
    return rnd.choice([b"", b"-", b"0.", b"1e", b"1.5e-", b"0.0000"]) + times(rnd.choice([b"9", b"1"]), size)


def json_object(rnd: random.Random, size: int) -> bytes:
    return rnd.choice(
        [
            lambda: b"{" + items(b'"k%d":1', size) + b"}",
            lambda: b'{"text":' + text(rnd, size) + b"}",
            lambda: b'{"word":[' + items(b'"w%d"', size) + b"]}",
            lambda: b'{"count":[' + items(b"%d", size) + b"]}",
            lambda: b'{"text":[' + times(b'"the quick brown fox ' + b"x" * 200 + b'"', size, True) + b"]}",
            lambda: b'{"a":' * 60 + b'"' + times(b"b", size) + b'"' + b"}" * 60,
            lambda: b'{"objects":[' + times(b'{"a":1,"word":"red"}', size, True) + b"]}",
        ]
    )()


def legal(kind: Kind, rnd: random.Random, size: int) -> bytes:
    """A value of about that size, of the right type as far as the type can be large."""
    match kind:
        case Text():
            return text(rnd, size)
        case Id():
            return b'"' + times(b"0", size) + b'"' if rnd.random() < 0.3 else digits(rnd, size)
        case Whole() | Real():
            return digits(rnd, size)
        case Json():
            return json_object(rnd, size)
        case List(of=Whole() | Id()):
            return b"[" + (items(b"%d", size) if rnd.random() < 0.8 else times(kind.of.example(), size, True)) + b"]"
        case List(of=Real()):
            return b"[" + (items(b"0.%d", size) if rnd.random() < 0.5 else times(rnd.choice([b"0", b"1e38"]), size, True)) + b"]"
        case List(of=Text()):
            return b"[" + (items(b'"w%d"', size) if rnd.random() < 0.5 else times(rnd.choice([b'""', kind.of.example()]), size, True)) + b"]"
        case List():
            return b"[" + times(kind.of.example(), size, True) + b"]"
        case Map():
            one = b'"k%d":' + kind.of.example().replace(b"%", b"%%")
            return b"{" + items(one, size) + b"}"
        case Object():
            if kind.loud and rnd.random() < 0.5:
                return b"{" + kind.loud + b'"unread":' + text(rnd, size) + b"}"
            return b"{" + items(b'"k%d":1', size) + b"}"
        case Flag() | Word():
            return text(rnd, size)
        case Value(legal=list()):
            return b"[" + times(kind.example()[1:-1], size, True) + b"]"
        case Value(legal=dict(legal)) if "must" in legal:
            return b'{"must":[' + times(kind.example(), size, True) + b"]}"
        case Value():
            return json_object(rnd, size)
    raise TypeError(kind)


def wrong(kind: Kind, rnd: random.Random, size: int) -> bytes:
    """A value of another type."""
    others = [k for k in (Text(""), Whole(1), Json({}), List(Whole(1)), List(Text("")), List(List(Real(0.5)))) if type(k) is not type(kind)]
    return legal(rnd.choice(others), rnd, size)


def deep(rnd: random.Random, size: int, closed: bool) -> bytes:
    opening, closing, inner = rnd.choice(NESTS)
    if not closed:
        return times(opening, size)
    count = max(1, size // (len(opening) + len(closing)))
    return opening * count + inner + closing * count


def around(spot: Spot, value: bytes, layers=None) -> bytes:
    layers = spot.layers if layers is None else layers
    return b"".join(layer.before for layer in layers) + value + b"".join(layer.after for layer in reversed(layers))


def repeated(spot: Spot, rnd: random.Random, size: int, layers) -> bytes | None:
    """The field in a small form, but an item that holds it stands there as often as fits."""
    lists = [at for at, layer in enumerate(layers) if layer.one is not None]
    if not lists:
        return None
    at = rnd.choice(lists)
    inner = around(spot, legal(spot.kind, rnd, rnd.choice([1, 40, 300])), layers[at + 1 :])
    outer = layers[at]
    if outer.key:  # of a map: the name goes with it
        one = times(outer.key + b":" + inner, size, True)
        return around(spot, b"{" + one + b"}", layers[:at])
    return around(spot, times(inner, size, True), layers[: at + 1])


def fill(spot: Spot, form: str, rnd: random.Random, size: int, layers) -> bytes:
    if form == "wrong":
        return around(spot, wrong(spot.kind, rnd, size), layers)
    if form == "deep":
        return around(spot, deep(rnd, size, rnd.random() < 0.7), layers)
    if form == "digits":
        return around(spot, digits(rnd, size), layers)
    if form == "nan":
        return around(spot, b"[" + times(rnd.choice([b"NaN", b"Infinity", b"-Infinity", b"1e999", b"nul"]), size, True) + b"]", layers)
    if form == "utf8":
        return around(spot, b'"' + times(rnd.choice([b"\xff", b"\xc3", b"a\xed\xa0\x80", b"\\ud800", b"\\x"]), size) + b'"', layers)
    if form == "twice" and layers and (key := next((layer.key for layer in reversed(layers) if layer.key), b"")):
        at = max(n for n, layer in enumerate(layers) if layer.key == key)
        one = key + b":" + around(spot, spot.kind.example(), layers[at + 1 :])
        return around(spot, b"{" + times(one, size, True) + b"}", layers[:at])
    if form == "unknown" and layers and layers[0].key:
        whole = around(spot, spot.kind.example(), layers)
        more = rnd.choice([lambda: b'"u":' + text(rnd, size), lambda: text(rnd, size) + b":1", lambda: items(b'"u%d":[]', size), lambda: b'"u":' + deep(rnd, size, True)])
        return whole[:-1] + b"," + more() + b"}"
    if rnd.random() < 0.5 and (many := repeated(spot, rnd, size, layers)) is not None:
        return many
    return around(spot, legal(spot.kind, rnd, size), layers)


def size_of(form: str, rnd: random.Random, most: int) -> int:
    """At least half of the limit, nearer to half: what cannot fit the budget is refused before it is read. Malformed ones may
    be smaller, so that several get in at a time."""
    if form == "over":
        return int(most * rnd.uniform(1.01, 1.5))
    if form in MALFORMED and rnd.random() < 0.5:
        return int(most * rnd.uniform(0.01, 0.4))
    return int(most * (0.52 + 0.47 * rnd.random() ** 2))


def draw(spots: list[Spot], rnd: random.Random, most: int, loud: bytes = b"") -> Body:
    """A body of at least half of `most`, or one that is malformed. The spots stand in it side by side."""
    form = rnd.choice(FORMS)
    size = size_of(form, rnd, most)
    first = spots[0]
    if len(spots) == 1 or not first.layers:
        whole = fill(first, form, rnd, size, first.layers)
    elif depth := shared_list(first, spots[1]):
        each = [fill(spot, form, rnd, size // len(spots), spot.layers[depth:]) for spot in spots]
        whole = around(first, b",".join(each), first.layers[:depth])
    else:
        each = [fill(spot, form, rnd, size // len(spots), spot.layers)[1:-1] for spot in spots]
        whole = b"{" + b",".join(part for part in each if part) + b"}"
    if loud and whole.startswith(b"{") and len(whole) > 2 and rnd.random() < 0.6:
        whole = b"{" + loud + whole[1:]
    if form == "cut":
        whole = whole[: rnd.randrange(len(whole) * 6 // 10, len(whole))]
    if len(whole) > most and form != "over":
        form += " over"
    if len(whole) < most // 2 and form not in MALFORMED:
        whole += b" " * (most * 52 // 100 - len(whole))
    return Body(whole, form)
