"""Payloads and filters drawn by chance, as JSON; and the same filters as objects of `qdrant-edge-py`.

    payload   k words, i integers, f floats, b booleans, t times, g places, u UUIDs, x text, n objects, m anything:
              each may be missing, null, one value, or an array of some
    odd       values that an index of their kind does not hold as they are: 2.0 and 2.5 among integers, numbers beyond 2^53,
              -0.0, places that are not on the earth or at its poles, UUIDs in all their forms, words too long for a key
    filter    every condition of the API, joined three deep
"""

import random

WORDS = ["red", "green", "blue", "Blue", "dark blue", "x", "", "1", "über"]
TEXTS = ["The quick brown fox", "quick, brown dog", "a lazy dog sleeps", "Über den Wolken", "fox-trot", "", "dog dog dog"]
TIMES = ["2020-01-01", "2020-06-15T12:30:00Z", "2021-01-01 00:00:00", "2021-03-04T05:06:07.5+02:00", "2019-12-31T23:59", "never"]
PLACES = [(13.4, 52.5), (11.6, 48.1), (-0.1, 51.5), (179.9, -16.0), (-179.9, -17.0), (0.0, 0.0), (2.35, 48.85)]
IDS = [
    "550e8400-e29b-41d4-a716-446655440000",
    "550E8400-E29B-41D4-A716-446655440000",
    "550e8400e29b41d4a716446655440000",
    "urn:uuid:550e8400-e29b-41d4-a716-446655440000",
    "650e8400-e29b-41d4-a716-446655440000",
]
ODD = {
    "k": ["x" * 240, "x" * 241, "x" * 240 + "y", 1, 2.5, True, ["red"], {"a": 1}],
    "i": [2.0, 2.5, -0.0, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63, 1e300, "red", "2020-01-01", True, [1]],
    "f": [-0.0, 2, 2**53 + 1, 2**63, 1e300, -1e300, "2020-01-01", 5e-324],
    "b": ["true", 1, 0],
    "t": [1577836800000000, "20200101", 0, "2020-01-01T00:00:00+01", 5],
    "g": [{"lon": 373.4, "lat": 52.5}, {"lon": 200, "lat": 0}, {"lon": 0, "lat": 91}, {"lon": 0, "lat": 90}, {"lon": 13, "lat": -90}, {"lon": -0.0, "lat": -0.0},
          {"lon": 180, "lat": 0}, {"lon": -180, "lat": 0}, {"lon": "1", "lat": 2}],
    "u": ["red", 5, "550e8400"],
    "x": [5, ["dog"], "fox " * 90, "x" * 300],
}  # fmt: skip
PATHS = ["k", "i", "f", "b", "t", "g", "u", "x", "m", "k[]", "i[]", "n[].a", "n[].b", "n[].c[].d", "n[0].a", "n.a", "o.p", 'o."q r"', "zz", "m[].a"]


def place(rnd: random.Random) -> dict:
    lon, lat = rnd.choice(PLACES)
    return {"lon": lon, "lat": lat}


def scalar(rnd: random.Random, kind: str, odd: bool = False):
    if odd and kind in ODD and rnd.random() < 0.15:
        return rnd.choice(ODD[kind])
    match kind:
        case "k":
            return rnd.choice(WORDS)
        case "i":
            return rnd.randint(-4, 6)
        case "f":
            return rnd.choice([rnd.uniform(-3, 5), float(rnd.randint(-3, 5))])
        case "b":
            return rnd.random() < 0.5
        case "t":
            return rnd.choice(TIMES)
        case "g":
            return place(rnd)
        case "u":
            return rnd.choice(IDS)
        case "x":
            return rnd.choice(TEXTS)
        case "n":
            inner = {"a": value(rnd, "i"), "b": value(rnd, "k"), "c": [{"d": rnd.randint(0, 3)} for _ in range(rnd.randint(0, 2))]}
            return {key: inner[key] for key in inner if rnd.random() < 0.7}
    return scalar(rnd, rnd.choice("kifbtguxn" if odd else "kifbtgxn"), odd)


def value(rnd: random.Random, kind: str, odd: bool = False):
    """One value, several, or none of some sort."""
    chance = rnd.random()
    if chance < 0.08:
        return None
    if chance < 0.35 or kind == "n" and chance < 0.9:
        many = [scalar(rnd, kind, odd) for _ in range(rnd.randint(0, 3))]
        return [*many, None] if rnd.random() < 0.1 else many
    return scalar(rnd, kind, odd)


def payload(rnd: random.Random, mixed: bool = True, odd: bool = False) -> dict:
    """`mixed`: arrays of objects hold other things, too. `odd`: with values that an index does not hold as they are."""
    made = {kind: value(rnd, kind, odd) for kind in ("kifbtguxnm" if odd else "kifbtgxnm") if rnd.random() < 0.7}
    if not mixed and isinstance(made.get("n"), list):
        made["n"] = [item for item in made["n"] if item is not None]
    if rnd.random() < 0.5:
        made["o"] = {"p": value(rnd, "i"), "q r": value(rnd, "k")}
    return made


def bounds(rnd: random.Random, draw, odd: bool = False) -> dict:
    """One bound or two; of one side both only where the peer has no index: with one it heeds one of them."""
    some = ["gt", "gte", "lt", "lte"] if odd else [rnd.choice(["gt", "gte"]), rnd.choice(["lt", "lte"])]
    return {name: draw() for name in rnd.sample(some, rnd.randint(1, len(some)))}


def ring(rnd: random.Random, least: float, most: float) -> dict:
    lon, lat, size = rnd.uniform(-10, 15), rnd.uniform(40, 52), rnd.uniform(least, most)
    corners = [(lon - size, lat - size), (lon + size, lat - size), (lon + size / 2, lat + size), (lon - size, lat + size / 3)]
    points = [{"lon": max(-180.0, min(180.0, x)), "lat": max(-85.0, min(85.0, y))} for x, y in corners]
    return {"points": [*points, points[0]]}


def match(rnd: random.Random, booleans: bool, odd: bool = False) -> dict:
    words, numbers = (WORDS + IDS + ["x" * 240, "x" * 241], [*range(-4, 7), 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]) if odd else (WORDS, range(-4, 7))
    kind = rnd.choice(["word", "integer", "boolean", "any", "except", "text", "text_any", "phrase", "prefix"])
    match kind:
        case "word":
            return {"value": rnd.choice(words)}
        case "boolean" if booleans:
            return {"value": rnd.random() < 0.5}
        case "integer" | "boolean":
            return {"value": rnd.choice(numbers)}
        case "any" | "except":
            some = rnd.sample(words, rnd.randint(0, 4)) if rnd.random() < 0.5 else rnd.sample(numbers, rnd.randint(1, 4))
            return {kind: some}
        case "prefix":
            return {"prefix": rnd.choice(["b", "Bl", "da", "", "q", *(["x" * 240, "x" * 241, "550E"] if odd else [])])}
    return {kind: rnd.choice(["quick", "brown fox", "dog", "Quick DOG", "über", "qui", "", "lazy fox", "dog dog"])}


def test(rnd: random.Random, booleans: bool, empties: bool, odd: bool = False) -> dict:
    kind = rnd.choice(["match"] * 4 + ["range", "range", "times", "count", "box", "radius", "polygon"] + ["is_empty", "is_null"] * empties)
    match kind:
        case "match":
            return {"match": match(rnd, booleans, odd)}
        case "range":
            edges = [0, -0.0, 2**53, 2**53 + 2, 1e200, 2.0**63, -(2.0**63), 1577836800000000] if odd and rnd.random() < 0.3 else []
            return {"range": bounds(rnd, lambda: rnd.choice(edges or [rnd.uniform(-3, 5), rnd.randint(-3, 5)]), odd)}
        case "times":
            return {"range": bounds(rnd, lambda: rnd.choice(TIMES[:-1]), odd)}
        case "count":
            return {"values_count": bounds(rnd, lambda: rnd.randint(0, 3))}
        case "box":
            west, east = (rnd.uniform(-20, 0), rnd.uniform(1, 20)) if rnd.random() < 0.8 else (179.0, -179.0)
            return {"geo_bounding_box": {"top_left": {"lon": west, "lat": rnd.uniform(45, 60)}, "bottom_right": {"lon": east, "lat": rnd.uniform(-20, 44)}}}
        case "radius":
            center = {"lon": rnd.choice([0, 180, -180]), "lat": rnd.choice([0, 90, -90, 89.9])} if odd and rnd.random() < 0.3 else place(rnd)
            return {"geo_radius": {"center": center, "radius": rnd.choice([1.0, 1e5, 7e5, 1e6, 5e6])}}
        case "polygon":
            return {"geo_polygon": {"exterior": ring(rnd, 3, 20), "interiors": [ring(rnd, 0.5, 2)] if rnd.random() < 0.5 else []}}
    return {kind: rnd.random() < 0.5}


def condition(rnd: random.Random, ids: list, depth: int, booleans: bool, nested: bool, odd: bool, mixed: bool) -> dict:
    kind = rnd.choice(["field"] * 8 + ["is_empty", "is_null"] + ["has_id", "has_vector", "nested", "nested", "filter", "slice"])
    match kind:
        case "is_empty" | "is_null":
            return {kind: {"key": rnd.choice(PATHS)}}
        case "has_id" if not nested:
            return {"has_id": rnd.sample(ids, min(len(ids), rnd.randint(0, 12)))}
        case "has_vector" if not nested:
            return {"has_vector": rnd.choice(["", "none"])}
        case "slice" if not nested:
            total = rnd.randint(1, 5)
            return {"slice": {"total": total, "index": rnd.randrange(total)}}
        case "nested" if depth > 0:
            key = rnd.choice(["c", "c[]"]) if nested else rnd.choice(["n", "n[]", "m" if mixed else "n"])
            return {"nested": {"key": key, "filter": draw(rnd, ids, depth - 1, booleans, True, odd, mixed)}}
        case "filter" if depth > 0:
            return draw(rnd, ids, depth - 1, booleans, nested, odd, mixed)
    key = rnd.choice(["a", "b", "c[].d", "d", "zz"]) if nested else rnd.choice(PATHS)
    # Several tests of one field: one that passes is enough.
    tests = [test(rnd, booleans, True, odd) for _ in range(1 if rnd.random() < 0.85 or not odd else 3)]
    return {"key": key} | {name: one[name] for one in tests for name in one}


def draw(
    rnd: random.Random, ids: list, depth: int = 2, booleans: bool = True, nested: bool = False, odd: bool = False, mixed: bool = True
) -> dict:
    """A filter. `booleans`: with matches of booleans. `nested`: for the objects of an array. `odd`: for odd payloads.
    `mixed`: with arrays of objects that hold other things, too."""
    some = lambda most: [condition(rnd, ids, depth, booleans, nested, odd, mixed) for _ in range(rnd.randint(1, most))]  # noqa: E731
    made = {part: some(most) for part, most, chance in [("must", 2, 0.6), ("should", 3, 0.4), ("must_not", 2, 0.3)] if rnd.random() < chance}
    if rnd.random() < 0.1:
        made["min_should"] = {"conditions": some(4), "min_count": rnd.randint(1, 3)}
    if rnd.random() < 0.2 and "must" in made:
        made["must"] = made["must"][0]  # one alone will do
    return made


def indexes(rnd: random.Random) -> dict:
    """An index of most paths, as the body of a request has it: usually of the kind that stands there, else of any."""
    kinds = {
        "k": ["keyword", "text", "uuid"], "k[]": ["keyword"], "i": ["integer", "float"], "i[]": ["integer"], "f": ["float", "integer"],
        "b": ["bool"], "t": ["datetime", "keyword"], "g": ["geo"], "u": ["uuid", "keyword"], "x": ["text", "keyword"], "m": ["keyword", "integer", "float", "text", "bool", "geo"],
        "m[].a": ["integer"], "n[].a": ["integer"], "n[].b": ["keyword"], "n[].c[].d": ["integer"], "n[0].a": ["float"], "n.a": ["integer"],
        "o.p": ["integer"], 'o."q r"': ["keyword"], "zz": ["keyword"],
    }  # fmt: skip
    every = ["keyword", "integer", "float", "bool", "datetime", "uuid", "geo", "text"]
    made = {path: {"type": rnd.choice(some if rnd.random() < 0.75 else every)} for path, some in kinds.items() if rnd.random() < 0.8}
    for schema in made.values():
        if schema["type"] == "integer" and rnd.random() < 0.4:
            schema[rnd.choice(["lookup", "range"])] = False
        if schema["type"] == "text":
            schema["tokenizer"] = rnd.choice(["word", "whitespace", "prefix"])
            schema |= {"phrase_matching": True} if rnd.random() < 0.4 else {}
            schema |= {"lowercase": False} if rnd.random() < 0.3 else {}
            schema |= {"min_token_len": 2, "max_token_len": rnd.randint(3, 6)} if rnd.random() < 0.4 else {}
            schema |= {"ascii_folding": True} if rnd.random() < 0.3 else {}
            schema |= {"stemmer": {"type": "snowball", "language": rnd.choice(["english", "german"])}} if rnd.random() < 0.3 else {}
            custom = rnd.sample(["Fox", "dog", "den"], rnd.randint(0, 2))
            schema |= {"stopwords": {"languages": rnd.choice([[], ["english"]]), "custom": custom}} if rnd.random() < 0.3 else {}
    return made


def is_as_without(schema: dict) -> bool:
    """Whether an index has the words that texts have without one."""
    return schema["type"] != "text" or schema["tokenizer"] == "word" and set(schema) <= {"type", "tokenizer", "phrase_matching"}


def asks_words(one: dict) -> bool:
    return bool({"text", "text_any", "phrase"} & set(one.get("match", {})))


def conditions(filter: dict) -> list[dict]:
    """All conditions of a filter that hold no filter themselves."""
    listed = [filter.get(part) or [] for part in ("must", "should", "must_not")] + [(filter.get("min_should") or {}).get("conditions", [])]
    found = []
    for one in [one for some in listed for one in (some if isinstance(some, list) else [some])]:
        inner = one["nested"]["filter"] if "nested" in one else one
        found += conditions(inner) if set(inner) <= {"must", "should", "must_not", "min_should"} else [one]
    return found


# The same for qdrant-edge-py.


def to_edge_index(schema: dict):
    import qdrant_edge as edge

    params = {key: value for key, value in schema.items() if key != "type"}
    match schema["type"]:
        case "integer" if params:
            return edge.IntegerIndexParams(**{"lookup": True, "range": True, **params})
        case "text":
            params["tokenizer"] = getattr(edge.TokenizerType, params["tokenizer"].capitalize())
            if "stemmer" in params:
                params["stemmer"] = edge.SnowballParams(getattr(edge.SnowballLanguage, params["stemmer"]["language"].capitalize()))
            if "stopwords" in params:
                said = params["stopwords"]
                languages = {getattr(edge.Language, name.capitalize()) for name in said["languages"]}
                params["stopwords"] = edge.StopwordsSet(languages=languages, custom=set(said["custom"]))
            return edge.TextIndexParams(**params)
    return getattr(edge.PayloadSchemaType, schema["type"].capitalize())


def to_edge(filter: dict):
    import qdrant_edge as edge

    def conditions(listed):
        return None if listed is None else [one(c) for c in (listed if isinstance(listed, list) else [listed])]

    def point(p):
        return edge.GeoPoint(lon=p["lon"], lat=p["lat"])

    def points(r):
        return [point(p) for p in r["points"]]

    def matched(m):
        kinds = {
            "value": edge.MatchValue,
            "any": edge.MatchAny,
            "except": edge.MatchExcept,
            "text": edge.MatchText,
            "text_any": edge.MatchTextAny,
            "phrase": edge.MatchPhrase,
            "prefix": edge.MatchPrefix,
        }
        ((kind, asked),) = m.items()
        return kinds[kind](asked)

    def spanned(make, span):
        return make(**{name: span.get(name) for name in ("gt", "gte", "lt", "lte")})

    def tested(c):
        return {name: value for kind, asked in c.items() if kind != "key" for name, value in one_test(kind, asked).items()}

    def one_test(kind, asked):
        match kind:
            case "match":
                return {"match": matched(asked)}
            case "range":
                is_time = any(isinstance(bound, str) for bound in asked.values())
                return {"range": spanned(edge.RangeDateTime if is_time else edge.RangeFloat, asked)}
            case "values_count":
                return {"values_count": spanned(edge.ValuesCount, asked)}
            case "geo_bounding_box":
                return {kind: edge.GeoBoundingBox(point(asked["top_left"]), point(asked["bottom_right"]))}
            case "geo_radius":
                return {kind: edge.GeoRadius(point(asked["center"]), asked["radius"])}
            case "geo_polygon":
                return {kind: edge.GeoPolygon(points(asked["exterior"]), [points(r) for r in asked["interiors"]])}
        return {kind: asked}

    def one(c):
        if "key" in c:
            return edge.FieldCondition(c["key"], **tested(c))
        if "is_empty" in c:
            return edge.IsEmptyCondition(c["is_empty"]["key"])
        if "is_null" in c:
            return edge.IsNullCondition(c["is_null"]["key"])
        if "has_id" in c:
            return edge.HasIdCondition(set(c["has_id"]))
        if "has_vector" in c:
            return edge.HasVectorCondition(c["has_vector"])
        if "slice" in c:
            return edge.SliceCondition(**c["slice"])
        if "nested" in c:
            return edge.NestedCondition(c["nested"]["key"], to_edge(c["nested"]["filter"]))
        return to_edge(c)

    least = filter.get("min_should")
    return edge.Filter(
        must=conditions(filter.get("must")),
        should=conditions(filter.get("should")),
        must_not=conditions(filter.get("must_not")),
        min_should=edge.MinShould(conditions(least["conditions"]), least["min_count"]) if least else None,
    )
