"""Points: both upsert forms, named vectors, payload, retrieve, scroll, count, delete, changes to vectors."""

import uuid

import numpy as np
import pytest
from qdrant_client import models

from harness.rest import request_bytes

COSINE = models.VectorParams(size=8, distance=models.Distance.COSINE)
DOT = models.VectorParams(size=8, distance=models.Distance.DOT)


def columns(rng, ids, dim=8, payload=True):
    vectors = rng.standard_normal((len(ids), dim)).astype(np.float32)
    payloads = [{"n": i, "even": i % 2 == 0} for i in range(len(ids))] if payload else None
    return vectors, models.Batch(ids=list(ids), vectors=vectors.tolist(), payloads=payloads)


def test_upsert_list_and_columns_agree(client, name, rng):
    client.create_collection(name, DOT)
    vectors, batch = columns(rng, range(20))
    client.upsert(name, batch)
    listed = [models.PointStruct(id=100 + i, vector=v.tolist(), payload={"n": i, "even": i % 2 == 0}) for i, v in enumerate(vectors)]
    client.upsert(name, listed)
    one = client.retrieve(name, list(range(20)), with_vectors=True)
    two = client.retrieve(name, list(range(100, 120)), with_vectors=True)
    assert [p.payload for p in sorted(one, key=lambda p: p.id)] == [p.payload for p in sorted(two, key=lambda p: p.id)]
    for a, b in zip(sorted(one, key=lambda p: p.id), sorted(two, key=lambda p: p.id), strict=True):
        np.testing.assert_array_equal(np.float32(a.vector), np.float32(b.vector))
        np.testing.assert_array_equal(np.float32(a.vector), vectors[a.id])


def test_cosine_vectors_come_back_normalised(client, name):
    client.create_collection(name, COSINE)
    client.upsert(name, [models.PointStruct(id=1, vector=[3, 4, 0, 0, 0, 0, 0, 0])])
    (point,) = client.retrieve(name, [1], with_vectors=True)
    np.testing.assert_allclose(point.vector[:2], [0.6, 0.8], rtol=1e-6)


def test_an_upsert_replaces_the_whole_point(client, name):
    client.create_collection(name, DOT)
    client.upsert(name, [models.PointStruct(id=1, vector=[1] * 8, payload={"a": 1, "b": 2})])
    client.upsert(name, [models.PointStruct(id=1, vector=[2] * 8, payload={"a": 3})])
    (point,) = client.retrieve(name, [1], with_vectors=True)
    assert point.payload == {"a": 3}
    assert point.vector == [2.0] * 8
    assert client.count(name).count == 1


def test_the_last_of_equal_ids_in_one_request_wins(client, name):
    client.create_collection(name, DOT)
    client.upsert(name, [models.PointStruct(id=1, vector=[n] * 8, payload={"n": n}) for n in (1, 2, 3)])
    (point,) = client.retrieve(name, [1])
    assert point.payload == {"n": 3}
    assert client.count(name).count == 1


def test_payload_of_every_shape(client, name):
    payload = {
        "text": "Grüße, 世界 \U0001f600 \"quoted\" \\ \n\t",
        "big": 2**53,
        "negative": -7,
        "float": 0.1,
        "null": None,
        "yes": True,
        "list": [1, "two", [3.5, None], {"deep": [{"er": 1}]}],
        "empty": {},
        "": "an empty key",
    }
    client.create_collection(name, DOT)
    client.upsert(name, [models.PointStruct(id=1, vector=[0] * 8, payload=payload), models.PointStruct(id=2, vector=[0] * 8)])
    one, two = sorted(client.retrieve(name, [1, 2]), key=lambda p: p.id)
    assert one.payload == payload
    assert not two.payload


def test_payload_selection(client, name):
    client.create_collection(name, DOT)
    client.upsert(name, [models.PointStruct(id=1, vector=[0] * 8, payload={"a": 1, "b": {"c": 2, "d": 3}, "e": 4})])

    def shown(selector):
        return client.retrieve(name, [1], with_payload=selector)[0].payload

    assert shown(["a", "e"]) == {"a": 1, "e": 4}
    assert shown(models.PayloadSelectorInclude(include=["b.c"])) == {"b": {"c": 2}}
    assert shown(models.PayloadSelectorExclude(exclude=["b", "e"])) == {"a": 1}
    assert not shown(False)


def test_ids_of_both_kinds(client, name):
    ids = [0, 2**64 - 1, str(uuid.UUID(int=5)), "936DA01F-9ABD-4D9D-80C7-02AF85C822A8"]
    client.create_collection(name, DOT)
    client.upsert(name, [models.PointStruct(id=i, vector=[1] * 8) for i in ids])
    points, after = client.scroll(name, limit=10)
    assert [p.id for p in points] == [0, 2**64 - 1, str(uuid.UUID(int=5)), "936da01f-9abd-4d9d-80c7-02af85c822a8"]
    assert after is None
    assert len(client.retrieve(name, ids + [17])) == 4


def test_scroll_pages_in_id_order(client, name, rng):
    client.create_collection(name, DOT)
    ids = rng.permutation(500).tolist()
    _, batch = columns(rng, ids)
    client.upsert(name, batch)
    seen, offset = [], None
    while True:
        page, offset = client.scroll(name, limit=37, offset=offset, with_payload=False)
        seen += [p.id for p in page]
        if offset is None:
            break
    assert seen == sorted(ids)
    page, after = client.scroll(name, limit=3, offset=490)
    assert ([p.id for p in page], after) == ([490, 491, 492], 493)


def test_named_vectors(client, name):
    client.create_collection(
        name, {"a": models.VectorParams(size=2, distance=models.Distance.DOT), "b": models.VectorParams(size=3, distance=models.Distance.EUCLID)}
    )
    client.upsert(
        name,
        [
            models.PointStruct(id=1, vector={"a": [1, 0], "b": [1, 1, 1]}),
            models.PointStruct(id=2, vector={"a": [0, 1]}),
            models.PointStruct(id=3, vector={"b": [2, 2, 2]}),
        ],
    )
    client.upsert(name, models.Batch(ids=[4, 5], vectors={"a": [[1, 1], [2, 2]], "b": [[0, 0, 1], [0, 0, 2]]}))
    points = {p.id: p.vector for p in client.retrieve(name, [1, 2, 3, 4, 5], with_vectors=True)}
    assert points[1] == {"a": [1, 0], "b": [1, 1, 1]}
    assert points[2] == {"a": [0, 1]}
    assert points[3] == {"b": [2, 2, 2]}
    assert points[5] == {"a": [2, 2], "b": [0, 0, 2]}
    only = client.retrieve(name, [1], with_vectors=["b"])
    assert only[0].vector == {"b": [1, 1, 1]}
    by_a = client.query_points(name, query=[1, 1], using="a", limit=10).points
    assert {p.id for p in by_a} == {1, 2, 4, 5} and by_a[0].id == 5
    by_b = client.query_points(name, query=[0, 0, 1], using="b", limit=10).points
    assert {p.id for p in by_b} == {1, 3, 4, 5} and by_b[0].id == 4


def test_update_and_delete_vectors(client, name):
    client.create_collection(
        name, {"a": models.VectorParams(size=2, distance=models.Distance.DOT), "b": models.VectorParams(size=2, distance=models.Distance.DOT)}
    )
    client.upsert(name, [models.PointStruct(id=i, vector={"a": [i, 0], "b": [0, i]}, payload={"i": i}) for i in (1, 2, 3)])
    client.update_vectors(name, [models.PointVectors(id=1, vector={"a": [9, 9]})])
    client.delete_vectors(name, vectors=["b"], points=[2])
    points = {p.id: p for p in client.retrieve(name, [1, 2, 3], with_vectors=True)}
    assert points[1].vector == {"a": [9, 9], "b": [0, 1]}
    assert points[2].vector == {"a": [2, 0]}
    assert all(p.payload == {"i": p.id} for p in points.values())
    assert client.query_points(name, query=[1, 1], using="a", limit=1).points[0].id == 1
    assert 2 not in [p.id for p in client.query_points(name, query=[1, 1], using="b", limit=5).points]


def test_delete_by_ids(client, name, rng):
    client.create_collection(name, DOT)
    _, batch = columns(rng, range(100))
    client.upsert(name, batch)
    client.delete(name, points_selector=list(range(0, 100, 2)) + [12345])
    assert client.count(name, exact=True).count == 50
    assert client.retrieve(name, [0, 1, 2, 3])[0].id == 1
    found = client.query_points(name, query=[1] * 8, limit=100).points
    assert len(found) == 50 and all(p.id % 2 for p in found)
    _, again = columns(rng, [0])
    client.upsert(name, again)
    assert client.count(name, exact=True).count == 51


def test_upload_collection_and_upload_points(client, name, rng):
    client.create_collection(name, DOT)
    vectors = rng.standard_normal((1_000, 8)).astype(np.float32)
    client.upload_collection(name, vectors=vectors, ids=range(1_000), payload=[{"n": n} for n in range(1_000)], wait=True)
    client.upload_points(name, (models.PointStruct(id=1_000 + i, vector=v.tolist()) for i, v in enumerate(vectors)), wait=True)
    assert client.count(name, exact=True).count == 2_000
    (point,) = client.retrieve(name, [321], with_vectors=True)
    assert point.payload == {"n": 321}
    np.testing.assert_array_equal(np.float32(point.vector), vectors[321])


@pytest.mark.parametrize("wait", [True, False])
def test_wait_and_ordering_are_accepted(client, name, wait):
    client.create_collection(name, DOT)
    result = client.upsert(name, [models.PointStruct(id=1, vector=[1] * 8)], wait=wait, ordering=models.WriteOrdering.STRONG)
    assert result.status == (models.UpdateStatus.COMPLETED if wait else models.UpdateStatus.ACKNOWLEDGED)
    if wait:
        assert client.count(name).count == 1


def test_of_a_key_that_stands_twice_the_last_value_is_kept(rest, name):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 1, "distance": "Dot"}})
    text = b'{"points":[{"id":1,"vector":[1],"payload":{"d":1,"o":{"e":1,"e":2},"d":2}}]}'
    assert rest.send(request_bytes("PUT", f"/collections/{name}/points?wait=true", text)).status == 200
    stored = rest.get(f"/collections/{name}/points/1").body
    assert stored.count(b'"d":') == 1 and b'"d":2' in stored and stored.count(b'"e":') == 1, stored
