//! `ramekin lab slow-disk`: a folder's files again, read only, each read answered a fixed time after it was asked.
//!
//! ```text
//!   read / O_DIRECT / page fault ─► kernel ─► /dev/fuse ─► reader ─► queue ─► one of many workers
//!                                                            │                   read SOURCE, wait until
//!                                                            └ notes the time    asked + delay, answer
//! ```
//!
//! The delay is that of a disk with endless parallelism: a page fault of a mapping waits like any other read, and as many
//! reads as there are workers wait at the same time. Reads of SOURCE that take longer than the delay are answered late.
//! Folders inside of SOURCE are left out.

mod fuse;

use crate::files::{self, Device, Listed};
use crate::pause::{pause, until};
use fuse::{Attributes, Entries, Mount, Operation, ROOT, Reply, Request};
use ramekin_base::{Clock, Error, Result, SystemClock};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is asked of it.
#[derive(Debug, Clone)]
pub struct SlowDisk {
    pub source: PathBuf,
    pub mountpoint: PathBuf,
    pub delay: Duration,
    /// Reads that wait at the same time.
    pub parallel: usize,
}

/// The kernel may remember names and lengths for so long: they never change.
const REMEMBER: Duration = Duration::from_secs(3600);
const WORKER_STACK: usize = 128 << 10;
/// Largest read that the kernel sends.
const READ_MAX: usize = 1 << 20;
const FIRST_FILE: u64 = 2;

/// One read that waits for its time.
struct PendingRead {
    file: usize,
    at: u64,
    len: usize,
    due: Duration,
    reply: Reply,
}

struct Slow {
    device: Arc<Device>,
    listed: Arc<Vec<Listed>>,
    clock: Arc<SystemClock>,
    delay: Duration,
    queue: SyncSender<PendingRead>,
    parallel: u16,
}

/// A file system that is being served.
struct Session {
    mount: Mount,
    reader: JoinHandle<()>,
}

impl SlowDisk {
    /// Serves until it is unmounted or a signal asks it to end.
    pub fn run(&self) -> Result<String> {
        if self.parallel == 0 || self.parallel > 4096 || self.delay > Duration::from_secs(10) {
            return Err(Error::invalid("--parallel may be 1 to 4096, --delay-ms 0 to 10000"));
        }
        let wait = EndSignals::block();
        let served = Arc::new(AtomicU64::new(0));
        let session = self.mount(&served)?;
        eprintln!("{} is at {}, {:?} slower", self.source.display(), self.mountpoint.display(), self.delay);
        while !session.reader.is_finished() && !wait.seen() {}
        // Who still has files open keeps the reader busy; the end of the process ends that.
        drop(session.mount);
        Ok(format!("{} reads served", served.load(Ordering::Relaxed)))
    }

    fn mount(&self, served: &Arc<AtomicU64>) -> Result<Session> {
        available()?;
        let listed = Arc::new(files::list_open(&self.source)?);
        let clock = Arc::new(SystemClock::new());
        let (queue, asked) = sync_channel(self.parallel);
        let asked = Arc::new(Mutex::new(asked));
        for _ in 0..self.parallel {
            let (asked, listed, clock, served) = (asked.clone(), listed.clone(), clock.clone(), served.clone());
            let work = move || answer(&asked, &listed, &*clock, &served);
            std::thread::Builder::new().name("slow-disk".to_owned()).stack_size(WORKER_STACK).spawn(work)?;
        }
        let mount = Mount::new(&self.mountpoint, "ramekin-slow-disk")?;
        let device = mount.device().clone();
        let slow = Slow { device, listed, clock, delay: self.delay, queue, parallel: self.parallel as u16 };
        let read = move || fuse::serve(&slow.device, &mut |request| slow.answer(request));
        let reader = std::thread::Builder::new().name("slow-disk-reader".to_owned()).spawn(read)?;
        Ok(Session { mount, reader })
    }
}

/// Whether this process could make a file system.
pub fn available() -> Result<()> {
    files::open_for_writing(Path::new(fuse::DEVICE))
        .map(drop)
        .map_err(|error| Error::unsupported(format!("no slow disk here: a FUSE file system cannot be made ({error})")))
}

/// A worker: the queue is let go before it waits, so that all wait at the same time.
fn answer(asked: &Mutex<Receiver<PendingRead>>, listed: &[Listed], clock: &dyn Clock, served: &AtomicU64) {
    let mut room = vec![0; READ_MAX];
    loop {
        let next = asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv();
        let Ok(PendingRead { file, at, len, due, reply }) = next else { return };
        let read = read_at_most(&listed[file], at, &mut room[..len.min(READ_MAX)]);
        pause(due.saturating_sub(clock.now()));
        served.fetch_add(1, Ordering::Relaxed);
        match read {
            Ok(read) => reply.data(&room[..read]),
            Err(error) => reply.error(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

fn read_at_most(listed: &Listed, at: u64, room: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < room.len() {
        match listed.file.read_at(&mut room[done..], at + done as u64) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl Slow {
    fn attributes(&self, node: u64) -> Option<Attributes> {
        Some(match node.checked_sub(FIRST_FILE) {
            None => Attributes { node, is_folder: true, bytes: 0 },
            Some(at) => Attributes { node, is_folder: false, bytes: self.listed.get(at as usize)?.bytes },
        })
    }

    fn answer(&self, Request { number, node, request }: Request<'_>) {
        let reply = Reply::new(&self.device, number);
        match request {
            // Without so many at a time the kernel holds all but a dozen reads back.
            Operation::Begin { major, read_ahead, flags } => {
                reply.begin((major, read_ahead, flags), self.parallel.max(16));
            }
            Operation::Lookup(name) => match self.find(node, name) {
                Some(attributes) => reply.entry(&attributes, REMEMBER),
                None => reply.error(Errno::NOENT),
            },
            Operation::Attributes => match self.attributes(node) {
                Some(attributes) => reply.attributes(&attributes, REMEMBER),
                None => reply.error(Errno::NOENT),
            },
            Operation::Open => reply.opened(),
            Operation::Read { at, len } => self.read(node, at, len as usize, reply),
            Operation::List { from, room } => self.list(node, from, room, reply),
            Operation::Space => reply.space(),
            Operation::Release => reply.data(&[]),
            Operation::Forget => {}
            Operation::Other => reply.error(Errno::NOSYS),
        }
    }

    fn find(&self, parent: u64, name: &OsStr) -> Option<Attributes> {
        let found = self.listed.iter().position(|listed| listed.name == name).filter(|_| parent == ROOT);
        self.attributes(found? as u64 + FIRST_FILE)
    }

    fn read(&self, node: u64, at: u64, len: usize, reply: Reply) {
        let file = node.checked_sub(FIRST_FILE).unwrap_or(u64::MAX) as usize;
        if file >= self.listed.len() {
            return reply.error(Errno::NOENT);
        }
        let due = self.clock.now() + self.delay;
        // The workers live as long as this does.
        let _ = self.queue.send(PendingRead { file, at, len, due, reply });
    }

    fn list(&self, node: u64, from: u64, room: u32, reply: Reply) {
        if node != ROOT {
            return reply.error(Errno::NOENT);
        }
        let dots = [(ROOT, true, OsStr::new(".")), (ROOT, true, OsStr::new(".."))];
        let names = self.listed.iter().enumerate();
        let names = names.map(|(at, listed)| (at as u64 + FIRST_FILE, false, listed.name.as_os_str()));
        let mut entries = Entries::new(room);
        for (at, (node, is_folder, name)) in dots.into_iter().chain(names).enumerate().skip(from as usize) {
            if !entries.add(node, at as u64 + 1, is_folder, name) {
                break;
            }
        }
        reply.data(entries.bytes());
    }
}

/// SIGINT and SIGTERM, held back so that the file system is unmounted before the process ends.
struct EndSignals(libc::sigset_t);

impl EndSignals {
    /// Must come before any thread is started: they inherit it.
    fn block() -> Self {
        // SAFETY: a set of signals is plain numbers, filled by the calls that follow.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Self(set)
        }
    }

    /// Waits a little for one.
    fn seen(&self) -> bool {
        let little = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        // SAFETY: both live until the call returns; no information is asked for.
        unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &little) > 0 }
    }
}

/// A slow disk in a process of its own, unmounted on drop.
pub struct Mounted {
    child: std::process::Child,
    pub mountpoint: PathBuf,
}

impl Mounted {
    /// Starts `program lab slow-disk` and waits until a file of `source` is seen through it.
    pub fn start(program: &Path, asked: &SlowDisk, seen: &str) -> Result<Self> {
        available()?;
        files::make_folder(&asked.mountpoint)?;
        let mut command = std::process::Command::new(program);
        command.args(["lab", "slow-disk", "--delay-ms", &(asked.delay.as_secs_f64() * 1e3).to_string()]);
        command.args(["--parallel", &asked.parallel.to_string()]).arg(&asked.source).arg(&asked.mountpoint);
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        crate::server::end_with_us(&mut command);
        let mut mounted = Self { child: command.spawn()?, mountpoint: asked.mountpoint.clone() };
        let ready = until(&SystemClock::new(), Duration::from_secs(10), Duration::from_millis(20), || {
            match mounted.child.try_wait()? {
                Some(status) => Err(Error::unsupported(format!("no slow disk here: it ended with {status}"))),
                None => Ok(asked.mountpoint.join(seen).exists().then_some(())),
            }
        })?;
        ready.map(|()| mounted).ok_or_else(|| Error::unsupported("no slow disk here: it was not mounted within 10 s"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(process) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let ended = until(&SystemClock::new(), Duration::from_secs(10), Duration::from_millis(20), || {
            Ok(self.child.try_wait()?)
        });
        if !matches!(ended, Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = files::remove_one_folder(&self.mountpoint);
    }
}
