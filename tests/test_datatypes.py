"""Vectors of float16 and uint8: what is created is shown, what comes back is rounded, and scores are those of what came back."""

import time

import numpy as np
import pytest
from qdrant_client import models

from harness.rest import Connection

DIM = 20
COUNT = 3_000
COMPACT = [models.Datatype.FLOAT16, models.Datatype.UINT8]


def numbers(rng, count):
    """Heaps of vectors; some values lie below 0 or above 255."""
    heaps = rng.uniform(0, 240, (30, DIM))
    return (heaps[rng.integers(0, 30, count)] + 20 * rng.standard_normal((count, DIM))).astype(np.float32)


def kept(sent, distance, datatype):
    """What the server is to keep of vectors."""
    if datatype == models.Datatype.UINT8:
        return np.clip(np.trunc(sent), 0, 255).astype(np.float32)
    if distance == models.Distance.COSINE:
        sent = (sent / np.linalg.norm(sent.astype(np.float64), axis=1, keepdims=True)).astype(np.float32)
    return sent.astype(np.float16).astype(np.float32)


def scores(stored, query, distance):
    stored, query = stored.astype(np.float64), query.astype(np.float64)
    if distance == models.Distance.EUCLID:
        return np.sqrt(((stored - query) ** 2).sum(1))
    if distance == models.Distance.MANHATTAN:
        return np.abs(stored - query).sum(1)
    products = stored @ query
    if distance == models.Distance.COSINE and stored.max() > 1:  # bytes are kept as they came
        lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(query)
        return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return products


def ask(client, name, stored, distance, datatype, rng, least, **how):
    """Queries by vectors and by a point, against the scores of what is stored; `least`: the recall to reach."""
    down = distance in (models.Distance.EUCLID, models.Distance.MANHATTAN)
    right = 0
    for sent in numbers(rng, 20):
        truth = scores(stored, kept(sent[None], distance, datatype)[0], distance)
        best = np.sort(truth)[:10] if down else -np.sort(-truth)[:10]
        points = client.query_points(name, query=sent.tolist(), limit=10, **how).points
        np.testing.assert_allclose([p.score for p in points], truth[[p.id for p in points]], rtol=2e-5, atol=1e-5)
        slack = 2e-5 * (abs(best[-1]) + 1e-3)
        right += sum(truth[p.id] <= best[-1] + slack if down else truth[p.id] >= best[-1] - slack for p in points)
    assert right >= least * 200, f"{right} of 200"
    truth = scores(stored, stored[5], distance)
    points = client.query_points(name, query=5, limit=3, **how).points
    assert len(points) == 3 and 5 not in [p.id for p in points]
    np.testing.assert_allclose([p.score for p in points], truth[[p.id for p in points]], rtol=2e-5, atol=1e-5)


def same(client, name, stored):
    ids = [0, 1, 7, len(stored) - 1]
    for point in client.retrieve(name, ids, with_vectors=True):
        assert np.array_equal(np.float32(point.vector), stored[point.id])


@pytest.mark.parametrize("datatype", COMPACT)
@pytest.mark.parametrize("distance", list(models.Distance))
def test_values_are_rounded_returned_and_scored(client, name, rng, distance, datatype):
    params = models.VectorParams(size=DIM, distance=distance, datatype=datatype)
    client.create_collection(name, params, hnsw_config=models.HnswConfigDiff(full_scan_threshold=10))
    assert client.get_collection(name).config.params.vectors.datatype == datatype
    sent = numbers(rng, COUNT)
    sent[3] = 0.25  # bytes of it are all 0
    stored = kept(sent, distance, datatype)
    payloads = [{"n": n} for n in range(COUNT)]
    for at in range(0, COUNT, 500):
        part = slice(at, at + 500)
        ids = list(range(at, at + 500))
        client.upsert(name, models.Batch(ids=ids, vectors=sent[part].tolist(), payloads=payloads[part]))
    same(client, name, stored)
    ask(client, name, stored, distance, datatype, rng, 1.0, search_params=models.SearchParams(exact=True))
    changed = numbers(rng, 2)
    vectors = [models.PointVectors(id=i, vector=v.tolist()) for i, v in zip([7, 900], changed, strict=True)]
    client.update_vectors(name, vectors)
    client.set_payload(name, {"m": 1}, points=[1, 7])
    stored[[7, 900]] = kept(changed, distance, datatype)
    same(client, name, stored)
    pages, at = [], None
    while True:
        page, at = client.scroll(name, limit=700, offset=at, with_vectors=True)
        pages += page
        if at is None:
            break
    assert np.array_equal(np.float32([point.vector for point in pages]), stored)
    ask(client, name, stored, distance, datatype, rng, 0.9)


def test_segments_keep_and_score_what_came_in(own_server, rng):
    """Enough points for a seal, then a restart: what is read comes from files, which are smaller than those of floats."""
    dim, count, bytes_of = 96, 24_000, {}
    sent = rng.uniform(0, 255, (count, dim)).astype(np.float32)
    for datatype in [*COMPACT, models.Datatype.FLOAT32]:
        rest, name = Connection(own_server.port), datatype.value
        vectors = {"size": dim, "distance": "Euclid", "datatype": datatype.value}
        assert rest.ask("PUT", f"/collections/{name}", {"vectors": vectors, "hnsw_config": {"full_scan_threshold": 10}}).status == 200
        for at in range(0, count, 1_000):
            batch = {"ids": list(range(at, at + 1_000)), "vectors": sent[at : at + 1_000].tolist()}
            assert rest.ask("PUT", f"/collections/{name}/points?wait=true", {"batch": batch}).status == 200
        until = time.monotonic() + 120
        while (info := rest.ask("GET", f"/collections/{name}").result)["status"] != "green" or not info["segments_count"]:
            assert time.monotonic() < until, info
            time.sleep(0.2)
        bytes_of[datatype] = info["disk_bytes"] / max(info["indexed_vectors_count"], 1)
        rest.close()
    own_server.stop()
    own_server.start()
    rest = Connection(own_server.port)
    for datatype in COMPACT:
        stored = kept(sent, models.Distance.EUCLID, datatype)
        info = rest.ask("GET", f"/collections/{datatype.value}").result
        assert info["config"]["params"]["vectors"]["datatype"] == datatype.value
        body = {"ids": [0, 5, count - 1], "with_vector": True}
        for point in rest.ask("POST", f"/collections/{datatype.value}/points", body).result:
            assert np.array_equal(np.float32(point["vector"]), stored[point["id"]])
        for query in sent[:20] + 1.5:
            truth = scores(stored, kept(query[None], models.Distance.EUCLID, datatype)[0], models.Distance.EUCLID)
            body = {"query": query.tolist(), "limit": 5}
            points = rest.ask("POST", f"/collections/{datatype.value}/points/query", body).result["points"]
            assert points[0]["id"] == int(truth.argmin())
            np.testing.assert_allclose([p["score"] for p in points], truth[[p["id"] for p in points]], rtol=2e-5)
    rest.close()
    saved = {datatype: bytes_of[models.Datatype.FLOAT32] - each for datatype, each in bytes_of.items()}
    assert saved[models.Datatype.FLOAT16] > 1.5 * dim and saved[models.Datatype.UINT8] > 2.5 * dim, bytes_of


def test_named_vectors_each_have_their_own(rest, name):
    vectors = {
        "bytes": {"size": 2, "distance": "Dot", "datatype": "uint8"},
        "halves": {"size": 3, "distance": "Cosine", "datatype": "float16"},
        "plain": {"size": 1, "distance": "Dot"},
    }
    assert rest.ask("PUT", f"/collections/{name}", {"vectors": vectors}).status == 200
    shown = rest.ask("GET", f"/collections/{name}").result["config"]["params"]["vectors"]
    assert shown == vectors
    point = {"id": 1, "vector": {"bytes": [300, -1.5], "halves": [1, 2, 2], "plain": [0.1]}}
    assert rest.ask("PUT", f"/collections/{name}/points?wait=true", {"points": [point]}).status == 200
    found = rest.ask("GET", f"/collections/{name}/points/1").result["vector"]
    assert found["bytes"] == [255, 0]
    assert np.array_equal(np.float32(found["halves"]), np.float32([1 / 3, 2 / 3, 2 / 3]).astype(np.float16).astype(np.float32))
    assert np.float32(found["plain"]) == np.float32([0.1])


def test_what_cannot_be_is_refused(rest, name):
    def create(datatype):
        return rest.ask("PUT", f"/collections/{name}", {"vectors": {"size": 2, "distance": "Dot", "datatype": datatype}})

    assert create("float64").status == 400
    assert create("turbo4").status == 501
    assert create("float16").status == 200
    change = {"vectors": {"": {"datatype": "uint8", "on_disk": True}}}
    assert rest.ask("PATCH", f"/collections/{name}", change).status == 200
    shown = rest.ask("GET", f"/collections/{name}").result["config"]["params"]["vectors"]
    assert shown["datatype"] == "float16"
    answer = rest.ask("PUT", f"/collections/{name}/points?wait=true", {"points": [{"id": 1, "vector": [1, 70_000]}]})
    assert answer.status == 400 and "float16" in answer.error
    assert rest.ask("POST", f"/collections/{name}/points/query", {"query": [1, 70_000]}).status == 400
