//! Names: which collections there are, their aliases, and all of it as the manifest keeps it.

use crate::api::{AliasAction, CollectionConfig, FieldConfig};
use crate::collection::Collection;
use crate::field_index::FieldJson;
use crate::op::{CollectionNumber, MetaOp};
use ramekin_base::{Error, Result};
use ramekin_fields::Path;
use ramekin_log::Position;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) collections: BTreeMap<String, Arc<Collection>>,
    pub(crate) aliases: BTreeMap<String, String>,
    pub(crate) next_number: CollectionNumber,
    /// Meta operations before this position are in here.
    pub(crate) meta_from: Position,
}

/// The store's part of the manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CatalogJson {
    pub(crate) next_number: CollectionNumber,
    pub(crate) operation: u64,
    pub(crate) meta_from: Position,
    pub(crate) collections: Vec<CollectionJson>,
    pub(crate) aliases: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// The collection behind a name or an alias.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Collection>> {
        let name = self.aliases.get(name).map_or(name, String::as_str);
        let found = self.collections.get(name);
        found.ok_or_else(|| Error::not_found(format!("Collection `{name}` doesn't exist!")))
    }

    pub(crate) fn by_number(&self, number: CollectionNumber) -> Option<&Arc<Collection>> {
        self.collections.values().find(|collection| collection.number == number)
    }

    /// Says whether an operation can be done now; what passes here cannot fail when it is applied.
    pub(crate) fn check(&self, op: &MetaOp) -> Result<()> {
        match op {
            MetaOp::Create { name, .. } => {
                if self.collections.contains_key(name) {
                    return Err(Error::exists(format!("Collection `{name}` already exists!")));
                }
                if self.aliases.contains_key(name) {
                    return Err(Error::exists(format!("an alias is named `{name}` already")));
                }
                if self.collections.len() >= ramekin_base::limits::COLLECTIONS_MAX {
                    let most = ramekin_base::limits::COLLECTIONS_MAX;
                    return Err(Error::invalid(format!("there are {most} collections, which is the most allowed")));
                }
                Ok(())
            }
            MetaOp::Aliases { actions } => {
                let mut aliases = self.aliases.clone();
                actions.iter().try_for_each(|action| self.check_alias(&mut aliases, action))
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

    fn check_alias(&self, aliases: &mut BTreeMap<String, String>, action: &AliasAction) -> Result<()> {
        let missing = |alias: &str| Error::not_found(format!("Alias {alias} does not exist!"));
        match action {
            AliasAction::Create { alias, collection } => {
                if !self.collections.contains_key(collection) {
                    return Err(Error::not_found(format!("Collection `{collection}` doesn't exist!")));
                }
                if self.collections.contains_key(alias) {
                    return Err(Error::exists(format!("Collection `{alias}` already exists!")));
                }
                aliases.insert(alias.clone(), collection.clone());
            }
            AliasAction::Delete { alias } => {
                aliases.remove(alias).ok_or_else(|| missing(alias))?;
            }
            AliasAction::Rename { from, to } => {
                if self.collections.contains_key(to) {
                    return Err(Error::exists(format!("Collection `{to}` already exists!")));
                }
                let collection = aliases.remove(from).ok_or_else(|| missing(from))?;
                aliases.insert(to.clone(), collection);
            }
        }
        Ok(())
    }

    /// Applies alias actions; what is not there is passed over, since replay may meet it again.
    pub(crate) fn apply_aliases(&mut self, actions: &[AliasAction]) {
        for action in actions {
            match action {
                AliasAction::Create { alias, collection } => {
                    self.aliases.insert(alias.clone(), collection.clone());
                }
                AliasAction::Delete { alias } => {
                    self.aliases.remove(alias);
                }
                AliasAction::Rename { from, to } => {
                    if let Some(collection) = self.aliases.remove(from) {
                        self.aliases.insert(to.clone(), collection);
                    }
                }
            }
        }
    }

    /// Takes a collection out, with the aliases that name it.
    pub(crate) fn remove(&mut self, number: CollectionNumber) -> Option<Arc<Collection>> {
        let name = self.collections.iter().find(|(_, collection)| collection.number == number)?.0.clone();
        self.aliases.retain(|_, collection| *collection != name);
        self.collections.remove(&name)
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
