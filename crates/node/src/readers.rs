//! The readers: a few threads with small stacks that run what blocks on the disk.
//!
//! ```text
//!               ┌─► [ writes, at most QUEUE_MAX ] ─┐ in
//!   door ──run──┤                                  ├─────► 8 threads ──► each on its own ring
//!            │  ├─► [ reads,  at most QUEUE_MAX ] ─┘ turns
//!            │  └─► [ short,  at most QUEUE_MAX ] ── first
//!            └─ Busy when the lane is full: refused at once, never piled up
//! ```
//!
//! Of the threads one is kept free of writes and reads, and another of reads: short requests find a thread whatever runs.
//!
//! While writes are held up because what is new must be written out first, few reads run at a time: a crowd of them
//! would take all cores and the whole disk from the seal that everyone waits for.
//!
//! A job that panics ends alone: the thread reports it and takes the next one, and whoever waits for
//! the job's answer sees its sender dropped.

use parking_lot::{Condvar, Mutex};
use ramekin_base::limits::QUEUE_MAX;
use ramekin_base::supervise::{self, Threads};
use ramekin_base::{Error, Lane, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads that read: enough that the disk sees a deep queue while the cores compute.
pub const READERS: usize = 8;
/// Reads at a time while writes are held up.
const READS_HELD: usize = 2;
/// Stack of a reader. Jobs keep their data in reserved memory, not on the stack.
pub const READER_STACK_BYTES: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// A handle to the readers; clones share them.
#[derive(Clone)]
pub struct Readers {
    shared: Arc<ReaderPool>,
}

struct ReaderPool {
    queue: Mutex<Queue>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    writes_held: Box<dyn Fn() -> bool + Send + Sync>,
}

struct Queue {
    writes: VecDeque<Job>,
    reads: VecDeque<Job>,
    short: VecDeque<Job>,
    /// Jobs of each lane that run at a time at most.
    threads: usize,
    /// The lane whose turn it is.
    turn: Lane,
    /// Jobs of each lane that run now.
    reading: usize,
    writing: usize,
    hurrying: usize,
    open: bool,
    panics: u64,
}

impl Queue {
    fn lane(&mut self, lane: Lane) -> &mut VecDeque<Job> {
        match lane {
            Lane::Writes => &mut self.writes,
            Lane::Reads => &mut self.reads,
            Lane::Short => &mut self.short,
        }
    }

    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty() && self.short.is_empty()
    }

    fn running(&mut self, lane: Lane) -> &mut usize {
        match lane {
            Lane::Writes => &mut self.writing,
            Lane::Reads => &mut self.reading,
            Lane::Short => &mut self.hurrying,
        }
    }

    /// Whether one more of a lane may run. While writes are held up, `held` of those that read.
    fn may_run(&self, lane: Lane, held: usize) -> bool {
        let long = self.reading + self.writing;
        match lane {
            Lane::Writes => long < self.threads.saturating_sub(1).max(1),
            Lane::Reads => {
                self.reading < held.min(self.threads.saturating_sub(2).max(1))
                    && long < self.threads.saturating_sub(1).max(1)
            }
            Lane::Short => self.hurrying < held,
        }
    }

    /// The next job: a short one, or else of the lane whose turn it is, or else of the other. At most `reads` reads run at
    /// a time, and as many short ones.
    fn pop(&mut self, reads: usize) -> Option<(Lane, Job)> {
        let reads_first = self.turn == Lane::Reads;
        let order = match reads_first {
            true => [Lane::Short, Lane::Reads, Lane::Writes],
            false => [Lane::Short, Lane::Writes, Lane::Reads],
        };
        for lane in order {
            if !self.may_run(lane, reads) {
                continue;
            }
            if let Some(job) = self.lane(lane).pop_front() {
                match lane {
                    Lane::Reads => self.turn = Lane::Writes,
                    Lane::Writes => self.turn = Lane::Reads,
                    Lane::Short => {}
                }
                *self.running(lane) += 1;
                return Some((lane, job));
            }
        }
        None
    }
}

impl Readers {
    /// Starts `count` threads. `writes_held` says whether writes are held up at this moment.
    pub(crate) fn start(
        count: usize,
        supervisor: &Threads,
        writes_held: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Self> {
        let lane = || VecDeque::with_capacity(QUEUE_MAX);
        let queue = Queue {
            writes: lane(),
            reads: lane(),
            short: lane(),
            threads: count,
            turn: Lane::Writes,
            reading: 0,
            writing: 0,
            hurrying: 0,
            open: true,
            panics: 0,
        };
        let shared = Arc::new(ReaderPool {
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            threads: Mutex::new(Vec::new()),
            writes_held: Box::new(writes_held),
        });
        for number in 0..count {
            let of_thread = shared.clone();
            let work = move || {
                of_thread.work();
                Ok(())
            };
            let thread = supervisor.spawn(&format!("reader-{number}"), READER_STACK_BYTES, work)?;
            shared.threads.lock().push(thread);
        }
        Ok(Self { shared })
    }

    /// Hands a job over. `Busy` when [`QUEUE_MAX`] jobs wait in its lane already, `Closed` after the end.
    pub fn run(&self, lane: Lane, job: Job) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        if !queue.open {
            return Err(Error::closed("the server is stopping; try again when it is back"));
        }
        let jobs = queue.lane(lane);
        if jobs.len() >= QUEUE_MAX {
            return Err(Error::busy(format!("{QUEUE_MAX} requests wait already; try again shortly")));
        }
        jobs.push_back(job);
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Jobs that wait for a thread.
    pub fn waiting(&self) -> usize {
        let queue = self.shared.queue.lock();
        queue.writes.len() + queue.reads.len() + queue.short.len()
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

impl ReaderPool {
    fn work(&self) {
        while let Some((lane, job)) = self.next() {
            let done = supervise::caught("a request", || {
                job();
                Ok(())
            });
            if let Err(error) = done {
                self.queue.lock().panics += 1;
                tracing::error!("its client gets status 500: {error}");
            }
            let mut queue = self.queue.lock();
            *queue.running(lane) -= 1;
            // Jobs that were held back had nobody to wake them.
            match queue.open {
                true if queue.is_empty() => {}
                true => _ = self.changed.notify_one(),
                // Those that wait for the end look again.
                false => _ = self.changed.notify_all(),
            }
        }
    }

    fn next(&self) -> Option<(Lane, Job)> {
        let mut queue = self.queue.lock();
        loop {
            let reads = if queue.open && (self.writes_held)() { READS_HELD } else { usize::MAX };
            if let Some(job) = queue.pop(reads) {
                // The thread that was woken for a write may have found that it was the turn of reads.
                if !queue.is_empty() {
                    self.changed.notify_one();
                }
                return Some(job);
            }
            if !queue.open && queue.is_empty() {
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
    use std::sync::mpsc::{SyncSender, sync_channel};

    /// One reader that is held up until the sender is used or dropped.
    fn held() -> (Readers, SyncSender<()>) {
        let readers = Readers::start(1, &Threads::default(), || false).unwrap();
        let (release, gate) = sync_channel::<()>(1);
        let (started, running) = sync_channel::<()>(1);
        let hold = move || {
            started.send(()).unwrap();
            let _ = gate.recv();
        };
        readers.run(Lane::Reads, Box::new(hold)).unwrap();
        running.recv().unwrap();
        (readers, release)
    }

    #[test]
    fn a_short_request_finds_a_thread_whatever_runs() {
        let readers = Readers::start(8, &Threads::default(), || false).unwrap();
        let (release, gate) = sync_channel::<()>(0);
        let gate = Arc::new(Mutex::new(gate));
        for lane in [Lane::Reads, Lane::Writes] {
            for _ in 0..20 {
                let gate = gate.clone();
                readers.run(lane, Box::new(move || _ = gate.lock().recv())).unwrap();
            }
        }
        for _ in 0..100 {
            let (done, answer) = sync_channel(1);
            readers.run(Lane::Short, Box::new(move || done.send(()).unwrap())).unwrap();
            answer.recv().unwrap();
        }
        assert!(readers.waiting() >= 40 - 7);
        drop(release);
        readers.close();
        assert_eq!(readers.waiting(), 0);
    }

    #[test]
    fn each_lane_is_bounded_and_both_drain_at_the_end() {
        let (readers, release) = held();
        let done = Arc::new(AtomicUsize::new(0));
        for lane in [Lane::Writes, Lane::Reads] {
            for _ in 0..QUEUE_MAX {
                let done = done.clone();
                readers.run(lane, Box::new(move || _ = done.fetch_add(1, Ordering::SeqCst))).unwrap();
            }
            assert_eq!(readers.run(lane, Box::new(|| {})).unwrap_err().kind(), Kind::Busy);
        }
        assert_eq!(readers.waiting(), 2 * QUEUE_MAX);
        release.send(()).unwrap();
        readers.close();
        assert_eq!(done.load(Ordering::SeqCst), 2 * QUEUE_MAX);
        assert_eq!(readers.run(Lane::Reads, Box::new(|| {})).unwrap_err().kind(), Kind::Closed);
    }

    #[test]
    fn lanes_take_turns() {
        let (readers, release) = held();
        let (sender, order) = sync_channel::<Lane>(16);
        for lane in [Lane::Reads; 6].into_iter().chain([Lane::Writes; 2]) {
            let sender = sender.clone();
            readers.run(lane, Box::new(move || sender.send(lane).unwrap())).unwrap();
        }
        release.send(()).unwrap();
        readers.close();
        let order: Vec<Lane> = order.try_iter().collect();
        assert_eq!(order.len(), 8);
        let last_write = order.iter().rposition(|lane| *lane == Lane::Writes).unwrap();
        assert!(last_write <= 3, "two writes wait for two reads at most, whatever came before them: {order:?}");
    }

    #[test]
    fn few_reads_run_while_writes_are_held_up() {
        let readers = Readers::start(8, &Threads::default(), || true).unwrap();
        let (sender, started) = sync_channel::<()>(16);
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for _ in 0..8 {
            let (sender, gate) = (sender.clone(), gate.clone());
            let read = move || {
                sender.send(()).unwrap();
                drop(gate.lock());
            };
            readers.run(Lane::Reads, Box::new(read)).unwrap();
        }
        for _ in 0..READS_HELD {
            started.recv().unwrap();
        }
        let (sender, written) = sync_channel::<()>(16);
        readers.run(Lane::Writes, Box::new(move || sender.send(()).unwrap())).unwrap();
        written.recv().unwrap();
        assert_eq!(started.try_iter().count(), 0);
        drop(closed);
        readers.close();
        assert_eq!(started.try_iter().count(), 8 - READS_HELD);
    }

    #[test]
    fn a_panic_ends_one_job_only() {
        let readers = Readers::start(1, &Threads::default(), || false).unwrap();
        let (sender, answer) = sync_channel::<u32>(1);
        let of_job = sender.clone();
        let job = move || {
            let _sender = of_job;
            panic!("planted by a test");
        };
        readers.run(Lane::Reads, Box::new(job)).unwrap();
        readers.run(Lane::Reads, Box::new(move || sender.send(7).unwrap())).unwrap();
        assert_eq!(answer.recv().unwrap(), 7);
        assert!(answer.recv().is_err(), "the sender of the job that panicked is gone");
        assert_eq!(readers.panics(), 1);
        readers.close();
    }
}
