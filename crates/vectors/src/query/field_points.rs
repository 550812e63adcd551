//! How many points have a value for a field that has an index: what a collection tells of its `payload_schema`.

use crate::api::{CollectionConfig, FieldConfig};
use crate::query::read::{self, Place};
use crate::query::view::ReadView;
use crate::segment::SegmentView;
use ramekin_base::{Error, PointId};
use ramekin_fields::{Path, Schema};
use std::collections::BTreeMap;

/// Of each field that has an index, how many living points of the segments are in it; `failed` is told of what cannot be read.
pub(crate) fn points(view: &ReadView<'_>, config: &CollectionConfig, failed: &dyn Fn(&Error)) -> BTreeMap<Path, u64> {
    let of = |path: &Path, field: &FieldConfig| {
        let living = |segment: &SegmentView| {
            let Some(own) = segment.fields.iter().find(|held| held.path == *path && held.schema == field.schema) else {
                return 0;
            };
            own.living(&view.env.pages, &view.env.bitmaps, segment).unwrap_or_else(|error| {
                failed(&error);
                u64::from(own.index.meta().held).min(segment.live())
            })
        };
        view.segments.iter().map(living).sum()
    };
    config.indexes.iter().map(|(path, field)| (path.clone(), of(path, field))).collect()
}

/// New points whose payloads are read at a time to count them. What was read is kept until it changes, so who asks again
/// reads the next ones: those that an index finds when it is made are soon written out, too.
const READ_TO_COUNT: usize = 8_192;

/// Of each field that has an index, how many of the points in memory have a value for it. What cannot be read now counts later.
pub(crate) fn new_points(view: &ReadView<'_>, config: &CollectionConfig) -> BTreeMap<Path, u64> {
    let of = |(path, field): (&Path, &FieldConfig)| (path.clone(), new_points_of(view, path, &field.schema));
    config.indexes.iter().map(of).collect()
}

fn new_points_of(view: &ReadView<'_>, path: &Path, schema: &Schema) -> u64 {
    let (mut count, mut left) = (0, READ_TO_COUNT);
    for (at, part) in view.memtables().enumerate() {
        let mut unknown = Vec::new();
        let inner = part.read();
        let own = inner.fields().iter().find(|own| own.path() == path && **own.schema() == *schema);
        for (word, live) in part.moment.live_words().enumerate() {
            let (held, known) = own.map_or((0, 0), |own| own.held(word));
            count += u64::from((held & live).count_ones());
            let mut rest = live & !known;
            while rest != 0 && unknown.len() < left {
                let slot = (word * 64) as u32 + rest.trailing_zeros();
                unknown.push((slot, inner.payload(slot)));
                rest &= rest - 1;
            }
        }
        drop(inner);
        left -= unknown.len();
        for some in unknown.chunks(read::TEXTS) {
            let points: Vec<_> = some.iter().map(|(slot, _)| (PointId::Num(0), Place::Memtable(at, *slot))).collect();
            let Ok(keys) = read::keys(view, &points, path, schema) else { break };
            let has_value = keys.iter().map(|keys| !keys.is_empty());
            count += has_value.clone().filter(|has_value| *has_value).count() as u64;
            let found = some.iter().zip(has_value).map(|((slot, at), has_value)| (*slot, *at, has_value));
            part.count_held((path, schema), found);
        }
    }
    count
}
