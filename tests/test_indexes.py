"""Indexes of payload fields: made, built, used, kept over restarts and changes, dropped; and what is refused."""

import json
import random
import signal

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
    # Words of all values of a point count together; without the index each value is a text by itself.
    assert count(rest, name, SOME_TEXT) == POINTS // 5
    said = explain(rest, name, LOW, W3)
    assert said["passing"] <= said["estimate"] <= 100
    rest.must("DELETE", f"/collections/{name}/index/t?wait=true")
    assert count(rest, name, SOME_TEXT) == 0
    assert "t" not in rest.must("GET", f"/collections/{name}")["payload_schema"]
    rest.must("DELETE", f"/collections/{name}/index/never-there")


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
        (501, {"field_name": "a", "field_schema": {"type": "text", "stopwords": "english"}}),
    ]:
        answer = rest.ask("PUT", path, body)
        assert answer.status == status and answer.error, (body, answer.status, answer.error)
    assert rest.ask("PUT", "/collections/none/index", {"field_name": "a", "field_schema": "bool"}).status == 404
    assert rest.ask("DELETE", f"{path}/a..b").status == 400
    for number in range(128):
        rest.must("PUT", path, {"field_name": f"f{number}", "field_schema": "bool"})
    answer = rest.ask("PUT", path, {"field_name": "one-more", "field_schema": "bool"})
    assert answer.status == 422 and "128" in answer.error
