//! Batches of points: the bodies of an upsert and of an update of vectors.
//!
//! ```text
//!   {"points":[{"id","vector","payload"}, ...]}                 one after the other
//!   {"batch":{"ids":[..],"vectors":[[..]] or {"a":[[..]]},"payloads":[{..},null]}}      by column
//!        both ─► ids · columns · payload texts, in one pass, each list booked before it grows
//! ```

use crate::decoders::sections::word;
use crate::wire::filter::{self, read_not_implemented};
use crate::wire::json::{DecodeError, Decoded, Reader};
use crate::wire::vector::{Columns, expected};
use crate::wire::{id, json, payload};
use ramekin_base::{Result, limits};
use ramekin_fields::Filter;
use ramekin_memory::SharedReservation;
use ramekin_vectors::{Batch, Mode, Write};

/// A batch while it is read.
#[derive(Default)]
struct BatchBuilder {
    ids: Vec<ramekin_base::PointId>,
    columns: Columns,
    payloads: Vec<Box<str>>,
}

impl BatchBuilder {
    /// Reads the payload of the point in `row`; the points before it that had none get an empty one.
    fn payload(&mut self, row: usize, reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<()> {
        if self.payloads.len() > row {
            return Err(DecodeError::malformed("this payload stands twice in one point"));
        }
        let more = row + 1 - self.payloads.len();
        room.extend(&mut self.payloads, more)?;
        self.payloads.resize_with(row, Box::default);
        self.payloads.push(payload::read(reader, room)?);
        Ok(())
    }

    fn point(
        &mut self,
        reader: &mut Reader<'_>,
        row: usize,
        with_payload: bool,
        room: &mut SharedReservation,
    ) -> Decoded<()> {
        if row >= limits::POINTS_PER_REQUEST_MAX {
            return Err(id::too_many());
        }
        let from = reader.at();
        let (mut has_id, mut has_vector) = (false, false);
        reader.object(|reader, key| {
            match key {
                "id" if has_id => return Err(DecodeError::malformed("stands twice in one point")),
                "id" => {
                    has_id = true;
                    room.extend(&mut self.ids, 1)?;
                    self.ids.push(id::read(reader)?);
                }
                "vector" | "vectors" => {
                    has_vector = true;
                    let vectors = self.columns.point(reader, row, room)?;
                    if vectors == 0 && !with_payload {
                        return Err(DecodeError::invalid("must specify vectors to update for point"));
                    }
                }
                "payload" if with_payload && !reader.null()? => self.payload(row, reader, room)?,
                "payload" if with_payload => {}
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        for (field, there) in [("id", has_id), ("vector", has_vector)] {
            if !there {
                return Err(DecodeError::missing(field));
            }
        }
        if row == 0 {
            let more = expected(reader, from);
            room.expect(&mut self.ids, more);
            self.columns.expect(more, room);
        }
        Ok(())
    }

    fn list(&mut self, reader: &mut Reader<'_>, with_payload: bool, room: &mut SharedReservation) -> Decoded<usize> {
        reader.array(|reader, row| self.point(reader, row, with_payload, room))
    }

    /// Reads the columnar form.
    fn columnar(&mut self, reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<()> {
        let (mut has_ids, mut has_vectors) = (false, false);
        reader.object(|reader, key| {
            match key {
                "ids" => {
                    has_ids = true;
                    self.ids = id::list(reader, room)?.finish();
                }
                "vectors" => {
                    has_vectors = true;
                    self.columns.batch(reader, self.ids.len(), room)?;
                }
                "payloads" if !reader.null()? => {
                    self.payloads.clear();
                    let count = reader.array(|reader, row| {
                        if row >= limits::POINTS_PER_REQUEST_MAX {
                            return Err(id::too_many());
                        }
                        if reader.null()? {
                            return Ok(());
                        }
                        self.payload(row, reader, room)
                    })?;
                    let more = count - self.payloads.len();
                    room.extend(&mut self.payloads, more)?;
                    self.payloads.resize_with(count, Box::default);
                }
                "payloads" => {}
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        for (field, there) in [("ids", has_ids), ("vectors", has_vectors)] {
            if !there {
                return Err(DecodeError::missing(field));
            }
        }
        Ok(())
    }

    fn finish(mut self, room: &mut SharedReservation) -> Decoded<Batch> {
        if !self.payloads.is_empty() && self.payloads.len() < self.ids.len() {
            let more = self.ids.len() - self.payloads.len();
            room.extend(&mut self.payloads, more)?;
            self.payloads.resize_with(self.ids.len(), Box::default);
        }
        let Self { ids, columns, payloads } = self;
        Ok(Batch { ids, columns: columns.into_columns(), payloads })
    }

    /// Checks that the columns of a columnar batch are as long as its ids.
    fn check_lengths(&self, columns: &[ramekin_vectors::Column]) -> Decoded<()> {
        let ids = self.ids.len();
        for column in columns {
            if column.present.len() != ids {
                let count = column.present.len();
                let flaw = DecodeError::invalid(format!("number of ids and vectors must be equal ({ids} != {count})"));
                return Err(flaw.in_field("vectors").in_field("batch"));
            }
        }
        if !self.payloads.is_empty() && self.payloads.len() != ids {
            let count = self.payloads.len();
            let flaw = DecodeError::invalid(format!("number of ids and payloads must be equal ({ids} != {count})"));
            return Err(flaw.in_field("payloads").in_field("batch"));
        }
        Ok(())
    }
}

/// Decodes the body of `PUT points`.
pub fn upsert(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    let (batch, condition) = decode_upsert(body, room)?;
    Ok(match condition {
        Condition { mode: Mode::Upsert, filter } if filter.is_empty() => Write::Upsert(batch),
        Condition { mode, filter } => Write::Conditional { batch, mode, filter: Box::new(filter) },
    })
}

/// On what it depends whether a point is written.
#[derive(Default)]
struct Condition {
    mode: Mode,
    filter: Filter,
}

fn decode_upsert(body: &[u8], room: &mut SharedReservation) -> Decoded<(Batch, Condition)> {
    let mut reader = Reader::new(body)?;
    let (mut builder, mut condition) = (BatchBuilder::default(), Condition::default());
    let (mut list, mut columnar) = (false, false);
    reader.object(|reader, key| match key {
        "points" | "batch" if list || columnar => {
            Err(DecodeError::malformed("`points` and `batch` are allowed once, and not together"))
        }
        "points" => {
            list = true;
            builder.list(reader, true, room).map(|_| ())
        }
        "batch" => {
            columnar = true;
            builder.columnar(reader, room)
        }
        _ => modifier(reader, key, room, &mut condition),
    })?;
    reader.finish()?;
    if !list && !columnar {
        return Err(DecodeError::malformed("missing field `points` or `batch`"));
    }
    if columnar {
        let columns = std::mem::take(&mut builder.columns).into_columns();
        builder.check_lengths(&columns)?;
        let batch = builder.finish(room)?;
        return Ok((Batch { columns, ..batch }, condition));
    }
    Ok((builder.finish(room)?, condition))
}

/// Fields that may stand beside the points of an upsert or of new vectors.
fn modifier(
    reader: &mut json::Reader<'_>,
    key: &str,
    room: &mut SharedReservation,
    condition: &mut Condition,
) -> Decoded<()> {
    match key {
        "shard_key" => read_not_implemented(reader)?,
        "update_filter" => condition.filter = filter::read(reader, room)?,
        "update_mode" if reader.null()? => {}
        "update_mode" => {
            condition.mode = match word(reader, &["upsert", "insert_only", "update_only"])? {
                "insert_only" => Mode::InsertOnly,
                "update_only" => Mode::UpdateOnly,
                _ => Mode::Upsert,
            };
        }
        _ => reader.skip()?,
    }
    Ok(())
}

/// Decodes the body of `PUT points/vectors`.
pub fn update_vectors(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    let mut condition = Condition::default();
    let mut decode = |room: &mut SharedReservation| -> Decoded<Batch> {
        let mut reader = Reader::new(body)?;
        let mut builder = BatchBuilder::default();
        let mut count = None;
        reader.object(|reader, key| match key {
            "points" if count.is_some() => Err(DecodeError::malformed("stands twice")),
            "points" => {
                count = Some(builder.list(reader, false, room)?);
                Ok(())
            }
            _ => modifier(reader, key, room, &mut condition),
        })?;
        reader.finish()?;
        match count {
            None | Some(0) => {
                Err(DecodeError::invalid("value [] invalid, must have at least 1 element").in_field("points"))
            }
            Some(_) => builder.finish(room),
        }
    };
    let batch = decode(room)?;
    Ok(match condition.filter {
        filter if filter.is_empty() => Write::UpdateVectors(batch),
        filter => Write::Conditional { batch, mode: Mode::Vectors, filter: Box::new(filter) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::{Kind, PointId};
    use ramekin_vectors::Column;

    fn batch(body: &str) -> Batch {
        decode_upsert(body.as_bytes(), &mut SharedReservation::endless()).unwrap().0
    }

    fn refusal(body: &str) -> (Kind, String) {
        let error = upsert(body.as_bytes(), &mut SharedReservation::endless()).unwrap_err();
        (error.kind(), error.message().to_owned())
    }

    #[test]
    fn both_forms_give_the_same_batch() {
        let list = batch(
            r#"{"points":[{"id":1,"vector":[1,2]},{"payload":{"a": 1},"vector":[3,4.5],"id":"550e8400-e29b-41d4-a716-446655440000"}]}"#,
        );
        let columns = batch(
            r#"{"batch":{"vectors":[[1,2],[3,4.5]],"payloads":[null,{"a": 1}],"ids":[1,"550e8400-e29b-41d4-a716-446655440000"]}}"#,
        );
        assert_eq!(list, columns);
        let uuid = PointId::Uuid(0x550e_8400_e29b_41d4_a716_4466_5544_0000);
        assert_eq!(list.ids, [PointId::Num(1), uuid]);
        assert_eq!(list.payloads, ["".into(), r#"{"a": 1}"#.into()]);
        let column = Column { name: String::new(), dim: 2, present: vec![0, 1], data: vec![1.0, 2.0, 3.0, 4.5] };
        assert_eq!(list.columns, [column]);
    }

    #[test]
    fn named_vectors_may_be_missing() {
        let batch = batch(
            r#"{"points":[{"id":1,"vector":{}},{"id":2,"vector":{"b":[1],"a":[2,3]}},{"id":3,"vector":{"a":[4,5]}}]}"#,
        );
        assert_eq!(batch.columns[0], Column { name: "b".into(), dim: 1, present: vec![1], data: vec![1.0] });
        assert_eq!(batch.columns[1].present, [1, 2]);
        assert!(batch.payloads.is_empty());
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, kind, message) in [
            (r#"{"points":[{"id":1,"vector":[1,"x"]}]}"#, Kind::Malformed, "points[0].vector[1]: expected a number"),
            (r#"{"points":[{"id":1}]}"#, Kind::Malformed, "points[0]: missing field `vector`"),
            (
                r#"{"points":[{"id":-1,"vector":[1]}]}"#,
                Kind::Malformed,
                "points[0].id: value -1 is not a valid point ID",
            ),
            (
                r#"{"points":[{"id":1,"vector":[1]},{"id":2,"vector":[1,2]}]}"#,
                Kind::Malformed,
                "points[1].vector: Vector dimension error: expected dim: 1, got 2",
            ),
            (
                r#"{"points":[{"id":1,"vector":[[1]]}]}"#,
                Kind::Unsupported,
                "points[0].vector[0]: a multivector is not built yet",
            ),
            (
                r#"{"points":[{"id":1,"vector":{"s":{"indices":[1],"values":[1]}}}]}"#,
                Kind::Unsupported,
                "points[0].vector.s: a sparse",
            ),
            (r#"{"points":[{"id":1,"vector":{"text":"x","model":"m"}}]}"#, Kind::Unsupported, "inference"),
            (
                r#"{"points":[{"id":1,"vector":[1],"payload":[1]}]}"#,
                Kind::Malformed,
                "points[0].payload: expected an object",
            ),
            (r#"{"batch":{"ids":[1,2],"vectors":[[1]]}}"#, Kind::Invalid, "batch.vectors: number of ids and vectors"),
            (
                r#"{"batch":{"ids":[1],"vectors":[[1]],"payloads":[{},{}]}}"#,
                Kind::Invalid,
                "batch.payloads: number of ids",
            ),
            (
                r#"{"points":[],"update_filter":{"must":[{"key":"a"}]}}"#,
                Kind::Invalid,
                "update_filter.must[0]: At least one field condition",
            ),
            (r#"{"points":[],"update_mode":"sometimes"}"#, Kind::Malformed, "update_mode: unknown variant `sometimes`"),
            (r#"{"points":[]"#, Kind::Malformed, "ends"),
            (r#"{}"#, Kind::Malformed, "missing field `points` or `batch`"),
            (r#"[]"#, Kind::Malformed, "expected an object, found an array"),
        ] {
            let (found, text) = refusal(body);
            assert_eq!(found, kind, "{body}: {text}");
            assert!(text.contains(message), "{body}: {text}");
        }
    }

    #[test]
    fn a_guess_that_finds_no_memory_refuses_nothing() {
        // From its first point on the text could hold some ten thousand more.
        let blanks = " ".repeat(1 << 20);
        for body in [
            format!(r#"{{"points":[{{"id":1,"vector":[1,2]}},{{"id":2,"vector":[3,4]}}{blanks}]}}"#),
            format!(r#"{{"batch":{{"ids":[1,2],"vectors":[[1,2],[3,4]{blanks}]}}}}"#),
            format!(r#"{{"batch":{{"vectors":[[1,2],[3,4]{blanks}],"ids":[1,2]}}}}"#),
        ] {
            let budget = ramekin_memory::Budget::new(128 << 10);
            let mut room = SharedReservation::new(0, budget.root().child("bodies", ""), None);
            let (batch, _) = decode_upsert(body.as_bytes(), &mut room).unwrap();
            assert_eq!((batch.ids.len(), batch.columns[0].data.as_slice()), (2, [1.0, 2.0, 3.0, 4.0].as_slice()));
            drop(room);
            assert_eq!(budget.reserved(), 0);
        }
    }

    #[test]
    fn an_empty_filter_is_none() {
        assert!(batch(r#"{"points":[],"update_filter":{"must":[],"should":null},"shard_key":null}"#).ids.is_empty());
    }
}
