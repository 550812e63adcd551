//! Texts of a picture, each with the area that it takes: none is written over another.
//!
//! ```text
//!   put      where it must be, or not at all          beside   at the best of some places around a point, or not at all
//! ```
//!
//! Widths are estimates, on the wide side: whoever shows the picture chooses the letters.

/// Size of a text unless it says another.
const SIZE: f64 = 12.0;
/// Width of a letter, and height of a line above and below where it stands, as parts of the size.
const LETTER: f64 = 0.62;
const ABOVE: f64 = 0.8;
const BELOW: f64 = 0.22;
/// Between a point and its text.
const GAP: f64 = 3.0;

/// A rectangle: least and greatest x, least and greatest y.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    pub x: [f64; 2],
    pub y: [f64; 2],
}

impl Area {
    pub fn meets(&self, other: &Self) -> bool {
        let overlap = |a: [f64; 2], b: [f64; 2]| a[0] < b[1] && b[0] < a[1];
        overlap(self.x, other.x) && overlap(self.y, other.y)
    }

    fn holds(&self, other: &Self) -> bool {
        let within = |a: [f64; 2], b: [f64; 2]| a[0] <= b[0] && b[1] <= a[1];
        within(self.x, other.x) && within(self.y, other.y)
    }

    /// Whether a straight line goes through it (the clipping of Liang and Barsky).
    fn is_crossed(&self, from: (f64, f64), to: (f64, f64)) -> bool {
        let (mut enter, mut leave) = (0.0f64, 1.0f64);
        for (start, step, [least, most]) in [(from.0, to.0 - from.0, self.x), (from.1, to.1 - from.1, self.y)] {
            if step == 0.0 {
                if start <= least || start >= most {
                    return false;
                }
                continue;
            }
            let (a, b) = ((least - start) / step, (most - start) / step);
            (enter, leave) = (enter.max(a.min(b)), leave.min(a.max(b)));
        }
        enter < leave
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }

    /// What of the width lies before the anchor.
    fn before(self) -> f64 {
        match self {
            Self::Start => 0.0,
            Self::Middle => 0.5,
            Self::End => 1.0,
        }
    }
}

/// A text and where its line stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    pub x: f64,
    pub y: f64,
    pub size: f64,
    pub anchor: Anchor,
    pub colour: &'static str,
    /// It reads upwards.
    pub turned: bool,
    pub text: String,
}

impl Text {
    pub fn new(x: f64, y: f64, text: &str) -> Self {
        Self { x, y, size: SIZE, anchor: Anchor::Start, colour: "#000", turned: false, text: text.to_owned() }
    }

    pub fn size(self, size: f64) -> Self {
        Self { size, ..self }
    }

    /// As small as it must be for so much width.
    pub fn fitting(self, width: f64) -> Self {
        let letters = self.text.chars().count().max(1) as f64;
        Self { size: self.size.min(width / (letters * LETTER)), ..self }
    }

    pub fn anchored(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub fn turned(self) -> Self {
        Self { turned: true, ..self }
    }

    pub fn area(&self) -> Area {
        let width = self.text.chars().count() as f64 * self.size * LETTER;
        let before = width * self.anchor.before();
        let (above, below) = (self.size * ABOVE, self.size * BELOW);
        match self.turned {
            false => Area { x: [self.x - before, self.x - before + width], y: [self.y - above, self.y + below] },
            true => Area { x: [self.x - above, self.x + below], y: [self.y + before - width, self.y + before] },
        }
    }
}

/// What is written, and what must stay free.
pub struct Labels {
    picture: Area,
    texts: Vec<Text>,
    kept: Vec<Area>,
    lines: Vec<[(f64, f64); 2]>,
}

impl Labels {
    pub fn new(picture: Area) -> Self {
        Self { picture, texts: Vec::new(), kept: Vec::new(), lines: Vec::new() }
    }

    pub fn texts(&self) -> &[Text] {
        &self.texts
    }

    /// No text goes here.
    pub fn keep_off(&mut self, area: Area) {
        self.kept.push(area);
    }

    /// A text goes over this line only where there is no other place for it.
    pub fn keep_off_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.lines.push([from, to]);
    }

    /// Writes a text, unless another one stands there.
    pub fn put(&mut self, text: Text) {
        if self.is_free(&text.area()) {
            self.texts.push(text);
        }
    }

    /// Writes a text beside a point, at the first place around it that meets the fewest lines.
    pub fn overhead(&mut self, (x, y): (f64, f64), radius: f64, within: Area, text: &str) {
        let (near, far) = (radius + GAP, 3.0 * radius + 2.0 * GAP);
        let (up, down, level) = (-near, near + SIZE * ABOVE, SIZE * (ABOVE - BELOW) / 2.0);
        let places = [
            (near, up, Anchor::Start),
            (near, down, Anchor::Start),
            (-near, up, Anchor::End),
            (-near, down, Anchor::End),
            (0.0, up, Anchor::Middle),
            (0.0, down, Anchor::Middle),
            (near, level, Anchor::Start),
            (-near, level, Anchor::End),
            (0.0, up - far, Anchor::Middle),
            (0.0, down + far, Anchor::Middle),
        ];
        let texts = places.map(|(right, low, anchor)| Text::new(x + right, y + low, text).anchored(anchor));
        let free = texts.into_iter().filter(|text| within.holds(&text.area()) && self.is_free(&text.area()));
        let best = free.min_by_key(|text| {
            let area = text.area();
            self.lines.iter().filter(|[from, to]| area.is_crossed(*from, *to)).count()
        });
        self.texts.extend(best);
    }

    fn is_free(&self, area: &Area) -> bool {
        let is_met = self.texts.iter().map(Text::area).chain(self.kept.iter().copied()).any(|other| area.meets(&other));
        self.picture.holds(area) && !is_met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_area_on_the_side_of_its_anchor() {
        let area = |anchor| Text::new(100.0, 50.0, "12").anchored(anchor).area();
        assert_eq!(area(Anchor::Start).x[0], 100.0);
        assert_eq!(area(Anchor::End).x[1], 100.0);
        assert_eq!(area(Anchor::Middle).x[0] + area(Anchor::Middle).x[1], 200.0);
        let turned = Text::new(20.0, 200.0, "a long word").anchored(Anchor::Middle).turned().area();
        assert!(turned.y[1] - turned.y[0] > turned.x[1] - turned.x[0]);
        assert!((turned.y[0] + turned.y[1] - 400.0).abs() < 1e-9);
    }

    #[test]
    fn lines_through_an_area_are_seen() {
        let area = Area { x: [10.0, 20.0], y: [10.0, 20.0] };
        assert!(area.is_crossed((0.0, 0.0), (30.0, 30.0)));
        assert!(area.is_crossed((15.0, 0.0), (15.0, 40.0)));
        assert!(!area.is_crossed((0.0, 0.0), (9.0, 30.0)));
        assert!(!area.is_crossed((0.0, 0.0), (12.0, 5.0)));
        assert!(!area.is_crossed((21.0, 0.0), (21.0, 40.0)));
    }

    #[test]
    fn a_text_that_has_no_place_is_left_out() {
        let mut labels = Labels::new(Area { x: [0.0, 40.0], y: [0.0, 20.0] });
        labels.put(Text::new(0.0, 12.0, "first"));
        labels.put(Text::new(10.0, 14.0, "second"));
        assert_eq!(labels.texts().len(), 1);
    }
}
