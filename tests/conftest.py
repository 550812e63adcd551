"""One server in a small budget for the whole run; a fresh collection name for each test."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from qdrant_client import QdrantClient  # noqa: E402

from harness.rest import Connection  # noqa: E402
from harness.server import Server  # noqa: E402

MEMORY = "48MiB"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server") / "data", MEMORY) as running:
        yield running
        assert running.alive(), running.log_tail()
        assert running.peak() <= running.budget, "the charge went over the budget while the tests ran"


@pytest.fixture
def own_server(tmp_path):
    """A server of the test's own, for tests that stop or kill it."""
    running = Server(tmp_path / "data", MEMORY)
    yield running.start()
    running.close()


@pytest.fixture
def client(server):
    made = QdrantClient(url=server.url, timeout=60)
    yield made
    made.close()


@pytest.fixture
def rest(server):
    connection = Connection(server.port)
    yield connection
    connection.close()


@pytest.fixture
def name(request, server):
    """A collection name that is the test's, gone afterwards."""
    chosen = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:80]
    yield chosen
    Connection(server.port).ask("DELETE", f"/collections/{chosen}")


@pytest.fixture
def rng():
    return np.random.default_rng(7)
