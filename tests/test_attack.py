"""Drawn attacks on every endpoint: the server lives, within its budget, and answers others meanwhile. In full: bench/attack.py."""

import os
import random
import re
import threading
import time
from pathlib import Path

import grpc
import pytest

from bench.attack import start_of
from harness.etcd import Client
from harness.server import Server, free_port, mib
from tests.attack import bodies, etcd, run, surface
from tests.attack.kinds import Text, Whole

ROUTES = Path(__file__).resolve().parent.parent / "crates" / "door-qdrant" / "src" / "routes.rs"


def test_the_table_of_the_attacks_has_every_route_that_is_built():
    routes = re.findall(r'^    (GET|PUT|POST|PATCH|DELETE) "([^"]+)" (\w+) ([\w:]+);', ROUTES.read_text(), re.M)
    built = {(method, path, access) for method, path, access, handler in routes if handler != "not_implemented"}
    assert built == {(endpoint.method, endpoint.path, endpoint.access) for endpoint in surface.ENDPOINTS}


# What a decoder compares with the name of a field; these are words that a field may hold.
DECODERS = ["batch", "search", "listing", "selection", "aliases", "indexes", "plan", "memory", "collection_body", "sections", "text_index", "writes"]
FIELD = '"[a-z_]+"'
ARM = re.compile(rf"^ *({FIELD}(?: \| {FIELD})*)(?: if .*)? => ", re.M)
TABLE = re.compile(rf"^ *\(({FIELD}), (?:[A-Z]\w+\b|{FIELD}|\w+::)", re.M)
LISTS = re.compile(r"(?:const [A-Z_]+: &str = |fields\(reader, \[|const OTHER_QUERIES: .*\n)(.*)")
WORDS = {"insert_only", "update_only", "pinned"}


def test_the_table_of_the_attacks_has_every_field_that_a_decoder_knows():
    files = [file for file in sorted(ROUTES.parent.rglob("*.rs")) if file.stem in DECODERS or file.parent.name == "wire"]
    code = "".join(file.read_text().partition("#[cfg(test)]")[0] for file in files)
    known = {name.strip('"') for found in (ARM, TABLE, LISTS) for text in found.findall(code) for name in re.findall(FIELD, text)}
    assert {"update_mode", "with_vectors", "hnsw_ef", "full_scan_threshold_kb", "old_alias_name", "set_payload", "recommend", "wal_config"} <= known
    assert known - WORDS <= {name for _, path in surface.aims() for name in re.findall(r"\w+", path)}


def test_bodies_are_repeatable_and_at_least_half_of_the_limit_or_malformed():
    most = 300_000
    for attack in run.plan(3, 300):
        one, two = (bodies.draw(attack.spots, random.Random(f"3/{attack.number}"), most) for _ in range(2))
        assert one == two
        assert len(one.text) >= most // 2 or one.form in bodies.MALFORMED, (str(attack), one.form)


def test_the_deck_is_shared_out_and_a_seed_draws_the_same_again():
    deck = run.deck()
    attacks = [attack for budget in ("24MiB", "48MiB", "256MiB") for attack in run.plan(1, 2_000, start_of(budget))]
    assert {cell for attack in attacks for cell in attack.cells} == set(deck)
    assert [str(attack) for attack in run.plan(5, 50)] == [str(attack) for attack in run.plan(5, 50)]


def test_distinct_items_are_distinct():
    some = bodies.items(b"%d", 1_000).split(b",")
    assert len(set(some)) == len(some) > 50
    assert bodies.legal(Text(""), random.Random(1), 500).startswith(b'"')
    assert len(bodies.legal(Whole(1), random.Random(1), 500)) > 400


@pytest.mark.parametrize(("memory", "attacks"), [("24MiB", 17), ("48MiB", 17), ("256MiB", 16)])
def test_drawn_attacks_neither_kill_nor_stop_it(tmp_path, capsys, memory, attacks):
    seed = int(os.environ.get("ATTACK_SEED", "1"))
    start = random.Random(f"{seed}/{memory}").randrange(len(run.deck()))
    began = time.monotonic()
    result = run.run(tmp_path / "data", memory, run.plan(seed, attacks, start), seed, within_s=None)
    with capsys.disabled():
        limits = "" if result.limited else ", NOT LIMITED: no cgroup may be made here"
        print(f"\n  {memory}: {len(result.done)} attacks, seed {seed}, from {start} of the deck, {time.monotonic() - began:.0f} s{limits}")
    assert not result.faults, f"bench/attack.py --memory {memory} --seed {seed} --start {start}:\n" + "\n".join(result.faults)
    assert len(result.done) == attacks


class Witness:
    """A client of etcd's door that puts, again and again, while others attack: it may be refused, and must not be left without an answer."""

    def __init__(self, port: int):
        self.client, self.stop, self.slowest, self.done = Client(port), threading.Event(), 0.0, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stop.wait(0.05):
            began = time.monotonic()
            try:
                self.client.kv.Put(self.client.pb.PutRequest(key=b"witness", value=b"%d" % self.done), timeout=30)
                self.done += 1
            except grpc.RpcError:
                pass
            self.slowest = max(self.slowest, time.monotonic() - began)

    def end(self) -> None:
        self.stop.set()
        self.thread.join()
        self.client.close()


@pytest.mark.parametrize("attack", etcd.ATTACKS, ids=lambda attack: attack.__name__)
def test_attacks_on_the_door_of_etcd_neither_kill_nor_stop_it(tmp_path, attack):
    door = free_port()
    with Server(tmp_path / "data", "46MiB", options=("--etcd", f"127.0.0.1:{door}")) as server:
        witness = Witness(door)
        attack(door)
        witness.end()
        assert server.alive(), server.log_tail()
        assert server.cgroup is None or server.cgroup.kills() == 0
        assert server.peak() <= server.budget, f"the charge was {mib(server.peak())}"
        assert "panicked" not in server.log.read_text(errors="replace")
        assert witness.slowest < 15, f"a put took {witness.slowest:.1f} s"
        afterwards = Client(door)
        end = time.monotonic() + 20
        while True:
            try:
                afterwards.put(b"afterwards", b"1")
                break
            except grpc.RpcError:
                assert time.monotonic() < end, "it does not take a put when all is over"
                time.sleep(0.2)
        afterwards.close()
