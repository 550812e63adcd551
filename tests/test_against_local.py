"""The server and qdrant-client's local mode get the same generated operations and must give the same answers."""

import random
import uuid

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

VECTORS = {
    "dot": models.VectorParams(size=6, distance=models.Distance.DOT),
    "cosine": models.VectorParams(size=5, distance=models.Distance.COSINE),
    "euclid": models.VectorParams(size=4, distance=models.Distance.EUCLID),
}
NUMBERS = 120  # ids are drawn from few, so that points are replaced and deleted often


def some_id(rnd: random.Random):
    number = rnd.randrange(NUMBERS)
    return number if rnd.random() < 0.8 else str(uuid.UUID(int=number + 1))


def some_vectors(rnd: random.Random, least: int = 0) -> dict:
    names = rnd.sample(sorted(VECTORS), rnd.randint(max(1, least), len(VECTORS)))
    return {n: [rnd.uniform(-1, 1) for _ in range(VECTORS[n].size)] for n in names}


def some_payload(rnd: random.Random):
    keys = rnd.sample(["city", "count", "tags", "deep", "none"], rnd.randint(0, 5))
    values = {
        "city": rnd.choice(["Graz", "Zürich", "東京"]),
        "count": rnd.randint(-5, 5),
        "tags": [rnd.choice("abc") for _ in range(rnd.randint(0, 3))],
        "deep": {"x": {"y": rnd.random()}},
        "none": None,
    }
    return {k: values[k] for k in keys} or None


def some_operation(rnd: random.Random):
    """A call to make on a client, drawn once so that both clients get the same."""
    kind = rnd.choice(["upsert", "upsert", "columns", "delete", "update_vectors", "delete_vectors"])
    if kind == "upsert":
        points = [
            models.PointStruct(id=some_id(rnd), vector=some_vectors(rnd), payload=some_payload(rnd)) for _ in range(rnd.randint(1, 8))
        ]
        return lambda c, name: c.upsert(name, points)
    if kind == "columns":
        ids = list(dict.fromkeys(some_id(rnd) for _ in range(rnd.randint(1, 8))))
        vectors = {n: [[rnd.uniform(-1, 1) for _ in range(p.size)] for _ in ids] for n, p in VECTORS.items()}
        payloads = [some_payload(rnd) or {} for _ in ids]
        return lambda c, name: c.upsert(name, models.Batch(ids=ids, vectors=vectors, payloads=payloads))
    ids = [some_id(rnd) for _ in range(rnd.randint(1, 6))]
    if kind == "delete":
        return lambda c, name: c.delete(name, points_selector=ids)
    if kind == "delete_vectors":
        names = rnd.sample(sorted(VECTORS), rnd.randint(1, 2))

        def drop(c, name):
            there = [p.id for p in c.retrieve(name, ids, with_payload=False)]
            if there:
                c.delete_vectors(name, vectors=names, points=there)

        return drop
    changes = {i: some_vectors(rnd) for i in ids}

    def change(c, name):
        there = [p.id for p in c.retrieve(name, ids, with_payload=False)]
        if there:
            c.update_vectors(name, points=[models.PointVectors(id=i, vector=changes[i]) for i in there])

    return change


def same_vectors(ours, theirs):
    assert set(ours or {}) == set(theirs or {})
    for name in ours or {}:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def same_scores(ours, theirs):
    """The same ids in the same order, except among scores within 1e-5 of each other."""
    assert len(ours) == len(theirs)
    np.testing.assert_allclose([p.score for p in ours], [p.score for p in theirs], rtol=1e-4, atol=1e-5)
    scores = {p.id: p.score for p in theirs}
    last = theirs[-1].score if theirs else 0.0
    for point in ours:
        assert abs(scores.get(point.id, last) - point.score) <= 1e-4, (point, theirs)


@pytest.mark.parametrize("seed", range(6))
def test_same_operations_same_answers(client, name, seed):
    rnd = random.Random(seed)
    local = QdrantClient(":memory:")
    for c in (client, local):
        c.create_collection(name, VECTORS)
    for step in range(120):
        operation = some_operation(rnd)
        for c in (client, local):
            operation(c, name)
        if step % 10 == 9:
            compare(client, local, name, rnd)
    local.close()


def compare(client, local, name, rnd):
    assert client.count(name, exact=True).count == local.count(name, exact=True).count
    limit = rnd.randint(1, 200)
    ours, our_next = client.scroll(name, limit=limit, with_vectors=True, with_payload=True)
    # Local mode mixes the two kinds of id in an order of its own, so its whole content is compared by id.
    theirs, _ = local.scroll(name, limit=10_000, with_vectors=True, with_payload=True)
    by_id = {p.id: p for p in theirs}
    if len(theirs) <= limit:
        assert our_next is None and {p.id for p in ours} == set(by_id)
    order = [(isinstance(p.id, str), p.id) for p in ours]
    assert order == sorted(order)
    for point in ours:
        assert (point.payload or None) == (by_id[point.id].payload or None)
        same_vectors(point.vector, by_id[point.id].vector)
    ids = [some_id(rnd) for _ in range(5)]
    assert {p.id for p in client.retrieve(name, ids)} == {p.id for p in local.retrieve(name, ids)}
    for using, params in VECTORS.items():
        query = [rnd.uniform(-1, 1) for _ in range(params.size)]
        asked = {"using": using, "limit": rnd.randint(1, 30), "with_payload": True}
        if rnd.random() < 0.3:
            asked["score_threshold"] = rnd.uniform(0.2, 1.0)
        same_scores(client.query_points(name, query=query, **asked).points, local.query_points(name, query=query, **asked).points)
        holders = [p.id for p in theirs if using in (p.vector or {})]
        if holders:
            by = rnd.choice(holders)
            same_scores(
                client.query_points(name, query=by, using=using, limit=10).points,
                local.query_points(name, query=by, using=using, limit=10).points,
            )
