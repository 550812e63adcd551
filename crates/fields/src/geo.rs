//! Places on the earth, and areas of it.
//!
//! ```text
//!   box      strictly between its edges; over the date line where its west lies east of its east
//!   radius   nearer than it, along the great circle of a sphere (haversine)
//!   polygon  inside the outer ring and outside each hole, edges not counted; in plain degrees
//! ```

use ramekin_base::{Error, Result, message};
use serde_json::Value;
use std::ops::Range;

/// Metres: the mean radius of GRS 80.
const EARTH: f64 = 6_371_008.771_415;

/// A place in degrees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GeoPoint {
    pub lon: f64,
    pub lat: f64,
}

/// The area between two corners.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GeoBox {
    pub top_left: GeoPoint,
    pub bottom_right: GeoPoint,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GeoRadius {
    pub center: GeoPoint,
    /// Metres.
    pub radius: f64,
}

/// Closed rings, each of four points at least: [`GeoPolygon::new`].
#[derive(Debug, Clone, PartialEq)]
pub struct GeoPolygon {
    exterior: Box<[GeoPoint]>,
    interiors: Box<[Box<[GeoPoint]>]>,
}

impl GeoPoint {
    /// A place on the earth.
    pub fn new(lon: f64, lat: f64) -> Result<Self> {
        if (-180.0..=180.0).contains(&lon) && (-90.0..=90.0).contains(&lat) {
            return Ok(Self { lon, lat });
        }
        Err(Error::malformed(message(format_args!(
            "Wrong format of GeoPoint payload: expected `lat` = {lat} within [-90;90] and `lon` = {lon} within [-180;180]"
        ))))
    }

    /// An object with `lon` and `lat`; they may name a place that is not on the earth.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        let object = value.as_object()?;
        Some(Self { lon: object.get("lon")?.as_f64()?, lat: object.get("lat")?.as_f64()? })
    }
}

impl GeoBox {
    pub fn holds(&self, point: GeoPoint) -> bool {
        let (west, east) = (self.top_left.lon, self.bottom_right.lon);
        let in_width = match west > east {
            true => west < point.lon || point.lon < east,
            false => west < point.lon && point.lon < east,
        };
        in_width && self.bottom_right.lat < point.lat && point.lat < self.top_left.lat
    }
}

impl GeoRadius {
    pub fn holds(&self, point: GeoPoint) -> bool {
        let (from, to) = (self.center, point);
        let half = |degrees: f64| (degrees.to_radians() / 2.0).sin().powi(2);
        let across = from.lat.to_radians().cos() * to.lat.to_radians().cos() * half(to.lon - from.lon);
        EARTH * 2.0 * (half(to.lat - from.lat) + across).sqrt().asin() < self.radius
    }
}

impl GeoRadius {
    /// Longitudes and latitudes that it lies in: longitudes go beyond the date line where it does.
    pub(crate) fn around(&self) -> (Range<f64>, Range<f64>) {
        // A little more than there is, so that rounding leaves nothing out.
        let angle = self.radius / EARTH * (1.0 + 1e-9) + 1e-9;
        let (south, north) = (self.center.lat - angle.to_degrees(), self.center.lat + angle.to_degrees());
        let lat = south.max(-90.0)..north.min(90.0);
        let half = (angle.sin() / self.center.lat.to_radians().cos()).asin().to_degrees() + 1e-9;
        // Around a pole, or so wide that the sine says nothing: all longitudes.
        let is_all = south <= -90.0 || north >= 90.0 || angle >= std::f64::consts::FRAC_PI_2 || !half.is_finite();
        (if is_all { -180.0..180.0 } else { self.center.lon - half..self.center.lon + half }, lat)
    }
}

/// How a point lies to a ring.
#[derive(PartialEq)]
enum Side {
    Inside,
    On,
    Outside,
}

impl GeoPolygon {
    pub fn new(exterior: Box<[GeoPoint]>, interiors: Box<[Box<[GeoPoint]>]>) -> Result<Self> {
        for ring in std::iter::once(&exterior).chain(&interiors) {
            if ring.len() < 4 {
                let got = ring.len();
                return Err(Error::invalid(message(format_args!(
                    "polygon invalid, the size must be at least 4, got {got}"
                ))));
            }
            if ring.first() != ring.last() {
                return Err(Error::invalid(
                    "polygon invalid, the first and the last points should be the same to form a closed line",
                ));
            }
        }
        Ok(Self { exterior, interiors })
    }

    pub(crate) fn bytes(&self) -> u64 {
        let corners = self.exterior.len() + self.interiors.iter().map(|ring| ring.len() + 1).sum::<usize>();
        (corners * size_of::<GeoPoint>()) as u64
    }

    pub(crate) fn corners(&self) -> &[GeoPoint] {
        &self.exterior
    }

    pub fn holds(&self, point: GeoPoint) -> bool {
        side(&self.exterior, point) == Side::Inside
            && self.interiors.iter().all(|ring| side(ring, point) == Side::Outside)
    }
}

/// By counting the edges that a ray from the point to the east crosses.
fn side(ring: &[GeoPoint], point: GeoPoint) -> Side {
    let mut inside = false;
    for pair in ring.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        let turn = (b.lon - a.lon) * (point.lat - a.lat) - (b.lat - a.lat) * (point.lon - a.lon);
        let between = |x: f64, a: f64, b: f64| a.min(b) <= x && x <= a.max(b);
        if turn == 0.0 && between(point.lon, a.lon, b.lon) && between(point.lat, a.lat, b.lat) {
            return Side::On;
        }
        // An edge counts with its lower end and without its upper one.
        if (a.lat > point.lat) != (b.lat > point.lat) && (turn > 0.0) == (b.lat > a.lat) {
            inside = !inside;
        }
    }
    if inside { Side::Inside } else { Side::Outside }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(lon: f64, lat: f64) -> GeoPoint {
        GeoPoint::new(lon, lat).unwrap()
    }

    fn ring(corners: &[(f64, f64)]) -> Box<[GeoPoint]> {
        corners.iter().map(|(lon, lat)| point(*lon, *lat)).collect()
    }

    #[test]
    fn a_box_may_lie_over_the_date_line() {
        let over = GeoBox { top_left: point(179.0, 1.0), bottom_right: point(-179.0, -1.0) };
        assert!(over.holds(point(179.5, 0.0)) && over.holds(point(-179.5, 0.0)) && over.holds(point(180.0, 0.0)));
        assert!(!over.holds(point(0.0, 0.0)) && !over.holds(point(179.5, 1.0)));
        let flat = GeoBox { top_left: point(0.0, 1.0), bottom_right: point(5.0, 0.0) };
        assert!(flat.holds(point(2.0, 0.5)) && !flat.holds(point(0.0, 0.5)) && !flat.holds(point(2.0, 0.0)));
    }

    #[test]
    fn distances_are_those_of_the_sphere() {
        // Berlin to Munich: 504 km.
        let (berlin, munich) = (point(13.405, 52.52), point(11.582, 48.1351));
        assert!(GeoRadius { center: berlin, radius: 505_000.0 }.holds(munich));
        assert!(!GeoRadius { center: berlin, radius: 503_000.0 }.holds(munich));
        assert!(GeoRadius { center: point(180.0, 0.0), radius: 1.0 }.holds(point(-180.0, 0.0)));
        assert!(!GeoRadius { center: berlin, radius: 0.0 }.holds(berlin));
    }

    #[test]
    fn a_polygon_is_without_its_edges_and_holes() {
        let outer = ring(&[(0.0, 0.0), (6.0, 0.0), (6.0, 6.0), (0.0, 6.0), (0.0, 0.0)]);
        let hole = ring(&[(1.0, 1.0), (1.0, 3.0), (3.0, 3.0), (3.0, 1.0), (1.0, 1.0)]);
        let polygon = GeoPolygon::new(outer.clone(), [hole].into()).unwrap();
        assert!(polygon.holds(point(5.0, 5.0)) && polygon.holds(point(0.5, 3.0)));
        for outside in [(2.0, 2.0), (1.0, 2.0), (3.0, 3.0), (0.0, 0.0), (6.0, 3.0), (7.0, 3.0), (3.0, 0.0), (-1.0, 0.0)]
        {
            assert!(!polygon.holds(point(outside.0, outside.1)), "{outside:?}");
        }
        // A ray through a corner crosses there once.
        let diamond = ring(&[(0.0, -2.0), (2.0, 0.0), (0.0, 2.0), (-2.0, 0.0), (0.0, -2.0)]);
        let diamond = GeoPolygon::new(diamond, Box::default()).unwrap();
        assert!(diamond.holds(point(0.0, 0.0)) && !diamond.holds(point(-3.0, 0.0)));
        assert!(GeoPolygon::new(outer[..4].into(), Box::default()).is_err());
        assert!(GeoPolygon::new(outer, [Box::default()].into()).is_err());
    }
}
