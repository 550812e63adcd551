//! Names that were given up for those of the books and the field's papers, so that none comes back.
//!
//! ```text
//!   crate    old name         today                 "*": in every crate but those that are named behind it
//! ```
//!
//! Names that stand on disk, in the ledger, in metrics and on the wire are texts, which this does not read.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic in its helpers, and reads the tree"
)]

use std::path::{Path, PathBuf};

/// The crate, the old name and the new one.
const GIVEN_UP: &[(&str, &str, &str)] = &[
    ("memory", "set_floor", "set_min_reservation"),
    ("memory", "lend_floor", "lend_min_reservation"),
    ("memory", "give_floor_to", "give_min_reservation_to"),
    ("memory", "raise_floor", "raise_min_reservation"),
    ("ann", "floor", "score_bar"),
    ("pages", "Frames", "BypassBuffers"),
    ("vectors", "Rest", "IdleLending"),
    ("vectors", "at_rest", "is_idle"),
    ("vectors", "is_at_rest", "is_idle"),
    ("vectors", "awake", "ensure_active"),
    ("vectors", "Shared", "StoreInner"),
    ("door-qdrant", "Shared", "DoorInner"),
    ("log", "Shared", "LogFiles"),
    ("node", "Shared", "ReaderPool"),
    ("memory", "Shared", "BudgetInner"),
    ("*", "Growing", "Memtable"),
    ("vectors", "frozen", "immutable"),
    ("vectors", "freeze", "rotate"),
    ("vectors", "freeze_largest", "rotate_largest"),
    ("vectors", "wants_freeze", "wants_rotation"),
    ("vectors", "SealRows", "FlushRows"),
    ("vectors", "seal_one", "flush_one"),
    ("vectors", "seal_turn", "flush_step"),
    ("vectors", "seal_work", "flush_work"),
    ("vectors", "seal_bytes", "flush_bytes"),
    ("vectors", "seal_or_wait", "flush_or_wait"),
    ("*", "Position", "Lsn"),
    ("ann", "Means", "IndexSearchContext"),
    ("ann", "Asked", "SearchRequest"),
    ("fields", "Asked", "ValuePredicate"),
    ("vectors", "Asked", "FacetRequest"),
    ("lab", "Asked", "DatasetRequest, PlanRequest, PendingRead"),
    ("ann", "List", "InvertedList"),
    ("ann", "probes", "nprobe"),
    ("pages", "Purse", "PageQuota"),
    ("*", "Yield", "Reclaim"),
    ("*", "YieldOrder", "ReclaimOrder"),
    ("*", "PageYield", "PageReclaim"),
    ("*", "SectionYield", "SectionReclaim"),
    ("*", "add_yielder", "add_reclaimer"),
    ("pages", "Keep", "SectionLatch"),
    ("pages", "unkeep", "demote"),
    ("pages", "take_kept", "take_resident"),
    ("log", "Keep", "Salvage"),
    ("node", "Kept", "SavedBudget"),
    ("vectors", "Kept", "CachedFilter, SampledQuery"),
    ("pages", "Word", "PageState"),
    ("pages", "heat", "usage"),
    ("vectors", "Changes", "PatchTree"),
    ("vectors", "Patches", "PatchMemtable"),
    ("vectors", "Run", "PatchRun"),
    ("vectors", "begin_fold", "begin_compaction"),
    ("vectors", "fold_largest", "compact_largest_patches"),
    ("vectors", "DeadRows", "DeleteBitmap"),
    ("vectors", "Passing", "IndexFilterResult"),
    ("vectors", "Passed", "FilterProbe"),
    ("vectors", "Matching", "PayloadFilter"),
    ("vectors", "Positioned", "ClusterOrderBitmap"),
    ("vectors", "Remembered", "FilterCache"),
    ("vectors", "Question", "FilterKey"),
    ("vectors", "Answer", "Lookup, Completion"),
    ("vectors", "WHILE", "ADMIT_WINDOW"),
    ("pages", "Gate", "EventCount"),
    ("pages", "Want", "FetchTicket"),
    ("log", "Want", "ReadRequest"),
    ("pages", "Claim", "PendingRead"),
    ("storage", "Claim", "ReserveClaim"),
    ("vectors", "Claim", "ResidencyRequest"),
    ("*", "grow_calm", "grow_no_reclaim"),
    ("*", "try_reserve_calm", "try_reserve_no_reclaim"),
    ("memory", "brief", "transient"),
    ("memory", "yielding", "reclaimable"),
    ("*", "hungry", "memory_waiter"),
    ("*", "patiently", "retry_while_busy"),
    ("*", "Trip", "FetchStats"),
    ("*", "TripTally", "FetchTally"),
    ("*", "Leaver", "DemotionCandidate"),
    ("*", "spare_beside", "redundant_with"),
    ("*", "is_spare", "is_redundant"),
    ("door-qdrant", "Answer", "BookedResponse"),
    ("door-qdrant", "Flaw", "DecodeError"),
    ("door-qdrant", "Refusal", "HttpError"),
    ("door-qdrant", "unbuilt", "not_implemented"),
    ("*", "Room", "SharedReservation"),
    ("door-qdrant", "Covered", "Reserved"),
    ("*", "Ticket", "BodyPermit"),
    ("*", "Booking", "BodyReservation"),
    ("*", "Hall", "ConnectionContext"),
    ("door-qdrant", "greet", "handshake"),
    ("door-qdrant", "talk", "serve_http1"),
    ("door-qdrant", "Making", "CollectionBuilder"),
    ("door-qdrant", "Building", "BatchBuilder"),
    ("ann", "Best", "TopK"),
    ("vectors", "Top", "TopK"),
    ("lab", "Best", "TopK"),
    ("ann", "Slot", "ProbedList"),
    ("ann", "f_most", "max_error_factor"),
    ("*", "Originals", "FullVectors"),
    ("*", "Grid", "RecordLayout"),
    ("ann", "Cut", "Partitioner"),
    ("ann", "Load", "Chunk"),
    ("ann", "LoadRoom", "ChunkBuffers"),
    ("ann", "Trials", "RecallCalibration"),
    ("ann", "Seeing", "CalibrationChunk"),
    ("ann", "Setting", "SearchEffort"),
    ("ann", "aim", "with_safety_margin"),
    ("*", "Reservoir", "RecallMonitor"),
    ("vectors", "Told", "RecallTally"),
    ("vectors", "care", "safety_margin"),
    ("*", "on_view", "ReadView"),
    ("vectors", "LOOKS", "RETRIES"),
    ("*", "Wish", "MemoryTier, BudgetRequest"),
    ("vectors", "echo", "client_config"),
    ("*", "Outlook", "CapacityPlan"),
    ("*", "Beside", "FixedOverhead"),
    ("*", "holds_writes", "is_write_stalled"),
    ("vectors", "debt", "compaction_debt"),
    ("vectors", "turn", "step"),
    ("vectors", "inline", "single_threaded"),
    ("*", "CollectionNumber", "CollectionId"),
    ("vectors", "sequence", "seqno"),
    ("*", "Ground", "DeviceCaps"),
    ("*", "Spool", "SpillFile"),
    ("fields", "Several", "MultiValueDirectory, ColumnValue::Many"),
    ("fields", "Cell", "ColumnValue"),
    ("*", "Pace", "InlinePolicy"),
    ("*", "is_trusted", "runs_inline"),
    ("memory", "Line", "LedgerEntry"),
    ("node", "scales", "allocator"),
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// A line without its comment and its texts.
fn code(line: &str) -> String {
    let mut kept = String::new();
    for (at, part) in line.replace("\\\"", "").split('"').enumerate() {
        let cut = part.find("//").filter(|_| at % 2 == 0);
        if at % 2 == 0 {
            kept.push_str(&part[..cut.unwrap_or(part.len())]);
            kept.push(' ');
        }
        if cut.is_some() {
            break;
        }
    }
    kept
}

/// Whether the name stands in a line by itself: not as a part of another, an attribute, or a sign of a lifetime.
fn names(line: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(name).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + name.len()..].chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[test]
fn names_that_were_given_up_stay_so() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let own = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut found = Vec::new();
        files(&path.join("src"), &mut found);
        let given_up = || GIVEN_UP.iter().filter(|(of, ..)| *of == "*" || *of == own);
        for file in found {
            let text = std::fs::read_to_string(&file).unwrap();
            for (number, line) in text.lines().enumerate() {
                if line.trim_start().starts_with("#[") {
                    continue;
                }
                let line = code(line);
                let again = given_up().filter(|(_, old, _)| names(&line, old));
                wrong.extend(again.map(|(_, old, new)| {
                    format!("{}:{}: `{old}` is called {new}", file.strip_prefix(&root).unwrap().display(), number + 1)
                }));
            }
        }
    }
    assert!(wrong.is_empty(), "old names:\n{}", wrong.join("\n"));
}

#[test]
fn an_old_name_is_found_and_a_part_of_another_is_not() {
    let line = code("let a = \"Spool // Spool\"; // Spool");
    assert!(!names(&line, "Spool"));
    assert!(names(&code("use crate::Spool;"), "Spool") && !names(&code("SpoolReader Spools"), "Spool"));
}
