"""Queries: by vector and by id, windows of results, thresholds, exact search, batches."""

import numpy as np
import pytest
from qdrant_client import models

from harness import exact

DIM = 16


@pytest.fixture
def filled(client, name, rng):
    """A collection of 2,000 unit vectors with payload."""
    vectors = rng.standard_normal((2_000, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    client.create_collection(name, models.VectorParams(size=DIM, distance=models.Distance.COSINE))
    client.upsert(name, models.Batch(ids=list(range(2_000)), vectors=vectors.tolist(), payloads=[{"n": n} for n in range(2_000)]))
    return vectors


def test_a_small_collection_answers_exactly(client, name, filled, rng):
    queries = rng.standard_normal((50, DIM)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    truth = exact.nearest(filled, queries, 10)
    for query, want in zip(queries, truth, strict=True):
        points = client.query_points(name, query=query.tolist(), limit=10).points
        assert [p.id for p in points] == want.tolist()
        np.testing.assert_allclose([p.score for p in points], filled[want] @ query, rtol=1e-5, atol=1e-6)


def test_query_by_id_leaves_the_point_out(client, name, filled):
    points = client.query_points(name, query=7, limit=5).points
    order = np.argsort(-(filled @ filled[7]), kind="stable")
    assert [p.id for p in points] == [i for i in order[:6].tolist() if i != 7][:5]


def test_limit_and_offset(client, name, filled):
    query = filled[3].tolist()
    whole = [p.id for p in client.query_points(name, query=query, limit=30).points]
    parts = [p.id for at in (0, 10, 20) for p in client.query_points(name, query=query, limit=10, offset=at).points]
    assert whole == parts
    assert len(client.query_points(name, query=query, limit=5_000).points) == 2_000
    assert client.query_points(name, query=query, limit=10, offset=2_000).points == []


def test_score_threshold(client, name, filled):
    scores = np.sort(filled @ filled[0])[::-1]
    points = client.query_points(name, query=filled[0].tolist(), limit=2_000, score_threshold=0.5).points
    assert len(points) == int((scores >= 0.5).sum())
    assert min(p.score for p in points) >= 0.5


@pytest.mark.parametrize("distance", [models.Distance.EUCLID, models.Distance.MANHATTAN])
def test_for_distances_lower_is_better(client, name, rng, distance):
    vectors = rng.standard_normal((300, 4)).astype(np.float32)
    client.create_collection(name, models.VectorParams(size=4, distance=distance))
    client.upsert(name, models.Batch(ids=list(range(300)), vectors=vectors.tolist()))
    query = np.float32([0.1, -0.2, 0.3, 0.4])
    apart = np.abs(vectors - query)
    want = np.sqrt((apart**2).sum(1)) if distance == models.Distance.EUCLID else apart.sum(1)
    points = client.query_points(name, query=query.tolist(), limit=300, score_threshold=1.5).points
    assert [p.id for p in points] == [i for i in np.argsort(want, kind="stable").tolist() if want[i] <= 1.5]
    np.testing.assert_allclose([p.score for p in points], want[[p.id for p in points]], rtol=1e-5)


def test_payload_and_vectors_come_when_asked(client, name, filled):
    bare = client.query_points(name, query=filled[1].tolist(), limit=1, with_payload=False).points[0]
    assert not bare.payload and bare.vector is None
    full = client.query_points(name, query=filled[1].tolist(), limit=1, with_payload=True, with_vectors=True).points[0]
    assert full.id == 1 and full.payload == {"n": 1}
    np.testing.assert_allclose(full.vector, filled[1], rtol=1e-5, atol=1e-7)


def test_exact_and_ef_are_accepted(client, name, filled):
    query = filled[5].tolist()
    wanted = [p.id for p in client.query_points(name, query=query, limit=10, search_params=models.SearchParams(exact=True)).points]
    for ef in (16, 128, 512):
        points = client.query_points(name, query=query, limit=10, search_params=models.SearchParams(hnsw_ef=ef)).points
        assert [p.id for p in points] == wanted


def test_batch_query(client, name, filled):
    requests = [models.QueryRequest(query=filled[i].tolist(), limit=3, with_payload=True) for i in range(20)]
    requests.append(models.QueryRequest(query=3, limit=4))
    answers = client.query_batch_points(name, requests=requests)
    assert len(answers) == 21
    for i, answer in enumerate(answers[:20]):
        alone = client.query_points(name, query=filled[i].tolist(), limit=3, with_payload=True)
        assert [(p.id, p.payload) for p in answer.points] == [(p.id, p.payload) for p in alone.points]
    assert len(answers[20].points) == 4 and 3 not in [p.id for p in answers[20].points]


def test_an_indexed_collection_finds_nearly_all(client, name, rng):
    """Over the full-scan threshold (lowered here) segments are clustered; recall and the green status follow."""
    import time

    centres = rng.standard_normal((100, DIM)).astype(np.float32)
    vectors = centres[rng.integers(0, 100, 20_000)] + 0.5 * rng.standard_normal((20_000, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    client.create_collection(
        name,
        models.VectorParams(size=DIM, distance=models.Distance.COSINE),
        hnsw_config=models.HnswConfigDiff(full_scan_threshold=100),
    )
    for at in range(0, len(vectors), 2_000):
        ids = list(range(at, at + 2_000))
        client.upsert(name, models.Batch(ids=ids, vectors=vectors[at : at + 2_000].tolist()), wait=False)
    until = time.monotonic() + 120
    while (info := client.get_collection(name)).status != models.CollectionStatus.GREEN:
        assert time.monotonic() < until, info
        time.sleep(0.1)
    assert info.indexed_vectors_count > 0
    queries = vectors[rng.choice(20_000, 200, replace=False)] + 0.05 * rng.standard_normal((200, DIM)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    truth = exact.nearest(vectors, queries, 10)
    found = [[p.id for p in a.points] for a in client.query_batch_points(name, [models.QueryRequest(query=q.tolist(), limit=10) for q in queries])]
    assert exact.recall(found, truth) >= 0.95
    scanned = [models.QueryRequest(query=q.tolist(), limit=10, params=models.SearchParams(exact=True)) for q in queries]
    found = [[p.id for p in a.points] for a in client.query_batch_points(name, scanned)]
    assert exact.recall(found, truth) >= 0.999


def test_scores_of_large_vectors_are_numbers(rest, name):
    """A sum that leaves the range of a float on its way neither drops a point nor makes its score null."""
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 24, "distance": "Dot"}})
    points = [{"id": id, "vector": [value] * 24} for id, value in [(1, 1e38), (2, 1), (3, 3e38)]]
    rest.must("PUT", f"/collections/{name}/points?wait=true", {"points": points})
    for query, scores in [([1, -1] * 12, [0, 0, 0]), ([3e38] * 24, None)]:
        body = {"query": query, "params": {"exact": True}}
        found = rest.must("POST", f"/collections/{name}/points/query", body)["points"]
        assert len(found) == 3 and all(isinstance(point["score"], float) for point in found), found
        assert scores is None or [point["score"] for point in found] == scores
