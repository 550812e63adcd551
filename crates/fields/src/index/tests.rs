//! An index beside the payloads that it was built from.

use super::{EachPayload, Index, Payloads, Work, build};
use crate::bitmap::{Bitmap, Bitmaps};
use crate::evaluate::{Evaluation, FieldRows, Segment};
use crate::filter::{Condition, FieldCondition, Filter, Match, MinShould, Scalar, Scalars, Span, Test};
use crate::geo::{GeoBox, GeoPoint, GeoRadius};
use crate::memtable::FieldMemtable;
use crate::{Path, Point, Schema, Subject, Tokenizer};
use proptest::prelude::*;
use ramekin_base::{PointId, Result};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use serde_json::{Map, Value, json};
use std::sync::Arc;

struct Rows<'a>(&'a [Map<String, Value>]);

impl Payloads for Rows<'_> {
    fn rows(&self) -> u32 {
        self.0.len() as u32
    }

    fn walk(&mut self, each: &mut EachPayload<'_>) -> Result<()> {
        self.0.iter().enumerate().try_for_each(|(row, payload)| each(row as u32, payload))
    }
}

/// A folder with a cache over it.
struct Place {
    folder: tempfile::TempDir,
    budget: Budget,
    pages: Pages,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = ramekin_disk::probe(folder.path(), Some(ramekin_disk::Engine::Pread)).unwrap();
        let budget = Budget::new(64 << 20);
        let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
        Self { folder, budget, pages }
    }

    fn build(&self, payloads: &[Map<String, Value>], schema: &Schema, memory: u64) -> Index {
        let account = self.budget.root().child("build", "").with_limit(memory);
        let file = self.folder.path().join(format!("{memory}.field"));
        let mut out = self.pages.create(&file, &account).unwrap();
        let temp = self.folder.path().to_path_buf();
        let work = Work {
            disk: self.pages.disk().clone(),
            temp,
            account: account.clone(),
            sparing: memory < 4 << 20,
            cancelled: &|| false,
        };
        let meta = build(&mut Rows(payloads), &path(), schema, &mut out, &work).unwrap();
        out.finish(&serde_json::to_vec(&meta).unwrap()).unwrap();
        assert_eq!(account.used(), 0);
        Index::open(self.pages.open(&file, &self.budget.root()).unwrap()).unwrap()
    }
}

struct One<'a>(&'a Index);

impl Segment for One<'_> {
    fn index(&self, asked: &Path, _: Option<&Schema>) -> Option<FieldRows<'_>> {
        (*asked == path()).then_some(FieldRows::File(self.0))
    }

    fn keep(&self, _: &Condition, _: &mut Bitmap) -> Result<bool> {
        Ok(false)
    }
}

fn path() -> Path {
    Path::parse("a").unwrap()
}

fn value() -> impl Strategy<Value = Value> {
    let word = prop_oneof![Just("red"), Just("green"), Just("a red fox"), Just(""), Just("Über"), Just("2020-01-01")];
    let scalar = prop_oneof![
        word.prop_map(|word| json!(word)),
        (-3i64..4).prop_map(|integer| json!(integer)),
        (-30i64..40).prop_map(|tenth| json!(tenth as f64 / 10.0)),
        any::<bool>().prop_map(|value| json!(value)),
        (-20i64..20, -10i64..10).prop_map(|(lon, lat)| json!({"lon": lon, "lat": lat})),
        Just(json!("550e8400-e29b-41d4-a716-446655440000")),
        Just(Value::Null),
        "[a-c]{300,301}".prop_map(|word| json!(word)),
    ];
    prop_oneof![3 => scalar.clone(), 1 => prop::collection::vec(scalar, 0..4).prop_map(Value::Array)]
}

fn payloads() -> impl Strategy<Value = Vec<Map<String, Value>>> {
    let payload = prop_oneof![
        4 => value().prop_map(|value| json!({ "a": value })),
        1 => Just(json!({}))
    ];
    prop::collection::vec(payload.prop_map(|payload| payload.as_object().unwrap().clone()), 0..200)
}

fn schema() -> impl Strategy<Value = Schema> {
    let named = ["keyword", "integer", "float", "bool", "datetime", "uuid", "geo", "text"];
    let named = prop::sample::select(named.to_vec()).prop_map(|name| Schema::named(name).unwrap());
    prop_oneof![8 => named, 1 => Just(Schema::Text(Tokenizer { phrases: true, ..Tokenizer::default() }))]
}

fn test() -> impl Strategy<Value = Test> {
    let words = prop::collection::vec(prop::sample::select(vec!["red", "green", "", "x"]), 0..3)
        .prop_map(|words| Scalars::words(words.into_iter().map(Into::into).collect()));
    let integers = prop::collection::vec(-3i64..4, 1..4).prop_map(Scalars::integers);
    let scalars = prop_oneof![words, integers];
    let text = prop::sample::select(vec!["red", "fox red", "red fox", "", "über"]);
    let bound = || prop::option::of((-40i64..40).prop_map(|tenth| tenth as f64 / 10.0));
    let place = || (-20i64..20, -10i64..10).prop_map(|(lon, lat)| GeoPoint { lon: lon as f64, lat: lat as f64 });
    prop_oneof![
        scalars.clone().prop_map(|scalars| Test::Match(Match::Any(scalars))),
        scalars.prop_map(|scalars| Test::Match(Match::Except(scalars))),
        any::<bool>().prop_map(|value| Test::Match(Match::Value(Scalar::Bool(value)))),
        text.clone().prop_map(|text| Test::Match(Match::Text(text.into()))),
        text.clone().prop_map(|text| Test::Match(Match::TextAny(text.into()))),
        text.clone().prop_map(|text| Test::Match(Match::Phrase(text.into()))),
        text.prop_map(|text| Test::Match(Match::Prefix(text.into()))),
        (bound(), bound()).prop_map(|(gt, lte)| Test::Range(Span { gt, lte, ..Span::default() })),
        (bound(), bound()).prop_map(|(gte, lt)| Test::Range(Span { gte, lt, ..Span::default() })),
        Just(Test::Times(Span { gte: Some(0), ..Span::default() })),
        (place(), place()).prop_map(|(top_left, bottom_right)| Test::Box(GeoBox { top_left, bottom_right })),
        (place(), 0.0..3e6).prop_map(|(center, radius)| Test::Radius(GeoRadius { center, radius })),
        any::<bool>().prop_map(Test::IsNull),
        any::<bool>().prop_map(Test::IsEmpty),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        8 => test().prop_map(|test| Condition::Field(FieldCondition { path: path(), tests: vec![test] })),
        1 => Just(Condition::IsEmpty(path())),
        1 => Just(Condition::IsNull(path())),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let some = || prop::collection::vec(condition(), 0..3);
    let least = prop::option::of((prop::collection::vec(condition(), 0..4), 0usize..4));
    (some(), some(), some(), least).prop_map(|(must, should, must_not, least)| {
        let min_should = least.map(|(conditions, least)| MinShould { conditions, least });
        Filter { must, should, must_not, min_should }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn an_index_answers_as_the_payloads_do(payloads in payloads(), schema in schema(), filters in prop::collection::vec(filter(), 8)) {
        let place = Place::new();
        let index = place.build(&payloads, &schema, 8 << 20);
        let (schema, one) = (Arc::new(schema), One(&index));
        for filter in filters {
            let account = place.budget.root();
            let filter = filter.prepare(Some(&|asked| (*asked == path()).then(|| schema.clone())), &account).unwrap();
            let evaluation = Evaluation { pages: &place.pages, segment: &one, rows: payloads.len() };
            let mut passing = Bitmap::all(payloads.len(), &Bitmaps::new(&place.budget.root(), &place.budget.root())).unwrap();
            let (is_exact, most) = evaluation.keep(&filter, &mut passing).unwrap();
            prop_assert!(passing.count() <= most || !is_exact, "{} of {most} for {:?}", passing.count(), *filter);
            for (row, payload) in payloads.iter().enumerate() {
                let has_vector = |_: &str| false;
                let point = Some(Point { id: PointId::Num(0), has_vector: &has_vector });
                let passes = filter.passes(&Subject { payload, point });
                let found = passing.get(row as u32);
                prop_assert!(if is_exact { found == passes } else { found || !passes }, "row {row}: {payload:?} {:?}", *filter);
            }
        }
    }
}

/// A memtable beside the payloads that came to it.
struct New<'a>(&'a FieldMemtable);

impl Segment for New<'_> {
    fn index(&self, asked: &Path, _: Option<&Schema>) -> Option<FieldRows<'_>> {
        (*asked == path()).then_some(FieldRows::Memory(self.0))
    }

    fn keep(&self, _: &Condition, _: &mut Bitmap) -> Result<bool> {
        Ok(false)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_memtable_answers_as_the_payloads_do(
        payloads in payloads(),
        forgotten in prop::collection::vec(any::<bool>(), 200),
        schema in schema(),
        filters in prop::collection::vec(filter(), 8),
    ) {
        let budget = Budget::new(64 << 20);
        let (account, schema) = (budget.root(), Arc::new(schema));
        let mut memory = account.try_reserve(0).unwrap();
        let mut fields = FieldMemtable::new(path(), schema.clone(), 0);
        for payload in &payloads {
            let values = FieldMemtable::values(&path(), &schema, payload, &mut memory).unwrap();
            fields.push((payload.len() < 2).then_some(values));
        }
        let changed = |row: u32| forgotten[row as usize] && row.is_multiple_of(7);
        (0..payloads.len() as u32).filter(|row| changed(*row)).for_each(|row| fields.forget(row));
        let pool = Bitmaps::new(&account, &account);
        let place = Place::new();
        for filter in filters {
            let filter = filter.prepare(Some(&|asked| (*asked == path()).then(|| schema.clone())), &account).unwrap();
            let evaluation = Evaluation { pages: &place.pages, segment: &New(&fields), rows: payloads.len() };
            let mut passing = Bitmap::all(payloads.len(), &pool).unwrap();
            let (is_exact, _) = evaluation.keep(&filter, &mut passing).unwrap();
            let mut unknown = Bitmap::none(payloads.len(), &pool).unwrap();
            fields.add_unknown(&mut unknown);
            for (row, payload) in payloads.iter().enumerate() {
                let passes = filter.passes(&Subject { payload, point: None });
                let (found, row) = (passing.get(row as u32), row as u32);
                prop_assert_eq!(unknown.get(row), changed(row));
                let is_right = unknown.get(row) || if is_exact { found == passes } else { found || !passes };
                prop_assert!(is_right, "row {}: {:?} {:?}", row, payload, *filter);
            }
        }
    }
}

/// Writes an index again with some of its bytes changed.
fn damaged(place: &Place, index: &Index, changes: &[(u32, u64, u8)]) -> Result<Index> {
    let account = &place.budget.root();
    let path = place.folder.path().join("damaged.field");
    let mut out = place.pages.create(&path, account)?;
    for tag in super::KEYS..=super::RECORDS {
        let Some(section) = index.file().section(tag) else { continue };
        let mut bytes = vec![0; section.len() as usize];
        section.stream(account, 64 << 10)?.read_exact(&mut bytes)?;
        for (_, at, byte) in changes.iter().filter(|(of, ..)| *of == tag) {
            let at = *at as usize % bytes.len().max(1);
            bytes.get_mut(at).into_iter().for_each(|own| *own ^= byte);
        }
        out.begin(tag, section.priority())?;
        out.write(&bytes)?;
        out.end()?;
    }
    out.finish(index.file().meta())?;
    Index::open(place.pages.open(&path, account)?)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn wrong_tables_are_errors_or_wrong_answers_and_no_panics(
        payloads in payloads(),
        schema in schema(),
        filters in prop::collection::vec(filter(), 8),
        changes in prop::collection::vec((super::KEYS..=super::RECORDS, any::<u64>(), any::<u8>()), 1..6),
    ) {
        let place = Place::new();
        let whole = place.build(&payloads, &schema, 8 << 20);
        let Ok(index) = damaged(&place, &whole, &changes) else { return Ok(()) };
        let schema = Arc::new(schema);
        for filter in filters {
            let account = place.budget.root();
            let filter = filter.prepare(Some(&|asked| (*asked == path()).then(|| schema.clone())), &account).unwrap();
            let one = One(&index);
            let evaluation = Evaluation { pages: &place.pages, segment: &one, rows: payloads.len() };
            let mut passing = Bitmap::all(payloads.len(), &Bitmaps::new(&place.budget.root(), &place.budget.root())).unwrap();
            if evaluation.keep(&filter, &mut passing).is_ok() {
                prop_assert!(passing.count() <= payloads.len() as u64);
            }
        }
        for code in 0..index.meta().distinct {
            let _ = (index.key(&place.pages, code), index.places(&place.pages, &(code..code + 1)));
        }
        for stands in 0..index.meta().values {
            let _ = index.code_at(&place.pages, stands);
            let _ = index.rows_at(&place.pages, stands..stands + 1, &mut |row| assert!(row < index.meta().rows));
        }
    }
}

#[test]
fn a_build_in_little_memory_makes_the_same_index() {
    let rows = 30_000;
    let payloads: Vec<_> =
        (0..rows).map(|row| json!({"a": [row * 7919 % 5000, row % 3]}).as_object().unwrap().clone()).collect();
    let place = Place::new();
    let schema = Schema::named("integer").unwrap();
    let (small, large) = (place.build(&payloads, &schema, 2 << 20), place.build(&payloads, &schema, 64 << 20));
    assert_eq!(small.meta(), large.meta());
    assert_eq!((small.meta().distinct, small.meta().held), (5000, rows as u32));
    let wanted = Test::Range(Span { gte: Some(1.0), lt: Some(2500.0), ..Span::default() });
    let filter = Filter {
        must: vec![Condition::Field(FieldCondition { path: path(), tests: vec![wanted] })],
        ..Filter::default()
    };
    let account = place.budget.root();
    let filter = filter.prepare(Some(&|_| Some(Arc::new(schema.clone()))), &account).unwrap();
    let mut counts = Vec::new();
    for index in [&small, &large] {
        let mut passing =
            Bitmap::all(rows as usize, &Bitmaps::new(&place.budget.root(), &place.budget.root())).unwrap();
        let one = One(index);
        assert!(
            Evaluation { pages: &place.pages, segment: &one, rows: rows as usize }
                .keep(&filter, &mut passing)
                .unwrap()
                .0
        );
        counts.push(passing.iter().collect::<Vec<_>>());
    }
    let passes = |row: &u32| {
        let row = i64::from(*row);
        (1..2500).contains(&(row * 7919 % 5000)) || row % 3 > 0
    };
    let expected: Vec<u32> = (0..rows as u32).filter(passes).collect();
    assert!(counts[0] == expected && counts[1] == expected);
}
