"""What a field holds, in few words: enough to send a legal value of it, the largest one, and a wrong one.

    Whole(1)  Real(0.5)  Flag()  Text("k")  Word("asc", "desc")  Id()  Json()      one value each, with an example
    List(of)  Map(of)  Object(must={...}, may={...})  Either(a, b)                what holds others

`example()` is a legal value as JSON bytes. `spots()` walks to every field below and says what stands around it.
"""

import json
from dataclasses import dataclass, field
from typing import Iterator, NamedTuple


class Layer(NamedTuple):
    """What stands around a field at one level. Where `one` is set, it may stand there many times, with commas."""

    before: bytes
    after: bytes
    one: bytes | None = None
    key: bytes = b""  # in an object: the field's own name, quoted


class Spot(NamedTuple):
    path: str
    kind: "Kind"
    layers: tuple[Layer, ...]


class Kind:
    def example(self) -> bytes:
        raise NotImplementedError

    def spots(self, path: str = "", layers: tuple[Layer, ...] = ()) -> Iterator[Spot]:
        yield Spot(path, self, layers)


@dataclass(frozen=True)
class Value(Kind):
    """One value. `most`: the bound that is named for it, in bytes or as a number."""

    legal: object
    most: int | None = None

    def example(self) -> bytes:
        return json.dumps(self.legal).encode()


class Whole(Value):
    pass


class Real(Value):
    pass


class Text(Value):
    pass


class Id(Value):
    pass


class Json(Value):
    """An object of any fields."""


@dataclass(frozen=True)
class Flag(Kind):
    def example(self) -> bytes:
        return b"false"


class Word(Kind):
    def __init__(self, *words: str):
        self.words = words

    def example(self) -> bytes:
        return json.dumps(self.words[0]).encode()


@dataclass(frozen=True)
class List(Kind):
    of: Kind
    most: int | None = None

    def example(self) -> bytes:
        return b"[" + self.of.example() + b"]"

    def spots(self, path: str = "", layers: tuple[Layer, ...] = ()) -> Iterator[Spot]:
        yield Spot(path, self, layers)
        yield from self.of.spots(path + "[]", (*layers, Layer(b"[", b"]", self.of.example())))


@dataclass(frozen=True)
class Map(Kind):
    """An object whose keys the client chooses; `key` is an example of one."""

    key: str
    of: Kind
    most: int | None = None

    def entry(self) -> bytes:
        return json.dumps(self.key).encode() + b":" + self.of.example()

    def example(self) -> bytes:
        return b"{" + self.entry() + b"}"

    def spots(self, path: str = "", layers: tuple[Layer, ...] = ()) -> Iterator[Spot]:
        yield Spot(path, self, layers)
        name = json.dumps(self.key).encode()
        yield Spot(path + ".{}", Text(self.key), (*layers, Layer(b"{", b":" + self.of.example() + b"}", self.entry())))
        yield from self.of.spots(path + ".*", (*layers, Layer(b"{" + name + b":", b"}", self.entry(), name)))


@dataclass(frozen=True)
class Object(Kind):
    must: dict[str, Kind] = field(default_factory=dict)
    may: dict[str, Kind] = field(default_factory=dict)
    loud: bytes = b""  # fields that make an answer long: `"limit":1000,`

    def example(self) -> bytes:
        return b"{" + b",".join(entry(name, kind) for name, kind in self.must.items()) + b"}"

    def spots(self, path: str = "", layers: tuple[Layer, ...] = ()) -> Iterator[Spot]:
        if path:
            yield Spot(path, self, layers)
        for name, kind in {**self.must, **self.may}.items():
            others = [entry(other, k) + b"," for other, k in self.must.items() if other != name]
            key = json.dumps(name).encode()
            layer = Layer(b"{" + b"".join(others) + key + b":", b"}", None, key)
            yield from kind.spots(f"{path}.{name}" if path else name, (*layers, layer))


def entry(name: str, kind: Kind) -> bytes:
    return json.dumps(name).encode() + b":" + kind.example()


class Either(Kind):
    """One of several forms; the first is the example."""

    def __init__(self, *forms: Kind):
        self.forms = forms

    def example(self) -> bytes:
        return self.forms[0].example()

    def spots(self, path: str = "", layers: tuple[Layer, ...] = ()) -> Iterator[Spot]:
        for form in self.forms:
            yield from form.spots(path, layers)
