"""Data folders of earlier formats open for ever. A fixture is never changed: each format adds one beside it (`fixtures/make.py`).

    fixtures/format-1.tar.xz     page files, manifest and log of version 1; its server was killed with kill -9
        plain    0 to 729 but some deleted ones; sealed, with bits of dead rows, changed payloads and indexes of two fields;
                 alias `known`
        named    25 points with two vectors, or one; sealed in part
        log      the last upserts, deletes and changes of payloads stand only there
    fixtures/format-2.tar.xz     the same of version 2, and an index of texts; the folder's small files
        small    40 points of float16 and of uint8
        budget   40 MiB by PUT /memory, where 32 MiB were configured
"""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.rest import Connection
from harness.server import Server, binary, parse_size

FIXTURES = Path(__file__).resolve().parent / "fixtures"
KINDS = ["red", "green", "blue"]
DELETED = {*range(10, 22), 450}
MEMORY, BUDGET_KEPT = "32MiB", "40MiB"
# Every kind of file that a folder of the newest format has.
KINDS_OF_FILES = [
    r"LOCK",
    r"BEGUN",
    r"RESERVE",
    r"RESERVE\.name",
    r"budget\.json",
    r"MANIFEST",
    r"log/[0-9a-f]{16}\.log",
    r"files/\d{6}\.seg",
    r"files/\d{6}\.dead",
    r"files/\d{6}\.payload",
    r"files/\d{6}\.field",
]


def vector(number: int, dim: int) -> list[float]:
    values = [0.0] * dim
    values[number % 4] = 1.0 + number % 4
    return values


def plain(number: int) -> dict:
    payload = {"n": number, "kind": KINDS[number % 3], "words": f"dish number {number}"}
    if 30 <= number < 40:
        payload["kind"] = "patched"
    if number in (40, 41, 451):
        payload["late"] = True
    if number == 50:
        return {"id": 50, "vector": vector(51, 1024), "payload": {"n": 50, "kind": "moved"}}
    return {"id": number, "vector": vector(number, 1024), "payload": payload}


def named(number: int) -> dict:
    vectors = {"b": [float(number), 1.0, 2.0, 3.0]}
    if number % 2 == 0 and number != 4:
        vectors["a"] = vector(number, 512)
    return {"id": f"00000000-0000-0000-0000-{number:012d}", "vector": vectors, "payload": {"i": number}}


def small(number: int) -> dict:
    return {"id": number, "vector": {"f": [number / 4] * 16, "u": [number] * 16}, "payload": {"i": number}}


def scroll(rest: Connection, collection: str) -> list[dict]:
    points, offset = [], None
    while True:
        body = {"limit": 100, "with_vector": True, "with_payload": True, "offset": offset}
        answer = rest.ask("POST", f"/collections/{collection}/points/scroll", body)
        assert answer.status == 200, answer.body
        points += [{key: point[key] for key in ("id", "vector", "payload")} for point in answer.result["points"]]
        offset = answer.result["next_page_offset"]
        if offset is None:
            return points


def look(server: Server, fixture: str):
    """All that was acknowledged is there, as it was."""
    rest = Connection(server.port)
    if fixture != "format-1":
        look_at_newer(server, rest)
    everything = [plain(number) for number in range(730) if number not in DELETED]
    assert scroll(rest, "plain") == everything
    assert scroll(rest, "known") == everything
    assert scroll(rest, "named") == [named(number) for number in range(25)]
    for kind in [*KINDS, "patched", "moved"]:
        condition = {"must": [{"key": "kind", "match": {"value": kind}}]}
        counted = rest.ask("POST", "/collections/plain/points/count", {"filter": condition, "exact": True})
        assert counted.result["count"] == sum(point["payload"]["kind"] == kind for point in everything), kind
    condition = {"must": [{"key": "n", "range": {"gte": 45, "lt": 55}}]}
    found = rest.ask("POST", "/collections/plain/points/query", {"query": vector(3, 1024), "filter": condition, "limit": 20})
    assert {point["id"] for point in found.result["points"]} == set(range(45, 55))
    assert found.result["points"][0]["id"] in (47, 50, 51)
    found = rest.ask("POST", "/collections/named/points/query", {"query": [24.0, 1, 2, 3], "using": "b", "limit": 1})
    assert found.result["points"][0]["id"] == named(24)["id"]
    rest.close()


def look_at_newer(server: Server, rest: Connection):
    assert server.memory()["budget_bytes"] == parse_size(BUDGET_KEPT)
    assert scroll(rest, "small") == [small(number) for number in range(40)]
    found = rest.ask("POST", "/collections/small/points/query", {"query": [7] * 16, "using": "u", "limit": 1})
    assert found.result["points"][0]["id"] == 7
    condition = {"must": [{"key": "words", "match": {"text": "number 451"}}]}
    counted = rest.ask("POST", "/collections/plain/points/count", {"filter": condition, "exact": True})
    assert counted.result["count"] == 1


def test_a_fixture_has_every_kind_of_file():
    with tarfile.open(FIXTURES / "format-2.tar.xz") as archive:
        names = [entry.name.removeprefix("data/") for entry in archive if entry.isfile()]
    page = (FIXTURES.parent.parent / "docs/FORMAT.md").read_text()
    for kind in KINDS_OF_FILES:
        assert any(re.fullmatch(kind, name) for name in names), f"no {kind} among {names}"
    for name in names:
        assert any(re.fullmatch(kind, name) for kind in KINDS_OF_FILES), f"docs/FORMAT.md and this list lack {name}"
        plain_name = name.split("/")[-1]
        known = "*." + plain_name.split(".")[-1] if "/" in name else plain_name
        assert f"`{known}`" in page, f"docs/FORMAT.md says nothing of {known}"


@pytest.mark.parametrize("fixture", ["format-1", "format-2"])
def test_a_folder_of_an_earlier_format_opens_with_all_that_was_acknowledged(tmp_path, fixture):
    with tarfile.open(FIXTURES / f"{fixture}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    checked = subprocess.run([binary(), "check", data], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with Server(data, MEMORY, limited=False) as server:
        look(server, fixture)
    # Now it holds files of both formats.
    with Server(data, MEMORY, limited=False) as server:
        look(server, fixture)
        rest = Connection(server.port)
        body = {"points": [{"id": 1000, "vector": vector(2, 1024), "payload": {"n": 1000}}]}
        assert rest.ask("PUT", "/collections/known/points?wait=true", body).status == 200
        rest.close()
        server.kill9()
        server.start()
        rest = Connection(server.port)
        assert rest.ask("GET", "/collections/plain/points/1000").result["payload"] == {"n": 1000}
        assert rest.ask("POST", "/collections/plain/points/delete?wait=true", {"points": [1000]}).status == 200
        rest.close()
        look(server, fixture)
    checked = subprocess.run([binary(), "check", data], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
