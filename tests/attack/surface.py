"""Every endpoint that is built, with each field that it reads: paths, methods, types and bounds, written down once more.

    ENDPOINTS --> (method, path, who may ask, body)      compared with the server's own table of routes by a test
    aims()    --> endpoint x field                        what an attack aims at

The table is written from the documentation, not made from the server's source: a field that the server forgot to bound
is one that its own table would forget, too.
"""

from dataclasses import dataclass
from typing import Iterator

from tests.attack.kinds import Either, Flag, Id, Json, Kind, List, Map, Object, Real, Spot, Text, Value, Whole, Word

DIM = 16
BASE = "base"  # read by all, written by nobody
SCRATCH = "scratch"  # written by all
NAME_MAX = 255
QUERY = Value([0.5] * DIM)
HEADERS_MAX = 16 << 10

PATH = Text("word")
MEMORY = Word("cold", "cached", "pinned")
POINT = Object({"lon": Real(13.4), "lat": Real(52.5)})
RING = Object({"points": List(POINT)})
CORNERS = Value({"points": [{"lon": x, "lat": y} for x, y in [(0, 0), (9, 0), (9, 9), (0, 0)]]})


def on_field(name: str, kind: Kind, key: str = "word") -> Object:
    return Object({"key": Text(key), name: kind})


def matching(name: str, kind: Kind, key: str = "word") -> Object:
    return on_field("match", Object({name: kind}), key)


def bounds(kind: Kind) -> list[Object]:
    return [Object({name: kind}) for name in ("gt", "gte", "lt", "lte")]


# Conditions within conditions are values here: one level of each is enough to aim at, deeper ones are drawn as values.
INNER = {"must": [{"key": "word", "match": {"any": ["a", "b"]}}]}
CONDITION = Either(
    matching("value", Either(Text("red"), Whole(1), Flag())),
    matching("text", Text("quick"), "text"),
    matching("text_any", Text("quick brown"), "text"),
    matching("phrase", Text("quick brown"), "text"),
    matching("prefix", Text("re")),
    matching("any", Either(List(Text("red")), List(Whole(3)))),
    matching("except", Either(List(Text("red")), List(Whole(3)))),
    *(on_field("range", each, "count") for each in bounds(Real(0.5))),
    *(on_field("range", each, "time") for each in bounds(Text("2020-01-01T00:00:00Z"))),
    *(on_field("values_count", each) for each in bounds(Whole(2))),
    on_field("geo_bounding_box", Object({"top_left": POINT, "bottom_right": POINT}), "place"),
    on_field("geo_radius", Object({"center": POINT, "radius": Real(1e5)}), "place"),
    on_field("geo_polygon", Object({"exterior": RING}, {"interiors": List(CORNERS)}), "place"),
    on_field("geo_polygon", Object({"exterior": CORNERS}, {"interiors": List(CORNERS)}), "place"),
    on_field("is_empty", Flag()),
    on_field("is_null", Flag()),
    Object({"is_empty": Object({"key": PATH})}),
    Object({"is_null": Object({"key": PATH})}),
    Object({"has_id": List(Id(7))}),
    Object({"has_vector": Text("")}),
    Object({"slice": Object({"total": Whole(4), "index": Whole(1)})}),
    Object({"nested": Object({"key": Text("objects"), "filter": Value(INNER)})}),
    Value(INNER),
)
SOME = List(Value(INNER["must"][0]))
FILTER = Object(
    {}, {"must": List(CONDITION), "should": SOME, "must_not": SOME, "min_should": Object({"conditions": SOME, "min_count": Whole(1)})}
)

WITH_PAYLOAD = Either(Flag(), List(PATH), Object({"include": List(PATH)}), Object({"exclude": List(PATH)}))
WITH_VECTOR = Either(Flag(), List(Text("")))
PARTS = {"with_payload": WITH_PAYLOAD, "with_vector": WITH_VECTOR, "with_vectors": WITH_VECTOR, "shard_key": Text("a")}
LOUD = b'"limit":1000,"with_payload":true,"with_vector":true,'
ORDER = Either(PATH, Object({"key": Text("count")}, {"direction": Word("asc", "desc"), "start_from": Either(Real(1.5), Text("2020-01-01"))}))
PARAMS = Object(
    {},
    {
        "hnsw_ef": Whole(64),
        "exact": Flag(),
        "indexed_only": Flag(),
        "max_reads": Whole(100),
        "quantization": Object({}, {"ignore": Flag(), "rescore": Flag(), "oversampling": Real(2.0)}),
        "acorn": Object({}, {"enable": Flag(), "max_selectivity": Real(0.4)}),
        "idf": Json({"corpus": {}}),
    },
)
SHARED = {"limit": Whole(10), "offset": Whole(0), "score_threshold": Real(0.1), "params": PARAMS, "filter": FILTER, "profile": Flag(), **PARTS}
VECTOR = Either(List(Real(0.5)), Value([0.5] * DIM))
# Inference, and kinds of queries that are not built.
UNBUILT_QUERIES = ["text", "image", "object", "model", "recommend", "discover", "context", "fusion", "rrf", "formula", "sample", "relevance_feedback"]
SEARCHED = Object(
    {},
    {
        "query": Either(
            VECTOR,
            Id(7),
            Object({"nearest": Either(VECTOR, Id(7))}, {"mmr": Json({"diversity": 0.5})}),
            Object({"order_by": ORDER}),
            Object({"indices": List(Whole(1)), "values": List(Real(0.5))}),
            Object({}, {name: Json({"a": 1}) for name in UNBUILT_QUERIES}),
        ),
        "using": Text("", NAME_MAX),
        "prefetch": List(Value({"query": [0.5]})),
        "lookup_from": Json({"collection": "a"}),
        **SHARED,
    },
    LOUD,
)
SEARCHED_OLDER = Object(
    {"vector": Value([0.5] * DIM), "limit": Whole(10)},
    {"vector": Either(VECTOR, Object({"name": Text("", NAME_MAX), "vector": Value([0.5] * DIM)})), "top": Whole(10), **SHARED},
    b'"with_payload":true,"with_vector":true,',
)
SCROLL = Object({}, {"offset": Id(1), "limit": Whole(10), "filter": FILTER, "order_by": ORDER, **PARTS}, LOUD)

SELECTED = {"points": List(Id(7)), "filter": FILTER, "shard_key": Text("a")}
PAYLOAD = Json({"word": "red", "count": 7, "text": "the quick brown fox"})
NAMED_VECTOR = Either(VECTOR, Map("", VECTOR, 64))
ROW = Object({"id": Id(7), "vector": Value([0.5] * DIM)}, {"vector": NAMED_VECTOR, "vectors": NAMED_VECTOR, "payload": PAYLOAD})
ROW_VECTOR = Object({"id": Id(7), "vector": Value([0.5] * DIM)}, {"vector": NAMED_VECTOR, "vectors": NAMED_VECTOR})
MODIFIERS = {"update_filter": FILTER, "update_mode": Word("upsert", "insert_only", "update_only"), "shard_key": Text("a")}
COLUMN = Either(List(VECTOR), Map("", List(VECTOR), 64))
COLUMNS = Object({"ids": Value([7]), "vectors": Value([[0.5] * DIM])}, {"ids": List(Id(7)), "vectors": COLUMN, "payloads": List(PAYLOAD)})
UPSERT = Object({}, {"points": List(ROW), "batch": COLUMNS, **MODIFIERS})
ONE = {"points": Value([7])}
SET = Object({"payload": PAYLOAD, **ONE}, {"key": PATH, **SELECTED})
DELETE = Object({}, SELECTED)
DELETE_KEYS = Object({"keys": List(PATH), **ONE}, SELECTED)
UPDATE_VECTORS = Object({"points": List(ROW_VECTOR)}, MODIFIERS)
DELETE_VECTORS = Object({"vector": List(Text("", NAME_MAX)), **ONE}, {"vectors": List(Text("", NAME_MAX)), **SELECTED})
# The operations of a batch hold the bodies above: each is aimed at with its values, their own fields where they stand alone.
OPERATIONS = Object(
    {
        "operations": List(
            Either(
                Object({"upsert": Object({"points": List(Value({"id": 7, "vector": [0.5] * DIM}))}, {"update_filter": Value(INNER)})}),
                Object({"delete": Object({}, {"points": List(Id(7)), "filter": Value(INNER)})}),
                *(Object({name: Object({"payload": PAYLOAD, **ONE})}) for name in ("set_payload", "overwrite_payload")),
                Object({"delete_payload": Object({"keys": List(PATH), **ONE})}),
                Object({"clear_payload": Object({"points": List(Id(7))})}),
                Object({"update_vectors": Object({"points": List(Value({"id": 7, "vector": [0.5] * DIM}))})}),
                Object({"delete_vectors": Object({"vector": List(Text("")), **ONE})}),
            ),
            1024,
        )
    }
)

HNSW = Object(
    {},
    {
        **{name: Whole(16) for name in ("m", "ef_construct", "full_scan_threshold", "full_scan_threshold_kb", "max_indexing_threads", "payload_m")},
        "on_disk": Flag(),
        "memory": MEMORY,
        "inline_storage": Flag(),
    },
)
OPTIMIZERS = Object(
    {},
    {
        "deleted_threshold": Real(0.2),
        "vacuum_min_vector_number": Whole(1000),
        "max_optimization_threads": Either(Whole(1), Word("auto")),
        "prevent_unoptimized": Flag(),
        **{name: Whole(2) for name in ("default_segment_number", "max_segment_size", "memmap_threshold", "indexing_threshold", "flush_interval_sec")},
        **{name: Whole(2) for name in ("max_segment_size_kb", "memmap_threshold_kb", "indexing_threshold_kb")},
    },
)
RAM = {"always_ram": Flag(), "memory": MEMORY}
QUANTIZATION = Either(
    Object({"scalar": Object({"type": Word("int8")}, {"quantile": Real(0.9), **RAM})}),
    Object({"product": Object({"compression": Word("x4")}, RAM)}),
    Object({"binary": Object({}, {"encoding": Word("one_bit"), "query_encoding": Word("default"), **RAM})}),
    Object({"turbo": Object({}, {"bits": Word("bits2"), **RAM})}),
)
METADATA = Json({"who": "nobody"}, 64 << 10)
ONE_VECTOR = Object(
    {"size": Whole(4, 65_536), "distance": Word("Dot", "Cosine", "Euclid", "Manhattan")},
    {
        "hnsw_config": HNSW,
        "quantization_config": QUANTIZATION,
        "quantization": QUANTIZATION,
        "on_disk": Flag(),
        "memory": MEMORY,
        "datatype": Word("float16"),
        "multivector_config": Json({"a": 1}),
    },
)
PARAMETERS = {
    **{name: Whole(1) for name in ("replication_factor", "write_consistency_factor", "read_fan_out_factor", "read_fan_out_delay_ms")},
    "on_disk_payload": Flag(),
    "payload": Object({}, {"memory": MEMORY}),
}
CREATE = Object(
    {},
    {
        "vectors": Either(ONE_VECTOR, Map("a", ONE_VECTOR, 64)),
        "sparse_vectors": Map("s", Json({})),
        "shard_number": Whole(1),
        "sharding_method": Word("auto"),
        **PARAMETERS,
        "hnsw_config": HNSW,
        "wal_config": Object({}, {name: Whole(1) for name in ("wal_capacity_mb", "wal_segments_ahead", "wal_retain_closed")}),
        "optimizers_config": OPTIMIZERS,
        "optimizer_config": OPTIMIZERS,
        "quantization_config": QUANTIZATION,
        "quantization": QUANTIZATION,
        "strict_mode_config": Json({"enabled": False}),
        "metadata": METADATA,
        "recall": Real(0.9),
    },
)
NEW_QUANTIZATION = Either(QUANTIZATION, Word("Disabled"))
CHANGED_VECTOR = Object(
    {},
    {"hnsw_config": HNSW, "quantization_config": NEW_QUANTIZATION, "quantization": NEW_QUANTIZATION, "on_disk": Flag(), "memory": MEMORY},
)
CHANGE = Object(
    {},
    {
        "vectors": Map("", CHANGED_VECTOR),
        "params": Object({}, PARAMETERS),
        "hnsw_config": HNSW,
        "optimizers_config": OPTIMIZERS,
        "optimizer_config": OPTIMIZERS,
        "quantization_config": NEW_QUANTIZATION,
        "quantization": NEW_QUANTIZATION,
        "strict_mode_config": Json({"enabled": False}),
        "sparse_vectors": Map("s", Json({})),
        "metadata": METADATA,
        "recall": Real(0.9),
    },
)
ALIASES = Object(
    {
        "actions": List(
            Either(
                Object({"create_alias": Object({"collection_name": Text(SCRATCH, NAME_MAX), "alias_name": Text("one", NAME_MAX)})}),
                Object({"rename_alias": Object({"old_alias_name": Text("one", NAME_MAX), "new_alias_name": Text("two", NAME_MAX)})}),
                Object({"delete_alias": Object({"alias_name": Text("two", NAME_MAX)})}),
            ),
            1024,
        )
    }
)
STOP_WORDS = Either(Word("english"), Object({}, {"languages": List(Word("english"), 29), "custom": List(Text("the"), 1000)}))
INDEX = Either(
    Word("keyword", "integer", "float", "geo", "text", "bool", "datetime", "uuid"),
    Object({"type": Word("keyword")}, {"is_tenant": Flag(), "on_disk": Flag(), "memory": MEMORY, "enable_hnsw": Flag(), "prefix": Flag()}),
    Object({"type": Word("integer")}, {"lookup": Flag(), "range": Flag(), "is_principal": Flag(), "on_disk": Flag(), "memory": MEMORY, "enable_hnsw": Flag()}),
    Object(
        {"type": Word("text")},
        {
            "tokenizer": Word("word", "whitespace", "prefix", "multilingual"),
            "min_token_len": Whole(1),
            "max_token_len": Whole(20),
            "lowercase": Flag(),
            "phrase_matching": Flag(),
            "ascii_folding": Flag(),
            "stopwords": STOP_WORDS,
            "stemmer": Either(Object({"type": Word("snowball"), "language": Word("english")}), Object({"type": Word("none")})),
            "on_disk": Flag(),
            "memory": MEMORY,
            "enable_hnsw": Flag(),
        },
    ),
)
KEYS_PLANNED = Object(
    {"keys": Whole(1000)},
    {name: Whole(9) for name in ("versions", "key_bytes", "value_bytes", "watchers", "streams")},
)
PLANNED = Object(
    {"points": Whole(1000, 2**32 - 1), "vectors": Value({"size": 4, "distance": "Dot"})},
    {
        "name": Text("a", NAME_MAX),
        "payload_bytes": Whole(100),
        "fields": Map("word", INDEX, 128),
        "vectors": Either(ONE_VECTOR, Map("a", ONE_VECTOR, 64)),
        "metadata": METADATA,
    },
)

OPEN, READ, WRITE = "Open", "Read", "Write"


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    access: str
    body: Kind | None = None

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    def spots(self) -> Iterator[Spot]:
        """The fields of the body, then the parts of the path, then the options behind it."""
        if self.body is not None:
            yield Spot("(body)", self.body, ())
            yield from self.body.spots()
        for part in self.path.split("/"):
            if part.startswith("{"):
                yield Spot(part, Text(SCRATCH, NAME_MAX), ())
        yield Spot("?", Text("timeout=2"), ())


C = "/collections/{collection_name}"
ENDPOINTS = [
    *(Endpoint("GET", path, OPEN) for path in ("/", "/healthz", "/livez", "/readyz")),
    *(Endpoint("GET", path, READ) for path in ("/telemetry", "/metrics", "/memory", "/collections", "/aliases", "/cluster")),
    *(Endpoint("GET", path, READ) for path in (C, f"{C}/exists", f"{C}/aliases", f"{C}/points/{{id}}")),
    Endpoint("PUT", "/memory", WRITE, Object({"budget": Either(Text("BUDGET"), Whole(1))}, {"persist": Flag()})),
    Endpoint("POST", "/memory/plan", WRITE, Object({"collections": List(PLANNED, 256)}, {"budget": Text("64MiB"), "sample": Text("/x.npy"), "versions": KEYS_PLANNED})),
    Endpoint("PUT", C, WRITE, CREATE),
    Endpoint("PATCH", C, WRITE, CHANGE),
    Endpoint("DELETE", C, WRITE),
    Endpoint("PUT", f"{C}/index", WRITE, Object({"field_name": PATH, "field_schema": INDEX}, {"field_type": INDEX})),
    Endpoint("DELETE", f"{C}/index/{{field_name}}", WRITE),
    Endpoint("POST", "/collections/aliases", WRITE, ALIASES),
    Endpoint("PUT", f"{C}/points", WRITE, UPSERT),
    Endpoint("POST", f"{C}/points", READ, Object({"ids": List(Id(7))}, PARTS, b'"with_payload":true,"with_vector":true,')),
    Endpoint("POST", f"{C}/points/delete", WRITE, DELETE),
    Endpoint("PUT", f"{C}/points/vectors", WRITE, UPDATE_VECTORS),
    Endpoint("POST", f"{C}/points/vectors/delete", WRITE, DELETE_VECTORS),
    Endpoint("POST", f"{C}/points/payload", WRITE, SET),
    Endpoint("PUT", f"{C}/points/payload", WRITE, SET),
    Endpoint("POST", f"{C}/points/payload/delete", WRITE, DELETE_KEYS),
    Endpoint("POST", f"{C}/points/payload/clear", WRITE, DELETE),
    Endpoint("POST", f"{C}/points/batch", WRITE, OPERATIONS),
    Endpoint("POST", f"{C}/points/scroll", READ, SCROLL),
    Endpoint("POST", f"{C}/points/count", READ, Object({}, {"filter": FILTER, "exact": Flag(), "shard_key": Text("a")})),
    Endpoint("POST", f"{C}/facet", READ, Object({"key": PATH}, {"limit": Whole(10), "filter": FILTER, "exact": Flag(), "shard_key": Text("a")})),
    Endpoint("POST", f"{C}/points/query", READ, SEARCHED),
    Endpoint("POST", f"{C}/points/query/batch", READ, Object({"searches": List(SEARCHED, 1024)})),
    Endpoint("POST", f"{C}/points/search", READ, SEARCHED_OLDER),
    Endpoint("POST", f"{C}/points/search/batch", READ, Object({"searches": List(SEARCHED_OLDER, 1024)})),
]


def mergeable(one: Spot, other: Spot) -> bool:
    """Two fields that one body can hold side by side: below two keys of the body, or in two items of one list."""
    return shared_list(one, other) > 0 or bool(one.layers and other.layers and one.layers[0].key and other.layers[0].key not in (b"", one.layers[0].key))


def shared_list(one: Spot, other: Spot) -> int:
    """How many layers two spots share, if the last of these is a list; 0 if there is none."""
    shared = 0
    for depth, (a, b) in enumerate(zip(one.layers[:-1], other.layers[:-1], strict=False), 1):
        if a != b:
            break
        shared = depth if a.one is not None and not a.key and a.before == b"[" else shared
    return shared


def aims() -> dict[tuple[str, str], tuple[Endpoint, list[Spot]]]:
    """Each endpoint x field, with the places where that field may stand."""
    found: dict[tuple[str, str], tuple[Endpoint, list[Spot]]] = {}
    for endpoint in ENDPOINTS:
        for spot in endpoint.spots():
            found.setdefault((endpoint.name, spot.path), (endpoint, []))[1].append(spot)
    return found
