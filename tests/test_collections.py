"""Collections, aliases and their settings, through qdrant-client."""

import pytest
from qdrant_client import models
from qdrant_client.http.exceptions import UnexpectedResponse

PLAIN = models.VectorParams(size=4, distance=models.Distance.COSINE)


def test_create_get_list_delete(client, name):
    assert not client.collection_exists(name)
    assert client.create_collection(name, PLAIN)
    assert client.collection_exists(name)
    assert name in [c.name for c in client.get_collections().collections]
    info = client.get_collection(name)
    assert info.status == models.CollectionStatus.GREEN
    assert info.points_count == 0
    assert info.config.params.vectors == PLAIN
    assert client.delete_collection(name)
    assert not client.collection_exists(name)
    with pytest.raises(UnexpectedResponse) as error:
        client.get_collection(name)
    assert error.value.status_code == 404


def test_create_twice_is_a_conflict(client, name):
    client.create_collection(name, PLAIN)
    with pytest.raises(UnexpectedResponse) as error:
        client.create_collection(name, PLAIN)
    assert error.value.status_code == 409


def test_a_name_may_be_used_again(client, name):
    client.create_collection(name, PLAIN)
    client.upsert(name, [models.PointStruct(id=1, vector=[1, 0, 0, 0])])
    client.delete_collection(name)
    client.create_collection(name, models.VectorParams(size=2, distance=models.Distance.DOT))
    assert client.count(name).count == 0
    client.upsert(name, [models.PointStruct(id=1, vector=[1, 0])])
    assert client.count(name).count == 1


@pytest.mark.parametrize("distance", list(models.Distance))
def test_every_distance_is_kept(client, name, distance):
    client.create_collection(name, models.VectorParams(size=3, distance=distance))
    assert client.get_collection(name).config.params.vectors.distance == distance


def test_settings_are_kept_and_patched(client, name):
    client.create_collection(
        name,
        PLAIN,
        hnsw_config=models.HnswConfigDiff(m=24, ef_construct=200),
        optimizers_config=models.OptimizersConfigDiff(deleted_threshold=0.3),
        on_disk_payload=True,
    )
    config = client.get_collection(name).config
    assert (config.hnsw_config.m, config.hnsw_config.ef_construct) == (24, 200)
    assert config.optimizer_config.deleted_threshold == 0.3
    assert client.update_collection(name, optimizers_config=models.OptimizersConfigDiff(deleted_threshold=0.4))
    config = client.get_collection(name).config
    assert config.optimizer_config.deleted_threshold == 0.4
    assert config.hnsw_config.m == 24


def test_named_vectors_are_described(client, name):
    named = {
        "image": models.VectorParams(size=4, distance=models.Distance.EUCLID),
        "text": models.VectorParams(size=3, distance=models.Distance.COSINE),
    }
    client.create_collection(name, named)
    assert client.get_collection(name).config.params.vectors == named


def alias_operations(*operations):
    made = []
    for kind, *names in operations:
        if kind == "create":
            made.append(models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name=names[0], alias_name=names[1])))
        elif kind == "rename":
            made.append(models.RenameAliasOperation(rename_alias=models.RenameAlias(old_alias_name=names[0], new_alias_name=names[1])))
        else:
            made.append(models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=names[0])))
    return made


def test_aliases(client, name):
    client.create_collection(name, PLAIN)
    client.upsert(name, [models.PointStruct(id=1, vector=[1, 0, 0, 0])])
    first, second = f"{name}-a", f"{name}-b"
    assert client.update_collection_aliases(alias_operations(("create", name, first)))
    assert client.count(first).count == 1
    assert [a.alias_name for a in client.get_collection_aliases(name).aliases] == [first]
    assert (first, name) in [(a.alias_name, a.collection_name) for a in client.get_aliases().aliases]
    client.update_collection_aliases(alias_operations(("rename", first, second)))
    assert client.retrieve(second, [1])[0].id == 1
    with pytest.raises(UnexpectedResponse) as error:
        client.count(first)
    assert error.value.status_code == 404
    client.update_collection_aliases(alias_operations(("delete", second)))
    assert client.get_collection_aliases(name).aliases == []


def test_alias_changes_are_all_or_nothing(client, name):
    client.create_collection(name, PLAIN)
    with pytest.raises(UnexpectedResponse) as error:
        client.update_collection_aliases(alias_operations(("create", name, f"{name}-x"), ("create", "is-not-there", f"{name}-y")))
    assert error.value.status_code == 404
    assert client.get_collection_aliases(name).aliases == []


def test_aliases_go_with_their_collection(client, name):
    client.create_collection(name, PLAIN)
    client.update_collection_aliases(alias_operations(("create", name, f"{name}-a")))
    client.delete_collection(name)
    assert f"{name}-a" not in [a.alias_name for a in client.get_aliases().aliases]
