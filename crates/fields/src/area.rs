//! Areas of the earth along a curve: what lies in one is a few stretches of it, and perhaps more.
//!
//! ```text
//!   place ─► longitude, latitude in 32 bits each ─► their bits in turn: a number along the Z curve (Morton, 1966)
//!
//!   area ─► rectangles around it ─► squares that the curve fills one after another ─► stretches of the curve
//! ```
//!
//! A stretch holds all places of its squares; the area itself decides about each.

use crate::geo::{GeoBox, GeoPoint, GeoPolygon, GeoRadius};
use ramekin_base::Few;
use std::ops::Range;

/// An area that places may lie in.
#[derive(Debug, Clone, PartialEq)]
pub enum Area {
    Box(GeoBox),
    Radius(GeoRadius),
    Polygon(GeoPolygon),
}

/// Stretches at most: more of them hold fewer places that are not in the area.
const STRETCHES_MAX: usize = 64;

/// A place's number along the curve.
pub(crate) fn along_curve(place: GeoPoint) -> u64 {
    spread(scaled(place.lon, 180.0)) << 1 | spread(scaled(place.lat, 90.0))
}

/// Degrees from `-most` to `most` as a number from 0 on.
fn scaled(degrees: f64, most: f64) -> u32 {
    // Saturates at both ends.
    ((degrees + most) / (2.0 * most) * 4_294_967_296.0) as u32
}

/// Each bit followed by a zero.
fn spread(number: u32) -> u64 {
    let mut wide = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_FFFF_0000_FFFF),
        (8, 0x00FF_00FF_00FF_00FF),
        (4, 0x0F0F_0F0F_0F0F_0F0F),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        wide = (wide | wide << shift) & mask;
    }
    wide
}

/// Scaled longitudes and latitudes, both ends included.
#[derive(Debug, Clone, Copy, Default)]
struct Rectangle {
    lon: (u32, u32),
    lat: (u32, u32),
}

/// A square of the curve: its first place, and its side as a power of two.
#[derive(Debug, Clone, Copy, Default)]
struct Square {
    lon: u32,
    lat: u32,
    log_side: u32,
}

impl Square {
    fn last(&self, first: u32) -> u32 {
        first | ((1u64 << self.log_side) - 1) as u32
    }

    fn touches(&self, rectangle: &Rectangle) -> bool {
        self.lon <= rectangle.lon.1
            && rectangle.lon.0 <= self.last(self.lon)
            && self.lat <= rectangle.lat.1
            && rectangle.lat.0 <= self.last(self.lat)
    }

    fn is_in(&self, rectangle: &Rectangle) -> bool {
        rectangle.lon.0 <= self.lon
            && self.last(self.lon) <= rectangle.lon.1
            && rectangle.lat.0 <= self.lat
            && self.last(self.lat) <= rectangle.lat.1
    }

    fn quarters(&self) -> impl Iterator<Item = Square> {
        let (log_side, lon, lat) = (self.log_side - 1, self.lon, self.lat);
        let half = 1u32 << log_side;
        // The latitude's bit is the lower one of each pair.
        [(0, 0), (0, half), (half, 0), (half, half)].into_iter().map(move |(east, north)| Square {
            lon: lon | east,
            lat: lat | north,
            log_side,
        })
    }

    /// From its first place on the curve to its last.
    fn stretch(&self) -> (u64, u64) {
        let first = spread(self.lon) << 1 | spread(self.lat);
        (first, first | (((1u128 << (2 * self.log_side)) - 1) as u64))
    }
}

impl Area {
    pub(crate) fn holds(&self, place: GeoPoint) -> bool {
        match self {
            Self::Box(area) => area.holds(place),
            Self::Radius(area) => area.holds(place),
            Self::Polygon(area) => area.holds(place),
        }
    }

    /// Of its edge, each of which is looked at for each place that is asked for.
    pub(crate) fn corners(&self) -> usize {
        match self {
            Self::Box(_) | Self::Radius(_) => 0,
            Self::Polygon(area) => area.bytes() as usize / size_of::<GeoPoint>(),
        }
    }

    /// Stretches of the curve that hold all places of the area, ascending and apart, both ends included.
    pub(crate) fn stretches(&self) -> Few<(u64, u64), STRETCHES_MAX> {
        let around = self.around();
        let is_partly =
            |square: &Square| square.log_side > 0 && !around.iter().any(|rectangle| square.is_in(rectangle));
        let mut squares = Few::new();
        _ = squares.push(Square { lon: 0, lat: 0, log_side: 32 });
        // Each round the squares that are partly outside are quartered, as long as there are few.
        while squares.iter().any(is_partly)
            && let Some(finer) = quartered(&squares, is_partly, &around)
        {
            squares = finer;
        }
        squares.sort_unstable_by_key(Square::stretch);
        let mut stretches = Few::<(u64, u64), STRETCHES_MAX>::new();
        for (from, to) in squares.iter().map(Square::stretch) {
            match stretches.last_mut() {
                Some(last) if last.1 != u64::MAX && from == last.1 + 1 => last.1 = to,
                // As many at most as there are squares.
                _ => _ = stretches.push((from, to)),
            }
        }
        stretches
    }

    /// Rectangles that the area lies in: two where it lies over the date line.
    fn around(&self) -> Few<Rectangle, 2> {
        match self {
            Self::Box(area) => {
                let (west, east) = (area.top_left.lon, area.bottom_right.lon);
                let lat = area.bottom_right.lat..area.top_left.lat;
                if west > east { rectangles([west..180.0, -180.0..east], lat) } else { rectangles([west..east], lat) }
            }
            Self::Radius(area) => {
                let (lon, lat) = area.around();
                match (lon.start < -180.0, lon.end > 180.0) {
                    (true, true) => rectangles([-180.0..180.0], lat),
                    (true, false) => rectangles([-180.0..lon.end, lon.start + 360.0..180.0], lat),
                    (false, true) => rectangles([lon.start..180.0, -180.0..lon.end - 360.0], lat),
                    (false, false) if lon.start == -180.0 || lon.end == 180.0 => rectangles([-180.0..180.0], lat),
                    (false, false) => rectangles([lon], lat),
                }
            }
            Self::Polygon(area) => {
                let (mut lon, mut lat) = (f64::INFINITY..f64::NEG_INFINITY, f64::INFINITY..f64::NEG_INFINITY);
                for corner in area.corners() {
                    lon = lon.start.min(corner.lon)..lon.end.max(corner.lon);
                    lat = lat.start.min(corner.lat)..lat.end.max(corner.lat);
                }
                rectangles([lon], lat)
            }
        }
    }
}

/// Rectangles of some longitudes, all of the same latitudes.
fn rectangles<const N: usize>(lons: [Range<f64>; N], lat: Range<f64>) -> Few<Rectangle, 2> {
    let mut all = Few::new();
    let lat = (scaled(lat.start, 90.0), scaled(lat.end, 90.0));
    for lon in lons {
        _ = all.push(Rectangle { lon: (scaled(lon.start, 180.0), scaled(lon.end, 180.0)), lat });
    }
    all
}

/// The same squares, those that are partly outside in quarters, of which those stay that lie around; `None`: they would be
/// too many.
fn quartered(
    squares: &[Square],
    is_partly: impl Fn(&Square) -> bool,
    around: &[Rectangle],
) -> Option<Few<Square, STRETCHES_MAX>> {
    let mut finer = Few::new();
    for square in squares {
        if !is_partly(square) {
            finer.push(*square).then_some(())?;
            continue;
        }
        for quarter in square.quarters().filter(|quarter| around.iter().any(|rectangle| quarter.touches(rectangle))) {
            finer.push(quarter).then_some(())?;
        }
    }
    Some(finer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = GeoPoint> {
        let lon = prop_oneof![-180.0..=180.0, Just(180.0), Just(-180.0), 170.0..180.0, -180.0..-170.0];
        let lat = prop_oneof![-90.0..=90.0, Just(90.0), Just(-90.0), 80.0..90.0];
        (lon, lat).prop_map(|(lon, lat)| GeoPoint { lon, lat })
    }

    fn area() -> impl Strategy<Value = Area> {
        let corners = (place(), place());
        prop_oneof![
            corners.prop_map(|(top_left, bottom_right)| Area::Box(GeoBox { top_left, bottom_right })),
            (place(), prop_oneof![0.0..1e6, 0.0..3e7])
                .prop_map(|(center, radius)| Area::Radius(GeoRadius { center, radius })),
            prop::collection::vec(place(), 3..6).prop_map(|mut ring| {
                ring.push(ring[0]);
                Area::Polygon(GeoPolygon::new(ring.into(), Box::default()).unwrap())
            }),
        ]
    }

    proptest! {
        #[test]
        fn an_area_lies_in_its_stretches(area in area(), places in prop::collection::vec(place(), 50)) {
            let stretches = area.stretches();
            prop_assert!(stretches.len() <= STRETCHES_MAX && stretches.windows(2).all(|pair| pair[0].1 < pair[1].0));
            for place in places.into_iter().filter(|place| area.holds(*place)) {
                let at = along_curve(place);
                prop_assert!(stretches.iter().any(|(from, to)| (*from..=*to).contains(&at)), "{:?}", place);
            }
        }
    }

    #[test]
    fn a_small_area_has_short_stretches() {
        let center = GeoPoint { lon: 13.4, lat: 52.5 };
        let area = Area::Radius(GeoRadius { center, radius: 1000.0 });
        let all: f64 = area.stretches().iter().map(|(from, to)| (to - from) as f64).sum();
        assert!(all / 2f64.powi(64) < 1e-7, "{all}");
    }
}
