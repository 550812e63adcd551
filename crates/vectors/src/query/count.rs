//! How many points pass a filter.
//!
//! ```text
//!   segments   the indexes' answer where they are sure; else each row that may pass is asked, or a sample of them
//!   growing    each point is asked
//! ```

use crate::collection::Collection;
use crate::query::env::QueryEnv;
use crate::query::payload_filter::PayloadFilter;
use crate::query::read::{self, ENTRY_BYTES, ROWS};
use crate::query::view::ReadView;
use ramekin_base::{Result, cancel, rng};
use ramekin_fields::{Bitmap, Filter, Prepared};

/// Rows that an estimate asks of each segment at most, where its indexes leave it unsure.
const SAMPLED: u64 = 1024;

/// One of each so many rows, about [`SAMPLED`] of them: any of these, so that no pattern of ids is met.
fn sample(rows: &Bitmap, count: u64) -> Vec<u32> {
    let stride = count.div_ceil(SAMPLED);
    let is_taken = |at: u64| at % stride == rng::mix(at / stride) % stride;
    rows.iter().zip(0u64..).filter(|(_, at)| is_taken(*at)).map(|(row, _)| row).collect()
}

/// How many points of a collection pass a filter. An estimate of a segment is its indexes' answer, where they have one; else what a sample
/// of the rows that may pass says.
pub(crate) fn count(env: &QueryEnv, collection: &Collection, filter: &Filter, exact: bool) -> Result<u64> {
    let filter = collection.config.load().resolve(filter, &env.account)?;
    of_view(&ReadView::pin(env, collection)?, &filter, exact)
}

/// The same of one moment.
pub(crate) fn of_view(view: &ReadView<'_>, filter: &Prepared<'_>, exact: bool) -> Result<u64> {
    let _memory = view.env.account.try_reserve(SAMPLED * (ENTRY_BYTES + 4))?;
    let matching = PayloadFilter::new(&view.env.pages, view, filter)?;
    let mut count = 0;
    for (at, segment) in view.segments.iter().enumerate() {
        let passing = matching.passing(at)?;
        if passing.is_sure() {
            count += passing.rows.iter().filter(|row| !segment.dead.get(*row)).count() as u64;
            continue;
        }
        let may_pass = passing.count;
        if !exact && may_pass > SAMPLED {
            let rows = sample(&passing.rows, may_pass);
            let passed = passing.of(&matching, at, &rows)?;
            let alive = rows.iter().zip(passed).filter(|(row, passed)| *passed && !segment.dead.get(**row));
            count += alive.count() as u64 * may_pass / rows.len().max(1) as u64;
            continue;
        }
        let mut row = 0;
        while row < segment.meta.points {
            cancel::check()?;
            let rows = read::next_rows(segment, Some(&passing), &mut row, ROWS as usize);
            let mut page = read::segment_page(view, at, rows)?;
            matching.keep(&mut page)?;
            count += page.len() as u64;
        }
    }
    read::each_growing(view, |page| {
        matching.keep(page)?;
        count += page.len() as u64;
        Ok(())
    })?;
    Ok(count)
}
