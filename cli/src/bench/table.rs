//! Tables and the numbers in them.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

/// A Markdown table; columns of names are on the left, numbers on the right.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header.iter().copied());
    for (column, name) in table.column_iter_mut().zip(header) {
        if !matches!(*name, "precision" | "test" | "dispatch" | "text") {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Three significant digits, or all before the point.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        x if x < 0.995 => 3,
        x if x < 9.995 => 2,
        x if x < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown: Vec<_> =
            [0.0, 0.0123, 0.9949, 0.996, 9.994, 9.996, 99.94, 99.96, 12345.6].map(number).into();
        assert_eq!(shown, ["0", "0.012", "0.995", "1.00", "9.99", "10.0", "99.9", "100", "12346"]);
    }
}
