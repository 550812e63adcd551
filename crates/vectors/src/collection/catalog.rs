//! Names: which collections there are, their aliases, and all of it as the manifest keeps it.

use crate::api::catalog_cost::{BY_NAME_BYTES, BY_NUMBER_BYTES, CHANGED_BYTES, Configs, HeldConfig, alias_bytes};
use crate::api::op::{CollectionId, MetaOp};
use crate::api::{AliasAction, FieldConfig};
use crate::collection::Collection;
use parking_lot::Mutex;
use ramekin_base::{Error, Result, message};
use ramekin_fields::Path;
use ramekin_log::Lsn;
use ramekin_memory::{Account, BookedMap, Reservation};
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An alias and the collection that it names from now on, or none.
pub(crate) type AliasChange = (Box<str>, Option<CollectionId>);

/// All collections, in the order of their names.
pub(crate) type Collections = Arc<[Arc<Collection>]>;

pub(crate) struct Catalog {
    account: Account,
    collections: BookedMap<Arc<str>, Arc<Collection>>,
    numbers: BookedMap<CollectionId, Arc<Collection>>,
    aliases: BookedMap<Box<str>, CollectionId>,
    /// What is to be written, by when it was done: of aliases, and the collections that were dropped.
    alias_changes: BookedMap<u64, AliasChange>,
    gone: BookedMap<u64, CollectionId>,
    next_change: u64,
    /// Changes that no manifest has.
    pub(crate) unwritten: usize,
    pub(crate) configs: Configs,
    /// What was last asked for all collections gets, until there are others.
    list: Mutex<Option<Collections>>,
    pub(crate) next_number: CollectionId,
    /// Meta operations before this position are in here.
    pub(crate) meta_from: Lsn,
}

/// What a collection's places in the catalog take: by its name, and by its number, which stands among those that are gone
/// afterwards.
pub(crate) struct Places([Reservation; 2]);

impl Places {
    /// Taken out of what a collection takes by `catalog_cost`.
    pub(crate) fn of(memory: &mut Reservation) -> Self {
        Self([memory.split(BY_NAME_BYTES), memory.split(BY_NUMBER_BYTES)])
    }
}

/// An operation on names that was checked and has all the memory that it takes: doing it cannot fail.
pub(crate) enum Change {
    Create(Arc<Collection>, Places),
    Drop(CollectionId),
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

impl Catalog {
    /// Without names.
    pub(crate) fn new(next_number: CollectionId, meta_from: Lsn, account: &Account) -> Result<Self> {
        Ok(Self {
            account: account.clone(),
            collections: BookedMap::new(account, |_, _| BY_NAME_BYTES)?,
            numbers: BookedMap::new(account, |_, _| BY_NUMBER_BYTES)?,
            aliases: BookedMap::<Box<str>, _>::new(account, |alias, _| alias_bytes(alias))?,
            alias_changes: BookedMap::new(account, |_, change: &AliasChange| alias_bytes(&change.0))?,
            gone: BookedMap::new(account, |_, _| BY_NUMBER_BYTES)?,
            next_change: 0,
            unwritten: 0,
            configs: Configs::default(),
            list: Mutex::new(None),
            next_number,
            meta_from,
        })
    }

    /// The collection behind a name or an alias.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Collection>> {
        let aliased = || self.by_number(*self.aliases.get(name)?);
        let found = self.collections.get(name).or_else(aliased);
        found.ok_or_else(|| Error::not_found(message(format_args!("Collection `{name}` doesn't exist!"))))
    }

    /// The name of a collection, for people.
    pub(crate) fn name_of(&self, number: CollectionId) -> Option<Arc<str>> {
        self.by_number(number).map(|collection| collection.name.clone())
    }

    /// The collection of this very name.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Collection>> {
        self.collections.get(name)
    }

    pub(crate) fn by_number(&self, number: CollectionId) -> Option<&Arc<Collection>> {
        self.numbers.get(&number)
    }

    pub(crate) fn len(&self) -> usize {
        self.collections.len()
    }

    /// All collections; made once for all who ask before there are others.
    pub(crate) fn collections(&self) -> Collections {
        self.list.lock().get_or_insert_with(|| self.collections.values().cloned().collect()).clone()
    }

    /// The aliases after one, each with its collection's number.
    pub(crate) fn aliases_after(&self, after: &str) -> impl Iterator<Item = (&Box<str>, CollectionId)> {
        let later = self.aliases.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        later.map(|(alias, number)| (alias, *number))
    }

    /// The number that the next change of aliases or dropped collection has.
    pub(crate) fn next_change(&self) -> u64 {
        self.next_change
    }

    /// The changes of aliases of these numbers.
    pub(crate) fn alias_changes(&self, range: Range<u64>) -> impl Iterator<Item = (&u64, &AliasChange)> {
        self.alias_changes.range(range)
    }

    /// The collections that were dropped, of these numbers.
    pub(crate) fn gone(&self, range: Range<u64>) -> impl Iterator<Item = (&u64, &CollectionId)> {
        self.gone.range(range)
    }

    /// A manifest has the changes before this one now.
    pub(crate) fn written(&mut self, until: u64) {
        self.gone.retain(|at, _| *at >= until);
        self.alias_changes.retain(|at, _| *at >= until);
        self.unwritten = self.gone.len() + self.alias_changes.len();
    }

    /// Memory for [`Catalog::check`] of an operation, which asks for none: names are not locked while it is waited for.
    pub(crate) fn check_bytes(op: &MetaOp) -> u64 {
        // A rename changes two of them.
        if let MetaOp::Aliases { actions } = op { 2 * actions.len() as u64 * CHANGED_BYTES } else { 0 }
    }

    /// Says whether an operation can be done now.
    pub(crate) fn check(&self, op: &MetaOp, memory: &mut Reservation) -> Result<()> {
        match op {
            MetaOp::Create { name, .. } => {
                if self.collections.contains_key(name.as_str()) {
                    return Err(Error::exists(message(format_args!("Collection `{name}` already exists!"))));
                }
                if self.aliases.contains_key(name.as_str()) {
                    return Err(Error::malformed(message(format_args!(
                        "Can't create collection with name {name}. Alias with the same name already exists"
                    ))));
                }
                if self.collections.len() >= ramekin_base::limits::COLLECTIONS_MAX {
                    let most = ramekin_base::limits::COLLECTIONS_MAX;
                    let full = format_args!("there are {most} collections, which is the most allowed");
                    return Err(Error::invalid(message(full)));
                }
                Ok(())
            }
            MetaOp::Aliases { actions } => {
                // What the actions before have made of the aliases that they name.
                let mut changed = BookedMap::new(&self.account, |_, _| CHANGED_BYTES)?;
                actions.iter().try_for_each(|action| self.check_alias(&mut changed, action, memory))
            }
            MetaOp::Index { number, path, index } => self.check_index(*number, path, index.as_ref()),
            MetaOp::Drop { .. } | MetaOp::Patch { .. } => Ok(()),
        }
    }

    fn check_index(&self, number: CollectionId, path: &Path, index: Option<&FieldConfig>) -> Result<()> {
        let most = ramekin_base::limits::FIELD_INDEXES_MAX;
        let count = |collection: &Arc<Collection>| {
            let config = collection.config.load();
            config.indexes.len() - usize::from(config.indexes.contains_key(path))
        };
        match self.by_number(number).map(count) {
            Some(count) if index.is_some() && count >= most => {
                let full = format_args!("the collection has {most} indexed fields, which is the most allowed");
                Err(Error::invalid(message(full)))
            }
            _ => Ok(()),
        }
    }

    fn check_alias<'a>(
        &self,
        changed: &mut BookedMap<&'a str, bool>,
        action: &'a AliasAction,
        memory: &mut Reservation,
    ) -> Result<()> {
        let is_there = |changed: &BookedMap<&str, bool>, alias: &str| match changed.get(alias) {
            Some(is_there) => *is_there,
            None => self.aliases.contains_key(alias),
        };
        let missing = |alias: &str| Error::not_found(message(format_args!("Alias {alias} does not exists!")));
        let is_taken = |name: &str| match self.collections.contains_key(name) {
            true => Err(Error::exists(message(format_args!("Collection `{name}` already exists!")))),
            false => Ok(()),
        };
        match action {
            AliasAction::Create { alias, collection } => {
                if !self.collections.contains_key(collection.as_str()) {
                    let missing = format_args!("Collection `{collection}` doesn't exist!");
                    return Err(Error::not_found(message(missing)));
                }
                is_taken(alias)?;
                changed.insert(alias, true, memory.split(CHANGED_BYTES));
            }
            AliasAction::Delete { alias } => {
                if !is_there(changed, alias) {
                    return Err(missing(alias));
                }
                changed.insert(alias, false, memory.split(CHANGED_BYTES));
            }
            AliasAction::Rename { from, to } => {
                is_taken(to)?;
                if !is_there(changed, from) {
                    return Err(missing(from));
                }
                changed.insert(from, false, memory.split(CHANGED_BYTES));
                changed.insert(to, true, memory.split(CHANGED_BYTES));
            }
        }
        Ok(())
    }

    pub(crate) fn insert(&mut self, collection: Arc<Collection>, Places([by_name, by_number]): Places) {
        self.next_number = self.next_number.max(collection.number + 1);
        self.unwritten += usize::from(collection.unwritten.load(Ordering::Relaxed));
        self.numbers.insert(collection.number, collection.clone(), by_number);
        self.collections.insert(collection.name.clone(), collection, by_name);
        *self.list.get_mut() = None;
    }

    /// Applies alias actions, for which there is `memory`; what is not there is passed over, since replay may meet it again.
    pub(crate) fn apply_aliases(&mut self, actions: Vec<AliasAction>, [mut aliases, mut changes]: [Reservation; 2]) {
        for action in actions {
            match action {
                AliasAction::Create { alias, collection } => {
                    let number = self.collections.get(collection.as_str()).map(|collection| collection.number);
                    let memory = [&mut aliases, &mut changes].map(|memory| memory.split(alias_bytes(&alias)));
                    self.set_alias(alias.into(), number, memory);
                }
                AliasAction::Delete { alias } => {
                    let change = changes.split(alias_bytes(&alias));
                    self.remove_alias(alias.into(), change);
                }
                AliasAction::Rename { from, to } => {
                    let change = changes.split(alias_bytes(&from));
                    let memory = [&mut aliases, &mut changes].map(|memory| memory.split(alias_bytes(&to)));
                    let number = self.remove_alias(from.into(), change);
                    self.set_alias(to.into(), number, memory);
                }
            }
        }
    }

    /// Sets an alias, unless its collection is not there.
    fn set_alias(&mut self, alias: Box<str>, number: Option<CollectionId>, [memory, change]: [Reservation; 2]) {
        if let Some(number) = number {
            self.aliases.insert(alias.clone(), number, memory);
            self.note_alias((alias, Some(number)), change);
        }
    }

    fn remove_alias(&mut self, alias: Box<str>, change: Reservation) -> Option<CollectionId> {
        let number = self.aliases.remove(&alias);
        self.note_alias((alias, None), change);
        number
    }

    /// What a manifest is to say of an alias.
    fn note_alias(&mut self, change: AliasChange, memory: Reservation) {
        self.alias_changes.insert(self.next_change, change, memory);
        self.next_change += 1;
        self.unwritten += 1;
    }

    /// An alias as a manifest has it; one that is set takes what it needs of `memory`.
    pub(crate) fn restore_alias(&mut self, (alias, number): AliasChange, memory: &mut Reservation) {
        match number {
            Some(number) => {
                let memory = memory.split(alias_bytes(&alias));
                self.aliases.insert(alias, number, memory);
            }
            None => _ = self.aliases.remove(&alias),
        }
    }

    /// Removes the aliases whose collection is gone: a manifest says that once only.
    pub(crate) fn drop_dangling(&mut self) {
        let numbers = &self.numbers;
        self.aliases.retain(|_, number| numbers.contains_key(number));
    }

    /// Lets go of everything: the store does not open.
    pub(crate) fn clear(&mut self) {
        self.collections.clear();
        self.numbers.clear();
        self.aliases.clear();
        *self.list.get_mut() = None;
    }

    /// Takes a collection out, with the aliases that name it.
    pub(crate) fn remove(&mut self, number: CollectionId) -> Option<Arc<Collection>> {
        let (collection, place) = self.numbers.take(&number)?;
        self.collections.remove(&collection.name);
        self.gone.insert(self.next_change, number, place);
        self.next_change += 1;
        self.unwritten += 1;
        *self.list.get_mut() = None;
        self.aliases.retain(|_, of| *of != number);
        Some(collection)
    }
}
