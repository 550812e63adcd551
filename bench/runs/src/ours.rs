//! Ours: memtable and runs, flushed and merged by the thread that loads; caches of 64 MiB in a budget.

use crate::{Key, Store};
use ramekin_disk::{Disk, Engine, Local, Sync};
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use ramekin_runs::compaction::{due, flush, merge_file};
use ramekin_runs::{Entry, Memtable, Run, RunFile, Shape, Value, View};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CACHE: u64 = 64 << 20;
const MEMTABLE: usize = 24 << 20;
const SHAPE: Shape = Shape { filtered: true, ..Shape::PLAIN };

pub struct Ours {
    folder: PathBuf,
    disk: Arc<dyn Disk>,
    budget: Budget,
    account: Account,
    pages: Pages,
    memtable: Option<Memtable>,
    view: View,
    made: u64,
}

impl Ours {
    pub fn open(folder: &Path, budget: u64) -> Self {
        let folder = folder.join("ramekin");
        std::fs::create_dir_all(&folder).expect("a folder is made");
        let disk: Arc<dyn Disk> = Arc::new(Local::new(Engine::Uring, &folder).expect("the disk opens"));
        let budget = Budget::new(budget);
        let account = budget.root().child("runs", "");
        let cache = budget.root().child("pages", "").with_limit(CACHE);
        let pages = Pages::new(disk.clone(), cache, &budget, 64 << 30).expect("a cache is made");
        let mut memtable = Memtable::new(MEMTABLE, &account).expect("a memtable is made");
        let view = View::new(vec![memtable.publish()], Arc::default());
        let mut store = Self { folder, disk, budget, account, pages, memtable: Some(memtable), view, made: 0 };
        store.recover();
        store
    }

    /// The list of files stands in a file of its own here, in place of a manifest.
    fn recover(&mut self) {
        let Ok(list) = std::fs::read_to_string(self.folder.join("LIST")) else { return };
        let open = |name: &str| RunFile::open(&self.pages, &self.folder.join(name), &[], &self.account).expect("it opens");
        let run = |line: &str| Arc::new(Run::new(line.split_whitespace().map(open).collect()).expect("a run"));
        let runs: Vec<Arc<Run>> = list.lines().map(run).collect();
        runs.iter().flat_map(|run| run.files().iter()).for_each(|file| {
            if let Err(error) = file.load() {
                eprintln!("not kept in memory: {error}");
            }
        });
        self.install(runs);
    }

    fn install(&mut self, runs: Vec<Arc<Run>>) {
        self.view = View::new(self.view.roots().to_vec(), runs.into());
    }

    fn flush(&mut self) {
        let Some(mut memtable) = self.memtable.take() else { return };
        let (root, bottom) = (memtable.publish(), self.view.runs().is_empty());
        let paths = {
            let mut name = namer(&self.folder, &mut self.made);
            flush(&self.pages, &self.account, &root, (SHAPE, bottom), &mut name).expect("a flush")
        };
        self.disk.sync(Sync::Folder(&self.folder)).expect("names are synced");
        let files = paths.iter().map(|path| self.open_file(path)).collect();
        let mut runs = self.view.runs().to_vec();
        runs.push(Arc::new(Run::new(files).expect("a run")));
        // The old memtable goes before the new one comes.
        self.view = View::new(Vec::new(), runs.clone().into());
        drop((root, memtable));
        let mut memtable = Memtable::new(MEMTABLE, &self.account).expect("a memtable is made");
        self.view = View::new(vec![memtable.publish()], runs.into());
        self.memtable = Some(memtable);
    }

    fn open_file(&self, path: &Path) -> Arc<RunFile> {
        RunFile::open(&self.pages, path, &[], &self.account).expect("a file opens")
    }

    fn merge(&mut self, at_rest: bool) {
        loop {
            let mut runs = self.view.runs().to_vec();
            let sizes: Vec<u64> = runs.iter().map(|run| run.bytes()).collect();
            let Some(range) = due(&sizes, at_rest) else { return };
            let bottom = range.start == 0;
            let (mut inputs, mut outputs) = (runs[range.clone()].to_vec(), Vec::new());
            let mut gone = inputs.clone();
            loop {
                let step = {
                    let mut name = namer(&self.folder, &mut self.made);
                    merge_file(&self.pages, &self.account, &inputs, (SHAPE, bottom), &mut name).expect("a merge")
                };
                outputs.extend(step.file.map(|path| self.open_file(&path)));
                let Some(next) = step.next else { break };
                let cut = |run: &Arc<Run>| Arc::new(run.cut(&self.pages, &next, &self.account).expect("a cut"));
                inputs = inputs.iter().map(cut).collect();
                if !bottom {
                    continue;
                }
                // At the bottom each file counts at once, so that what it replaces can go.
                let rest = inputs[0].files();
                let bottom = Run::new(outputs.iter().chain(rest).cloned().collect()).expect("a run");
                let mut list = vec![Arc::new(bottom)];
                list.extend(inputs[1..].iter().cloned());
                list.extend(runs[range.end..].iter().cloned());
                self.install(list);
                remove(&mut gone, &next);
            }
            inputs.clear();
            remove(&mut gone, &[0xff; 17]);
            runs.splice(range, [Arc::new(Run::new(outputs).expect("a run"))]);
            self.install(runs);
        }
    }
}

/// Files of which nothing is left go when their last reader does.
fn remove(runs: &mut [Arc<Run>], below: &[u8]) {
    for run in runs {
        run.files().iter().filter(|file| file.last_key() < below).for_each(|file| file.remove_on_drop());
        let rest = run.files().iter().filter(|file| file.last_key() >= below).cloned().collect();
        *run = Arc::new(Run::new(rest).expect("a run"));
    }
}

fn namer<'a>(folder: &'a Path, made: &'a mut u64) -> impl FnMut() -> PathBuf + 'a {
    move || {
        *made += 1;
        folder.join(format!("run-{made}"))
    }
}

impl Store for Ours {
    fn put(&mut self, key: &Key, value: &Key) {
        let entry = Entry { key, value: Value::Inline(value), weight: 0, first: false };
        let mut put = || {
            let memtable = self.memtable.as_mut()?;
            memtable.put(&entry).ok()?;
            memtable.keep_unit();
            Some(())
        };
        if put().is_none() {
            self.flush();
            self.merge(false);
            let memtable = self.memtable.as_mut().expect("a flush makes a new memtable");
            memtable.put(&entry).expect("an empty memtable takes a key");
            memtable.keep_unit();
        }
    }

    fn settle(&mut self) {
        self.flush();
        self.merge(true);
        let runs = self.view.runs().clone();
        let name = |file: &Arc<RunFile>| file.path().file_name().map(|name| name.to_string_lossy().into_owned());
        let line = |run: &Arc<Run>| run.files().iter().filter_map(name).collect::<Vec<_>>().join(" ");
        let list = runs.iter().map(line).collect::<Vec<_>>().join("\n");
        std::fs::write(self.folder.join("LIST"), list).expect("the list is written");
    }

    fn scan(&mut self) -> (u64, u64) {
        let mut range = self.view.range(&self.pages, &self.account).expect("a range");
        range.seek(&[]).expect("it begins");
        let (mut sum, mut count) = (0, 0);
        while let Some(found) = range.entry().expect("it reads") {
            if let Value::Inline(value) = found.entry.value {
                sum += u64::from(value[15]);
                count += 1;
            }
            range.advance().expect("it goes on");
        }
        (sum, count)
    }

    fn get(&mut self, key: &Key) -> Option<Key> {
        let value = |found: &ramekin_runs::Found<'_>| match found.entry.value {
            Value::Inline(value) => Ok(value.try_into().ok()),
            _ => Ok(None),
        };
        self.view.get(&self.pages, key, value).expect("it reads").flatten()
    }

    fn facts(&self) -> String {
        let runs = self.view.runs();
        let bytes: u64 = runs.iter().map(|run| run.bytes()).sum();
        let counters = self.disk.counters();
        format!(
            "\"disk_bytes\": {bytes}, \"written_bytes\": {}, \"runs\": {}, \"held_bytes\": {}, \"peak_bytes\": {}",
            counters.written_bytes,
            runs.len(),
            self.account.used(),
            self.budget.peak()
        )
    }
}
