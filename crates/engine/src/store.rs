//! What the engine asks of a store.

use crate::options::TreeOptions;
use crate::unit::Unit;
use ramekin_base::Result;

/// A store: commands over trees of sorted records.
pub trait Store: Send + Sync + 'static {
    /// What a client asks for. It carries the reservation of its own memory.
    type Command: Send + 'static;
    /// What the client is told.
    type Reply: Send + 'static;

    /// The trees, in an order that never changes: the log and the manifest know them by their places.
    fn trees(&self) -> &[TreeOptions];

    /// Does a command as a unit of changes: all of them, or none where it fails. It never waits: a look-up that needs a page
    /// which is not in memory fails, and the error is to be handed on by `?`; the engine fetches the page and calls `stage`
    /// again. So `stage` changes nothing but the unit, and ends the same way each time it sees the same records.
    fn stage(&self, unit: &mut Unit<'_>, command: &Self::Command) -> Result<Staged<Self::Reply>>;
}

/// What became of a command.
pub enum Staged<R> {
    /// The answer; it leaves when what it depends on is durable, or at once, as the options say.
    Done(R),
    /// The command waits until a unit writes one of these keys (tree, key), and is staged anew then. Its changes are dropped.
    Blocked(Vec<(usize, Box<[u8]>)>),
}
