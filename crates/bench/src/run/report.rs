//! The figures as rows: printed as a table, written as JSON, and checked against their bounds.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// How the figures of a row are compared, and the bound on the result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// The product's figure divided by the baseline proxy's figure.
    Ratio(f64),
    /// Product divided by baseline, where higher is better.
    Share(f64),
    /// Product minus baseline, in the unit of the row.
    Added(f64),
    /// The product's figure.
    Absolute(f64),
    /// For information only: product divided by baseline, without a bound.
    None,
}

/// One figure of one case.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) figure: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) floor: Option<f64>,
    pub(crate) product: f64,
    pub(crate) bound: Bound,
    pub(crate) note: String,
}

impl Row {
    /// The number that is compared with the bound.
    fn compared(&self) -> Option<f64> {
        match self.bound {
            Bound::Ratio(_) | Bound::Share(_) | Bound::None => {
                self.floor.map(|floor| self.product / floor)
            }
            Bound::Added(_) => self.floor.map(|floor| self.product - floor),
            Bound::Absolute(_) => Some(self.product),
        }
    }

    /// Returns whether the bound is kept. `None` if the row has no bound.
    pub(crate) fn kept(&self) -> Option<bool> {
        let limit = self.limit()?;
        // A figure that cannot be compared, or NaN, exceeds the bound.
        Some(self.compared().is_some_and(|compared| match self.bound {
            Bound::Share(_) => compared >= limit,
            _ => compared <= limit,
        }))
    }

    fn limit(&self) -> Option<f64> {
        match self.bound {
            Bound::Ratio(limit)
            | Bound::Share(limit)
            | Bound::Added(limit)
            | Bound::Absolute(limit) => Some(limit),
            Bound::None => None,
        }
    }

    /// Case, figure, baseline, product, the compared number, its bound, the verdict, and the note.
    pub(crate) fn cells(&self) -> [String; 8] {
        let shown = |n: f64| match self.bound {
            Bound::Ratio(_) | Bound::Share(_) | Bound::None => format!("×{}", number(n)),
            Bound::Added(_) if n < 0.0 => format!("−{} {}", number(-n), self.unit),
            Bound::Added(_) => format!("+{} {}", number(n), self.unit),
            Bound::Absolute(_) => format!("{} {}", number(n), self.unit),
        };
        let compared = self.compared().map_or_else(String::new, shown);
        let bound = self.limit().map(shown);
        let sign = match self.bound {
            Bound::Share(_) => '≥',
            _ => '≤',
        };
        let bound = bound.map_or_else(String::new, |bound| format!("{sign} {bound}"));
        [
            self.case.to_owned(),
            format!("{} [{}]", self.figure, self.unit),
            self.floor.map_or_else(String::new, number),
            number(self.product),
            compared,
            bound,
            match self.kept() {
                Some(true) => "ok",
                Some(false) => "OVER",
                None => "",
            }
            .to_owned(),
            self.note.clone(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "case": self.case,
            "figure": self.figure,
            "unit": self.unit,
            "floor": self.floor,
            "product": self.product,
            "compared": self.compared(),
            "bound": self.limit(),
            "ok": self.kept(),
            "note": self.note,
        })
    }
}

/// The rows as a table with aligned columns.
pub(crate) fn table(rows: &[Row]) -> String {
    let head = [
        "case", "figure", "floor", "product", "compared", "bound", "", "",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut table = String::new();
    for line in &lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Figures are right-aligned, so that decimal points line up.
            let _ = match column {
                2..=5 => write!(text, "{cell:>width$}  "),
                _ => write!(text, "{cell:<width$}  "),
            };
        }
        table.push_str(text.trim_end());
        table.push('\n');
    }
    table
}

/// The rows as JSON, for comparing this run with later ones.
pub(crate) fn json(rows: &[Row], product: &str, effort: &str, checked: u64) -> Value {
    json!({
        "product": product,
        "effort": effort,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "answersChecked": checked,
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    })
}

/// The median of the figures. NaN if empty.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A figure with two or three significant digits.
pub(crate) fn number(n: f64) -> String {
    match n.abs() {
        a if a >= 100.0 => format!("{n:.0}"),
        a if a >= 10.0 => format!("{n:.1}"),
        _ => format!("{n:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bound: Bound, floor: Option<f64>, product: f64) -> Row {
        Row {
            case: "c",
            figure: "f",
            unit: "µs",
            floor,
            product,
            bound,
            note: String::new(),
        }
    }

    #[test]
    fn a_bound_is_on_what_it_says() {
        for (bound, floor, product, kept) in [
            (Bound::Ratio(1.5), Some(20.0), 30.0, Some(true)),
            (Bound::Ratio(1.5), Some(20.0), 30.1, Some(false)),
            (Bound::Ratio(1.5), None, 1.0, Some(false)),
            (Bound::Ratio(1.5), Some(0.0), 0.0, Some(false)),
            (Bound::Share(0.5), Some(20.0), 10.0, Some(true)),
            (Bound::Share(0.5), Some(20.0), 9.9, Some(false)),
            (Bound::Share(0.5), None, 9.9, Some(false)),
            (Bound::Share(0.5), Some(0.0), 0.0, Some(false)),
            (Bound::Added(150.0), Some(100.0), 250.0, Some(true)),
            (Bound::Added(150.0), Some(100.0), 251.0, Some(false)),
            (Bound::Absolute(20.0), None, 20.0, Some(true)),
            (Bound::Absolute(20.0), Some(1.0), 21.0, Some(false)),
            (Bound::None, Some(1.0), 21.0, None),
        ] {
            assert_eq!(
                row(bound, floor, product).kept(),
                kept,
                "{bound:?} {product}"
            );
        }
    }

    #[test]
    fn the_table_shows_figures_and_verdicts() {
        let rows = [
            row(Bound::Ratio(1.5), Some(20.0), 40.0),
            row(Bound::Absolute(20.0), None, 12.5),
        ];
        let table = table(&rows);
        assert!(table.contains("×2.00") && table.contains("OVER"), "{table}");
        assert!(
            table.contains("≤ 20.0 µs") && table.contains("ok"),
            "{table}"
        );
    }
}
