//! As much of FUSE as files need that never change: how a folder is mounted, and the messages over /dev/fuse.
//!
//! ```text
//!   /dev/fuse ─► length u32 │ operation u32 │ number u64 │ node u64 │ 16 B of who asks │ body       a request, 40 bytes and its body
//!   /dev/fuse ◄─ length u32 │ error i32, 0 or below │ number u64 │ body                             an answer
//! ```
//!
//! Version 7.31 of the protocol, which newer kernels speak, too; numbers are as the machine has them
//! (`include/uapi/linux/fuse.h` of the kernel). It never panics on what the kernel sends: what is too short is refused.

use crate::files::{self, Device};
use ramekin_base::{Error, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType};
use std::ffi::{CString, OsStr};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

pub const DEVICE: &str = "/dev/fuse";
/// The folder itself.
pub const ROOT: u64 = 1;

const MAJOR: u32 = 7;
const MINOR: u32 = 31;
const HEAD: usize = 40;
/// Bytes that the kernel may send at once: names, and writes of a page, which it will not send.
const REQUEST_MAX: usize = 128 << 10;
const WRITE_MAX: u32 = 4096;
/// Pages of one read: 1 MiB.
const PAGES_MAX: u16 = 256;
/// Reads at a time in any case, direct ones too; entries of a folder looked up side by side; reads of many pages.
const ASYNC_READ: u32 = 1;
const ASYNC_DIRECT: u32 = 1 << 15;
const PARALLEL_LOOKUPS: u32 = 1 << 18;
const MANY_PAGES: u32 = 1 << 22;

/// What is asked; what is not here is refused as not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    Begin {
        major: u32,
        read_ahead: u32,
        flags: u32,
    },
    Lookup(&'a OsStr),
    Attributes,
    Open,
    Read {
        at: u64,
        len: u32,
    },
    List {
        from: u64,
        room: u32,
    },
    Space,
    /// Done with a file or with all: nothing is to be done.
    Release,
    /// No answer is wanted.
    Forget,
    Other,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub number: u64,
    pub node: u64,
    pub request: Operation<'a>,
}

/// The first bytes of a message or body, as numbers.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&self, at: usize) -> Option<u32> {
        self.0.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.0.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
    }
}

impl<'a> Request<'a> {
    /// `None`: it is shorter than what it says of itself.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let head = Fields(bytes);
        let (len, operation) = (head.u32(0)? as usize, head.u32(4)?);
        let (number, node) = (head.u64(8)?, head.u64(16)?);
        let body = bytes.get(HEAD..len)?;
        let fields = Fields(body);
        let request = match operation {
            1 => Operation::Lookup(OsStr::from_bytes(body.split(|byte| *byte == 0).next()?)),
            2 | 36 | 42 => Operation::Forget,
            3 => Operation::Attributes,
            14 | 27 => Operation::Open,
            15 => Operation::Read { at: fields.u64(8)?, len: fields.u32(16)? },
            17 => Operation::Space,
            18 | 29 | 38 => Operation::Release,
            26 => Operation::Begin { major: fields.u32(0)?, read_ahead: fields.u32(8)?, flags: fields.u32(12)? },
            28 => Operation::List { from: fields.u64(8)?, room: fields.u32(16)? },
            _ => Operation::Other,
        };
        Some(Self { number, node, request })
    }
}

/// What a file or the folder is.
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    pub node: u64,
    pub is_folder: bool,
    pub bytes: u64,
}

impl Attributes {
    fn put(&self, out: &mut Vec<u8>) {
        let mode: u32 = if self.is_folder { 0o040_555 } else { 0o100_444 };
        for number in [self.node, self.bytes, self.bytes.div_ceil(512), 0, 0, 0] {
            out.extend(number.to_ne_bytes());
        }
        // Three parts of seconds, mode, links, owner and group, device, bytes of a block, flags.
        for number in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            out.extend(number.to_ne_bytes());
        }
    }
}

/// Whoever holds it owes an answer to the kernel.
pub struct Reply {
    device: Arc<Device>,
    number: u64,
}

impl Reply {
    pub fn new(device: &Arc<Device>, number: u64) -> Self {
        Self { device: device.clone(), number }
    }

    pub fn data(self, body: &[u8]) {
        self.send(0, body);
    }

    pub fn error(self, error: Errno) {
        self.send(-error.raw_os_error(), &[]);
    }

    /// How the session begins: what of the kernel's offers is taken, and how many reads may wait at a time.
    pub fn begin(self, (major, read_ahead, flags): (u32, u32, u32), parallel: u16) {
        if major < MAJOR {
            return self.error(Errno::PROTO);
        }
        let mut out = Vec::with_capacity(64);
        let taken = flags & (ASYNC_READ | ASYNC_DIRECT | PARALLEL_LOOKUPS | MANY_PAGES);
        [MAJOR, MINOR, read_ahead, taken].iter().for_each(|number| out.extend(number.to_ne_bytes()));
        [parallel, parallel].iter().for_each(|number| out.extend(number.to_ne_bytes()));
        // Bytes of a write, and nanoseconds of a time.
        [WRITE_MAX, 1].iter().for_each(|number| out.extend(number.to_ne_bytes()));
        out.extend(PAGES_MAX.to_ne_bytes());
        out.resize(64, 0);
        self.data(&out);
    }

    pub fn entry(self, attributes: &Attributes, remember: Duration) {
        let mut out = Vec::with_capacity(128);
        for number in [attributes.node, 0, remember.as_secs(), remember.as_secs(), 0] {
            out.extend(number.to_ne_bytes());
        }
        attributes.put(&mut out);
        self.data(&out);
    }

    pub fn attributes(self, attributes: &Attributes, remember: Duration) {
        let mut out = Vec::with_capacity(104);
        [remember.as_secs(), 0].iter().for_each(|number| out.extend(number.to_ne_bytes()));
        attributes.put(&mut out);
        self.data(&out);
    }

    /// Without a number of its own, and without the wish to keep what is cached: the page cache is cold at each open.
    pub fn opened(self) {
        self.data(&[0; 16]);
    }

    /// A file system about whose space nothing is said.
    pub fn space(self) {
        let mut out = vec![0; 80];
        out[40..44].copy_from_slice(&512u32.to_ne_bytes());
        out[44..48].copy_from_slice(&255u32.to_ne_bytes());
        self.data(&out);
    }

    fn send(self, error: i32, body: &[u8]) {
        let mut head = [0; 16];
        head[..4].copy_from_slice(&((16 + body.len()) as u32).to_ne_bytes());
        head[4..8].copy_from_slice(&error.to_ne_bytes());
        head[8..].copy_from_slice(&self.number.to_ne_bytes());
        // One message is one write. If it fails, who asked was interrupted, or the file system is gone.
        let _ = (&*self.device).write_vectored(&[IoSlice::new(&head), IoSlice::new(body)]);
    }
}

/// The entries of a folder, as far as the kernel has room for them.
pub struct Entries {
    out: Vec<u8>,
    room: usize,
}

impl Entries {
    pub fn new(room: u32) -> Self {
        Self { out: Vec::new(), room: room as usize }
    }

    /// The next one is asked for by `next`. False: it does not fit.
    pub fn add(&mut self, node: u64, next: u64, is_folder: bool, name: &OsStr) -> bool {
        let len = 24 + name.len().next_multiple_of(8);
        if self.out.len() + len > self.room {
            return false;
        }
        let end = self.out.len() + len;
        let kind: u32 = if is_folder { 4 } else { 8 };
        [node, next].iter().for_each(|number| self.out.extend(number.to_ne_bytes()));
        [name.len() as u32, kind].iter().for_each(|number| self.out.extend(number.to_ne_bytes()));
        self.out.extend(name.as_bytes());
        self.out.resize(end, 0);
        true
    }

    pub fn bytes(&self) -> &[u8] {
        &self.out
    }
}

/// A mounted file system; unmounted on drop.
pub struct Mount {
    device: Arc<Device>,
    mountpoint: PathBuf,
}

impl Mount {
    /// Mounts `mountpoint`, read only: as root by the kernel, else by the helper that systems have for it.
    pub fn new(mountpoint: &Path, name: &str) -> Result<Self> {
        let wrong = |error: Error| error.at(format!("mounting {}", mountpoint.display()));
        let device = match by_kernel(mountpoint, name) {
            Err(Errno::PERM) => by_helper(mountpoint, name).map_err(wrong)?,
            mounted => mounted.map_err(|error| wrong(Error::from(std::io::Error::from(error))))?,
        };
        Ok(Self { device: Arc::new(device), mountpoint: mountpoint.to_owned() })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if unmount(&self.mountpoint, UnmountFlags::DETACH) == Err(Errno::PERM) {
            // Who lost the right to unmount cannot do more.
            let _ = Command::new(HELPER).args(["-u", "-z", "--"]).arg(&self.mountpoint).stderr(Stdio::null()).status();
        }
    }
}

const HELPER: &str = "fusermount3";

fn by_kernel(mountpoint: &Path, name: &str) -> std::result::Result<Device, Errno> {
    let device = files::open_for_writing(Path::new(DEVICE)).map_err(|_| Errno::PERM)?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let options = format!("fd={},rootmode=40000,user_id={user},group_id={group}", device.as_raw_fd());
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    mount(name, mountpoint, "fuse", flags, options.as_c_str())?;
    Ok(device)
}

/// The helper mounts and hands the device over a socket, whose number it finds in its environment.
fn by_helper(mountpoint: &Path, name: &str) -> Result<Device> {
    let lost = |error: Errno| Error::from(std::io::Error::from(error));
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None);
    let (ours, theirs) = pair.map_err(lost)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(lost)?;
    let mut command = Command::new(HELPER);
    command.args(["-o", &format!("ro,nosuid,nodev,fsname={name}"), "--"]).arg(mountpoint);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string()).stdin(Stdio::null());
    let status = command.status().map_err(|error| Error::unsupported(format!("{HELPER} cannot be run: {error}")))?;
    drop(theirs);
    if !status.success() {
        return Err(Error::unsupported(format!("{HELPER} ended with {status}")));
    }
    received(&ours).map_err(lost)?.ok_or_else(|| Error::unsupported(format!("{HELPER} handed over no device")))
}

fn received(socket: &OwnedFd) -> std::result::Result<Option<Device>, Errno> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut handed = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut handed, RecvFlags::CMSG_CLOEXEC)?;
    let mut found = None;
    for message in handed.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            found = fds.next().map(Device::from);
        }
    }
    Ok(found)
}

/// Hands each request to `each` until the file system is unmounted.
pub fn serve(device: &Device, each: &mut dyn FnMut(Request<'_>)) {
    let mut room = vec![0; REQUEST_MAX];
    loop {
        match (&*device).read(&mut room) {
            Ok(len) => {
                if let Some(request) = Request::decode(&room[..len]) {
                    each(request);
                }
            }
            Err(error) => match Errno::from_io_error(&error) {
                // ENOENT: who asked was interrupted meanwhile.
                Some(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                _ => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        [(HEAD + body.len()) as u32, operation].iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
        [7u64, 3].iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
        bytes.resize(HEAD, 0);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn requests_are_taken_apart() {
        let mut read = vec![0; 40];
        read[8..16].copy_from_slice(&4096u64.to_ne_bytes());
        read[16..20].copy_from_slice(&512u32.to_ne_bytes());
        let request =
            |operation, body: &[u8]| Request::decode(&request(operation, body)).map(|request| format!("{request:?}"));
        let wanted = Request { number: 7, node: 3, request: Operation::Read { at: 4096, len: 512 } };
        assert_eq!(request(15, &read), Some(format!("{wanted:?}")));
        let wanted = Request { number: 7, node: 3, request: Operation::Lookup(OsStr::new("a b")) };
        assert_eq!(request(1, b"a b\0"), Some(format!("{wanted:?}")));
        assert!(request(999, b"").is_some_and(|text| text.contains("Other")));
        assert_eq!(request(15, &read[..12]), None);
    }

    #[test]
    fn what_is_cut_short_is_no_request() {
        let whole = request(15, &[0; 40]);
        for cut in 0..whole.len() {
            assert_eq!(Request::decode(&whole[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn entries_end_where_there_is_no_room() {
        let mut entries = Entries::new(100);
        assert!(entries.add(2, 1, false, OsStr::new("short")) && entries.add(3, 2, false, OsStr::new("longer-name")));
        assert!(!entries.add(4, 3, true, OsStr::new("x")));
        assert_eq!(entries.bytes().len(), 32 + 40);
    }
}
