//! What a start finds of a store: the runs of each tree, and from where on the log is needed.
//!
//! ```text
//!   head    seqno of the last unit                          part n   tree n: its name, the last unit in its runs, and the
//!           the log from the oldest unflushed effect on              runs, oldest first: files with the first key that counts
//! ```
//!
//! A commit names files that are synced; those that it names no more go when their last reader leaves. It writes the trees whose runs
//! have changed since they were named, whoever changed them: the head says of all that it names how much of the log they lack.

use crate::engine::Inner;
use crate::files::Files;
use crate::store::Store;
use crate::tree::{CLEAN, Tree};
use ramekin_base::{Error, Result};
use ramekin_log::Lsn;
use ramekin_runs::{Run, RunFile};
use ramekin_storage::{Head, Manifest, Storage, read_app};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A run that comes on top of a tree's.
pub(crate) type TreeRun = (usize, Arc<Run>);

/// What the store says anew with each commit.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HeadJson {
    pub(crate) seqno: u64,
}

/// A tree. Its files stand in the part's list, in the order of its runs.
#[derive(Debug, Serialize, Deserialize)]
struct TreeJson {
    name: String,
    flushed: u64,
    runs: Vec<Vec<FileJson>>,
}

/// A file of a run.
#[derive(Debug, Serialize, Deserialize)]
struct FileJson {
    file: String,
    /// The first key that counts; empty: all do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    from: Vec<u8>,
}

impl TreeJson {
    /// A tree as it is, and a run that comes on top of it.
    fn of(tree: &Tree, storage: &Storage, more: Option<&Arc<Run>>) -> Result<Self> {
        let state = tree.state();
        let file =
            |file: &Arc<RunFile>| Ok(FileJson { file: storage.name_of(file.path())?, from: file.from().to_vec() });
        let run = |run: &Arc<Run>| run.files().iter().map(file).collect::<Result<Vec<_>>>();
        let runs = state.runs.iter().chain(more).map(run).collect::<Result<_>>()?;
        Ok(Self { name: tree.options.name.to_owned(), flushed: state.flushed, runs })
    }

    fn files(&self) -> Vec<String> {
        self.runs.iter().flatten().map(|file| file.file.clone()).collect()
    }
}

/// Writes what a start will find; `more`: runs of trees, which are the unit of that number. The caller holds `manifest`.
pub(crate) fn commit<S: Store>(inner: &Inner<S>, more: Option<(&[TreeRun], u64)>) -> Result<()> {
    let (log_from, durable, versions) = {
        let exec = inner.exec.lock();
        let drafts = exec.core.drafts.iter().map(|draft| draft.from).min().unwrap_or(CLEAN);
        let frozen = |tree: &Tree| tree.state().frozen.iter().map(|frozen| frozen.from).min();
        let frozen = inner.trees.iter().filter_map(frozen).min().unwrap_or(CLEAN);
        let end = inner.log_end.load(Ordering::SeqCst);
        (drafts.min(frozen).min(end), end, inner.trees.iter().map(Tree::version).collect::<Vec<_>>())
    };
    let flushed = inner.trees.iter().map(|tree| tree.state().flushed).max().unwrap_or(0);
    let seqno = flushed.max(inner.durable.load(Ordering::SeqCst)).max(more.map_or(0, |(_, number)| number));
    let head = Head::new(log_from..durable, &HeadJson { seqno })?;
    let written = inner.files.storage.commit(head, &mut |sink, is_whole| {
        for (number, (tree, version)) in inner.trees.iter().zip(&versions).enumerate() {
            let more = more.and_then(|(runs, _)| runs.iter().find(|(of, _)| *of == number)).map(|(_, run)| run);
            if is_whole || more.is_some() || !tree.is_named(*version) {
                let part = TreeJson::of(tree, &inner.files.storage, more)?;
                sink.part(number as u64, part.files(), &part)?;
            }
        }
        Ok(())
    });
    if written.is_ok() {
        inner.trees.iter().zip(versions).for_each(|(tree, version)| tree.note_named(version));
        inner.log_from.store(log_from, Ordering::SeqCst);
    }
    written
}

/// The trees as a manifest has them, opened.
pub(crate) fn open_trees(
    options: &[crate::TreeOptions],
    manifest: Option<&mut Manifest>,
    files: &Files,
) -> Result<Box<[Tree]>> {
    let mut found: Vec<Option<TreeJson>> = options.iter().map(|_| None).collect();
    if let Some(manifest) = manifest {
        manifest.each_part(&mut |number, app| {
            let json: TreeJson = read_app(app)?;
            let place = found.get_mut(number as usize);
            let known = options.get(number as usize).is_some_and(|tree| tree.name == json.name);
            match place.filter(|_| known) {
                Some(place) => *place = Some(json),
                None => {
                    let text = format!(
                        "the manifest has a tree {number} of the name '{}', which this store does not",
                        json.name
                    );
                    return Err(Error::unsupported(text));
                }
            }
            Ok(())
        })?;
    }
    let open = |(options, json): (&crate::TreeOptions, Option<TreeJson>)| {
        let json = json.unwrap_or(TreeJson { name: String::new(), flushed: 0, runs: Vec::new() });
        let runs = json.runs.iter().map(|run| open_run(run, files)).collect::<Result<_>>()?;
        Ok(Tree::new(*options, runs, json.flushed))
    };
    options.iter().zip(found).map(open).collect()
}

fn open_run(run: &[FileJson], files: &Files) -> Result<Arc<Run>> {
    let open = |file: &FileJson| files.open(&file.file, &file.from);
    Ok(Arc::new(Run::new(run.iter().map(open).collect::<Result<_>>()?)?))
}

/// Before which position the log is not needed, as far as the last manifest knows.
pub(crate) fn replay_from(manifest: Option<&Manifest>) -> std::ops::Range<Lsn> {
    manifest.map_or(0..0, |manifest| manifest.head.log())
}
