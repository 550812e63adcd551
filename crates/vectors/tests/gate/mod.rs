//! A disk that stops where a test says, until the test lets it go on.
//!
//! ```text
//!   store's thread ──► read or write ── closed for this call? ── waits ──┐
//!   test           ──► arrived() ······ does what must get through ──► open()
//! ```

use parking_lot::{Condvar, Mutex};
use ramekin_base::Result;
use ramekin_disk::{Counters, Disk, Entry, File, Open, ReadOp, Space, Sync};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A call of the disk: what is done, and to which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Create,
    Read,
    Write,
}

type Stops = Box<dyn Fn(Call, &Path) -> bool + Send>;

#[derive(Default)]
struct State {
    /// Says which calls wait; `None`: the gate is open.
    stops: Option<Stops>,
    waiting: usize,
}

/// The gate, and who waits at it.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

/// A test that is broken ends after this long instead of never; one that passes never waits for it.
pub const BROKEN: Duration = Duration::from_secs(60);

impl Gate {
    /// From now on calls wait for which `stops` is true.
    pub fn close(&self, stops: impl Fn(Call, &Path) -> bool + Send + 'static) {
        self.0.0.lock().stops = Some(Box::new(stops));
    }

    /// Returns when a call waits.
    pub fn arrived(&self) {
        let mut state = self.0.0.lock();
        while state.waiting == 0 {
            assert!(!self.0.1.wait_for(&mut state, BROKEN).timed_out(), "nobody came to the gate");
        }
    }

    pub fn open(&self) {
        self.0.0.lock().stops = None;
        self.0.1.notify_all();
    }

    /// Does `work` while the gate is closed; it must end before the gate opens.
    pub fn while_closed<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let (done, ended) = std::sync::mpsc::sync_channel(1);
            scope.spawn(move || _ = done.send(work()));
            let ended = ended.recv_timeout(BROKEN);
            let waiting = self.0.0.lock().waiting;
            // What waits behind the gate ends too, or the test would never say that it has failed.
            if ended.is_err() {
                self.open();
            }
            let ended = ended.expect("the work waits for what stands at the gate");
            assert!(waiting > 0, "the gate was not held meanwhile");
            ended
        })
    }

    fn pass(&self, call: Call, path: &Path) {
        let mut state = self.0.0.lock();
        while state.stops.as_ref().is_some_and(|stops| stops(call, path)) {
            state.waiting += 1;
            self.0.1.notify_all();
            self.0.1.wait(&mut state);
            state.waiting -= 1;
        }
    }
}

/// A disk behind a gate.
pub struct Gated {
    pub disk: Arc<dyn Disk>,
    pub gate: Gate,
}

impl Disk for Gated {
    fn open(&self, path: &Path, how: Open) -> Result<File> {
        if how == Open::Create {
            self.gate.pass(Call::Create, path);
        }
        self.disk.open(path, how)
    }

    fn read(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        ops.iter().for_each(|op| self.gate.pass(Call::Read, op.file.path()));
        self.disk.read(ops)
    }

    fn write(&self, file: &File, at: u64, data: &[u8]) -> Result<()> {
        self.gate.pass(Call::Write, file.path());
        self.disk.write(file, at, data)
    }

    fn sync(&self, what: Sync<'_>) -> Result<()> {
        self.disk.sync(what)
    }

    fn list(&self, folder: &Path) -> Result<Vec<Entry>> {
        self.disk.list(folder)
    }

    fn rename(&self, from: &Path, to: Option<&Path>) -> Result<()> {
        self.disk.rename(from, to)
    }

    fn make_folder(&self, folder: &Path) -> Result<()> {
        self.disk.make_folder(folder)
    }

    fn len(&self, file: &File) -> Result<u64> {
        self.disk.len(file)
    }

    fn set_len(&self, file: &File, bytes: u64) -> Result<()> {
        self.disk.set_len(file, bytes)
    }

    fn space(&self, folder: &Path) -> Result<Space> {
        self.disk.space(folder)
    }

    fn block(&self) -> usize {
        self.disk.block()
    }

    fn engine_name(&self) -> &str {
        self.disk.engine_name()
    }

    fn counters(&self) -> Counters {
        self.disk.counters()
    }
}
