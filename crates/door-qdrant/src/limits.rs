//! Limits of this door, beside those of the whole system in `ramekin_base::limits`.
//!
//! Each is stated with what it costs, since the door must live inside a budget as small as 24 MiB.

/// A body of at most this many bytes lives on its connection's own booking and never waits: searches pass
/// a flood of uploads.
pub const BODY_FREE: usize = 16 << 10;

/// An answer of at most this many bytes lives on its connection's own booking.
pub const ANSWER_FREE: usize = 16 << 10;

/// Bodies of more than this many bytes are decoded away from the threads that serve connections.
pub const DECODE_HERE_MAX: usize = 32 << 10;

/// Bodies of at most this many bytes have a pool of their own: the longest query vectors, printed in full, never wait behind
/// uploads.
pub const BODY_SMALL: u64 = 128 << 10;

/// A body must come at this rate, bytes a second, once so many seconds were spent on waiting for it; and be there as a whole
/// within the last, seconds.
pub const BODY_RATE: u64 = 16 << 10;
pub const BODY_GRACE_S: u64 = 5;
pub const BODY_WHOLE_S: u64 = 300;

/// Where others wait for what it holds, the same at a higher rate: after so many milliseconds, and within so many seconds.
pub const CROWD_RATE: u64 = 64 << 10;
pub const CROWD_GRACE_MS: u64 = 500;
pub const CROWD_WHOLE_S: u64 = 10;
/// And it must go on within this time, milliseconds.
pub const BODY_STALL_MS: u64 = 1000;

/// What unpacking a compressed body takes: its state and its buffers.
pub const UNPACK_BYTES: u64 = 160 << 10;

/// What packing an answer takes, and the least answer for which it pays, bytes: one that is shorter is one or two segments of
/// the network, and packing it would take a hundred times its memory.
pub const PACK_BYTES: u64 = 448 << 10;
pub const PACK_MIN: usize = 4 << 10;

/// What is read and thrown away of a body that was refused, so that the client sees why: bytes and seconds.
pub const DRAIN_MAX: u64 = 64 << 20;
pub const DRAIN_S: u64 = 10;
/// One who sends nothing for this long waits for the answer, seconds.
pub const DRAIN_IDLE_S: u64 = 1;

/// A connection's read buffer in hyper; header lines must fit it.
pub const READ_BUFFER: usize = ramekin_base::limits::HEADERS_MAX;

/// What is read of a connection at a time: hyper gives its buffer this size, and a larger one only to who fills it in one go.
pub const HEAD_FREE: usize = 8 << 10;

/// What the kernel may hold of a connection in each direction, as asked for; it takes twice this. Between requests next to
/// nothing: a header is read at once, and an answer was read before the next request.
pub const SOCKET_RECEIVE_IDLE: usize = 8 << 10;
pub const SOCKET_SEND_IDLE: usize = 2304;
/// Of a large body at least this.
pub const SOCKET_RECEIVE: usize = 14 << 10;
/// Of a large body: a sixteenth of it, so that what all of them have together is bounded as the bodies are.
pub fn socket_receive(body: usize, budget: u64) -> usize {
    (body / 16).min(budget as usize / 512).clamp(SOCKET_RECEIVE, 128 << 10)
}
/// Of an answer.
pub const SOCKET_SEND: usize = 16 << 10;
/// Bytes of a segment, as on Ethernet. A sender waits until it may send a whole segment, or half of the largest window that it was
/// ever offered (RFC 9293, 3.8.6.2.1); on this machine it would make segments of half of that window, and after a large body wait
/// for the kernel's timer of 200 ms before each of them.
pub const SEGMENT: u32 = 1440;

/// Stack frames, structures of hyper and tokio, the kernel's own structures of one connection, measured between requests.
pub const CONNECTION_FIXED: usize = 10 << 10;

/// More of it with TLS: its own read and write buffers.
pub const CONNECTION_TLS: usize = 48 << 10;

/// A write that has begun when the time of its request is over is waited for so much longer.
pub const BEGUN_GRACE: std::time::Duration = std::time::Duration::from_secs(2);

/// Seconds that a connection may stay silent between requests, and that it may take for a header from its first byte on.
pub const IDLE_S: u64 = 75;
pub const HEADER_S: u64 = 5;

/// What a request held stays with its connection for so many milliseconds, for the next one.
pub const WORK_KEPT_MS: u64 = 100;

/// A client that has not read so many bytes a second of an answer, after so many seconds, finds its connection cut.
pub const UNREAD_RATE: u64 = 16 << 10;
pub const UNREAD_S: u64 = 30;
/// Where others wait for what it holds, one that took nothing of its answer for so many milliseconds is cut: a small query waits
/// for no longer than that for somebody who does not read, and is to be answered within a second.
pub const UNREAD_STALL_MS: u64 = 500;

/// Seconds that a client may take for its part of TLS's handshake.
pub const HANDSHAKE_S: u64 = 10;

/// Bytes in flight of all large bodies and of what they decode to.
pub const fn bodies(budget: u64) -> u64 {
    budget / 8
}

/// The part of it that is taken for good, so that uploads always move on, and one packed body is always unpacked.
pub const fn bodies_min_reservation(budget: u64) -> u64 {
    let share = budget / 32;
    UNPACK_BYTES + if share < (1 << 20) { 1 << 20 } else { share }
}

/// The part of it that is for bodies up to [`BODY_SMALL`] alone, taken for good: two of the largest, and what they decode to.
pub const fn small_bodies(budget: u64) -> u64 {
    let share = budget / 64;
    if share < 4 * BODY_SMALL { 4 * BODY_SMALL } else { share }
}

/// What answers have for good.
pub const fn answers_min_reservation(budget: u64) -> u64 {
    budget / 128
}
