//! Rows of text as a table: aligned for the terminal, in Markdown for a page.

/// A table whose cells are text.
#[derive(Debug, Clone, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// A row has a cell for each column; what is missing stays empty.
    pub fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.head).chain(&self.rows)
    }

    /// Columns that hold nothing in any row are left out.
    fn columns(&self) -> Vec<(usize, usize)> {
        let used = |at: &usize| self.rows.is_empty() || self.rows.iter().any(|row| !row[*at].is_empty());
        let width = |at: usize| self.lines().map(|row| row[at].chars().count()).max().unwrap_or(0);
        (0..self.head.len()).filter(used).map(|at| (at, width(at))).collect()
    }

    /// Aligned to the right, but for the last column.
    pub fn plain(&self) -> String {
        let columns = self.columns();
        let mut out = String::new();
        for row in self.lines() {
            let mut line = String::new();
            for (place, (at, width)) in columns.iter().enumerate() {
                let cell = &row[*at];
                line += if place == 0 { "" } else { "   " };
                line += &if place + 1 == columns.len() { cell.clone() } else { format!("{cell:>width$}") };
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }

    pub fn markdown(&self) -> String {
        let columns = self.columns();
        let line = |row: &[String]| {
            let cells: Vec<String> =
                columns.iter().map(|(at, _)| row[*at].replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|{}\n", "---|".repeat(columns.len()));
        line(&self.head) + &rule + &self.rows.iter().map(|row| line(row)).collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_go() {
        let mut table = Table::new(["limit", "rate", "kills", "note"]);
        table.row(vec!["135 MiB".to_owned(), "1,234".to_owned()]);
        table.row(vec!["24 MiB".to_owned(), "9".to_owned(), String::new(), "a | b".to_owned()]);
        assert_eq!(table.plain(), "  limit    rate   note\n135 MiB   1,234\n 24 MiB       9   a | b\n");
        let wanted = "| limit | rate | note |\n|---|---|---|\n| 135 MiB | 1,234 |  |\n| 24 MiB | 9 | a \\| b |\n";
        assert_eq!(table.markdown(), wanted);
    }
}
