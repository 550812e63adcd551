//! What the catalog costs: the stated sizes of its parts, and configurations that collections share.
//!
//! ```text
//!   create ─► is there one alike? ─ yes ─► the same Arc
//!                 └─ no ─► bytes by formula ─► reserved ─► HeldConfig { config, its reservation }
//! ```
//!
//! Most stores hold thousands of collections that are configured alike: they keep one configuration between them, booked
//! once. Sizes are counts times constants, on the side of too much.

use crate::api::op::MetaOp;
use crate::api::{AliasAction, CollectionConfig, FieldConfig, VectorConfig};
use ramekin_fields::Path;
use ramekin_memory::Reservation;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// Formula of the catalog's account, in words.
pub(crate) const FORMULA: &str =
    "collections x 896 + names + configurations (once where alike) + aliases x 64 + their names";

/// A collection without points, besides its name and its configuration: its own parts, an empty memtable, its
/// places in the tables by name and by number.
const COLLECTION_BYTES: u64 = 896;
/// Of them: its place in the table by name, with the list of all, and in the one by number.
pub(crate) const BY_NAME_BYTES: u64 = 112;
pub(crate) const BY_NUMBER_BYTES: u64 = 64;
/// What an action has made of an alias, while the next ones are checked.
pub(crate) const CHANGED_BYTES: u64 = 96;
/// A configuration besides what its lists and texts take; twice what it is, since a dead one is swept out late.
const CONFIG_BYTES: u64 = 512;
/// An alias besides its name.
const ALIAS_BYTES: u64 = 64;

/// A text of so many bytes, as the allocator rounds it.
fn text(len: usize) -> u64 {
    (len + len / 4 + 16) as u64
}

/// A tree of so many entries of so many bytes: nodes of eleven places, filled by half at least.
fn tree(entries: usize, entry_bytes: usize) -> u64 {
    if entries == 0 { 0 } else { ((entries / 5 + 1) * (entry_bytes * 11 + 128)) as u64 }
}

/// A collection of this name that holds no points, without its configuration.
pub(crate) fn collection_bytes(name: &str) -> u64 {
    COLLECTION_BYTES + text(name.len())
}

/// An alias of this name.
pub(crate) fn alias_bytes(name: &str) -> u64 {
    ALIAS_BYTES + text(name.len())
}

/// A configuration.
pub(crate) fn config_bytes(config: &CollectionConfig) -> u64 {
    let client_config =
        |vector: &VectorConfig| vector.client_config.as_ref().map_or(0, |client_config| text(client_config.len()));
    let vectors = config.vectors.iter().map(|(name, vector)| text(name.len()) + client_config(vector));
    let sections = config.client_config.iter().map(|(name, section)| text(name.len()) + text(section.len()));
    // A schema is a few words, or lists of words: its JSON is about as long as they are.
    let indexes = config.indexes.iter().map(|(path, field)| 256 + 4 * json_bytes(path) + 4 * json_bytes(field));
    CONFIG_BYTES
        + tree(config.vectors.len(), size_of::<(String, VectorConfig)>())
        + tree(config.client_config.len(), size_of::<(String, String)>())
        + tree(config.indexes.len(), size_of::<(Path, FieldConfig)>())
        + vectors.chain(sections).chain(indexes).sum::<u64>()
}

/// What an operation makes the catalog grow by, at most.
pub(crate) fn op_bytes(op: &MetaOp) -> u64 {
    match op {
        MetaOp::Create { name, config, .. } => collection_bytes(name) + config_bytes(config),
        MetaOp::Aliases { actions } => actions_bytes(actions).iter().sum(),
        MetaOp::Patch { patch, .. } => 2 * json_bytes(patch),
        MetaOp::Index { path, index, .. } => 512 + 4 * (json_bytes(path) + json_bytes(index)),
        MetaOp::Drop { .. } => 0,
    }
}

/// Bytes of the JSON of a value, counted without being held.
pub(crate) fn json_bytes(value: &impl serde::Serialize) -> u64 {
    struct Count(u64);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What does not encode is refused where it is to be written.
    _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// A collection's configuration and its memory; collections that are configured alike share one.
#[derive(Debug)]
pub struct HeldConfig {
    config: CollectionConfig,
    _memory: Reservation,
}

impl HeldConfig {
    /// `memory` holds its [`config_bytes`].
    pub(crate) fn new(config: CollectionConfig, memory: Reservation) -> Arc<Self> {
        Arc::new(Self { config, _memory: memory })
    }
}

impl PartialEq for HeldConfig {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config
    }
}

impl Deref for HeldConfig {
    type Target = CollectionConfig;

    fn deref(&self) -> &CollectionConfig {
        &self.config
    }
}

/// The configurations that are in use, by a hash of what they say.
#[derive(Default)]
pub(crate) struct Configs {
    held: std::collections::HashMap<u64, Weak<HeldConfig>>,
    sweep_at: usize,
}

impl Configs {
    /// The one that is like this, if it is in use.
    pub(crate) fn find(&self, config: &CollectionConfig) -> Option<Arc<HeldConfig>> {
        let held = self.held.get(&hash(config))?.upgrade()?;
        (**held == *config).then_some(held)
    }

    pub(crate) fn remember(&mut self, config: &Arc<HeldConfig>) {
        if self.held.len() >= self.sweep_at {
            self.held.retain(|_, held| held.strong_count() > 0);
            self.sweep_at = (2 * self.held.len()).max(64);
        }
        self.held.insert(hash(config), Arc::downgrade(config));
    }
}

pub(crate) fn hash(config: &CollectionConfig) -> u64 {
    struct Hash(DefaultHasher);
    impl Write for Hash {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut hash = Hash(DefaultHasher::new());
    // What does not encode has the hash of how far it came.
    _ = serde_json::to_writer(&mut hash, config);
    hash.0.finish()
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
