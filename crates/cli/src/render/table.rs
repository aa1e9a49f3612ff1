//! Columns as zpool prints them.

use crate::escape::visible;

/// A column's title and side.
#[derive(Clone, Debug)]
pub struct Column {
    title: String,
    right: bool,
}

impl Column {
    /// Text.
    #[must_use]
    pub fn left(title: &str) -> Self {
        Self { title: title.to_owned(), right: false }
    }

    /// Numbers.
    #[must_use]
    pub fn right(title: &str) -> Self {
        Self { title: title.to_owned(), right: true }
    }
}

/// Rows under titles.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: one cell for each column.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "one cell for each column");
        self.rows.push(row.iter().map(|cell| visible(cell)).collect());
    }

    /// The text. Scripted: no titles, one tab between cells.
    #[must_use]
    pub fn render(&self, scripted: bool) -> String {
        let mut text = String::new();
        if scripted {
            for row in &self.rows {
                text.push_str(&row.join("\t"));
                text.push('\n');
            }
            return text;
        }
        let titles: Vec<String> = self.columns.iter().map(|c| c.title.clone()).collect();
        let lines = || std::iter::once(&titles).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| lines().map(|line| line[at].chars().count()).max().unwrap_or(0))
            .collect();
        for line in lines() {
            let mut out = String::new();
            for ((cell, column), &width) in line.iter().zip(&self.columns).zip(&widths) {
                if !out.is_empty() {
                    out.push_str("  ");
                }
                if column.right {
                    out.push_str(&format!("{cell:>width$}"));
                } else {
                    out.push_str(&format!("{cell:<width$}"));
                }
            }
            text.push_str(out.trim_end());
            text.push('\n');
        }
        text
    }
}
