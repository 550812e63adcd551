//! What this process, or a thread of it, has used, from the kernel.

/// A slow disk is another one and not in it.
pub struct Usage {
    pub cpu_seconds: f64,
    pub major_faults: u64,
}

impl Usage {
    pub fn now() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    /// Of the calling thread alone.
    pub fn of_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    fn of(whom: libc::c_int) -> Self {
        // SAFETY: a plain structure of numbers, filled by the call.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(whom, &mut usage);
            usage
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self { cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime), major_faults: usage.ru_majflt as u64 }
    }
}
