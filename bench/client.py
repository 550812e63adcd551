"""Calls that several benches share: create a collection, upload in several forms, query bodies, recall over REST."""

import json
import multiprocessing
import sys
import threading
import time

import numpy as np
from qdrant_client import QdrantClient, models

from bench.dataset import Dataset
from harness import exact, load
from harness.rest import Connection, points_body, request_bytes
from harness.server import Server

NAME = "bench"


def create(server: Server, dim: int, name: str = NAME, **more) -> None:
    body = {"vectors": {"size": dim, "distance": "Cosine"}, **more}
    Connection(server.port).must("PUT", f"/collections/{name}?timeout=60", body)


def upload_columnar(server: Server, base: np.ndarray, batch: int, name: str = NAME) -> None:
    """qdrant-client with models.Batch: ids and vectors as columns."""
    client = QdrantClient(url=server.url, timeout=600)
    for at in range(0, len(base), batch):
        part = base[at : at + batch]
        points = models.Batch(ids=list(range(at, at + len(part))), vectors=part.tolist())
        client.upsert(name, points, wait=False)
    client.close()


def upload_default(server: Server, base: np.ndarray, name: str = NAME) -> None:
    """qdrant-client's upload_collection with nothing said: 64 points a request, one process."""
    client = QdrantClient(url=server.url, timeout=600)
    client.upload_collection(name, vectors=base, ids=range(len(base)))
    client.close()


def upload_light(server: Server, base: np.ndarray, batch: int = 2_000, first_id: int = 0, name: str = NAME) -> None:
    """The same columns without the library, where the upload is not what is measured. Waits out refusals."""
    connection = Connection(server.port, timeout=600)
    for at in range(0, len(base), batch):
        put(connection, upload_request(first_id + at, base[at : at + batch], name))
    connection.close()


def upload_request(first_id: int, vectors: np.ndarray, name: str = NAME) -> bytes:
    return request_bytes("PUT", f"/collections/{name}/points?wait=false", points_body(first_id, vectors))


def put(connection: Connection, raw: bytes) -> None:
    while (answer := connection.send(raw)).status == 429:
        time.sleep(float(answer.headers.get("retry-after", 1)))
    if answer.status != 200:
        raise RuntimeError(f"upload: {answer.status} {answer.error}")


def prepare_upload(base: np.ndarray, batch: int = 2_000) -> list[bytes]:
    """Every request of an upload, made before its clock runs: some 12 bytes a number."""
    starts = range(0, len(base), batch)
    with multiprocessing.get_context("fork").Pool() as pool:
        return pool.starmap(upload_request, ((at, base[at : at + batch]) for at in starts), chunksize=1)


def upload_prepared(server: Server, requests: list[bytes], connections: int = 2) -> None:
    """Sends them with as little work as a sender can have. Waits out refusals."""
    left, failures = iter(requests), []

    def one() -> None:
        connection = Connection(server.port, timeout=600)
        try:
            for raw in left:  # Python's lock makes `next` of a list's iterator one step
                put(connection, raw)
        except (OSError, RuntimeError) as error:
            failures.append(error)
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def query_request(vector: np.ndarray, name: str = NAME, **more) -> bytes:
    body = {"query": [float(f"{v:.9g}") for v in vector.tolist()], "limit": 10, **more}
    return request_bytes("POST", f"/collections/{name}/points/query", json.dumps(body).encode())


def search(server: Server, data: Dataset, connections: int = 2, name: str = NAME, **more) -> tuple[float, load.Load]:
    """Recall@10 with each query sent once, and what the load saw."""
    requests = [query_request(q, name, **more) for q in data.query]
    seen = load.run(server.port, requests, connections, keep=True)
    if seen.statuses[200] != len(requests):
        raise RuntimeError(f"searches failed: {dict(seen.statuses)}")
    found = [[p["id"] for p in json.loads(body)["result"]["points"]] for _, body in seen.bodies]
    return exact.recall(found, data.truth), seen


def teller(every_s: float):
    """A `tick` for wait_green that says now and then where the collection is."""
    start = told = time.monotonic()

    def tick(info: dict) -> None:
        nonlocal told
        if time.monotonic() - told < every_s:
            return
        told = time.monotonic()
        at = info.get("progress") or {}
        doing = f", {at['what']} {at['done']:,} of {at['total']:,}, {at['left_s']:.0f} s left" if at else ""
        print(f"  .. {info['status']}, {info.get('indexed_vectors_count', 0):,} indexed, {told - start:.0f} s{doing}", file=sys.stderr, flush=True)

    return tick
