//! The store: signatures first, so that the door can be built against them.

use crate::api::*;
use ramekin_base::{Error, PointId, Result};
use ramekin_memory::Reservation;

/// All collections of one data folder.
#[derive(Clone)]
pub struct Store {}

fn absent<T>() -> Result<T> {
    Err(Error::unsupported("the store is not built yet"))
}

/// Called once with what became of a write.
pub type Done = Box<dyn FnOnce(Result<Written>) + Send>;

impl Store {
    pub fn create_collection(&self, _name: &str, _config: CollectionConfig) -> Result<()> {
        absent()
    }
    pub fn patch_collection(&self, _name: &str, _patch: CollectionPatch) -> Result<()> {
        absent()
    }
    pub fn drop_collection(&self, _name: &str) -> Result<bool> {
        absent()
    }
    pub fn change_aliases(&self, _actions: Vec<AliasAction>) -> Result<()> {
        absent()
    }
    pub fn collections(&self) -> Vec<String> {
        Vec::new()
    }
    pub fn aliases(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    pub fn info(&self, _name: &str) -> Result<Info> {
        absent()
    }
    pub fn config(&self, _name: &str) -> Result<CollectionConfig> {
        absent()
    }
    pub fn write(&self, _name: &str, _write: Write, _wait: Wait, _memory: Vec<Reservation>, _done: Done) -> Result<()> {
        absent()
    }
    pub fn query(&self, _name: &str, _query: &Query) -> Result<(Held<Vec<Scored>>, Profile)> {
        absent()
    }
    pub fn get(&self, _name: &str, _ids: &[PointId], _parts: &Parts) -> Result<Held<Vec<Record>>> {
        absent()
    }
    pub fn scroll(&self, _name: &str, _from: Option<PointId>, _limit: usize, _parts: &Parts) -> Result<Held<Page>> {
        absent()
    }
    pub fn count(&self, _name: &str) -> Result<u64> {
        absent()
    }
}
