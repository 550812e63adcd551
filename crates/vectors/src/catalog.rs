//! Names: which collections there are, their aliases, and all of it as the manifest keeps it.

use crate::api::{AliasAction, CollectionConfig, FieldConfig};
use crate::catalog_cost::{Configs, HeldConfig, alias_bytes};
use crate::collection::Collection;
use crate::field_index::FieldJson;
use crate::op::{CollectionNumber, MetaOp};
use parking_lot::Mutex;
use ramekin_base::{Error, Result};
use ramekin_fields::Path;
use ramekin_log::Position;
use ramekin_memory::Reservation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An alias and the collection that it names from now on, or none.
pub(crate) type AliasChange = (Box<str>, Option<CollectionNumber>);

/// All collections, in the order of their names.
pub(crate) type Collections = Arc<[Arc<Collection>]>;

pub(crate) struct Catalog {
    collections: BTreeMap<Arc<str>, Arc<Collection>>,
    numbers: BTreeMap<CollectionNumber, Arc<Collection>>,
    aliases: BTreeMap<Box<str>, CollectionNumber>,
    aliases_memory: Reservation,
    /// What is to be written of aliases, in its order, and its memory; and the collections that were dropped.
    alias_changes: Vec<AliasChange>,
    changes_memory: Reservation,
    pub(crate) gone: Vec<CollectionNumber>,
    /// Changes that no manifest has.
    pub(crate) unwritten: usize,
    pub(crate) configs: Configs,
    /// What was last asked for all collections gets, until there are others.
    list: Mutex<Option<Collections>>,
    pub(crate) next_number: CollectionNumber,
    /// Meta operations before this position are in here.
    pub(crate) meta_from: Position,
}

/// An operation on names that was checked and has all the memory that it takes: doing it cannot fail.
pub(crate) enum Change {
    Create(Arc<Collection>),
    Drop(CollectionNumber),
    Configure {
        collection: Arc<Collection>,
        config: Arc<HeldConfig>,
        /// The field whose index is another one now, or none.
        index: Option<(Path, Option<FieldConfig>)>,
    },
    Aliases {
        actions: Vec<AliasAction>,
        /// Of new aliases, and of what is to be written of all of them.
        memory: [Reservation; 2],
    },
    /// Of a collection that is gone.
    Nothing,
}

/// All of it, as manifests had it that were written as a whole.
#[derive(Debug, Deserialize)]
pub(crate) struct CatalogJson {
    pub(crate) collections: Vec<CollectionJson>,
    pub(crate) aliases: BTreeMap<String, String>,
}

/// A collection as the manifest keeps it.
#[derive(Debug, Deserialize)]
pub(crate) struct CollectionJson {
    pub(crate) number: CollectionNumber,
    pub(crate) name: String,
    pub(crate) config: CollectionConfig,
    pub(crate) replay_from: Position,
    pub(crate) segments: Vec<SegmentJson>,
}

/// A segment's file, its overlays (of dead rows, and of changed payloads, newest last) and its indexes of fields.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SegmentJson {
    pub(crate) file: String,
    pub(crate) dead: Option<String>,
    #[serde(default)]
    pub(crate) payloads: Vec<String>,
    #[serde(default)]
    pub(crate) fields: Vec<FieldJson>,
}

impl Catalog {
    /// The memory of the aliases and of what is to be written of them, of which there is none yet.
    pub(crate) fn new(
        next_number: CollectionNumber,
        meta_from: Position,
        [aliases_memory, changes_memory]: [Reservation; 2],
    ) -> Self {
        Self {
            collections: BTreeMap::new(),
            numbers: BTreeMap::new(),
            aliases: BTreeMap::new(),
            aliases_memory,
            alias_changes: Vec::new(),
            changes_memory,
            gone: Vec::new(),
            unwritten: 0,
            configs: Configs::default(),
            list: Mutex::new(None),
            next_number,
            meta_from,
        }
    }

    /// The collection behind a name or an alias.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Collection>> {
        let aliased = || self.by_number(*self.aliases.get(name)?);
        let found = self.collections.get(name).or_else(aliased);
        found.ok_or_else(|| Error::not_found(format!("Collection `{name}` doesn't exist!")))
    }

    /// The name of a collection, for people.
    pub(crate) fn name_of(&self, number: CollectionNumber) -> Option<String> {
        self.by_number(number).map(|collection| (*collection.name).to_owned())
    }

    /// The collection of this very name.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Collection>> {
        self.collections.get(name)
    }

    pub(crate) fn by_number(&self, number: CollectionNumber) -> Option<&Arc<Collection>> {
        self.numbers.get(&number)
    }

    pub(crate) fn len(&self) -> usize {
        self.collections.len()
    }

    /// All collections; made once for all who ask before there are others.
    pub(crate) fn collections(&self) -> Collections {
        self.list.lock().get_or_insert_with(|| self.collections.values().cloned().collect()).clone()
    }

    /// The aliases after one, at most `count`, each with its collection's name.
    pub(crate) fn aliases_after(&self, after: &str, count: usize) -> Vec<(Box<str>, Arc<str>)> {
        let later = self.aliases.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let named = later.filter_map(|(alias, number)| Some((alias.clone(), self.by_number(*number)?.name.clone())));
        named.take(count).collect()
    }

    /// The same with the collections' numbers.
    pub(crate) fn numbered_after(&self, after: &str, count: usize) -> Vec<AliasChange> {
        let later = self.aliases.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        later.take(count).map(|(alias, number)| (alias.clone(), Some(*number))).collect()
    }

    /// How many changes of aliases no manifest has.
    pub(crate) fn alias_changes(&self) -> usize {
        self.alias_changes.len()
    }

    pub(crate) fn alias_changes_of(&self, range: Range<usize>) -> Vec<AliasChange> {
        self.alias_changes[range].to_vec()
    }

    /// A manifest has the first of the changes now.
    pub(crate) fn written(&mut self, gone: usize, aliases: usize) {
        self.gone.drain(..gone);
        self.changes_memory.shrink(self.alias_changes.drain(..aliases).map(|(alias, _)| alias_bytes(&alias)).sum());
        self.alias_changes.shrink_to(2 * self.alias_changes.len());
        self.unwritten = self.gone.len() + self.alias_changes.len();
    }

    /// Says whether an operation can be done now.
    pub(crate) fn check(&self, op: &MetaOp) -> Result<()> {
        match op {
            MetaOp::Create { name, .. } => {
                if self.collections.contains_key(name.as_str()) {
                    return Err(Error::exists(format!("Collection `{name}` already exists!")));
                }
                if self.aliases.contains_key(name.as_str()) {
                    return Err(Error::malformed(format!(
                        "Can't create collection with name {name}. Alias with the same name already exists"
                    )));
                }
                if self.collections.len() >= ramekin_base::limits::COLLECTIONS_MAX {
                    let most = ramekin_base::limits::COLLECTIONS_MAX;
                    return Err(Error::invalid(format!("there are {most} collections, which is the most allowed")));
                }
                Ok(())
            }
            MetaOp::Aliases { actions } => {
                // What the actions before have made of the aliases that they name.
                let mut changed = HashMap::with_capacity(actions.len());
                actions.iter().try_for_each(|action| self.check_alias(&mut changed, action))
            }
            MetaOp::Index { number, path, index } => self.check_index(*number, path, index.as_ref()),
            MetaOp::Drop { .. } | MetaOp::Patch { .. } => Ok(()),
        }
    }

    fn check_index(&self, number: CollectionNumber, path: &Path, index: Option<&FieldConfig>) -> Result<()> {
        let most = ramekin_base::limits::FIELD_INDEXES_MAX;
        let count = |collection: &Arc<Collection>| {
            let config = collection.config.load();
            config.indexes.len() - usize::from(config.indexes.contains_key(path))
        };
        match self.by_number(number).map(count) {
            Some(count) if index.is_some() && count >= most => {
                Err(Error::invalid(format!("the collection has {most} indexed fields, which is the most allowed")))
            }
            _ => Ok(()),
        }
    }

    fn check_alias<'a>(&self, changed: &mut HashMap<&'a str, bool>, action: &'a AliasAction) -> Result<()> {
        let is_there = |changed: &HashMap<&str, bool>, alias: &str| match changed.get(alias) {
            Some(is_there) => *is_there,
            None => self.aliases.contains_key(alias),
        };
        let missing = |alias: &str| Error::not_found(format!("Alias {alias} does not exists!"));
        let is_taken = |name: &str| match self.collections.contains_key(name) {
            true => Err(Error::exists(format!("Collection `{name}` already exists!"))),
            false => Ok(()),
        };
        match action {
            AliasAction::Create { alias, collection } => {
                if !self.collections.contains_key(collection.as_str()) {
                    return Err(Error::not_found(format!("Collection `{collection}` doesn't exist!")));
                }
                is_taken(alias)?;
                changed.insert(alias, true);
            }
            AliasAction::Delete { alias } => {
                if !is_there(changed, alias) {
                    return Err(missing(alias));
                }
                changed.insert(alias, false);
            }
            AliasAction::Rename { from, to } => {
                is_taken(to)?;
                if !is_there(changed, from) {
                    return Err(missing(from));
                }
                changed.insert(from, false);
                changed.insert(to, true);
            }
        }
        Ok(())
    }

    pub(crate) fn insert(&mut self, collection: Arc<Collection>) {
        self.next_number = self.next_number.max(collection.number + 1);
        self.unwritten += usize::from(collection.unwritten.load(Ordering::Relaxed));
        self.numbers.insert(collection.number, collection.clone());
        self.collections.insert(collection.name.clone(), collection);
        *self.list.get_mut() = None;
    }

    /// Applies alias actions, for which there is `memory`; what is not there is passed over, since replay may meet it again.
    pub(crate) fn apply_aliases(&mut self, actions: Vec<AliasAction>, [aliases, changes]: [Reservation; 2]) {
        // All of it is of the catalog's account.
        _ = (self.aliases_memory.join(aliases), self.changes_memory.join(changes));
        for action in actions {
            match action {
                AliasAction::Create { alias, collection } => {
                    let number = self.collections.get(collection.as_str()).map(|collection| collection.number);
                    self.set_alias(alias.into(), number);
                }
                AliasAction::Delete { alias } => _ = self.remove_alias(alias.into()),
                AliasAction::Rename { from, to } => {
                    let number = self.remove_alias(from.into());
                    self.set_alias(to.into(), number);
                }
            }
        }
    }

    /// Sets an alias, for which memory was booked; it is given back where the alias was there, or its collection is not.
    fn set_alias(&mut self, alias: Box<str>, number: Option<CollectionNumber>) {
        let bytes = alias_bytes(&alias);
        let Some(number) = number else {
            self.aliases_memory.shrink(bytes);
            self.changes_memory.shrink(bytes);
            return;
        };
        self.restore_alias(alias.clone(), Some(number));
        self.alias_changes.push((alias, Some(number)));
        self.unwritten += 1;
    }

    fn remove_alias(&mut self, alias: Box<str>) -> Option<CollectionNumber> {
        let number = self.aliases.get(&alias).copied();
        self.restore_alias(alias.clone(), None);
        self.alias_changes.push((alias, None));
        self.unwritten += 1;
        number
    }

    /// An alias as a manifest has it; memory was booked for one that is set.
    pub(crate) fn restore_alias(&mut self, alias: Box<str>, number: Option<CollectionNumber>) {
        let bytes = alias_bytes(&alias);
        let had_memory = match number {
            Some(number) => self.aliases.insert(alias, number).is_some(),
            None => self.aliases.remove(&alias).is_some(),
        };
        self.aliases_memory.shrink(if had_memory { bytes } else { 0 });
    }

    /// Memory for aliases that are restored.
    pub(crate) fn join_aliases(&mut self, memory: Reservation) {
        _ = self.aliases_memory.join(memory);
    }

    /// Removes the aliases whose collection is gone: a manifest says that once only.
    pub(crate) fn drop_dangling(&mut self) {
        let mut freed = 0;
        let numbers = &self.numbers;
        self.aliases.retain(|alias, number| {
            let stays = numbers.contains_key(number);
            freed += if stays { 0 } else { alias_bytes(alias) };
            stays
        });
        self.aliases_memory.shrink(freed);
    }

    /// Lets go of everything: the store does not open.
    pub(crate) fn clear(&mut self) {
        self.collections.clear();
        self.numbers.clear();
        self.aliases.clear();
        self.aliases_memory.shrink(u64::MAX);
        *self.list.get_mut() = None;
    }

    /// Takes a collection out, with the aliases that name it.
    pub(crate) fn remove(&mut self, number: CollectionNumber) -> Option<Arc<Collection>> {
        let collection = self.numbers.remove(&number)?;
        self.collections.remove(&collection.name);
        self.gone.push(number);
        self.unwritten += 1;
        *self.list.get_mut() = None;
        let mut freed = 0;
        self.aliases.retain(|alias, of| {
            freed += if *of == number { alias_bytes(alias) } else { 0 };
            *of != number
        });
        self.aliases_memory.shrink(freed);
        Some(collection)
    }
}

/// Bytes that the actions' new aliases take, and what is to be written of all of them.
pub(crate) fn actions_bytes(actions: &[AliasAction]) -> [u64; 2] {
    let bytes = |action: &AliasAction| match action {
        AliasAction::Create { alias: new, .. } => [alias_bytes(new); 2],
        AliasAction::Rename { from, to } => [alias_bytes(to), alias_bytes(from) + alias_bytes(to)],
        AliasAction::Delete { alias } => [0, alias_bytes(alias)],
    };
    actions.iter().map(bytes).fold([0, 0], |sum, more| [sum[0] + more[0], sum[1] + more[1]])
}

impl SegmentJson {
    /// The files that it names.
    pub(crate) fn files(&self) -> impl Iterator<Item = &String> {
        let fields = self.fields.iter().map(|field| &field.file);
        std::iter::once(&self.file).chain(&self.dead).chain(&self.payloads).chain(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_from_before_payload_overlays_is_read() {
        let old: SegmentJson =
            serde_json::from_str(r#"{"file":"files/000001.seg","dead":"files/000002.dead"}"#).unwrap();
        assert_eq!((old.dead.as_deref(), old.payloads.len()), (Some("files/000002.dead"), 0));
        let new = SegmentJson { payloads: vec!["files/000003.payload".to_owned()], ..old };
        let again: SegmentJson = serde_json::from_slice(&serde_json::to_vec(&new).unwrap()).unwrap();
        assert_eq!(again.payloads, new.payloads);
    }
}
