//! The live ledger: every account with its bytes, what a formula predicts, and what the kernel says.

use crate::budget::Budget;
use crate::kernel::{self, Charge};
use serde::Serialize;

/// One account as people and programs read it.
#[derive(Debug, Clone, Serialize)]
pub struct LedgerEntry {
    pub name: String,
    pub bytes: u64,
    pub predicted_bytes: u64,
    pub formula: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted_bytes: Option<u64>,
    /// Of a store, where several share the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_bytes: Option<u64>,
}

/// The whole account book at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Ledger {
    pub budget_bytes: u64,
    pub charged_bytes: u64,
    pub peak_bytes: u64,
    /// Kernel's charge less booked bytes; the only line that is a remainder.
    pub unaccounted_bytes: i64,
    pub pressure: &'static str,
    pub accounts: Vec<LedgerEntry>,
}

impl Ledger {
    /// Reads the kernel's charge between two readings of the tree, and again where much was reserved meanwhile: both figures
    /// must be of one moment.
    pub fn take(budget: &Budget) -> Self {
        Self { accounts: lines(budget), ..Self::totals(budget) }
    }

    /// The same without the lines: what it takes does not grow with the accounts.
    pub fn totals(budget: &Budget) -> Self {
        let mut before = budget.booked();
        for _ in 1..TRIES {
            let (ledger, after) = Self::after(budget);
            if before.abs_diff(after) <= budget.limit() / 128 {
                return ledger;
            }
            before = after;
        }
        Self::after(budget).0
    }

    /// What [`Ledger::take`] takes in memory at most.
    pub fn bytes_at_most(budget: &Budget) -> u64 {
        budget.accounts() as u64 * LINE_BYTES
    }

    fn after(budget: &Budget) -> (Self, u64) {
        let Charge { charged, peak } = kernel::charge();
        let booked = budget.booked();
        let ledger = Self {
            budget_bytes: budget.limit(),
            charged_bytes: charged,
            peak_bytes: peak,
            unaccounted_bytes: charged as i64 - booked as i64,
            pressure: budget.pressure().name(),
            accounts: Vec::new(),
        };
        (ledger, booked)
    }
}

/// Readings at most, where much is booked all the time.
const TRIES: usize = 4;

/// An account as the tree has it and as a line, each with a path of a name or two.
const LINE_BYTES: u64 = 768;

/// Every account that holds something or should.
fn lines(budget: &Budget) -> Vec<LedgerEntry> {
    let nodes = budget.nodes().into_iter();
    nodes
        .filter(|(path, node)| !path.is_empty() && (node.own > 0 || node.predicted.is_some() || node.share.is_some()))
        .map(|(name, node)| LedgerEntry {
            name,
            bytes: node.own,
            predicted_bytes: node.predicted.unwrap_or(node.own),
            formula: node.formula,
            wanted_bytes: node.wanted,
            share_bytes: node.share,
        })
        .collect()
}
