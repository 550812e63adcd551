//! The table itself: every command with its options, in the order in which help and docs show them.

use super::Value::{self, *};
use super::{Command, Opt};

const fn opt(name: &'static str, value: Value, default: &'static str, help: &'static str) -> Opt {
    Opt { name, value, default, help }
}

/// Of `ramekin serve`: also variables of the environment, and lines of the configuration file.
pub const SERVE: &[Opt] = &[
    opt("data", Folder, "./ramekin-data", "Folder that holds all data; made if it is missing"),
    opt(
        "memory",
        Size,
        "",
        "Memory for the whole process, such as 256MiB; without it 80 % of the cgroup's limit, or half of the machine's memory",
    ),
    opt("http", Address, "127.0.0.1:6333", "Address of the REST door, or off"),
    opt("etcd", Address, "off", "Address of etcd's door, such as 127.0.0.1:2379, or off"),
    opt(
        "io",
        Engine,
        "",
        "I/O engine: uring, pread, or mmap (a baseline for the lab; the memory promise does not hold with it); without it the best that works",
    ),
    opt("api-key", Key, "", "Key that every request must bring"),
    opt("read-only-api-key", Key, "", "Key that allows reading only"),
    opt("tls-cert", File, "", "Certificate chain in PEM; with --tls-key the door speaks TLS"),
    opt("tls-key", File, "", "Private key in PEM"),
    opt(
        "cors",
        Origin,
        "",
        "Origin whose pages may use the door from a browser, such as https://example.org, or *; without it none",
    ),
    opt(
        "connections",
        Count,
        "",
        "Connections at a time, at least 16, as far as half of the memory holds them; without it one for each 64KiB of the memory, at most 10000",
    ),
    opt("log-level", Level, "info", "error, warn, info, debug or trace"),
    opt(
        "drain-s",
        Seconds,
        "10",
        "Seconds within which the server stops, whatever runs; open requests have all but the last quarter of them, or the last two",
    ),
    opt("config", File, "", "TOML file with these options by name"),
];

const JSON: &[Opt] = &[opt("json", Switch, "", "Print JSON instead of a table")];

const MEMORY: &[Opt] = &[
    opt("api-key", Key, "", "Key of the server [env: RAMEKIN_API_KEY]"),
    opt("ca", File, "", "For https: certificates to trust, in PEM"),
];

const LIMITS: &[Opt] = &[opt("memory", Size, "", "Also the limits that follow from this budget")];

const CHECK: &[Opt] =
    &[opt("repair", Switch, "", "Cut a damaged log so that a server starts again; says what is lost by it")];

const IMPORT: &[Opt] = &[
    opt("data", Folder, "./ramekin-data", "Folder that takes it over; made if it is missing"),
    opt("memory", Size, "", "Memory for the whole process [default: as that of a server here]"),
];

const PLAN: &[Opt] = &[
    opt("memory", Size, "", "The budget [default: as that of a server here]"),
    opt("points", Text("N"), "", "Points of the collection"),
    opt("keys", Text("N"), "", "Keys of etcd's door, in place of a collection"),
    opt("versions", Text("N"), "1", "With --keys: versions of each that are not compacted"),
    opt("key-bytes", Text("N"), "64", "With --keys: bytes of a key"),
    opt("value-bytes", Text("N"), "256", "With --keys: bytes of a value"),
    opt("watchers", Text("N"), "0", "With --keys: watchers, each of one key"),
    opt("streams", Text("N"), "1", "With --keys: streams that all watchers are on, such as one for each client"),
    opt("dim", Text("N"), "", "Dimensions of its vector"),
    opt("distance", Text("NAME"), "Cosine", "Cosine, Dot, Euclid or Manhattan"),
    opt("payload-bytes", Text("N"), "0", "Payload of each point, as JSON text"),
    opt("recall", Text("R"), "0.95", "Wished recall@10"),
    opt(
        "collection",
        Text("JSON"),
        "{}",
        "More of the collection, as it is created, such as '{\"quantization_config\":{\"binary\":{}}}'",
    ),
    opt(
        "file",
        File,
        "",
        "Several collections: a file with the body of POST /memory/plan; in place of --points and the rest",
    ),
    opt("sample", File, "", "Some of the vectors (.npy, .fvecs, .fbin): recall and speed are measured on them"),
    opt("sample-rows", Text("N"), "100000", "So many of them at most"),
    opt("data", Folder, ".", "Where the data will be: its disk is measured, and the sample is tried out there"),
    opt("svg", File, "ramekin-plan.svg", "With --curve: where the picture goes"),
    opt("curve", Switch, "", "Plan a whole curve of budgets"),
];

/// Where vectors come from, alike in all experiments.
const VECTORS: &[Opt] = &[
    opt(
        "base",
        File,
        "",
        "Vectors to search in: .npy ('<f4'), .fvecs or .fbin; bench/hdf5_to_npy.py converts ann-benchmarks' .hdf5",
    ),
    opt("query", File, "", "Held-out queries, of the same kinds"),
    opt(
        "truth",
        File,
        "",
        "The exact neighbours of each query: .npy ('<i4'), .ivecs or .ibin; without it they are computed, on all cores",
    ),
    opt("synthetic", Text("N,DIM,SEED"), "", "Draw vectors and queries in place of --base and --query"),
    opt("metric", Text("NAME"), "cosine", "cosine, dot, euclid or manhattan"),
    opt("rows", Text("N"), "", "Only the first N vectors"),
    opt("queries", Text("N"), "", "Only the first N queries [default: 10000, of synthetic ones 1000]"),
];

const MINRAM: &[Opt] = &[
    opt(
        "memory",
        Text("SIZE,SIZE,..."),
        "",
        "Memory at which to measure: ours gets it as --memory, another server as its limit",
    ),
    opt("find", Text("LOW,HIGH"), "", "Also find the least memory that serves, by binary search between these two"),
    opt("step", Size, "1MiB", "How exactly --find finds it"),
    opt("min-rate", Text("N"), "1", "Requests a second that count as serving"),
    opt("min-recall", Text("R"), "0.9", "Recall@10 that counts as serving"),
    opt(
        "server",
        Text("CMD"),
        "",
        "Another server that speaks Qdrant's REST API; {data}, {port} and {memory} (bytes) are filled in",
    ),
    opt("server-options", Text("TEXT"), "", "More options for our own server, such as '--io pread'"),
    opt(
        "create",
        Text("JSON"),
        "{}",
        "More of the request that makes the collection, such as '{\"hnsw_config\":{\"on_disk\":true}}'",
    ),
    opt("ef", Text("N"), "", "params.hnsw_ef of each query"),
    opt("rescore", Text("true|false"), "", "params.quantization.rescore of each query"),
    opt("oversampling", Text("X"), "", "params.quantization.oversampling of each query"),
    opt("payload-bytes", Text("N"), "", "Payload of each point [default: 0, with --with-payload 128]"),
    opt("connections", Text("N"), "8", "Connections that ask at the same time"),
    opt("seconds", Text("S"), "30", "A run ends after S seconds even if queries are left"),
    opt("repeats", Text("N"), "3", "Runs at each limit, each from a cold start"),
    opt("warm-up", Text("N"), "0", "Queries that are request before and not counted"),
    opt(
        "page-cache",
        Text("WHAT"),
        "all",
        "What is dropped before each run: all (where root may; it slows down whatever else runs on the machine), files (the data files only) or keep",
    ),
    opt("batch", Size, "4MiB", "Bytes of one upload request, about"),
    opt(
        "upload-memory",
        Size,
        "",
        "Memory for the server while it is filled, without a limit [default: half of the machine's]",
    ),
    opt("start-s", Text("S"), "120", "Seconds that a server may take to be ready and green"),
    opt("disk-file", Size, "256MiB", "File on which the disk's own rate is measured; 0 leaves that out"),
    opt("disk-seconds", Text("S"), "1", "Seconds at each depth of it"),
    opt("out", Folder, "ramekin-lab", "Where data and results go: DIR/data, DIR/minram.md, .json and .svg"),
    opt("with-payload", Switch, "", "Ask for payloads too"),
    opt("with-margin", Switch, "", "Limit --server to B + max(8 MiB, B/16) as well: for another build of ours"),
    opt("reuse", Switch, "", "Take DIR/data as an earlier run of the same upload left it"),
];

const IO: &[Opt] = &[
    opt("engines", Text("LIST"), "uring,pread,mmap", "Engines to compare"),
    opt("oversampling", Text("LIST"), "1,4", "How many times the wanted 10 candidates are scored by their originals"),
    opt("parallel", Text("LIST"), "4,8", "Threads that search at the same time"),
    opt("rounds", Text("N"), "5", "Times that each cell is measured, all cells in turn"),
    opt("ef", Text("N"), "64", "Accuracy of the search, as a client's hnsw_ef"),
    opt("cache", Size, "1MiB", "Our own page cache for originals: small, so that the disk is what is measured"),
    opt("build-memory", Size, "256MiB", "Working memory of the index build"),
    opt("slow-ms", Text("MS"), "1", "Delay of the slow disk; 0 leaves it out"),
    opt("disk-file", Size, "256MiB", "File on which the disk's own rate is measured; 0 leaves that out"),
    opt("disk-seconds", Text("S"), "1", "Seconds at each depth of it"),
    opt("out", Folder, "ramekin-lab", "Where the index and the results go: DIR/io, DIR/io.md and .json"),
];

const FIELDS: &[Opt] = &[
    opt("points", Text("N"), "40000000", "Points of the field; up to 50 bytes each are needed"),
    opt("checks", Text("N"), "100000", "Points that are checked in a round"),
    opt("distinct", Text("LIST"), "3,1000", "Different values that the field has"),
    opt("rounds", Text("N"), "11", "Times that each is measured"),
    opt("out", Folder, "ramekin-lab", "Where the results go: DIR/fields.md and .json"),
];

const LAB_VERSIONS: &[Opt] = &[
    opt(
        "server",
        Text("CMD"),
        "",
        "An etcd besides, such as '/usr/bin/etcd --data-dir {data} --listen-client-urls http://127.0.0.1:{port} --advertise-client-urls http://127.0.0.1:{port} --listen-peer-urls http://127.0.0.1:{other}'; {other} is another free port",
    ),
    opt("keys", Text("LIST"), "10000,50000", "Keys; each number with each of --versions is a point"),
    opt("versions", Text("LIST"), "1,3", "Versions of each key"),
    opt("key-bytes", Text("N"), "64", "Bytes of a key, 16 at least"),
    opt("value-bytes", Text("N"), "256", "Bytes of a value"),
    opt("memory", Size, "64MiB", "Memory of our own server"),
    opt("batch", Text("N"), "100", "Puts of one transaction"),
    opt("connections", Text("N"), "4", "Connections that write at the same time"),
    opt("watchers", Text("N"), "5000", "Watchers of our own server, of one key each, 1000 on a stream; 0: none"),
    opt("settle-s", Text("S"), "3", "Seconds without a request before memory is looked at"),
    opt("start-s", Text("S"), "120", "Seconds that a server may take to be ready"),
    opt("out", Folder, "ramekin-lab", "Where data and results go: DIR/versions.md, .json and .svg"),
];

const SLOW_DISK: &[Opt] = &[
    opt("delay-ms", Text("MS"), "1", "Delay of each read"),
    opt("parallel", Text("N"), "256", "Reads that wait at the same time; more wait for those"),
];

/// Every command.
pub const COMMANDS: &[Command] = &[
    Command { words: "serve", about: "Run the server", more: "", places: &[], options: &[SERVE] },
    Command {
        words: "memory",
        about: "Show the memory ledger of a running server",
        more: "",
        places: &[opt("url", Text("URL"), "http://127.0.0.1:6333", "Address of its REST door")],
        options: &[MEMORY, JSON],
    },
    Command {
        words: "limits",
        about: "Print every limit of the server",
        more: "",
        places: &[],
        options: &[LIMITS, JSON],
    },
    Command {
        words: "check",
        about: "Verify a data folder that no server is using",
        more: "",
        places: &[opt("data", Folder, "", "The data folder")],
        options: &[CHECK, JSON],
    },
    Command {
        words: "import etcd",
        about: "Take over a snapshot or a database file of etcd",
        more: IMPORT_MORE,
        places: &[opt("file", File, "", "The snapshot, or member/snap/db of a member that is stopped")],
        options: &[IMPORT],
    },
    Command {
        words: "plan",
        about: "Say what collections or keys will take and how fast they will be, before there is any data",
        more: PLAN_MORE,
        places: &[],
        options: &[PLAN, JSON],
    },
    Command {
        words: "lab minram",
        about: "Measure what a server does at falling memory limits, and find the least that serves",
        more: MINRAM_MORE,
        places: &[],
        options: &[VECTORS, MINRAM, JSON],
    },
    Command {
        words: "lab io",
        about: "Compare io_uring, pread and mmap for a search that rescores from disk",
        more: IO_MORE,
        places: &[],
        options: &[VECTORS, IO, JSON],
    },
    Command {
        words: "lab fields",
        about: "Compare layouts of a payload field: is a value among those of a point?",
        more: FIELDS_MORE,
        places: &[],
        options: &[FIELDS, JSON],
    },
    Command {
        words: "lab versions",
        about: "Measure what keys and their versions cost in memory: here, and in an etcd",
        more: LAB_VERSIONS_MORE,
        places: &[],
        options: &[LAB_VERSIONS, JSON],
    },
    Command {
        words: "lab slow-disk",
        about: "Mount a folder again, read only and slower",
        more: SLOW_DISK_MORE,
        places: &[
            opt("source", Text("SOURCE"), "", "The folder with the files"),
            opt("mountpoint", Text("MOUNTPOINT"), "", "An existing folder"),
        ],
        options: &[SLOW_DISK],
    },
    Command { words: "version", about: "Print the version", more: "", places: &[], options: &[JSON] },
];

const IMPORT_MORE: &str = "\
Revisions, versions, leases, users, roles and alarms stay as they are, and so does how far it is compacted: clients go on where they were, once
a server runs on the folder with --etcd. The folder must have no keys of etcd yet; what else is in it stays. Stopped
at any time, it has taken over all or nothing. Values that are no longer the newest come along too, unless compacted.";

const PLAN_MORE: &str = "\
Before there is any data: what each structure will take in memory, on disk and at the peak of a build; whether it fits
the budget, and if not the least budget that does; recall, reads a query and queries a second on this machine's disk
and cores. With a sample of the vectors these are measured on it (it takes some seconds); without one they are ranges.

With --keys it is a plan of etcd's door: what keys and their versions take on disk, the least budget, what caches would
like, and puts and gets a second.

--curve plans from the least budget to the one that holds everything, as text and as SVG.";

const MINRAM_MORE: &str = "\
Fills a server once through REST, then serves the same folder at each memory limit, from a cold page cache, in a
memory cgroup (version 1 or 2). Reports requests/s, recall@10, p50, p99, the kernel's count of reads a query, the peak
of the charge, each as median (least to most); overhead them the rate of an empty handler and the disk's own rate.
Where no cgroup may be made it says so and reports the resident set.

Our own server is called with --memory B and limited to B + max(8 MiB, B/16), the limit that it promises to fit; a row
for a limit of 135 MiB is --memory 127MiB. Another server is limited to the size itself.";

const IO_MORE: &str = "\
Builds an index once, keeps its codes in memory and its originals on disk, and runs the same search with rescoring
through each I/O engine: seconds, IOPS, CPU seconds, as median (least to most) of interleaved rounds. On the local disk,
and on a slow one that delays the page faults of a mapping just as it does reads: a FUSE file system over the same file,
if /dev/fuse can be used; else it says why not.";

const FIELDS_MORE: &str = "\
Keeps one field of many points in three layouts in turn: a range into a container of values for each point, an enum with
the value inline, and the bit-packed column that our indexes use. Asks of points at random, and of blocks of 64 in a row,
whether they have one of the field's values; reports milliseconds, as median (least to most), and bytes a point.";

const LAB_VERSIONS_MORE: &str = "\
Fills our door for etcd's clients, and an etcd that --server calls, with so many keys and versions over the JSON gateway,
and reads memory from /proc: anonymous and resident after a rest, the peak, and the same after a restart. Bytes a key and
bytes a version are fitted to the anonymous memory of all points by least squares: an index itself cannot be seen from
outside, so what a runtime has not given back is in them. Bytes a watcher are what anonymous memory grows by.

Of our own server, in a cgroup of its own where one can be made, a second table has what ramekin plan says of the same:
disk, tables of files, watchers, and the least budget, with which it is started once more and must serve all keys.";

const SLOW_DISK_MORE: &str = "\
Shows the files of SOURCE at MOUNTPOINT, read only, each read answered a fixed time after it was request, many at the same
time. Ends, and unmounts, on SIGINT, SIGTERM or umount. Needs /dev/fuse and the right to mount.";
