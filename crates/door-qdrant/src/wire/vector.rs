//! Vectors on the wire, read straight into columns.
//!
//! ```text
//!   {"id":1,"vector":[.1,.2]}                        column ""      rows 0      data .1 .2
//!   {"id":2,"vector":{"a":[.3],"b":[.4,.5]}}   ─►    column "a"     rows 1      data .3
//!   {"id":3,"vector":{"b":[.6,.7]}}                  column "b"     rows 1 2    data .4 .5 .6 .7
//! ```
//!
//! Vectors of one name have one length inside a request; whether it is the collection's is the store's to say.

use super::json::{DecodeError, Decoded, Reader};
use ramekin_base::limits;
use ramekin_memory::SharedReservation;
use ramekin_vectors::{Column, UNNAMED};

/// The columns of a batch while they grow.
#[derive(Default)]
pub struct Columns {
    columns: Vec<Column>,
}

impl Columns {
    pub fn into_columns(self) -> Vec<Column> {
        self.columns
    }

    /// Reads the `vector` of the point in `row`: a list of numbers, or an object from names to such lists. Returns how many
    /// vectors it has.
    pub fn point(&mut self, reader: &mut Reader<'_>, row: usize, room: &mut SharedReservation) -> Decoded<usize> {
        let mut vectors = 0;
        match reader.peek()? {
            b'{' => reader.object(|reader, name| match reader.peek()? {
                b'"' if matches!(name, "text" | "image" | "model" | "object") => {
                    Err(DecodeError::not_implemented("inference"))
                }
                _ => {
                    vectors += 1;
                    self.named(reader, name, row, room)
                }
            })?,
            b'[' => {
                vectors = 1;
                self.named(reader, UNNAMED, row, room)?;
            }
            _ => return Err(reader.expected("a list of numbers or an object of named vectors")),
        }
        Ok(vectors)
    }

    fn named(&mut self, reader: &mut Reader<'_>, name: &str, row: usize, room: &mut SharedReservation) -> Decoded<()> {
        let column = self.column(name)?;
        if column.present.last() == Some(&(row as u32)) {
            return Err(DecodeError::malformed("this vector stands twice in one point"));
        }
        room.extend(&mut column.present, 1)?;
        column.present.push(row as u32);
        let dim = (column.dim > 0).then_some(column.dim);
        column.dim = floats(reader, &mut column.data, dim, room)?;
        Ok(())
    }

    /// Reads the `vectors` of a columnar batch: one list of vectors, or an object from names to such lists.
    pub fn batch(&mut self, reader: &mut Reader<'_>, rows: usize, room: &mut SharedReservation) -> Decoded<()> {
        match reader.peek()? {
            b'{' => reader.object(|reader, name| self.rows(reader, name, rows, room)),
            b'[' => self.rows(reader, UNNAMED, rows, room),
            _ => Err(reader.expected("a list of vectors or an object of such lists")),
        }
    }

    fn rows(&mut self, reader: &mut Reader<'_>, name: &str, rows: usize, room: &mut SharedReservation) -> Decoded<()> {
        let column = self.column(name)?;
        if !column.present.is_empty() {
            return Err(DecodeError::malformed("these vectors stand twice in one batch"));
        }
        reader.array(|reader, row| {
            if row >= limits::POINTS_PER_REQUEST_MAX {
                return Err(super::id::too_many());
            }
            let from = reader.at();
            room.extend(&mut column.present, 1)?;
            column.present.push(row as u32);
            let dim = (row > 0).then_some(column.dim);
            column.dim = floats(reader, &mut column.data, dim, room)?;
            if row == 0 {
                let rows = if rows > 0 { rows } else { expected(reader, from) };
                room.expect(&mut column.present, rows);
                room.expect(&mut column.data, (rows - 1) * column.dim);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Makes the columns ready for about `points` more points like those read so far.
    pub fn expect(&mut self, points: usize, room: &SharedReservation) {
        for column in &mut self.columns {
            room.expect(&mut column.present, points);
            room.expect(&mut column.data, points * column.dim);
        }
    }

    fn column(&mut self, name: &str) -> Decoded<&mut Column> {
        let found = self.columns.iter().position(|column| column.name == name);
        let index = match found {
            Some(index) => index,
            None if self.columns.len() >= limits::VECTOR_NAMES_MAX => {
                let most = limits::VECTOR_NAMES_MAX;
                return Err(DecodeError::malformed(format_args!("a request may name at most {most} vectors")));
            }
            None => {
                let name = checked_name(name)?.to_owned();
                self.columns.push(Column { name, dim: 0, present: Vec::new(), data: Vec::new() });
                self.columns.len() - 1
            }
        };
        Ok(&mut self.columns[index])
    }
}

/// A vector's name, if it is not too long to be one.
pub fn checked_name(name: &str) -> Decoded<&str> {
    if name.len() > limits::NAME_MAX {
        return Err(DecodeError::invalid(format_args!("a name of more than {} bytes", limits::NAME_MAX)));
    }
    Ok(name)
}

/// How many more elements like the one that began at `from` the rest of the text may hold.
pub fn expected(reader: &Reader<'_>, from: usize) -> usize {
    let each = (reader.at() - from).max(1);
    (reader.left() / each + 1).min(limits::POINTS_PER_REQUEST_MAX)
}

/// Reads one vector to the end of `data`: as many numbers as `dim` says, if it says. Returns how many.
pub fn floats(
    reader: &mut Reader<'_>,
    data: &mut Vec<f32>,
    dim: Option<usize>,
    room: &mut SharedReservation,
) -> Decoded<usize> {
    match reader.peek()? {
        b'[' => {}
        // {"indices": ..., "values": ...}, {"text": ..., "model": ...} and their like.
        b'{' => return Err(DecodeError::not_implemented("a sparse vector or inference")),
        _ => return Err(reader.expected("a list of numbers")),
    }
    let most = dim.unwrap_or(limits::DIM_MAX);
    room.extend(data, dim.unwrap_or(0))?;
    let count = reader.array(|reader, index| {
        if index >= most {
            return match dim {
                // They are counted, to be named.
                Some(_) => reader.skip(),
                None => Err(DecodeError::malformed(format_args!("more than {} numbers", limits::DIM_MAX))),
            };
        }
        if data.len() == data.capacity() {
            room.extend(data, 1)?;
        }
        if reader.peek()? == b'[' {
            return Err(DecodeError::not_implemented("a multivector"));
        }
        data.push(reader.float()?);
        Ok(())
    })?;
    match dim {
        Some(dim) if dim != count => {
            Err(DecodeError::malformed(format_args!("Vector dimension error: expected dim: {dim}, got {count}")))
        }
        _ if count == 0 => Err(DecodeError::malformed("a vector without a number")),
        _ => Ok(count),
    }
}
