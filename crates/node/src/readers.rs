//! The readers: a few threads with small stacks that run what blocks on the disk.
//!
//! ```text
//!   door ──run(job)──► [ queue, at most QUEUE_MAX ] ──► 8 threads ──► each on its own ring
//!              │
//!              └─ Busy when the queue is full: refused at once, never piled up
//! ```
//!
//! A job that panics ends alone: the thread reports it and takes the next one, and whoever waits for
//! the job's answer sees its sender dropped.

use parking_lot::{Condvar, Mutex};
use ramekin_base::limits::QUEUE_MAX;
use ramekin_base::{Error, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads that read: enough that the disk sees a deep queue while the cores compute.
pub const READERS: usize = 8;
/// Stack of a reader. Jobs keep their data in reserved memory, not on the stack.
pub const READER_STACK_BYTES: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// A handle to the readers; clones share them.
#[derive(Clone)]
pub struct Readers {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Queue {
    jobs: VecDeque<Job>,
    open: bool,
    panics: u64,
}

impl Readers {
    /// Starts `count` threads.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let queue = Queue { jobs: VecDeque::with_capacity(QUEUE_MAX), open: true, panics: 0 };
        let shared =
            Arc::new(Shared { queue: Mutex::new(queue), changed: Condvar::new(), threads: Mutex::new(Vec::new()) });
        for number in 0..count {
            let of_thread = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("reader-{number}"))
                .stack_size(READER_STACK_BYTES)
                .spawn(move || of_thread.work())
                .map_err(|error| Error::io(format!("the kernel refused a reader thread: {error}")))?;
            shared.threads.lock().push(thread);
        }
        Ok(Self { shared })
    }

    /// Hands a job over. `Busy` when [`QUEUE_MAX`] jobs wait already, `Closed` after the end.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        self.run_boxed(Box::new(job))
    }

    /// The same for a job that is boxed already.
    pub fn run_boxed(&self, job: Job) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        if !queue.open {
            return Err(Error::closed("the server is stopping; try again when it is back"));
        }
        if queue.jobs.len() >= QUEUE_MAX {
            return Err(Error::busy(format!("{QUEUE_MAX} requests wait already; try again shortly")));
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Jobs that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.shared.queue.lock().jobs.len()
    }

    /// Jobs that panicked since the start.
    pub fn panics(&self) -> u64 {
        self.shared.queue.lock().panics
    }

    /// Takes no more jobs, finishes those that wait, joins the threads.
    pub(crate) fn close(&self) {
        self.shared.queue.lock().open = false;
        self.shared.changed.notify_all();
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        for thread in threads {
            // A reader catches every panic of its jobs, so joining cannot fail; if it did, we are ending anyway.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next() {
            // The job owns what it touches; what it shares is guarded by locks that do not poison.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                self.queue.lock().panics += 1;
                tracing::error!("a request failed by a mistake of ours; its client gets an error, the server goes on");
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if !queue.open {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Kind;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::sync_channel;

    #[test]
    fn the_queue_is_bounded_and_drains_at_the_end() {
        let readers = Readers::start(1).unwrap();
        let (release, gate) = sync_channel::<()>(1);
        let (started, running) = sync_channel::<()>(1);
        readers
            .run(move || {
                started.send(()).unwrap();
                let _ = gate.recv();
            })
            .unwrap();
        running.recv().unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..QUEUE_MAX {
            let done = done.clone();
            readers.run(move || _ = done.fetch_add(1, Ordering::SeqCst)).unwrap();
        }
        assert_eq!(readers.run(|| {}).unwrap_err().kind(), Kind::Busy);
        assert_eq!(readers.waiting(), QUEUE_MAX);
        release.send(()).unwrap();
        readers.close();
        assert_eq!(done.load(Ordering::SeqCst), QUEUE_MAX);
        assert_eq!(readers.run(|| {}).unwrap_err().kind(), Kind::Closed);
    }

    #[test]
    fn a_panic_ends_one_job_only() {
        let readers = Readers::start(1).unwrap();
        let (sender, answer) = sync_channel::<u32>(1);
        let of_job = sender.clone();
        readers
            .run(move || {
                let _sender = of_job;
                panic!("planted by a test");
            })
            .unwrap();
        readers.run(move || sender.send(7).unwrap()).unwrap();
        assert_eq!(answer.recv().unwrap(), 7);
        assert!(answer.recv().is_err(), "the sender of the job that panicked is gone");
        assert_eq!(readers.panics(), 1);
        readers.close();
    }
}
