//! An index beside the payloads that it was built from.

use super::{EachPayload, Index, Payloads, Work, build};
use crate::bitmap::{Bitmap, Bitmaps};
use crate::evaluate::{Evaluation, FieldRows, Segment};
use crate::filter::{Condition, FieldCondition, Filter, Match, MinShould, Scalar, Scalars, Span, Test};
use crate::geo::{GeoBox, GeoPoint, GeoPolygon, GeoRadius};
use crate::memtable::FieldMemtable;
use crate::{Path, Schema, Stem, Subject, Tokenizer, TokenizerKind, datetime};
use proptest::prelude::*;
use ramekin_base::Result;
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

    fn build(&self, payloads: &[Map<String, Value>], (path, schema): (&Path, &Schema), memory: u64) -> Index {
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
        let meta = build(&mut Rows(payloads), path, schema, &mut out, &work).unwrap();
        out.finish(&serde_json::to_vec(&meta).unwrap()).unwrap();
        assert_eq!(account.used(), 0);
        Index::open(self.pages.open(&file, &self.budget.root()).unwrap()).unwrap()
    }
}

/// A segment with an index of one field, and nothing else that is known.
struct One<'a>(&'a Path, FieldRows<'a>);

impl Segment for One<'_> {
    fn index(&self, asked: &Path, _: Option<&Schema>) -> Option<FieldRows<'_>> {
        (asked == self.0).then_some(self.1)
    }

    fn keep(&self, _: &Condition, _: &mut Bitmap) -> Result<bool> {
        Ok(false)
    }
}

fn path() -> Path {
    Path::parse("a").unwrap()
}

/// The path of an index, or of a condition.
fn paths() -> impl Strategy<Value = Path> {
    prop_oneof![3 => Just("a"), 1 => Just("a[]"), 1 => Just("a[0]"), 1 => Just("a[].b")]
        .prop_map(|text| Path::parse(text).unwrap())
}

const UUIDS: [&str; 5] = [
    "550e8400-e29b-41d4-a716-446655440000",
    "550E8400-E29B-41D4-A716-446655440000",
    "550e8400e29b41d4a716446655440000",
    "urn:uuid:550e8400-e29b-41d4-a716-446655440000",
    "650e8400-e29b-41d4-a716-446655440000",
];
const WORDS: [&str; 8] = ["red", "green", "a red fox", "fox", "", "Über", "The quick red fox", "foxes"];
const TIMES: [&str; 4] = ["2020-01-01", "2020-01-01T00:00:00Z", "1969-12-31T23:59:59", "never"];

fn float() -> impl Strategy<Value = f64> {
    let edges =
        [0.0, -0.0, 1e300, -1e300, 9_007_199_254_740_993.0, 9.3e18, -9.3e18, i64::MAX as f64, i64::MIN as f64, 5e-324];
    prop_oneof![
        3 => (-30i64..40).prop_map(|tenth| tenth as f64 / 10.0),
        1 => prop::sample::select(edges.to_vec()),
        1 => any::<f64>().prop_filter("a number", |float| float.is_finite()),
    ]
}

fn integer() -> impl Strategy<Value = i64> {
    let edges = [i64::MIN, i64::MAX, (1 << 53) + 1, -(1 << 53) - 1, (1 << 53) + 3, 1 << 53];
    prop_oneof![4 => -3i64..4, 1 => prop::sample::select(edges.to_vec())]
}

/// Longitude and latitude: the poles, the date line, and what is beyond both.
fn place() -> impl Strategy<Value = GeoPoint> {
    let lon = prop_oneof![
        (-20i64..20).prop_map(|lon| lon as f64),
        prop::sample::select(vec![180.0, -180.0, 179.5, -179.5, 373.4, 200.0, -0.0])
    ];
    let lat =
        prop_oneof![(-10i64..10).prop_map(|lat| lat as f64), prop::sample::select(vec![90.0, -90.0, 89.9, 91.0, -0.0])];
    (lon, lat).prop_map(|(lon, lat)| GeoPoint { lon, lat })
}

fn on_earth() -> impl Strategy<Value = GeoPoint> {
    place().prop_filter("on the earth", |place| GeoPoint::new(place.lon, place.lat).is_ok())
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(WORDS.to_vec()).prop_map(|word| json!(word)),
        prop::sample::select(UUIDS.to_vec()).prop_map(|uuid| json!(uuid)),
        prop::sample::select(TIMES.to_vec()).prop_map(|time| json!(time)),
        integer().prop_map(|integer| json!(integer)),
        Just(json!(u64::MAX)),
        float().prop_map(|float| json!(float)),
        any::<bool>().prop_map(|value| json!(value)),
        place().prop_map(|place| json!({"lon": place.lon, "lat": place.lat})),
        Just(json!({"lon": 1, "lat": "2"})),
        Just(Value::Null),
        "[a-b]{240,242}".prop_map(|word| json!(word)),
        Just(json!([1, "red"])),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let below = prop_oneof![scalar(), prop::collection::vec(scalar(), 0..3).prop_map(Value::Array)];
    let object = below.prop_map(|value| json!({ "b": value }));
    let element = prop_oneof![3 => scalar(), 1 => object];
    prop_oneof![3 => scalar(), 2 => prop::collection::vec(element, 0..4).prop_map(Value::Array)]
}

fn payloads() -> impl Strategy<Value = Vec<Map<String, Value>>> {
    let payload = prop_oneof![
        4 => value().prop_map(|value| json!({ "a": value })),
        1 => Just(json!({}))
    ];
    prop::collection::vec(payload.prop_map(|payload| payload.as_object().unwrap().clone()), 0..200)
}

/// Of words, only those that are taken apart as without an index: others have other words.
fn schema() -> impl Strategy<Value = Schema> {
    let named = ["keyword", "integer", "float", "bool", "datetime", "uuid", "geo", "text"];
    let named = prop::sample::select(named.to_vec()).prop_map(|name| Schema::named(name).unwrap());
    prop_oneof![
        8 => named,
        1 => Just(Schema::Text(Tokenizer { phrases: true, ..Tokenizer::default() })),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(lookup, range)| Schema::Integer { lookup, range }),
    ]
}

fn test() -> impl Strategy<Value = Test> {
    let word = || prop_oneof![prop::sample::select(WORDS.to_vec()), prop::sample::select(UUIDS.to_vec())];
    let words = prop::collection::vec(word(), 0..3)
        .prop_map(|words| Scalars::words(words.into_iter().map(Into::into).collect()));
    let integers = prop::collection::vec(integer(), 0..4).prop_map(|integers| Scalars::integers(integers.into()));
    let scalars = prop_oneof![words, integers];
    let text =
        prop::sample::select(vec!["red", "fox red", "red fox", "", "über", "quick", "The fox", "FOX", "fox fox"]);
    let prefix = prop_oneof![prop::sample::select(vec!["re", "", "a", "5"]).prop_map(str::to_owned), "[a-b]{239,241}"];
    let bound = || prop::option::of(prop_oneof![2 => float(), 1 => integer().prop_map(|integer| integer as f64)]);
    let span = (bound(), bound(), bound(), bound()).prop_map(|(gt, gte, lt, lte)| Span { gt, gte, lt, lte });
    let time =
        || prop::option::of(prop::sample::select(TIMES[..3].to_vec()).prop_map(|text| datetime::micros(text).unwrap()));
    let times = (time(), time()).prop_map(|(gte, lt)| Span { gte, lt, ..Span::default() });
    let radius = prop_oneof![0.0..3e6, Just(3e7)];
    let ring = prop::collection::vec(on_earth(), 3..6).prop_map(|mut ring| {
        ring.push(ring[0]);
        Test::Polygon(GeoPolygon::new(ring.into(), Box::default()).unwrap())
    });
    prop_oneof![
        word().prop_map(|word| Test::Match(Match::Value(Scalar::Word(word.into())))),
        integer().prop_map(|integer| Test::Match(Match::Value(Scalar::Integer(integer)))),
        any::<bool>().prop_map(|value| Test::Match(Match::Value(Scalar::Bool(value)))),
        scalars.clone().prop_map(|scalars| Test::Match(Match::Any(scalars))),
        scalars.prop_map(|scalars| Test::Match(Match::Except(scalars))),
        text.clone().prop_map(|text| Test::Match(Match::Text(text.into()))),
        text.clone().prop_map(|text| Test::Match(Match::TextAny(text.into()))),
        text.prop_map(|text| Test::Match(Match::Phrase(text.into()))),
        prefix.prop_map(|text| Test::Match(Match::Prefix(text.into()))),
        (bound(), bound()).prop_map(|(gt, lte)| Test::Range(Span { gt, lte, ..Span::default() })),
        span.prop_map(Test::Range),
        times.prop_map(Test::Times),
        (on_earth(), on_earth()).prop_map(|(top_left, bottom_right)| Test::Box(GeoBox { top_left, bottom_right })),
        (on_earth(), radius).prop_map(|(center, radius)| Test::Radius(GeoRadius { center, radius })),
        ring,
        (0usize..3).prop_map(|least| Test::Count(Span { gte: Some(least), ..Span::default() })),
        any::<bool>().prop_map(Test::IsNull),
        any::<bool>().prop_map(Test::IsEmpty),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let tests = prop_oneof![4 => prop::collection::vec(test(), 1..2), 1 => prop::collection::vec(test(), 0..4)];
    let field = (paths(), tests)
        .prop_map(|(path, tests)| Condition::Field(FieldCondition { path, tests: tests.into() }))
        .boxed();
    let inner = (prop::collection::vec(field.clone(), 0..3), prop::collection::vec(field.clone(), 0..2));
    let inner = inner
        .prop_map(|(should, must_not)| Filter {
            should: Box::from(should),
            must_not: Box::from(must_not),
            ..Filter::default()
        })
        .boxed();
    prop_oneof![
        16 => field,
        2 => paths().prop_map(Condition::IsEmpty),
        2 => paths().prop_map(Condition::IsNull),
        2 => inner.clone().prop_map(Condition::Filter),
        1 => inner.prop_map(|filter| Condition::Nested { path: path().to_elements(), filter }),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let some = || prop::collection::vec(condition(), 0..3);
    let least = prop::option::of((prop::collection::vec(condition(), 0..4), 0usize..4));
    (some(), some(), some(), least).prop_map(|(must, should, must_not, least)| {
        let min_should = least.map(|(conditions, least)| MinShould { conditions: conditions.into(), least });
        Filter { must: must.into(), should: should.into(), must_not: must_not.into(), min_should }
    })
}

/// Asks a filter of payloads as it is, and of them with an index of a field: rows that pass, those that the index is sure
/// of, and those that were left to be asked.
fn compare(
    place: &Place,
    payloads: &[Map<String, Value>],
    (path, schema): (&Path, &Arc<Schema>),
    rows: FieldRows<'_>,
    unknown: Option<&Bitmap>,
    filter: &Filter,
) -> std::result::Result<(), TestCaseError> {
    let account = place.budget.root();
    let plain = filter.prepare(None, &account).unwrap();
    let prepared = filter.prepare(Some(&|asked| (asked == path).then(|| schema.clone())), &account).unwrap();
    let one = One(path, rows);
    let evaluation = Evaluation { pages: &place.pages, segment: &one, rows: payloads.len(), room: prepared.room() };
    let mut passing = Bitmap::all(payloads.len(), &Bitmaps::new(&account, &account)).unwrap();
    let verdict = evaluation.keep(&prepared, &mut passing).unwrap();
    let is_within = passing.count() <= verdict.most || !verdict.is_exact || unknown.is_some();
    prop_assert!(is_within, "{} of {} for {:?}", passing.count(), verdict.most, *prepared);
    for (at, payload) in payloads.iter().enumerate() {
        let (subject, row) = (Subject { payload, point: None }, at as u32);
        let passes = plain.passes(&subject);
        prop_assert_eq!(
            prepared.passes(&subject),
            passes,
            "asked by its payload, row {}: {:?} {:?}",
            row,
            payload,
            *prepared
        );
        let is_unsure = !verdict.is_exact || verdict.unsure.as_ref().is_some_and(|unsure| unsure.get(row));
        let is_unknown = unknown.is_some_and(|unknown| unknown.get(row));
        let is_right = is_unknown || if is_unsure { passing.get(row) || !passes } else { passing.get(row) == passes };
        prop_assert!(is_right, "row {}: {:?} {:?} {:?}", row, payload, schema, *filter);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn the_same_points_pass_with_and_without_an_index(
        payloads in payloads(),
        path in paths(),
        schema in schema(),
        filters in prop::collection::vec(filter(), 12),
    ) {
        let place = Place::new();
        let index = place.build(&payloads, (&path, &schema), 8 << 20);
        prop_assert!(index.meta().is_current());
        let schema = Arc::new(schema);
        for filter in filters {
            compare(&place, &payloads, (&path, &schema), FieldRows::File(&index), None, &filter)?;
        }
    }

    #[test]
    fn the_same_points_pass_with_and_without_an_index_in_memory(
        payloads in payloads(),
        forgotten in prop::collection::vec(any::<bool>(), 200),
        path in paths(),
        schema in schema(),
        filters in prop::collection::vec(filter(), 12),
    ) {
        let place = Place::new();
        let (account, schema) = (place.budget.root(), Arc::new(schema));
        let mut memory = account.try_reserve(0).unwrap();
        let mut fields = FieldMemtable::new(path.clone(), schema.clone(), 0);
        for payload in &payloads {
            let values = FieldMemtable::values(&path, &schema, payload, &mut memory).unwrap();
            let is_known = payload.len() < 2;
            prop_assert!(fields.push(is_known.then_some(values), &mut memory));
        }
        let changed = |row: u32| forgotten[row as usize] && row.is_multiple_of(7);
        (0..payloads.len() as u32).filter(|row| changed(*row)).for_each(|row| fields.forget(row));
        let mut unknown = Bitmap::none(payloads.len(), &Bitmaps::new(&account, &account)).unwrap();
        fields.add_unknown(&mut unknown);
        prop_assert!((0..payloads.len() as u32).all(|row| unknown.get(row) == changed(row)));
        for filter in filters {
            compare(&place, &payloads, (&path, &schema), FieldRows::Memory(&fields), Some(&unknown), &filter)?;
        }
    }

    /// The words of an index are those that it was told: payloads that it leaves open are asked for the same ones.
    #[test]
    fn words_that_an_index_was_told_are_those_of_payloads_too(
        payloads in payloads(),
        kind in prop::sample::select(vec![TokenizerKind::Word, TokenizerKind::Whitespace, TokenizerKind::Prefix, TokenizerKind::Multilingual]),
        (lowercase, phrases, stems) in any::<(bool, bool, bool)>(),
        filters in prop::collection::vec(filter(), 8),
    ) {
        let place = Place::new();
        let stem = stems.then_some(Stem::English);
        let schema = Arc::new(Schema::Text(Tokenizer { kind, lowercase, phrases, stem, ..Tokenizer::default() }));
        let index = place.build(&payloads, (&path(), &schema), 8 << 20);
        let account = place.budget.root();
        for filter in filters {
            let filter = filter.prepare(Some(&|asked| (*asked == path()).then(|| schema.clone())), &account).unwrap();
            let (path, rows) = (path(), FieldRows::File(&index));
            let one = One(&path, rows);
            let evaluation = Evaluation { pages: &place.pages, segment: &one, rows: payloads.len(), room: filter.room() };
            let mut passing = Bitmap::all(payloads.len(), &Bitmaps::new(&account, &account)).unwrap();
            let verdict = evaluation.keep(&filter, &mut passing).unwrap();
            for (row, payload) in payloads.iter().enumerate() {
                let passes = filter.passes(&Subject { payload, point: None });
                let found = passing.get(row as u32);
                let is_unsure = !verdict.is_exact || verdict.unsure.as_ref().is_some_and(|unsure| unsure.get(row as u32));
                prop_assert!(if is_unsure { found || !passes } else { found == passes }, "row {}: {:?} {:?}", row, payload, *filter);
            }
        }
    }
}

/// How many rows of some values pass a test, and which of them must be asked; `None`: all that are left.
fn asked(values: &[Value], schema: &Schema, test: Test) -> (u64, Option<Vec<u32>>) {
    let payloads: Vec<_> = values.iter().map(|value| json!({ "a": value }).as_object().unwrap().clone()).collect();
    let place = Place::new();
    let index = place.build(&payloads, (&path(), schema), 8 << 20);
    let (account, path) = (place.budget.root(), path());
    let condition = Condition::Field(FieldCondition { path: path.clone(), tests: [test].into() });
    let filter = Filter { must: [condition].into(), ..Filter::default() };
    let filter = filter.prepare(Some(&|_| Some(Arc::new(schema.clone()))), &account).unwrap();
    let one = One(&path, FieldRows::File(&index));
    let evaluation = Evaluation { pages: &place.pages, segment: &one, rows: values.len(), room: filter.room() };
    let mut passing = Bitmap::all(values.len(), &Bitmaps::new(&account, &account)).unwrap();
    let verdict = evaluation.keep(&filter, &mut passing).unwrap();
    let unsure = verdict.unsure.map_or_else(Vec::new, |unsure| unsure.iter().collect());
    (passing.count(), verdict.is_exact.then_some(unsure))
}

#[test]
fn only_rows_of_which_an_index_does_not_hold_all_are_asked() {
    let integer = Schema::named("integer").unwrap();
    let numbers =
        [json!(1), json!(2), json!(2.0), json!(1.5), json!("x"), json!([5, 2.5]), json!(null), json!(u64::MAX)];
    let range = |gt, lt| Test::Range(Span { gt: Some(gt), lt: Some(lt), ..Span::default() });
    // Whole floats are in the range; the others, of which there are no keys, may be.
    assert_eq!(asked(&numbers, &integer, range(0.5, 9.0)), (6, Some(vec![3, 7])));
    assert_eq!(asked(&numbers[..3], &integer, range(0.5, 9.0)), (3, Some(vec![])));
    let is = |list: &[i64]| Test::Match(Match::Any(Scalars::integers(list.into())));
    assert_eq!(asked(&numbers, &integer, is(&[2])), (2, Some(vec![2])));
    assert_eq!(asked(&numbers, &integer, is(&[1])), (1, Some(vec![])));
    let except = Test::Match(Match::Except(Scalars::integers([1, 2].into())));
    assert_eq!(asked(&numbers, &integer, except.clone()), (5, Some(vec![])));
    assert_eq!(asked(&numbers, &Schema::Keyword, except), (8, None));
    let words = Test::Match(Match::Except(Scalars::words(["x".into()].into())));
    assert_eq!(asked(&numbers, &Schema::Keyword, words), (6, Some(vec![])));
    let uuids = ["550e8400-e29b-41d4-a716-446655440000", "550e8400e29b41d4a716446655440000"];
    let value = |uuid: &str| Test::Match(Match::Value(Scalar::Word(uuid.into())));
    assert_eq!(asked(&uuids.map(|uuid| json!(uuid)), &Schema::Uuid, value(uuids[0])), (2, Some(vec![1])));
    assert_eq!(asked(&uuids.map(|uuid| json!(uuid)), &Schema::Uuid, value(uuids[1])), (2, None));
    let texts = [json!("red fox"), json!(["red", "fox"]), json!(["red fox", "x"]), json!("fox")];
    let text = |text: &str| Test::Match(Match::Text(text.into()));
    assert_eq!(asked(&texts, &Schema::named("text").unwrap(), text("fox red")), (3, Some(vec![1, 2])));
    assert_eq!(asked(&texts, &Schema::named("text").unwrap(), text("red")), (3, Some(vec![])));
    let places = [json!({"lon": 13.4, "lat": 52.5}), json!({"lon": 373.4, "lat": 52.5}), json!({"lon": 0, "lat": 0})];
    let center = GeoPoint { lon: 13.4, lat: 52.5 };
    let near = Test::Radius(GeoRadius { center, radius: 1000.0 });
    assert_eq!(asked(&places, &Schema::Geo, near), (2, Some(vec![1])));
}

/// An index that other code wrote, which did not say what its keys leave out.
#[test]
fn an_index_of_an_earlier_form_is_known_for_one() {
    let earlier =
        json!({"rows": 1, "values": 1, "distinct": 1, "key_len": 8, "has_several": false, "column": true, "held": 1});
    let meta: super::Meta = serde_json::from_value(earlier).unwrap();
    assert!(!meta.is_current());
}

/// Writes an index again with some of its bytes changed.
fn damaged(place: &Place, index: &Index, changes: &[(u32, u64, u8)]) -> Result<Index> {
    let account = &place.budget.root();
    let path = place.folder.path().join("damaged.field");
    let mut out = place.pages.create(&path, account)?;
    for tag in super::KEYS..=super::FOREIGN {
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
        changes in prop::collection::vec((super::KEYS..=super::FOREIGN, any::<u64>(), any::<u8>()), 1..6),
    ) {
        let place = Place::new();
        let whole = place.build(&payloads, (&path(), &schema), 8 << 20);
        let Ok(index) = damaged(&place, &whole, &changes) else { return Ok(()) };
        let schema = Arc::new(schema);
        for filter in filters {
            let account = place.budget.root();
            let filter = filter.prepare(Some(&|asked| (*asked == path()).then(|| schema.clone())), &account).unwrap();
            let path = path();
            let one = One(&path, FieldRows::File(&index));
            let evaluation = Evaluation { pages: &place.pages, segment: &one, rows: payloads.len(), room: filter.room() };
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
    let field = (&path(), &schema);
    let (small, large) = (place.build(&payloads, field, 2 << 20), place.build(&payloads, field, 64 << 20));
    assert_eq!(small.meta(), large.meta());
    assert_eq!((small.meta().distinct, small.meta().held), (5000, rows as u32));
    let wanted = Test::Range(Span { gte: Some(1.0), lt: Some(2500.0), ..Span::default() });
    let filter = Filter {
        must: [Condition::Field(FieldCondition { path: path(), tests: [wanted].into() })].into(),
        ..Filter::default()
    };
    let account = place.budget.root();
    let filter = filter.prepare(Some(&|_| Some(Arc::new(schema.clone()))), &account).unwrap();
    let mut counts = Vec::new();
    for index in [&small, &large] {
        let mut passing =
            Bitmap::all(rows as usize, &Bitmaps::new(&place.budget.root(), &place.budget.root())).unwrap();
        let path = path();
        let one = One(&path, FieldRows::File(index));
        assert!(
            Evaluation { pages: &place.pages, segment: &one, rows: rows as usize, room: filter.room() }
                .keep(&filter, &mut passing)
                .unwrap()
                .is_exact
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
