//! What of a collection may be resident, by structure, and the accounts that pay for it.

use ramekin_ann::Part;
use ramekin_memory::Account;
use ramekin_pages::Section;

/// Structures of a collection that may be resident, as the ledger names them, and what they take.
pub(crate) const STRUCTURES: [(&str, &str); 5] = [
    ("centroids", "lists x (dim + 12) + dim x 4 + lists x 76; lists = 4 x sqrt(points)"),
    (CODES, "points x (dim x bits / 8 + 4), of the widths 1, 3 and 6 those that are resident"),
    ("ids", "points x 2 x bits of a row number / 8 + ids that are not dense x (8 or 16) + 1 of each"),
    (FIELDS, "of each indexed field, points x (key + 2 x bits of a row / 8); of a text, 16 words a point"),
    ("vectors", "points x dim x bytes of a number, whole records a page"),
];

/// The structure that a part belongs to.
pub(crate) fn structure_of(part: Part) -> &'static str {
    match part {
        Part::Centroids | Part::Clusters => "centroids",
        Part::Codes1 | Part::Codes3 | Part::Codes6 | Part::Codes8 => CODES,
        Part::Rows | Part::Positions => IDS,
        Part::Vectors => "vectors",
    }
}

pub(crate) const CODES: &str = "codes";
/// The structure that finds ids, too.
pub(crate) const IDS: &str = "ids";
/// Indexes of payload fields.
pub(crate) const FIELDS: &str = "fields";

/// The accounts of what is resident of one collection, by structure.
pub(crate) struct Structures([(&'static str, Account); STRUCTURES.len()]);

impl Structures {
    pub(crate) fn new(parent: &Account, name: &str) -> Self {
        let own = parent.child(name, "");
        Self(STRUCTURES.map(|(structure, formula)| (structure, own.child(structure, formula).reclaimable())))
    }

    /// States what the ledger should show and what all would take, of sections by structure: what each costs by the length
    /// of its layout, and whether it is to be resident.
    pub(crate) fn predict(&self, sections: &[(&str, u64, bool)]) {
        for (structure, account) in &self.0 {
            let own = || sections.iter().filter(|(of, ..)| of == structure);
            account.want(own().map(|(_, bytes, _)| bytes).sum());
            account.predict(own().filter(|(.., is_chosen)| *is_chosen).map(|(_, bytes, _)| bytes).sum());
        }
    }

    pub(crate) fn own(&self, structure: &str, section: &Section) {
        if let Some((_, account)) = self.0.iter().find(|(own, _)| *own == structure) {
            section.owned_by(account);
        }
    }
}
