"""Indexes of payload fields: made, built, used, kept over restarts and changes, dropped; and what is refused."""

import json
import random
import signal
from datetime import datetime

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from harness.rest import Connection, points_body, request_bytes, wait_green

DIM, POINTS = 256, 3_000  # so that there are segments under a small budget


def put_index(rest, name, field, schema, more=""):
    return rest.must("PUT", f"/collections/{name}/index?wait=true{more}", {"field_name": field, "field_schema": schema})


def fill(rest, name, count=POINTS):
    rnd = np.random.default_rng(3)
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": DIM, "distance": "Dot"}})
    for at in range(0, count, 500):
        payloads = [{"n": i, "w": f"w{i % 7}", "t": [f"word{i % 5} and", "more"]} for i in range(at, at + 500)]
        body = points_body(at, rnd.standard_normal((500, DIM)).astype(np.float32), payloads)
        assert rest.send(request_bytes("PUT", f"/collections/{name}/points?wait=true", body)).status == 200
    wait_green(rest, name, 60)


def count(rest, name, *must):
    return rest.must("POST", f"/collections/{name}/points/count", {"filter": {"must": list(must)}})["count"]


LOW = {"key": "n", "range": {"lt": 100}}
W3 = {"key": "w", "match": {"value": "w3"}}
SOME_TEXT = {"key": "t", "match": {"text": "more WORD2"}}


def counts(rest, name):
    return [count(rest, name, LOW), count(rest, name, W3), count(rest, name, LOW, W3)]


def explain(rest, name, *must):
    body = {"query": [1.0] * DIM, "limit": 5, "filter": {"must": list(must)}, "profile": True}
    answer = rest.send(request_bytes("POST", f"/collections/{name}/points/query", json.dumps(body).encode()))
    return answer.json()["result"]["profile"]["explain"]


def test_an_index_changes_the_cost_and_not_the_answers(rest, name):
    fill(rest, name)
    before = counts(rest, name)
    assert before == [100, 429, 14]
    assert explain(rest, name, LOW)["asked"] > 0
    for field, schema in [("n", "integer"), ("w", {"type": "keyword", "is_tenant": True}), ("t", "text")]:
        assert put_index(rest, name, field, schema)["status"] == "completed"
    info = rest.must("GET", f"/collections/{name}")
    assert info["payload_schema"]["w"] == {"data_type": "keyword", "params": {"type": "keyword", "is_tenant": True}, "points": info["payload_schema"]["n"]["points"]}
    assert info["payload_schema"]["n"]["points"] > POINTS // 2
    assert counts(rest, name) == before
    # Each value is a text by itself, with the index as without: none has all of these words.
    assert count(rest, name, SOME_TEXT) == 0
    said = explain(rest, name, LOW, W3)
    assert said["passing"] <= said["estimate"] <= 100
    rest.must("DELETE", f"/collections/{name}/index/t?wait=true")
    assert count(rest, name, SOME_TEXT) == 0
    assert "t" not in rest.must("GET", f"/collections/{name}")["payload_schema"]
    rest.must("DELETE", f"/collections/{name}/index/never-there")


def test_what_is_remembered_of_a_filter_is_never_old(rest, name):
    fill(rest, name)
    put_index(rest, name, "n", "integer")
    put_index(rest, name, "w", "keyword")
    numbers, words = {i: i for i in range(POINTS)}, {i: f"w{i % 7}" for i in range(POINTS)}

    def check(remembered):
        wanted = {i for i in numbers if numbers[i] < 100 and words[i] == "w3"}
        for _ in range(3):
            body = {"query": [1.0] * DIM, "limit": 100, "filter": {"must": [LOW, W3]}, "profile": True}
            answer = rest.send(request_bytes("POST", f"/collections/{name}/points/query", json.dumps(body).encode())).json()["result"]
            assert {point["id"] for point in answer["points"]} == wanted
            assert count(rest, name, LOW, W3) == len(wanted)
        assert not remembered or answer["profile"]["explain"]["remembered"] > 0

    def set_payload(payload, ids):
        rest.must("POST", f"/collections/{name}/points/payload?wait=true", {"payload": payload, "points": ids})

    check(True)
    set_payload({"w": "w3"}, [0, 1, 2])
    set_payload({"n": 5}, [2999, 2998])
    words.update({0: "w3", 1: "w3", 2: "w3"})
    numbers.update({2999: 5, 2998: 5})
    check(True)
    rest.must("POST", f"/collections/{name}/points/delete?wait=true", {"points": [1, 3, 10, 17]})
    for gone in (1, 3, 10, 17):
        del numbers[gone]
    check(True)
    set_payload({"w": "w3"}, list(range(50, 2000)))
    words.update({i: "w3" for i in range(50, 2000)})
    wait_green(rest, name, 60)
    check(True)
    put_index(rest, name, "n", "float")
    check(True)
    rest.must("DELETE", f"/collections/{name}/index/n?wait=true")
    check(False)


def test_changes_show_at_once_and_are_indexed_later(rest, name):
    fill(rest, name)
    put_index(rest, name, "w", "keyword")
    rest.must("POST", f"/collections/{name}/points/payload?wait=true", {"payload": {"w": "new"}, "filter": {"must": [LOW]}})
    assert count(rest, name, {"key": "w", "match": {"value": "new"}}) == 100
    rest.must("POST", f"/collections/{name}/points/payload?wait=true", {"payload": {"w": "all"}, "filter": {"must": [{"key": "n", "range": {"gte": 50}}]}})
    assert [count(rest, name, {"key": "w", "match": {"value": word}}) for word in ("new", "all", "w3")] == [50, POINTS - 50, 0]
    wait_green(rest, name, 60)
    assert [count(rest, name, {"key": "w", "match": {"value": word}}) for word in ("new", "all", "w3")] == [50, POINTS - 50, 0]
    rest.must("POST", f"/collections/{name}/points/delete?wait=true", {"filter": {"must": [{"key": "w", "match": {"value": "new"}}]}})
    assert count(rest, name) == POINTS - 50


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_indexes_are_there_after_a_restart(own_server, how):
    rest = Connection(own_server.port)
    fill(rest, "kept")
    put_index(rest, "kept", "n", "integer")
    put_index(rest, "kept", "a.b[]", {"type": "text", "tokenizer": "prefix", "min_token_len": 2})
    before, schema = counts(rest, "kept"), rest.must("GET", "/collections/kept")["payload_schema"]
    own_server.process.send_signal(how)
    own_server.process.wait()
    own_server.start()
    rest = Connection(own_server.port)
    wait_green(rest, "kept", 60)
    assert rest.must("GET", "/collections/kept")["payload_schema"] == schema
    assert counts(rest, "kept") == before
    assert explain(rest, "kept", LOW)["asked"] < 100


def test_through_the_client_beside_its_local_mode(client, name):
    local = QdrantClient(":memory:")
    rnd = random.Random(2)
    points = [
        models.PointStruct(id=i, vector=[rnd.uniform(-1, 1) for _ in range(4)], payload={"city": rnd.choice(["Rome", "Oslo"]), "age": rnd.randint(1, 90)})
        for i in range(300)
    ]
    for one in (client, local):
        one.create_collection(name, vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT))
        one.upsert(name, points)
    client.create_payload_index(name, "city", models.PayloadSchemaType.KEYWORD)
    client.create_payload_index(name, "age", models.IntegerIndexParams(type="integer", lookup=False, range=True))
    wanted = models.Filter(
        must=[models.FieldCondition(key="city", match=models.MatchValue(value="Rome"))],
        must_not=[models.FieldCondition(key="age", range=models.Range(gte=40))],
    )
    ids = [[p.id for p in one.query_points(name, [1.0, 0, 0, 0], query_filter=wanted, limit=300).points] for one in (client, local)]
    assert ids[0] == ids[1] and ids[0]
    assert client.get_collection(name).payload_schema["age"].params.range
    client.delete_payload_index(name, "city")
    assert "city" not in client.get_collection(name).payload_schema
    local.close()


def test_facets_count_the_points_of_each_value(client, rest, name):
    local = QdrantClient(":memory:")
    rnd = random.Random(4)
    words, long = ["red", "green", "blue", ""], "long" * 100
    points = [
        models.PointStruct(id=i, vector=[1.0] * DIM, payload={"w": rnd.sample([*words, long], rnd.randint(0, 3)), "n": rnd.randint(1, 6), "b": rnd.random() < 0.3})
        for i in range(POINTS)
    ]
    for one in (client, local):
        one.create_collection(name, vectors_config=models.VectorParams(size=DIM, distance=models.Distance.DOT))
        for at in range(0, POINTS, 500):
            one.upsert(name, points[at : at + 500])
    for field, kind in [("w", models.PayloadSchemaType.KEYWORD), ("n", models.PayloadSchemaType.INTEGER), ("b", models.PayloadSchemaType.BOOL)]:
        client.create_payload_index(name, field, kind)
    some = models.Filter(must=[models.FieldCondition(key="n", range=models.Range(lt=4))])

    def counts(one, key, filter=None):
        return {hit.value: hit.count for hit in one.facet(name, key, facet_filter=filter, limit=100, exact=True).hits}

    for filter in (None, some):
        for key in ("w", "n", "b"):
            assert counts(client, key, filter) == counts(local, key, filter)
    for one in (client, local):
        one.set_payload(name, {"w": "new"}, points=list(range(0, POINTS, 3)))
        one.delete(name, list(range(0, POINTS, 7)))
    assert counts(client, "w") == counts(local, "w")
    hits = client.facet(name, "w", limit=2).hits
    assert len(hits) == 2 and hits[0].count >= hits[1].count
    answer = rest.ask("POST", f"/collections/{name}/facet", {"key": "zz"})
    assert answer.status == 400 and "index" in answer.error
    local.close()


ORDERED = [  # what the values of a field are, the index, and a value to start from
    (lambda rnd: rnd.choice([[], rnd.randint(-50, 50), [rnd.randint(-50, 50) for _ in range(3)]]), "integer", 7),
    (lambda rnd: round(rnd.uniform(-9, 9), 1), "float", -2.5),
    (lambda rnd: f"2020-01-{rnd.randint(10, 25)}T00:00:00Z", "datetime", "2020-01-17"),
]


def in_order(points, kind, passes, descending, start):
    """Each point at each of its values, as (value, id)."""

    def number(value):
        return int(datetime.fromisoformat(value).timestamp() * 1_000_000) if kind == "datetime" else value

    at = []
    for point, payload in points.items():
        values = payload["v"] if isinstance(payload["v"], list) else [payload["v"]]
        at += [(number(value), point) for value in set(values) if passes(payload)]
    if start is not None:
        start = number(start + "T00:00:00Z" if kind == "datetime" else start)
        at = [(value, point) for value, point in at if (value <= start if descending else value >= start)]
    return sorted(at, reverse=descending)


@pytest.mark.parametrize("of, kind, start", ORDERED, ids=["integers", "floats", "times"])
def test_a_scroll_in_the_order_of_a_field(rest, name, of, kind, start):
    rnd = random.Random(5)
    fill(rest, name)
    points = {i: {"n": i, "w": f"w{i % 7}", "v": of(rnd)} for i in range(POINTS)}

    def put(some):
        operations = [{"overwrite_payload": {"payload": points[i], "points": [i]}} for i in some]
        for at in range(0, len(operations), 1000):
            rest.must("POST", f"/collections/{name}/points/batch?wait=true", {"operations": operations[at : at + 1000]})

    def scroll(limit, condition, descending, start):
        order = {"key": "v", "direction": "desc" if descending else "asc", "start_from": start}
        body = {"order_by": order, "limit": limit, "filter": {"must": [condition] if condition else []}}
        page = rest.must("POST", f"/collections/{name}/points/scroll", body)
        assert page["next_page_offset"] is None
        assert all(point["payload"] == points[point["id"]] for point in page["points"])
        return [(point["order_value"], point["id"]) for point in page["points"]]

    def check():
        for limit in (1, 40, 4 * POINTS):
            for condition, passes in [(None, lambda _: True), (LOW, lambda p: p["n"] < 100), (W3, lambda p: p["w"] == "w3")]:
                for descending in (False, True):
                    for first in (None, start):
                        wanted = in_order(points, kind, passes, descending, first)[:limit]
                        assert scroll(limit, condition, descending, first) == wanted

    put(points)
    assert rest.ask("POST", f"/collections/{name}/points/scroll", {"order_by": "v"}).status == 400
    put_index(rest, name, "v", kind)
    put_index(rest, name, "n", "integer")
    check()
    # What has changed since the index was built, what is new, and what is gone.
    some = rnd.sample(range(POINTS), 60)
    points.update({i: {**points[i], "v": of(rnd)} for i in some})
    put(some)
    fresh = {POINTS + i: {"n": i, "w": "w3", "v": of(rnd)} for i in range(50)}
    points.update(fresh)
    rest.must("PUT", f"/collections/{name}/points?wait=true", {"points": [{"id": i, "vector": [1.0] * DIM, "payload": p} for i, p in fresh.items()]})
    gone = rnd.sample(sorted(points), 100)
    rest.must("POST", f"/collections/{name}/points/delete?wait=true", {"points": gone})
    points = {i: payload for i, payload in points.items() if i not in gone}
    check()
    query = {"query": {"order_by": {"key": "v", "direction": "desc"}}, "filter": {"must": [W3]}, "limit": 4, "offset": 3}
    found = rest.must("POST", f"/collections/{name}/points/query", query)["points"]
    assert [(point["order_value"], point["id"]) for point in found] == scroll(7, W3, True, None)[3:]
    assert all(point["score"] == 1.0 for point in found)
    assert rest.ask("POST", f"/collections/{name}/points/query", {"query": {"order_by": "w"}}).status == 400
    answer = rest.ask("POST", f"/collections/{name}/points/scroll", {"order_by": "v", "offset": 3})
    assert answer.status == 400 and "start_from" in answer.error
    assert rest.ask("POST", f"/collections/{name}/points/scroll", {"order_by": "w"}).status == 400


def test_counts_that_need_not_be_exact(rest, name):
    fill(rest, name)

    def about(condition):
        body = {"filter": {"must": [condition]}, "exact": False}
        return rest.must("POST", f"/collections/{name}/points/count", body)["count"]

    assert abs(about(W3) - 429) < 100
    assert about({"key": "w", "match": {"value": "none"}}) == 0
    put_index(rest, name, "w", "keyword")
    assert about(W3) == 429


TEXTS = {
    1: "The quick brown fox runs over running dogs",
    2: "Über façade straße naïve Ærø Łódź",
    3: "not a stop word but the one",
    4: "state-of-the-art foo_bar",
    5: "東京は日本の首都です",
}
TEXT_INDEXES = [  # parameters, then what is asked and who answers
    ({"stopwords": "english"}, {"the": [], "fox the": [1], "the the": [], "not the": []}),
    ({"stopwords": {"languages": [], "custom": ["Fox", "quick"]}}, {"fox": [], "Fox": [], "brown fox": [1]}),
    ({"stemmer": {"type": "snowball", "language": "english"}}, {"run": [1], "RUNNING": [1], "ran": [], "dog": [1], "foxes": [1]}),
    ({"stemmer": {"type": "snowball", "language": "armenian"}}, {"run": [], "running": [1]}),
    ({"tokenizer": "prefix", "stemmer": {"type": "snowball", "language": "english"}}, {"r": [1], "running": [1], "runn": [], "dogs": [1]}),
    ({"ascii_folding": True}, {"uber": [2], "facade": [2], "strasse": [2], "Über": [2], "aero": [2], "lodz": [2], "æro": [2]}),
    ({"tokenizer": "multilingual"}, {"uber": [2], "naive": [2], "日本": [5], "首都": [5], "foo_bar": [4], "the": [1, 3, 4]}),
]


@pytest.mark.parametrize("parameters, answers", TEXT_INDEXES)
def test_indexes_of_texts_by_their_parameters(rest, name, parameters, answers):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 2, "distance": "Dot"}})
    put_index(rest, name, "t", {"type": "text", **parameters})
    points = [{"id": i, "vector": [1.0, 0.0], "payload": {"t": text}} for i, text in TEXTS.items()]
    rest.must("PUT", f"/collections/{name}/points?wait=true", {"points": points})
    for text, wanted in answers.items():
        page = rest.must("POST", f"/collections/{name}/points/scroll", {"filter": {"must": [{"key": "t", "match": {"text": text}}]}})
        assert [point["id"] for point in page["points"]] == wanted, text
    echoed = rest.must("GET", f"/collections/{name}")["payload_schema"]["t"]["params"]
    assert echoed["type"] == "text" and set(parameters) <= set(echoed)


def test_refusals(rest, name):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 4, "distance": "Dot"}})
    path = f"/collections/{name}/index"
    for status, body in [
        (400, {"field_name": "a"}),
        (400, {"field_schema": "keyword"}),
        (400, {"field_name": "a..b", "field_schema": "keyword"}),
        (400, {"field_name": "a", "field_schema": "number"}),
        (400, {"field_name": "a", "field_schema": {"type": "text", "tokenizer": "letters"}}),
        (422, {"field_name": "a", "field_schema": {"type": "integer", "lookup": False, "range": False}}),
        (400, {"field_name": "a", "field_schema": {"type": "text", "stopwords": "klingon"}}),
        (422, {"field_name": "a", "field_schema": {"type": "text", "stopwords": {"custom": ["x" * 200]}}}),
        (400, {"field_name": "a", "field_schema": {"type": "text", "stemmer": {"type": "snowball", "language": "klingon"}}}),
    ]:
        answer = rest.ask("PUT", path, body)
        assert answer.status == status and answer.error, (body, answer.status, answer.error)
    assert rest.ask("PUT", "/collections/none/index", {"field_name": "a", "field_schema": "bool"}).status == 404
    assert rest.ask("DELETE", f"{path}/a..b").status == 400
    for number in range(128):
        rest.must("PUT", path, {"field_name": f"f{number}", "field_schema": "bool"})
    answer = rest.ask("PUT", path, {"field_name": "one-more", "field_schema": "bool"})
    assert answer.status == 422 and "128" in answer.error


UUID = "550e8400-e29b-41d4-a716-446655440000"
MIXED = [
    *[1, 2, 2.0, 1.5, 0, -0.0, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 1e300, True, False, None, "red", "", "x" * 241, UUID, UUID.upper(), UUID.replace("-", "")],
    *["2020-01-01", "2020-01-01T00:00:00Z", "never", [], [None], [1, "red"], [[1]], [1.5, 2], ["the", "fox"], "The quick Fox", "foxes", {"x": 1}],
    *[{"lon": lon, "lat": lat} for lon, lat in [(13.4, 52.5), (373.4, 52.5), (13.4, 91), (0, 90), (200, 0), (180, 0)]],
]
BOX = {"top_left": {"lon": 170, "lat": 60}, "bottom_right": {"lon": -170, "lat": -50}}
TESTS = [
    *[{"match": {"value": value}} for value in (2, 0, 2**53, "red", UUID, UUID.upper(), True)],
    *[{"match": {kind: some}} for kind in ("any", "except") for some in ([1, 2], ["red"], [UUID], [UUID.upper()], [])],
    *[{"match": {"prefix": prefix}} for prefix in ("re", "", "x" * 241)],
    *[{"match": {kind: text}} for kind in ("text", "text_any", "phrase") for text in ("fox the", "quick fox", "fox", "")],
    *[{"range": span} for span in ({"gte": 1.2, "lt": 3}, {"gt": 0}, {"lte": 2**53}, {"gte": 2**53 + 2}, {"gt": 1e200}, {"gt": 0, "gte": 1.5})],
    *[{"range": span} for span in ({"gte": "2019-01-01"}, {"gte": 1577836800000000, "lt": 1577836800000001})],
    {"geo_bounding_box": BOX},
    *[{"geo_radius": {"center": {"lon": lon, "lat": lat}, "radius": 1e5}} for lon, lat in [(13.4, 52.5), (0, 89.9)]],
    *[{kind: wanted} for kind in ("is_empty", "is_null") for wanted in (True, False)],
    {"values_count": {"gte": 2}},
    {"match": {"value": 1}, "range": {"gt": 5}},
    {"match": {"value": "red"}, "is_null": True},
]


def test_a_filter_selects_the_same_points_with_and_without_an_index(rest, name):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 1, "distance": "Dot"}})
    points = [{"id": i, "vector": [1.0], "payload": {"a": value}} for i, value in enumerate([*MIXED, *([value] for value in MIXED)])]
    rest.must("PUT", f"/collections/{name}/points?wait=true", {"points": [*points, {"id": len(points), "vector": [1.0], "payload": {}}]})

    def selected(condition) -> list:
        page = rest.must("POST", f"/collections/{name}/points/scroll", {"filter": condition, "limit": 1000})["points"]
        return [point["id"] for point in page]

    fields = [{"key": path, **test} for path in ("a", "a[]") for test in TESTS]
    asked = [*({"must": one} for one in fields), *({"must_not": one} for one in fields), {"must": {"is_empty": {"key": "a"}}}, {"must": {"is_null": {"key": "a[]"}}}]
    before = [selected(one) for one in asked]
    assert len({str(some) for some in before}) > len(TESTS)
    for kind in ["keyword", "integer", "float", "bool", "datetime", "uuid", "geo", "text"]:
        for path in ("a", "a[]"):
            put_index(rest, name, path, kind)
        for one, expected in zip(asked, before, strict=True):
            assert selected(one) == expected, (kind, one)
    # Only the words that an index is told to make of a text are its own.
    put_index(rest, name, "a", {"type": "text", "stemmer": {"type": "snowball", "language": "english"}})
    fox = {"must": {"key": "a", "match": {"text": "fox"}}}
    assert {MIXED.index("foxes")} == set(selected(fox)) - set(before[asked.index(fox)]) - {len(MIXED) + MIXED.index("foxes")}
