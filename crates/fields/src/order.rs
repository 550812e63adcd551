//! Points in the order of a field's values, as an index of numbers or times knows it.
//!
//! ```text
//!   {"key": "a.b", "direction": "desc", "start_from": 5} ─► the keys from there on, in their order
//! ```
//!
//! A point with several values stands at each of them, once.

use crate::filter::{Span, Test};
use crate::key;
use crate::path::Path;
use crate::predicate::ValuePredicate;
use crate::schema::Schema;

/// What points are put in the order of.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    pub path: Path,
    pub descending: bool,
    /// The first value that counts; `None`: the least, or the greatest where it descends.
    pub start: Option<Start>,
}

/// Where an order begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// Of a time: microseconds since 1970.
    Integer(i64),
    Float(f64),
}

/// A value that a point stands at. A time is in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum OrderValue {
    Integer(i64),
    Float(f64),
}

impl Order {
    /// The keys of an index of this kind that count; `None`: it has no order.
    pub fn predicate(&self, schema: &Schema) -> Option<ValuePredicate> {
        let is_ordered = matches!(schema, Schema::Integer { range: true, .. } | Schema::Float | Schema::Datetime);
        let test = match self.start {
            Some(Start::Float(start)) => Test::Range(self.span(start)),
            Some(Start::Integer(start)) => Test::Times(self.span(start)),
            None => Test::Times(Span::default()),
        };
        schema.ask_range(&test).filter(|_| is_ordered)
    }

    fn span<T>(&self, start: T) -> Span<T> {
        match self.descending {
            false => Span { gte: Some(start), ..Span::default() },
            true => Span { lte: Some(start), ..Span::default() },
        }
    }
}

impl OrderValue {
    /// The value of a key of an index of this kind.
    pub fn of(schema: &Schema, key: &[u8]) -> Option<Self> {
        match schema {
            Schema::Float => key::float_of(key).map(Self::Float),
            _ => key::integer_of(key).map(Self::Integer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_begins_with_its_start() {
        let path = Path::parse("a").unwrap();
        let holds = |name: &str, start, descending, value: i64| {
            let schema = Schema::named(name).unwrap();
            let order = Order { path: path.clone(), descending, start };
            let key: Box<[u8]> = match schema {
                Schema::Float => key::of_float(value as f64).into(),
                _ => key::of_integer(value).into(),
            };
            assert!(order.predicate(&Schema::Keyword).is_none());
            order.predicate(&schema).unwrap().holds(&key)
        };
        for kind in ["integer", "float", "datetime"] {
            for (start, descending, expected) in [
                (None, false, [true, true, true]),
                (Some(Start::Integer(5)), false, [false, true, true]),
                (Some(Start::Integer(5)), true, [true, true, false]),
                (Some(Start::Float(4.5)), false, [false, true, true]),
                (Some(Start::Float(4.5)), true, [true, false, false]),
            ] {
                let found = [4, 5, 6].map(|value| holds(kind, start, descending, value));
                assert_eq!(found, expected, "{kind} from {start:?}, descending: {descending}");
            }
        }
        let lookup = Schema::Integer { lookup: true, range: false };
        assert!(Order { path, descending: false, start: None }.predicate(&lookup).is_none());
    }
}
