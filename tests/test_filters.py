"""Filters over REST: every place that takes one, through qdrant-client and beside its local mode, and what is refused."""

import random

import pytest
from qdrant_client import QdrantClient, models

from harness import filters

POINTS = 200


@pytest.fixture
def filled(client, name):
    """The same payloads on the server and in a local client."""
    local = QdrantClient(":memory:")
    rnd = random.Random(5)
    points = [models.PointStruct(id=i, vector=[rnd.uniform(-1, 1) for _ in range(4)], payload=filters.payload(rnd)) for i in range(POINTS)]
    for one in (client, local):
        one.create_collection(name, vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT))
        one.upsert(name, points)
    yield client, local
    local.close()


def ids(points) -> list:
    return sorted(point.id for point in points)


def is_red() -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key="k", match=models.MatchValue(value="red"))])


def by_hand(name, client, wanted) -> list:
    """The ids of the points whose payload is wanted, seen one by one."""
    return sorted(p.id for p in client.scroll(name, limit=POINTS)[0] if wanted(p.payload))


def has_red(payload) -> bool:
    stored = payload.get("k")
    return "red" in stored if isinstance(stored, list) else stored == "red"


def test_every_read_takes_a_filter(filled, name):
    client, _ = filled
    red = by_hand(name, client, has_red)
    assert 0 < len(red) < POINTS
    assert ids(client.scroll(name, is_red(), limit=POINTS)[0]) == red
    assert client.count(name, is_red()).count == len(red)
    assert ids(client.query_points(name, [1.0, 0, 0, 0], query_filter=is_red(), limit=POINTS).points) == red
    assert ids(client.query_points(name, query_filter=is_red(), limit=POINTS).points) == red
    nearest = client.query_points(name, [1.0, 0, 0, 0], query_filter=is_red(), limit=3).points
    everything = client.query_points(name, [1.0, 0, 0, 0], limit=POINTS).points
    assert [p.id for p in nearest] == [p.id for p in everything if p.id in red][:3]
    # A page begins where the one before ended.
    first, offset = client.scroll(name, is_red(), limit=5)
    second, _ = client.scroll(name, is_red(), limit=5, offset=offset)
    assert ids(first) + ids(second) == red[:10]


def test_every_write_takes_a_filter(filled, name):
    client, local = filled
    red = by_hand(name, client, has_red)
    for one in (client, local):
        one.set_payload(name, {"seen": {"by": 1}}, points=is_red())
        one.set_payload(name, {"at": 2}, points=is_red(), key="seen")
        one.delete_payload(name, ["i", "f"], points=models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key="m"))]))
        one.overwrite_payload(name, {"only": True}, points=models.Filter(must=[models.HasIdCondition(has_id=[3, 4])]))
        one.clear_payload(name, points_selector=models.FilterSelector(filter=models.Filter(must=[models.HasIdCondition(has_id=[5])])))
    ours, theirs = client.scroll(name, limit=POINTS)[0], local.scroll(name, limit=POINTS)[0]
    assert [(p.id, p.payload or {}) for p in ours] == [(p.id, p.payload or {}) for p in theirs]
    kept = [p for p in ours if p.id in red and p.id not in (3, 4, 5)]
    assert kept and all(p.payload["seen"] == {"by": 1, "at": 2} for p in kept)
    seen = models.Filter(must=[models.FieldCondition(key="seen.at", range=models.Range(gte=2))])
    client.delete(name, points_selector=models.FilterSelector(filter=seen))
    assert client.count(name).count == POINTS - len(kept)
    client.delete_vectors(name, vectors=[""], points=models.Filter(must=[models.HasIdCondition(has_id=[5])]))
    assert client.retrieve(name, [5], with_vectors=True)[0].vector == {}
    assert client.count(name, models.Filter(must_not=[models.HasVectorCondition(has_vector="")])).count == 1


def test_a_point_is_written_by_what_is_there(rest, name):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 1, "distance": "Dot"}})
    path = f"/collections/{name}/points"

    def put(numbers, version, **more):
        points = [{"id": i, "vector": [float(version)], "payload": {"version": version}} for i in numbers]
        rest.must("PUT", f"{path}?wait=true", {"points": points, **more})

    def versions():
        page = rest.must("POST", f"{path}/scroll", {"with_vector": True})["points"]
        return {p["id"]: (p["payload"]["version"], p["vector"][0]) for p in page}

    put([1, 2], 1)
    put([2, 3], 2, update_mode="insert_only")
    assert versions() == {1: (1, 1.0), 2: (1, 1.0), 3: (2, 2.0)}
    put([3, 4], 3, update_mode="update_only")
    assert versions() == {1: (1, 1.0), 2: (1, 1.0), 3: (3, 3.0)}
    older = {"must": {"key": "version", "range": {"lt": 3}}}
    put([1, 3, 5], 4, update_filter=older)
    assert versions() == {1: (4, 4.0), 2: (1, 1.0), 3: (3, 3.0), 5: (4, 4.0)}
    body = {"points": [{"id": i, "vector": [9.0]} for i in (1, 2)], "update_filter": older}
    rest.must("PUT", f"{path}/vectors?wait=true", body)
    assert versions() == {1: (4, 4.0), 2: (1, 9.0), 3: (3, 3.0), 5: (4, 4.0)}


def test_operations_of_a_batch(client, rest, name):
    client.create_collection(name, vectors_config=models.VectorParams(size=1, distance=models.Distance.DOT))
    point = lambda i: {"id": i, "vector": [float(i)], "payload": {"n": i}}  # noqa: E731
    operations = [
        {"upsert": {"points": [point(i) for i in range(6)]}},
        {"set_payload": {"filter": {"must": {"key": "n", "range": {"gte": 4}}}, "payload": {"big": True}}},
        {"delete": {"points": [0]}},
        {"overwrite_payload": {"points": [1], "payload": {"new": 1}}},
        {"delete_payload": {"points": [2], "keys": ["n"]}},
        {"clear_payload": {"points": [3]}},
        {"update_vectors": {"points": [{"id": 4, "vector": [9.0]}]}},
        {"delete_vectors": {"points": [5], "vector": [""]}},
    ]
    results = rest.must("POST", f"/collections/{name}/points/batch?wait=true", {"operations": operations})
    assert [r["status"] for r in results] == ["completed"] * len(operations)
    numbers = [r["operation_id"] for r in results]
    assert numbers == sorted(set(numbers))
    points = client.scroll(name, with_vectors=True)[0]
    assert {p.id: (p.payload, p.vector) for p in points} == {
        1: ({"new": 1}, [1.0]),
        2: ({}, [2.0]),
        3: ({}, [3.0]),
        4: ({"n": 4, "big": True}, [9.0]),
        5: ({"n": 5, "big": True}, {}),
    }
    # One that cannot be read, and nothing is done.
    for wrong, said in [({"remove": {}}, "unknown variant"), ({"delete": {}}, "points"), ({}, "without a name")]:
        body = {"operations": [{"delete": {"points": [1, 2, 3]}}, wrong]}
        answer = rest.ask("POST", f"/collections/{name}/points/batch?wait=true", body)
        assert answer.status == 400 and "operations[1]" in answer.error and said in answer.error, answer.error
    assert client.count(name).count == 5


def test_payload_parts_by_path(client, name):
    client.create_collection(name, vectors_config=models.VectorParams(size=1, distance=models.Distance.DOT))
    payload = {"a": {"b": 1, "c": [{"d": 1, "e": 2}, {"d": 3}]}, "x y": 1}
    client.upsert(name, [models.PointStruct(id=1, vector=[1.0], payload=payload)])
    part = lambda paths: client.retrieve(name, [1], with_payload=paths)[0].payload  # noqa: E731
    assert part(["a.c[].d", '"x y"']) == {"a": {"c": [{"d": 1}, {"d": 3}]}, "x y": 1}
    assert part(models.PayloadSelectorExclude(exclude=["a.c[].e", "a.b"])) == {"a": {"c": [{"d": 1}, {"d": 3}]}, "x y": 1}
    client.delete_payload(name, ["a.c[].d", "a.b"], points=[1])
    assert part(True) == {"a": {"c": [{"e": 2}, {}]}, "x y": 1}


@pytest.mark.parametrize(
    "asked, status, said",
    [
        ({"musst": []}, 400, "musst"),
        ({"must": [{"kez": "a", "match": {"value": 1}}]}, 400, "expected a condition"),
        ({"must": [{"key": "a", "match": {"value": 1.5}}]}, 400, "match.value"),
        ({"must": [{"key": "a b", "match": {"value": 1}}]}, 400, "Invalid json path"),
        ({"must": [{"key": "a", "range": {"gt": "soon"}}]}, 400, "date/time"),
        ({"must": [{"key": "a"}]}, 422, "At least one field condition"),
        ({"must": [{"slice": {"total": 2, "index": 2}}]}, 422, "less than total"),
        (
            {"must": [{"key": "a", "geo_polygon": {"exterior": {"points": [{"lon": x, "lat": 0} for x in (0, 1, 2, 3)]}}}]},
            422,
            "the first and the last points",
        ),
        ({"must": [{"key": "a", "geo_radius": {"center": {"lon": 0, "lat": 91}, "radius": 1}}]}, 400, "within [-90;90]"),
    ],
)
def test_what_is_refused(rest, name, asked, status, said):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 1, "distance": "Dot"}})
    for path, body in [("scroll", {}), ("count", {}), ("query", {"query": [1.0]}), ("delete", {})]:
        answer = rest.ask("POST", f"/collections/{name}/points/{path}", {**body, "filter": asked})
        assert answer.status == status and said in answer.error, (path, answer.status, answer.error)


def test_a_filter_that_nests_too_deep_is_refused(rest, name):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 1, "distance": "Dot"}})
    asked: dict = {}
    for _ in range(200):
        asked = {"must": [asked]}
    answer = rest.ask("POST", f"/collections/{name}/points/count", {"filter": asked})
    assert answer.status == 400 and "nest" in answer.error
