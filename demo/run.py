"""The main job on real input: index documentation found on this machine under 128 MiB, then ask it questions.

    cargo registry, Python's sources --> snippets --> LSA vectors --> ramekin serve --memory 128MiB
                                                                          |  upload, wait until green
    questions in plain English ---------> same LSA ------------------> nearest snippets, recall, speed, memory

What was built stays in the data folder; a second run only starts the server and asks. `--prepare` ends after the
vectors, for which no server is needed: `make demo` lets it run beside the compiler.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from qdrant_client import QdrantClient, models  # noqa: E402

from demo import picture  # noqa: E402
from demo.embed import Embedder  # noqa: E402
from demo.harvest import Snippet, cargo_registry, harvest, python_sources  # noqa: E402
from demo.progress import Progress, seconds  # noqa: E402
from harness import exact, light, load  # noqa: E402
from harness.rest import Connection, request_bytes  # noqa: E402
from harness.rest import wait_green as wait_green_of  # noqa: E402
from harness.server import Server, binary, mib  # noqa: E402

FORMAT = 1  # raised when what the data folder holds changes its shape
COLLECTION = "snippets"
MEMORY = "128MiB"
DIM = 160
SNIPPETS_MIN, SNIPPETS_MAX = 200_000, 240_000
HELD_OUT = 1_000  # snippets that are not uploaded and serve as questions with a known answer
BATCH = 1_000
QUESTIONS = [
    "What happens to blocking tasks when the runtime is shut down?",
    "How is a hash map protected against attackers who choose the keys?",
    "parse command line arguments",
    "convert a date to another time zone",
    "read a file line by line",
    "generate random numbers that are safe for passwords",
]


class Paths:
    def __init__(self, root: Path):
        self.root = root
        self.server = root / "server"
        self.log = root / "server.log"
        self.embedder = root / "embedder.joblib"
        self.vectors = root / "vectors.npy"
        self.questions = root / "held_out.npy"
        self.snippets = root / "snippets.jsonl"
        self.prepared = root / "prepared.json"  # each is written last, so a step that was cut off starts over
        self.done = root / "done.json"


TESTS = re.compile(r"(^|/)(tests?|testing|benches)/|(^|/)test_|_tests?\.")


def gather() -> list[Snippet]:
    """Documentation first; comments in tests only where there is too little else."""
    trees = cargo_registry() + python_sources()
    progress = Progress("read", SNIPPETS_MAX, "snippets")
    found: list[Snippet] = []
    tests: list[Snippet] = []
    for snippet in harvest(trees, overlap=True):
        (tests if TESTS.search(snippet.file) else found).append(snippet)
        progress.at(len(found))
        if len(found) >= SNIPPETS_MAX:
            break
    found += tests[: max(0, SNIPPETS_MIN + HELD_OUT - len(found))]
    progress.end(f"{len(found):,} snippets of comments and documentation from {len(trees)} source trees")
    if len(found) < SNIPPETS_MIN:
        print(f"note: fewer than {SNIPPETS_MIN:,} snippets; build the project once so that the cargo registry is filled")
    return found


def described(snippet: Snippet) -> str:
    """What is embedded: the text with the names of its file, folder and item, which often say the subject."""
    return " ".join([*Path(snippet.file).with_suffix("").parts[-2:], snippet.item, snippet.text])


def prepare(paths: Paths) -> None:
    """Snippets, vectors and the fitted embedder, written to the data folder."""
    snippets = gather()
    np.random.default_rng(0).shuffle(snippets)
    progress = Progress("embed", len(snippets), "snippets")
    embedder = Embedder(DIM, evenness=1.0)
    vectors = embedder.fit_embed([described(s) for s in snippets])
    known = np.any(vectors != 0, axis=1)
    snippets = [s for s, k in zip(snippets, known, strict=True) if k]
    vectors = vectors[known]
    progress.end(f"{len(vectors):,} vectors of {DIM} dimensions (TF-IDF, {len(embedder.counts.vocabulary_):,} words, SVD)")
    joblib.dump(embedder, paths.embedder)
    np.save(paths.questions, vectors[:HELD_OUT])
    np.save(paths.vectors, vectors[HELD_OUT:])
    with open(paths.snippets, "w") as out:
        for s in snippets[HELD_OUT:]:
            out.write(json.dumps({"file": s.file, "line": s.line, "item": s.item, "text": s.text}) + "\n")
    mark(paths.prepared)


def upload(client: QdrantClient, server: Server, paths: Paths) -> None:
    vectors = np.load(paths.vectors)
    if client.collection_exists(COLLECTION):
        client.delete_collection(COLLECTION)
    client.create_collection(COLLECTION, models.VectorParams(size=DIM, distance=models.Distance.COSINE))
    progress = Progress("upload", len(vectors), "points")
    # While the server takes one batch the next is made ready.
    with open(paths.snippets) as rows, ThreadPoolExecutor(1) as sender:
        sent: Future | None = None
        for at in range(0, len(vectors), BATCH):
            part = vectors[at : at + BATCH]
            payloads = [json.loads(next(rows)) for _ in part]
            ids = list(range(at, at + len(part)))
            batch = models.Batch(ids=ids, vectors=part.tolist(), payloads=payloads)
            if sent is not None:
                sent.result()
                progress.at(at)
            sent = sender.submit(client.upsert, COLLECTION, batch, wait=False)
        if sent is not None:
            sent.result()
    progress.end(f"{len(vectors):,} points acknowledged")
    wait_green(server)


def wait_green(server: Server) -> None:
    """The server says what it builds, how far it is and how long that takes; qdrant-client's model leaves that out."""
    progress = Progress("index", 0, "points")

    def tell(info: dict) -> None:
        if at := info.get("progress"):
            rate = f"{at['rate_per_s']:,.0f}/s, {seconds(at['left_s'])} left"
            progress.say(f"index: {at['what']}, {at['done']:,} of {at['total']:,} points, {rate}")

    connection = Connection(server.port)
    wait_green_of(connection, COLLECTION, 3_600, tick=tell, every_s=0.2)
    info = connection.must("GET", f"/collections/{COLLECTION}")
    progress.end(f"{info['indexed_vectors_count']:,} points in {info['segments_count']} segments, green")


def ask(client: QdrantClient, embedder: Embedder, question: str, limit: int) -> None:
    print(f"\n? {question}")
    vector = embedder.embed([question])[0]
    if not np.any(vector):
        print("    none of these words is known here")
        return
    found = client.query_points(COLLECTION, query=vector.tolist(), limit=limit * 5, with_payload=True).points
    shown: set[str] = set()
    for point in found:
        payload = point.payload
        place = f"{payload['file']} {payload['item'] or payload['line']}"
        if place in shown or len(shown) == limit:
            continue  # snippets overlap: one of each place is enough
        shown.add(place)
        item = f"  {payload['item']}" if payload["item"] else ""
        print(f"  {point.score:.3f}  {payload['file']}:{payload['line']}{item}")
        text = textwrap.shorten(payload["text"], 220, placeholder=" ...")
        print(textwrap.fill(text, 110, initial_indent="         ", subsequent_indent="         "))


def query_bytes(vector: np.ndarray, **more) -> bytes:
    body = {"query": [float(f"{v:.9g}") for v in vector.tolist()], "limit": 10, **more}
    return request_bytes("POST", f"/collections/{COLLECTION}/points/query", json.dumps(body).encode())


def ids_of(answers: load.Load) -> list[list[int]]:
    return [[p["id"] for p in json.loads(body)["result"]["points"]] for _, body in answers.bodies]


def measure(server: Server, paths: Paths) -> None:
    base, questions = np.load(paths.vectors), np.load(paths.questions)
    truth = exact.nearest(base, questions, 10)
    plain = [query_bytes(q) for q in questions]
    scanned = [query_bytes(q, params={"exact": True}) for q in questions[:100]]
    found = ids_of(load.run(server.port, plain, 2, keep=True))
    by_server = np.array(ids_of(load.run(server.port, scanned, 2, keep=True)))
    print(f"\n{len(questions):,} held-out snippets as questions, each asked for its 10 nearest of {len(base):,}:")
    print(f"  recall@10 against exact search in numpy        {exact.recall(found, truth):.4f}")
    print(f"  recall@10 against exact search by the server   {exact.recall(found[:100], by_server):.4f}  (params.exact, 100)")
    for connections in (1, 8):
        seen = light.run(paths.root, server.port, plain, connections, 4)
        label = f"{connections} connection{'s' if connections > 1 else ''}"
        print(f"  {label:<14} {seen['per_second']:8,.0f} queries/s   p50 {seen['p50_ms']:.2f} ms, p99 {seen['p99_ms']:.2f} ms")
    empty = light.run(paths.root, server.port, [request_bytes("GET", "/livez")], 8, 2)
    print(f"  for scale      {empty['per_second']:8,.0f} empty requests/s over 8 connections (GET /livez)")


def show_memory(server: Server) -> None:
    print(f"\n$ ramekin memory {server.url}", flush=True)
    subprocess.run([str(binary()), "memory", server.url], check=False)
    memory = server.memory()
    print("\nthe same as a picture, each bar against the budget:")
    print(picture.ledger(memory))
    kernel = f"kernel's peak charge {mib(server.peak())}" if server.cgroup else f"peak resident set {mib(server.peak())}"
    held = "held" if max(server.peak(), memory["peak_bytes"]) <= server.budget else "NOT held"
    print(f"  {kernel}, budget {mib(server.budget)}: {held}; vectors alone are {mib(np.load(server.data.parent / 'vectors.npy', mmap_mode='r').nbytes)}")


MARK = {"format": FORMAT, "dim": DIM}


def mark(path: Path) -> None:
    path.write_text(json.dumps(MARK))


def is_marked(path: Path) -> bool:
    try:
        return json.loads(path.read_text()) == MARK
    except (OSError, ValueError):
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".demo"), help="folder that keeps data between runs")
    parser.add_argument("--query", help="ask this instead of the examples")
    parser.add_argument("--prepare", action="store_true", help="read and embed only")
    parser.add_argument("--limit", type=int, default=3, help="snippets shown for a question")
    args = parser.parse_args()
    start = time.monotonic()
    paths = Paths(args.data)
    if not is_marked(paths.prepared):
        shutil.rmtree(paths.root, ignore_errors=True)
        paths.root.mkdir(parents=True)
        prepare(paths)
    if args.prepare:
        return 0
    fresh = not is_marked(paths.done)
    if fresh:
        shutil.rmtree(paths.server, ignore_errors=True)
    with Server(paths.server, MEMORY, log=paths.log) as server:
        where = "in a memory cgroup" if server.cgroup else "without a cgroup (not permitted here; the resident set is measured)"
        print(f"server: {server.url}, --memory {MEMORY}, {where}, ready after {server.started_s:.2f} s, log {paths.log}")
        client = QdrantClient(url=server.url, timeout=300)
        if fresh:
            upload(client, server, paths)
            mark(paths.done)
        else:
            print(f"data: {client.count(COLLECTION).count:,} points of an earlier run (make clean-demo forgets them)")
            wait_green(server)
        embedder = joblib.load(paths.embedder)
        for question in [args.query] if args.query else QUESTIONS:
            ask(client, embedder, question, args.limit * (2 if args.query else 1))
        if not args.query:
            measure(server, paths)
            show_memory(server)
        client.close()
    print(f"\ndone in {seconds(time.monotonic() - start)}; ask your own: make demo QUERY=\"...\"")
    return 0


if __name__ == "__main__":
    sys.exit(main())
